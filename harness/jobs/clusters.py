"""Where jobs run: which of them live, and what ends them. How they are submitted is in harness.jobs.submission."""

import getpass
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from harness.config.jobs import ClusterName, JobsConfig
from harness.core.errors import ConfigError
from harness.jobs.files import JobRecord
from harness.jobs.ray_cluster import Ray

_ANSWER_S = 60.0  # of squeue


class Cluster(Protocol):
    """One kind of cluster. All about a job is in its record."""

    settle_s: float
    """Seconds after the end of a job within which its last files appear here."""
    longest_poll_s: float
    """Seconds between two looks at the jobs, at most."""
    is_detached: bool
    """Whether jobs outlive the process that submits them."""

    def check(self, settings: JobsConfig) -> None:
        """Raise ConfigError if jobs cannot be submitted from this machine."""
        ...

    def alive(self, jobs: Collection[JobRecord]) -> Collection[JobRecord] | None:
        """Those of ``jobs`` that wait or run; None if that cannot be found out now."""
        ...

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        """How many jobs of so many processors the command keeps alive at once; None: the cluster sees to it."""
        ...

    def ending(self, jobs: Sequence[JobRecord]) -> str:
        """The shell command that ends ``jobs`` for good."""
        ...

    def close(self) -> None:
        """End what this process needs to ask about jobs; they are not touched."""
        ...


class Slurm:
    """Jobs of SLURM, as ``squeue`` lists them."""

    settle_s = 20.0
    longest_poll_s = 15.0
    is_detached = True

    def check(self, settings: JobsConfig) -> None:
        """See Cluster.check."""
        missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name) is None]
        if missing:
            raise ConfigError(
                f"jobs.cluster: slurm: expected the command {missing[0]} on this machine, got none; submit from a "
                "machine of the cluster, or try jobs.cluster=local"
            )

    def alive(self, jobs: Collection[JobRecord]) -> Collection[JobRecord] | None:
        """See Cluster.alive. All jobs of the user are asked for: about an unknown one squeue would complain."""
        command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i"]
        try:
            listed = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        names = set(listed.split())
        return [job for job in jobs if job.job in names]

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        """See Cluster.room: the job array has the limit."""
        return None

    def ending(self, jobs: Sequence[JobRecord]) -> str:
        """See Cluster.ending."""
        return f"scancel {' '.join(job.job for job in jobs)}"

    def close(self) -> None:
        """See Cluster.close."""


class Local:
    """Processes of this machine: the job is the process of submitit's controller, known by its start time."""

    settle_s = 0.0
    longest_poll_s = 0.5
    is_detached = True

    def check(self, settings: JobsConfig) -> None:
        """See Cluster.check."""

    def alive(self, jobs: Collection[JobRecord]) -> Collection[JobRecord] | None:
        """See Cluster.alive."""
        return [job for job in jobs if job.ticks is not None and start_ticks(job.job) == job.ticks]

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        """See Cluster.room."""
        return settings.max_parallel or max(1, len(os.sched_getaffinity(0)) // processors)

    def ending(self, jobs: Sequence[JobRecord]) -> str:
        """See Cluster.ending. SIGINT: to submitit, SIGTERM is a job that goes on elsewhere."""
        return f"kill -INT {' '.join(job.job for job in jobs)}"

    def close(self) -> None:
        """See Cluster.close."""


class Debug(Local):
    """One job after another, each waited for by who submits it."""

    is_detached = False

    def alive(self, jobs: Collection[JobRecord]) -> Collection[JobRecord] | None:
        """None of them: a job has ended when it is known."""
        return []

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        """See Cluster.room."""
        return 1


CLUSTERS: dict[ClusterName, Cluster] = {"slurm": Slurm(), "local": Local(), "debug": Debug(), "ray": Ray()}


def start_ticks(pid: str) -> int | None:
    """When process ``pid`` began, in clock ticks since the start of the machine; None if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
