"""Submission of jobs by submitit or to Ray, in a process of its own: ``python -m harness.jobs.submission``.

The process is started for one :class:`Request` and writes the record of each job that it has submitted. It outlives the
command: a job that was submitted has a record, however the command ends. The only module that needs submitit to submit.
"""

import json
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.config.jobs import ClusterName, JobsConfig
from harness.core.errors import ConfigError, HarnessError, printable
from harness.jobs.cell_job import CellJob
from harness.jobs.clusters import start_ticks
from harness.jobs.files import JobRecord, write_record
from harness.jobs.ray_cluster import name_of, order_of, start_cells
from harness.record.environment import utc_now

VERSION = "1.5.4"
"""Of submitit, as in requirements-submitit.txt."""
MOST_IN_AN_ARRAY = 1000  # SLURM's default MaxArraySize is 1001
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Submission:
    """Jobs that are alike, one array on SLURM. ``records``: the file of each job's record."""

    name: str
    cluster: ClusterName
    settings: JobsConfig
    processors: int
    jobs: tuple[CellJob, ...]
    records: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """What the process is told. ``folder``: submitit's. ``lock``, ``reply``: file descriptors; the first line of an
    error is written to ``reply``, and ``lock`` is held while the process lives."""

    folder: str
    lock: int
    reply: int
    submissions: tuple[Submission, ...]

    def to_json(self) -> str:
        """One line."""
        groups = [
            {
                **{name: getattr(one, name) for name in ("name", "cluster", "processors", "records")},
                "settings": one.settings.model_dump(mode="json"),
                "jobs": [job.values() for job in one.jobs],
            }
            for one in self.submissions
        ]
        return json.dumps({"folder": self.folder, "lock": self.lock, "reply": self.reply, "submissions": groups})

    @classmethod
    def of_json(cls, text: str) -> "Request":
        """The inverse of :meth:`to_json`."""
        values = json.loads(text)
        values["submissions"] = tuple(
            Submission(
                name=one["name"],
                cluster=one["cluster"],
                processors=one["processors"],
                records=tuple(one["records"]),
                settings=JobsConfig.model_validate(one["settings"]),
                jobs=tuple(CellJob.of_values(job) for job in one["jobs"]),
            )
            for one in values["submissions"]
        )
        return cls(**values)


def require_submitit() -> None:
    """Raise ConfigError if submitit is not installed."""
    if find_spec("submitit") is None:
        raise ConfigError(
            "--launcher submitit: expected the package submitit, which is missing; "
            "pip install -r requirements-submitit.txt"
        )


def sbatch_text(folder: Path, submission: Submission) -> str:
    """The script that is given to sbatch for ``submission``, whether or not there is a sbatch on this machine.

    Raises ConfigError for another version of submitit than the pinned one: only a private function of it has the text.
    """
    import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    if submitit.__version__ != VERSION:
        raise ConfigError(
            f"--print-script: expected submitit {VERSION}, got {submitit.__version__}; "
            "pip install -r requirements-submitit.txt"
        )
    from submitit.slurm import slurm  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    count = len(submission.jobs)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    parameters = {**slurm_parameters(submission), **({"map_count": count} if count > 1 else {})}
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def slurm_parameters(submission: Submission) -> dict[str, Any]:
    """The parameters of submitit's SlurmExecutor. What is unset is left to the cluster."""
    settings = submission.settings
    memory = None if settings.memory_gb is None else f"{math.ceil(1024 * settings.memory_gb)}M"
    optional = {"partition": settings.partition, "account": settings.account, "qos": settings.qos, "mem": memory}
    return {
        **{name: value for name, value in optional.items() if value is not None},
        "job_name": re.sub(r"[^A-Za-z0-9_.-]+", "_", f"cpr-{submission.name}"),
        "time": settings.minutes,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": submission.processors,
        "srun_args": [f"--cpus-per-task={submission.processors}"],  # since SLURM 22.05 srun does not take sbatch's
        "signal_delay_s": settings.signal_delay_s,
        "array_parallelism": settings.max_parallel or MOST_IN_AN_ARRAY,
        "additional_parameters": {"requeue": True},
        "wckey": None,
        "stderr_to_stdout": True,
        "setup": [f"export PYTHONPATH={shlex.quote(str(_ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"],
    }


def main() -> None:
    """Read the request from standard input, and submit."""
    _handle_all_signals()
    request = Request.of_json(sys.stdin.readline())
    for file in (request.lock, request.reply):
        os.set_inheritable(file, False)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    try:
        for submission in request.submissions:
            SUBMIT[submission.cluster](Path(request.folder), submission)
    except (HarnessError, RuntimeError, ValueError, OSError) as error:
        os.write(request.reply, printable((str(error).strip().splitlines() or [type(error).__name__])[0]).encode())
        raise SystemExit(2) from error


def _handle_all_signals() -> None:
    """Ignore and block no signal that ends a job, whatever this process was started to ignore: jobs inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _submit_to_slurm(folder: Path, submission: Submission) -> None:
    import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    executor = submitit.SlurmExecutor(folder, max_num_timeout=submission.settings.max_timeouts)
    executor.update_parameters(**slurm_parameters(submission))
    _record(submission, executor.submit_array(submission.jobs), lambda _job: None)


def _submit_locally(folder: Path, submission: Submission) -> None:
    import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    settings = submission.settings
    executor = submitit.LocalExecutor(folder, max_num_timeout=settings.max_timeouts)
    executor.update_parameters(
        timeout_min=settings.minutes, signal_delay_s=settings.signal_delay_s, stderr_to_stdout=True
    )
    _record(submission, executor.submit_array(submission.jobs), start_ticks)


def _submit_and_wait(folder: Path, submission: Submission) -> None:
    import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    jobs = submitit.DebugExecutor(folder).submit_array(submission.jobs)
    _record(submission, jobs, lambda _job: None)
    for job in jobs:
        job.exception()  # runs it; its result is in the cell's folder


def _start_by_ray(_folder: Path, submission: Submission) -> None:
    settings, now = submission.settings, utc_now().isoformat(timespec="seconds")
    records = [Path(path) for path in submission.records]
    pairs = zip(submission.jobs, records, strict=True)
    start_cells(settings.ray_address, [order_of(job, path, settings, submission.processors) for job, path in pairs])
    for path in records:
        write_record(path, JobRecord(submission.cluster, name_of(path), now, address=settings.ray_address))


def _record(submission: Submission, jobs: Sequence[Any], ticks: Callable[[str], int | None]) -> None:
    now = utc_now().isoformat(timespec="seconds")
    for job, path in zip(jobs, submission.records, strict=True):
        record = JobRecord(submission.cluster, job.job_id, now, ticks(job.job_id))
        write_record(Path(path), record)


SUBMIT: Mapping[ClusterName, Callable[[Path, Submission], None]] = {
    "slurm": _submit_to_slurm,
    "local": _submit_locally,
    "debug": _submit_and_wait,
    "ray": _start_by_ray,
}

if __name__ == "__main__":
    main()
