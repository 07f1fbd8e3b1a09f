"""The keys ``jobs.*``: resources requested for the jobs of a grid with ``--scheduler submitit`` or ``ray``."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from harness.config.words import STRICT

ClusterName = Literal["slurm", "local", "debug"]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+=-]*$")]
_Count = Annotated[int, Field(ge=1)]

MIN_SIGNAL_DELAY_S = 15


class JobsConfig(BaseModel):
    """The resources and limits of the job of one cell. No key changes a result."""

    model_config = STRICT

    cluster: ClusterName = "slurm"
    """Of submitit. `local`: jobs are processes of this machine that outlive the command; `debug`: one after another,
    waited for."""
    partition: _Word | None = None
    account: _Word | None = None
    qos: _Word | None = None
    minutes: _Count = 60
    """Limit of a job. A cell that takes longer is requeued, and goes on from its resume point."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory of a job; null: what the cluster gives. Ray reserves it, and limits nothing."""
    processors: _Count | None = None
    """Processors of a job; null: the trainer's threads, and on `rpc` one more for each PS rank and spare."""
    signal_delay_s: Annotated[int, Field(ge=MIN_SIGNAL_DELAY_S)] = 90
    """Seconds before its limit at which a job of submitit begins to write its resume point."""
    max_parallel: _Count | None = None
    """Jobs at once, of each job array on `slurm`. null: on `slurm` and on Ray as many as they start, on `local` as many
    as this machine has processors for."""
    max_timeouts: Annotated[int, Field(ge=0)] = 20
    """How often a job that has reached its limit is requeued; a cell on Ray whose node or worker is lost."""
    ray_address: _Word = "auto"
    """Launcher `ray`: address of the Ray to connect to; `auto`: the one whose node this machine is."""

    @model_validator(mode="after")
    def _check_delay(self) -> "JobsConfig":
        if self.signal_delay_s >= 60 * self.minutes:
            raise ValueError(
                f"signal_delay_s: expected less than the {60 * self.minutes} s of jobs.minutes={self.minutes}, "
                f"got {self.signal_delay_s}"
            )
        return self
