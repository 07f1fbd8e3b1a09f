"""The trainer's end of the channel to the supervisor."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.core.faults import Injection
from harness.core.plans import Rank
from harness.store import FileRecord, Manifest, ResumePoint


@dataclass(frozen=True, kw_only=True)
class Succession:
    """The state from which a new trainer starts after a planned fault has killed the former one.

    ``state``: the result of :meth:`harness.run.resume_points.ResumePoints.hand_over`. ``injection``: the facts of the
    failure that its charge depends on.
    """

    state: bytes
    injection: Injection


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What a starting trainer gets: the state that it continues from, if any, and where it writes.

    ``root``: the folder of the resume points. ``next_number``: the number of the next point to write. ``model``: the
    folder of the final model; None: it is not kept.

    The trainer continues from ``succession`` or, if that is None, from ``point``. Both are None at the start of a run.
    """

    root: Path
    next_number: int
    point: ResumePoint | None
    model: Path | None = None
    succession: Succession | None = None


class Channel(Protocol):
    """The interface of a trainer's connection with the supervisor; one class for each engine."""

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the supervisor and wait for its result. Raises the HarnessError that the method raises."""
        ...

    def tell(self, name: str, **values: Any) -> None:
        """Have the supervisor call one of its methods, after all earlier calls. There is no result to wait for."""
        ...

    def advanced(self, step: int) -> None:
        """Count a finished step, or batch of an evaluation, for the next heartbeat. ``step``: steps finished so far."""

    def is_stopping(self) -> bool:
        """Whether the supervisor has said that the run is to stop. Does not wait."""
        ...


class SupervisorClient:
    """What a trainer tells and asks the supervisor, and the trainer's clock.

    Each call of the supervisor is a method here and a method of the same name of
    :class:`harness.cluster.supervisor.Supervisor`.

    Attributes:
        channel: the connection with the supervisor.
        clock: seconds, monotonic; for the ``machine`` part of events, and for when a resume point is written.
    """

    def __init__(self, channel: Channel, clock: Callable[[], float] = time.monotonic) -> None:
        self.channel = channel
        self.clock = clock

    def record(self, event: Any) -> None:
        """Append an event to the record. Events stand there in the order of these calls."""
        self.channel.tell("record", event=event)

    def status(self, **values: Any) -> None:
        """Report the progress of the run: fields of ``RunStatus``."""
        self.channel.tell("status", **values)

    def advanced(self, step: int) -> None:
        """Count one finished step, or batch of an evaluation; see :meth:`Channel.advanced`."""
        self.channel.advanced(step)

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint by writing its manifest. Raises StoreError; the previous checkpoint then stays valid."""
        self.channel.call("commit", manifest)

    def resumption(self) -> Resumption:
        """The state that this trainer continues from, if any, and where resume points are written."""
        return self.channel.call("resumption")

    def commit_point(self, number: int, step: int, checkpoint: int | None, files: Mapping[Rank, FileRecord]) -> None:
        """Commit a :class:`harness.store.ResumePoint`, whose files are on disk, as of the events recorded so far.

        ``checkpoint``: the number of the newest checkpoint, which the store then keeps for the point; None if there is
        none. Raises StoreError; the previous point then stays valid.
        """
        self.channel.call("commit_point", number, step, checkpoint, files)

    def inject(
        self,
        step: int,
        samples: int,
        numbers: Sequence[int],
        seconds: Mapping[Rank, float] | None = None,
        state: bytes | None = None,
    ) -> Injection:
        """Have planned faults of one phase carried out, as one failure, and recorded.

        The result does not tell which ranks were struck: the trainer detects their deaths by itself.

        Args:
            numbers: of the faults, among all planned ones.
            seconds: by rank, how long its failed write took, if the faults are write failures, which the ranks carry
                out themselves.
            state: the ``state`` of a :class:`Succession`, if the faults kill this trainer.

        Raises RunFailed if a fault could not be carried out, or is to damage a file where there is none.
        """
        return self.channel.call("inject", step, samples, tuple(numbers), seconds, state)

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """Have dead ranks replaced, and their loss recorded. ``seconds``: from the request to its failure.

        ``lost``: by dead rank, the transport's error text. Raises RunFailed if a process could not be started or ended.
        """
        self.channel.call("replace", dict(lost), step, samples, seconds)

    def is_stopping(self) -> bool:
        """Whether the run is asked to stop. Does not wait for the supervisor."""
        return self.channel.is_stopping()
