"""The job arrays submitted for cells: jobs with equal settings and processors, as one array with a name.

The files of a grid's jobs are in its folder ``jobs``. The result of a job is in the cell's folder only.

    CELL.yaml      configuration of a cell, which its job trains
    CELL.log       output of the run
    ARRAY.cells    names of the cells' folders of an array, one a line, in order (SLURM only)
    ARRAY-N.out    what job N of an array printed besides (SLURM only)
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path

from harness.config.experiment import Cell
from harness.config.model import Config, JobsConfig
from harness.config.yaml_file import to_yaml
from harness.core.errors import StoreError
from harness.files import make_folder, read_file, store_errors, write_text
from harness.grid.process import Outcome
from harness.grid.runner import GridView
from harness.model.backends import choose_backend
from harness.record.event_log import EventLog, newest_events
from harness.record.rundir import RunDir
from harness.run.assemble import RunStatus, starts_processes
from harness.run.spec import with_backend


class JobFiles:
    """The files of the job of a cell. ``run_dir``: the cell's folder."""

    def __init__(self, run_dir: Path) -> None:
        folder = folder_of(run_dir.parent)
        self.config = folder / f"{run_dir.name}.yaml"
        self.log = folder / f"{run_dir.name}.log"


def folder_of(out: Path) -> Path:
    """The folder ``jobs`` of the grid in ``out``, as an absolute path without links."""
    return out.resolve() / "jobs"


@dataclass(frozen=True)
class JobArray:
    """Jobs with equal settings, and the cells that they train.

    ``name``: the name of all its jobs, with the grid's name and a hash of the grid's folder and the cells. No cell has
    two living jobs, so the name of a living job and its index in the array identify the cell.
    """

    name: str
    folder: Path
    settings: JobsConfig
    processors: int
    cells: tuple[Cell, ...]


def arrays(name: str, cells: Sequence[Cell], most: int) -> Iterator[JobArray]:
    """The job arrays for ``cells`` of one grid: one for each pair of settings and processors, of at most ``most`` jobs.

    Nothing is written.
    """
    for _, alike in groupby(sorted(cells, key=_alike), key=_alike):
        group = [*alike]
        for start in range(0, len(group), most):
            part = tuple(group[start : start + most])
            config, folder = part[0].config, folder_of(part[0].run_dir.parent)
            digest = blake2b("\n".join([str(folder), *(cell.run_dir.name for cell in part)]).encode(), digest_size=4)
            full_name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"cpr-{name}-{digest.hexdigest()}")
            yield JobArray(full_name, folder, config.jobs, processors_of(config), part)


def write_config(cell: Cell) -> None:
    """Write the configuration file for a cell's job, and remove log and error.txt of an earlier job.

    The file names the backend chosen on this machine, so that the run has the cell's hash on every machine. Raises
    StoreError if a file cannot be written or removed.
    """
    files = JobFiles(cell.run_dir)
    make_folder(files.config.parent)
    for path in (files.log, RunDir(cell.run_dir).error):
        with store_errors(path, "written"):
            path.unlink(missing_ok=True)
    config = with_backend(cell.config, choose_backend(cell.config.trainer, cell.config.model.name))
    config = config.model_copy(update={"out": str(cell.run_dir)})
    write_text(files.config, to_yaml(config.model_dump(mode="json")))


def processors_of(config: Config) -> int:
    """The processors of a cell's job: ``jobs.processors``, else one for each thread and process.

    These are the threads of each trainer, the PS ranks and the spares; only the threads if the run starts no processes.
    """
    if config.jobs.processors is not None:
        return config.jobs.processors
    if not starts_processes(config):
        return config.trainer.num_threads
    cluster = config.cluster
    num_beside = config.num_ps + cluster.spares
    return cluster.num_trainers * config.trainer.num_threads + num_beside


def _alike(cell: Cell) -> tuple[str, int]:
    settings = json.dumps(cell.config.jobs.model_dump(mode="json"), sort_keys=True)
    return settings, processors_of(cell.config)


# --- progress and outcome of a cell, by its folder and its job's log ---------------------------------------------


def show_progress(cells: Iterable[Cell], view: GridView) -> None:
    """Pass the status of each cell that has events to ``view``."""
    for cell in cells:
        if (status := progress_of(cell.run_dir)) is not None:
            view.status(cell, status)


def done_outcome(cell: Cell, seconds: float) -> Outcome:
    """The outcome of a cell that is done: ``damaged`` if its record cannot be read or lacks the result.

    ``seconds``: its duration, unless its record has one.
    """
    run, damage = RunDir(cell.run_dir), ""
    try:
        finished = EventLog.of(run).finished
    except StoreError as error:
        finished, damage = None, str(error)
    if finished is None:
        error = damage or f"{run.events}: expected the finish event of a run that is done, got none"
        return Outcome(cell=cell, status="damaged", seconds=seconds, error=error)
    return Outcome(cell=cell, status="done", seconds=finished.machine.get("seconds", seconds), finished=finished)


def reason_of(cell: Cell) -> str:
    """Why a cell ended before it was done, in one line: from error.txt, else the last line of its log."""
    log, lines = JobFiles(cell.run_dir).log, list[str]()
    with suppress(StoreError):
        lines = read_file(log)[-4096:].decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it has printed nothing")
    return f"{RunDir(cell.run_dir).reason() or last} (see {log})"


def progress_of(run_dir: Path) -> RunStatus | None:
    """The status of a run by its newest events, for display; None before the first event.

    Its phase is always "train", and its generation 0.
    """
    events = newest_events(RunDir(run_dir).events)
    if not events:
        return None
    loss = next((event["losses"][-1] for event in reversed(events) if event.get("losses")), None)
    step, num_steps = events[-1].get("step", 0), events[0].get("num_steps", 0)
    return RunStatus(step=step, num_steps=num_steps, loss=loss, phase="train")
