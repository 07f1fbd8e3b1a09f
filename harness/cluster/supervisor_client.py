"""The trainer's calls of the supervisor, and what the two tell each other of resume points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.core.faults import Struck
from harness.core.plans import Rank
from harness.store import FileRecord, Manifest, ResumePoint


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What a trainer is told of resume points when it starts.

    ``root``: their folder. ``next_number``: of the next one. ``point``: the one that the run goes on from; None: it
    starts.
    """

    root: Path
    next_number: int
    point: ResumePoint | None


@dataclass(frozen=True, kw_only=True)
class WrittenPoint:
    """A resume point whose files are on disk: see :class:`harness.store.ResumePoint`."""

    number: int
    step: int
    checkpoint: int | None
    files: Mapping[Rank, FileRecord]


class Reporter(Protocol):
    """What a trainer tells the supervisor, and waits for no answer."""

    def record(self, event: Any) -> None:
        """Append an event to the record."""
        ...

    def status(self, **values: Any) -> None:
        """Report the progress of the run: fields of ``RunStatus``."""
        ...

    def advanced(self, step: int) -> None:
        """A step, or a batch of an evaluation, was finished; ``step`` steps so far. Sends nothing by itself."""
        ...


class SupervisorClient(Reporter, Protocol):
    """The trainer's calls of the supervisor, which owns the trace, the record, the manifests and the resume points."""

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint by writing its manifest. Raises StoreError; the previous checkpoint then stays valid."""
        ...

    def inject(
        self, step: int, samples: int, numbers: Sequence[int], seconds: Mapping[Rank, float] | None = None
    ) -> Struck:
        """Have planned faults of one phase, given by their numbers, carried out as one, and recorded.

        Which ranks they strike is not returned. ``seconds``: of writes that failed, which the ranks carried out
        themselves, how long they took, by rank. Raises RunFailed for a fault that damages a file where there is none.
        """
        ...

    def end_fault(self, number: int) -> None:
        """End the lasting fault of that number."""
        ...

    def resumption(self) -> Resumption:
        """Where resume points are, and the one to go on from."""
        ...

    def commit_point(self, written: WrittenPoint) -> None:
        """Commit a resume point as of the events recorded so far. Raises StoreError; the point before then stays."""
        ...

    def is_stopping(self) -> bool:
        """Whether the run is asked to stop. Does not wait for the supervisor."""
        ...
