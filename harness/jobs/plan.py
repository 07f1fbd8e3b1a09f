"""What is submitted for cells: their configurations as files, the command of each job, and jobs that are alike."""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from harness.config.experiment import Cell
from harness.config.jobs import ClusterName, JobsConfig
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.jobs.cell_job import CellJob
from harness.jobs.files import JobFiles
from harness.jobs.submission import MOST_IN_AN_ARRAY, Submission
from harness.model.backends import choose_backend
from harness.record.files import write_text
from harness.run.assemble import starts_processes
from harness.run.spec import with_backend

_PROGRAM = Path(__file__).resolve().parents[2] / "run.py"
_MARGIN_S = 10.0  # of `jobs.signal_delay_s`, for the job itself


def processors_of(config: Config) -> int:
    """The processors of a cell's job: one for each thread of a trainer and each process of a rank beside them."""
    if config.jobs.processors is not None:
        return config.jobs.processors
    if not starts_processes(config):
        return config.trainer.num_threads
    cluster = config.cluster
    num_beside = config.num_ps + cluster.spares + cluster.spare_trainers
    return cluster.num_trainers * config.trainer.num_threads + num_beside


def submissions(name: str, cells: Sequence[Cell], cluster: ClusterName | None = None) -> Iterator[Submission]:
    """The jobs of ``cells``, those with equal settings and processors together, in order. Writes nothing.

    ``cluster``: None for the one that the key ``jobs.cluster`` names.
    """
    ordered = sorted(cells, key=_alike)
    for _, alike in groupby(ordered, key=_alike):
        group = [*alike]
        for start in range(0, len(group), MOST_IN_AN_ARRAY):
            part = group[start : start + MOST_IN_AN_ARRAY]
            config = part[0].config
            yield Submission(
                name=name,
                cluster=cluster or config.jobs.cluster,
                settings=config.jobs,
                processors=processors_of(config),
                jobs=tuple(_job(cell) for cell in part),
                records=tuple(str(JobFiles(cell.run_dir).record.absolute()) for cell in part),
            )


def write_configs(cells: Sequence[Cell]) -> None:
    """Write the configuration of each cell. The backend is that of this machine, so that a job has the cell's hash."""
    for cell in cells:
        config = with_backend(cell.config, choose_backend(cell.config.trainer))
        config = config.model_copy(update={"out": str(cell.run_dir)})
        write_text(JobFiles(cell.run_dir).config, to_yaml(config.model_dump(mode="json")))


def _alike(cell: Cell) -> tuple[str, int]:
    return _key(cell.config.jobs), processors_of(cell.config)


def _key(settings: JobsConfig) -> str:
    return json.dumps(settings.model_dump(mode="json"), sort_keys=True)


def _job(cell: Cell) -> CellJob:
    files = JobFiles(cell.run_dir)
    grace_s = max(1.0, cell.config.jobs.signal_delay_s - _MARGIN_S)
    command = (sys.executable, str(_PROGRAM), "train", str(files.config), "--grace", f"{grace_s:g}")
    return CellJob(command, folder=str(Path.cwd()), log=str(files.log.absolute()), grace_s=grace_s)
