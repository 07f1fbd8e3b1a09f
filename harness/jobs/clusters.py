"""The kinds of cluster that submitit knows: how each submits jobs, lists a grid's living jobs, and ends them."""

import getpass
import math
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from harness.config.model import ClusterName, JobsConfig
from harness.core.errors import ConfigError, UserError, printable
from harness.files import read_file, write_text
from harness.jobs.arrays import MOST, JobArray
from harness.processes.child import ROOT, output_of, search_path

VERSION = "1.5.4"
"""The version of submitit, as in requirements-submitit.txt."""
_ANSWER_S = 60.0  # of squeue


class Cluster(Protocol):
    """One kind of cluster."""

    settle_s: float
    """Longest time in seconds from the end of a job until its last files are visible here."""
    longest_poll_s: float
    """Longest time in seconds between two requests for the living jobs."""

    def check(self) -> None:
        """Raise ConfigError if jobs cannot be submitted from this machine."""

    def submit(self, array: JobArray) -> list[str]:
        """Submit the jobs of an array. Returns their ids, in order of its cells. Raises UserError, StoreError."""
        ...

    def living(self, folder: Path) -> dict[str, str] | None:
        """The ids of a grid's jobs that wait or run, by the name of the cell's folder.

        Jobs of earlier commands count too. ``folder``: the grid's folder ``jobs``. None if the scheduler gives no
        answer.
        """
        ...

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        """How many jobs may live at once, if each has ``processors`` processors; None if the scheduler limits them."""
        return None

    def ending(self, jobs: Sequence[str]) -> str:
        """The shell command, for the user, that ends ``jobs`` without a requeue; empty if none is needed."""
        ...


class Slurm(Cluster):
    """Jobs of SLURM. The name of a living job is its array's, and names the file that lists the array's cells."""

    settle_s = 20.0
    longest_poll_s = 15.0

    def check(self) -> None:
        missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name) is None]
        if missing:
            raise ConfigError(
                f"jobs.cluster: slurm: expected the command {missing[0]} on this machine, got none; submit from a "
                "machine of the cluster, or try jobs.cluster=local"
            )

    def submit(self, array: JobArray) -> list[str]:
        """See :meth:`Cluster.submit`. SIGINT is blocked, so that Ctrl-C does not end sbatch halfway."""
        import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

        write_text(_list_of(array.folder, array.name), "".join(f"{cell.run_dir.name}\n" for cell in array.cells))
        with _submission(array):
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                executor = submitit.SlurmExecutor(_submitit(array), max_num_timeout=array.settings.max_timeouts)
                executor.update_parameters(**slurm_parameters(array))
                return [job.job_id for job in executor.submit_array(array.jobs)]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise AssertionError("the block returns")

    def living(self, folder: Path) -> dict[str, str] | None:
        """See :meth:`Cluster.living`. squeue lists all jobs of the user, since it fails for an unknown job name."""
        command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i %j"]
        if (listed := output_of(command, _ANSWER_S)) is None:
            return None
        found: dict[str, str] = {}
        for job, _, name in (line.partition(" ") for line in listed.splitlines()):
            index = job.partition("_")[2] or "0"
            if name.startswith("cpr-") and index.isdigit() and (path := _list_of(folder, name.strip())).exists():
                found[read_file(path).decode().splitlines()[int(index)]] = job
        return found

    def ending(self, jobs: Sequence[str]) -> str:
        return f"scancel {' '.join(jobs)}"


class Local(Cluster):
    """Jobs as processes of submitit on this machine. A living job is found in /proc, by its command."""

    settle_s = 1.0  # a process that was started a moment ago may not have its command line yet
    longest_poll_s = 0.5

    def submit(self, array: JobArray) -> list[str]:
        executors = [_local_executor(_submitit(array) / cell.run_dir.name, array.settings) for cell in array.cells]
        with _submission(array):
            return [executor.submit(job).job_id for executor, job in zip(executors, array.jobs, strict=True)]
        raise AssertionError("the block returns")

    def living(self, folder: Path) -> dict[str, str] | None:
        found: dict[str, str] = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
            except OSError:
                continue
            if words[1:3] == _CONTROLLER and (path := Path(words[3])).parent == folder / "submitit":
                found[path.name] = process.name
        return found

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        return settings.max_parallel or max(1, len(os.sched_getaffinity(0)) // processors)

    def ending(self, jobs: Sequence[str]) -> str:
        """See :meth:`Cluster.ending`. The command sends SIGINT, since a job requeues itself on SIGTERM."""
        return f"kill -INT {' '.join(jobs)}"


class Debug(Local):
    """Jobs that this process runs, one after another, when they are submitted."""

    def submit(self, array: JobArray) -> list[str]:
        import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

        with _submission(array):
            jobs = submitit.DebugExecutor(_submitit(array)).submit_array(array.jobs)
            for job in jobs:
                job.exception()  # runs it; its result is in the cell's folder
        return [job.job_id for job in jobs]

    def living(self, folder: Path) -> dict[str, str] | None:
        return {}

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        return 1

    def ending(self, jobs: Sequence[str]) -> str:
        return ""


CLUSTERS: dict[ClusterName, Cluster] = {"slurm": Slurm(), "local": Local(), "debug": Debug()}
_CONTROLLER = ["-m", "submitit.local._local"]


def require_submitit() -> None:
    """Raise ConfigError if submitit is not installed."""
    if find_spec("submitit") is None:
        raise ConfigError(
            "--scheduler submitit: expected the package submitit, which is missing; "
            "pip install -r requirements-submitit.txt"
        )


def sbatch_text(array: JobArray) -> str:
    """The script that sbatch gets for ``array``; sbatch need not be on this machine.

    Raises ConfigError unless submitit has the pinned version, since a private function of it makes the text.
    """
    import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    if submitit.__version__ != VERSION:
        raise ConfigError(
            f"--print-script: expected submitit {VERSION}, got {submitit.__version__}; "
            "pip install -r requirements-submitit.txt"
        )
    from submitit.slurm import slurm  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    count, folder = len(array.cells), _submitit(array)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    parameters = {**slurm_parameters(array), **({"map_count": count} if count > 1 else {})}
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def slurm_parameters(array: JobArray) -> dict[str, Any]:
    """The parameters of submitit's SlurmExecutor. Keys of ``jobs`` without a value get the cluster's defaults."""
    settings = array.settings
    memory = None if settings.memory_gb is None else f"{math.ceil(1024 * settings.memory_gb)}M"
    optional = {"partition": settings.partition, "account": settings.account, "qos": settings.qos, "mem": memory}
    return {
        **{name: value for name, value in optional.items() if value is not None},
        "job_name": array.name,
        "time": settings.minutes,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": array.processors,
        "srun_args": [f"--cpus-per-task={array.processors}"],  # since SLURM 22.05 srun does not take sbatch's
        "signal_delay_s": settings.signal_delay_s,
        "array_parallelism": settings.max_parallel or MOST,
        "additional_parameters": {"requeue": True},
        "wckey": None,
        "stderr_to_stdout": True,
        "setup": [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"],
    }


def _list_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.cells"


def _submitit(array: JobArray) -> Path:
    return array.folder / "submitit"


@contextmanager
def _submission(array: JobArray) -> Generator[None, None, None]:
    """A RuntimeError, ValueError or OSError in the block becomes a UserError of one line."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        words = printable((str(error).strip().splitlines() or [type(error).__name__])[0])
        raise UserError(f"jobs of {array.folder.parent} were not submitted: {words}") from error


def _local_executor(folder: Path, settings: JobsConfig) -> Any:
    """submitit's LocalExecutor, with jobs in sessions of their own, where Ctrl-C does not reach them."""
    import submitit  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    class Executor(submitit.LocalExecutor):
        def _submit_command(self, command: str) -> Any:
            environment = {
                **os.environ,
                "PYTHONPATH": search_path(),
                "SUBMITIT_EXECUTOR": "local",
                "SUBMITIT_LOCAL_COMMAND": command,
                "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * settings.minutes),
                "SUBMITIT_LOCAL_SIGNAL_DELAY_S": str(settings.signal_delay_s),
                "SUBMITIT_LOCAL_NTASKS": "1",
                "SUBMITIT_LOCAL_NODEID": "0",
                "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
                "SUBMITIT_LOCAL_WITH_SHELL": "",
                "SUBMITIT_STDERR_TO_STDOUT": "1",
            }
            words = [sys.executable, *_CONTROLLER, str(self.folder)]
            signals = {"setsigmask": (), "setsigdef": (signal.SIGINT, signal.SIGTERM)}
            pid = os.posix_spawn(sys.executable, words, environment, setsid=True, **signals)
            return submitit.LocalJob(self.folder, str(pid))

    executor = Executor(folder, max_num_timeout=settings.max_timeouts)
    executor.update_parameters(timeout_min=settings.minutes)
    return executor
