"""Everything that a trainer does outside its own process, but for its requests to PS ranks."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from harness.core.faults import Struck
from harness.core.plans import Rank
from harness.core.trainers import ALONE, TrainerGroup
from harness.store import FileRecord, Manifest, ResumePoint, in_background

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Succession:
    """The state from which new trainers go on after all were killed by plan; nothing of their memory.

    ``lost``: ranks that died, and how. ``struck``: what the trace says of the failure.
    """

    state: Any
    lost: Mapping[Rank, str]
    struck: Struck


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """The facts about resume points with which a trainer starts.

    ``root``: their folder. ``next_number``: of the next one. ``point``: the one that the run goes on from; None: it
    starts. ``succession``: what it goes on from instead.
    """

    root: Path
    next_number: int
    point: ResumePoint | None
    succession: Succession | None = None


class LateWrite(Future[FileRecord]):
    """A file that another trainer writes: written here when its record is asked for, as that trainer has died.

    ``record``: of the file, if it is on disk.
    """

    def __init__(self, write: Callable[[], FileRecord] | None, record: FileRecord | None = None) -> None:
        super().__init__()
        self._write, self._record = write, record
        self.set_running_or_notify_cancel()
        self.set_result(cast(FileRecord, None))

    def result(self, timeout: float | None = None) -> FileRecord:
        """Write it, unless that has been done."""
        if self._record is None:
            assert self._write is not None, "a file that is not there can be written"
            self._record = self._write()
        return self._record


class Channel(Protocol):
    """The trainer's connection with the supervisor; one class for each engine."""

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the supervisor and wait for its result. Raises the HarnessError that it raises."""
        ...

    def tell(self, name: str, **values: Any) -> None:
        """Have a method of the supervisor called, after all calls before; do not wait."""
        ...

    def advanced(self, step: int) -> None:
        """Something was finished, after ``step`` finished steps. Sends nothing by itself."""

    def is_stopping(self) -> bool:
        """Whether the supervisor has said that the run is to stop. Does not wait."""
        ...

    def take_spares(self) -> bool:
        """Whether the supervisor has said, since the last call, that all spares are connected. Does not wait."""
        return False


class Effects:
    """The effects of a trainer outside its own process: calls of the supervisor, files, notices, its clock.

    A call of the supervisor is a method of :class:`harness.cluster.supervisor.Supervisor` and one here.

    Attributes:
        channel: reaches the supervisor.
        clock: seconds, monotonic; for the ``machine`` part of events, and for when a resume point is written.
        group: the trainers of the run, one of which acts for all.
    """

    def __init__(
        self, channel: Channel, clock: Callable[[], float] = time.monotonic, group: TrainerGroup = ALONE
    ) -> None:
        self.channel = channel
        self.clock = clock
        self.group = group

    def once(self, action: Callable[[], T]) -> T:
        """The result of ``action``, which has an effect outside this process, or depends on one.

        All that is done here passes through it or through ``group.noticed``, but for the begin of a write beside
        training steps. Of several trainers one acts, and the others have its result or its error.
        """
        return self.group.once(action)

    def _call(self, name: str, *args: Any) -> Any:
        return self.once(lambda: self.channel.call(name, *args))

    def _tell(self, name: str, **values: Any) -> None:
        self.once(lambda: self.channel.tell(name, **values))

    def record(self, event: Any) -> None:
        """Append an event to the record, in the order of calls."""
        self._tell("record", event=event)

    def status(self, **values: Any) -> None:
        """Report the progress of the run: fields of ``RunStatus``."""
        self._tell("status", **values)

    def advanced(self, step: int) -> None:
        """A step, or a batch of an evaluation, was finished by this trainer; ``step`` steps so far."""
        self.channel.advanced(step)

    def begin_write(self, write: Callable[[], FileRecord]) -> Future[FileRecord]:
        """Write a file of the trainer beside training steps. Its record is to be taken by :meth:`once`."""
        return in_background("save", write) if self.group.acts else LateWrite(write)

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint by writing its manifest. Raises StoreError; the previous checkpoint then stays valid."""
        self._call("commit", manifest)

    def resumption(self) -> Resumption:
        """Where resume points are, and the one to go on from."""
        return self._call("resumption")

    def commit_point(self, number: int, step: int, checkpoint: int | None, files: Mapping[Rank, FileRecord]) -> None:
        """Commit a :class:`harness.store.ResumePoint`, whose files are on disk, as of the events recorded so far.

        Raises StoreError; the point before then stays.
        """
        self._call("commit_point", number, step, checkpoint, files)

    def inject(
        self,
        step: int,
        samples: int,
        numbers: Sequence[int],
        seconds: Mapping[Rank, float] | None = None,
        state: Any = None,
    ) -> Struck:
        """Have planned faults of one phase, given by their numbers, carried out as one, and recorded.

        Which ranks they strike is not returned. ``seconds``: of writes that failed, which the ranks carried out
        themselves, how long they took, by rank. ``state``: what new trainers go on from, if all die of it (Succession).
        Raises RunFailed for a fault that damages a file where there is none.
        """
        return self._call("inject", step, samples, tuple(numbers), seconds, state)

    def end_fault(self, number: int) -> None:
        """End the lasting fault of that number."""
        self._call("end_fault", number)

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """Have ``lost`` (rank to the transport's error text) replaced. ``seconds``: from request to failure."""
        self._call("replace", dict(lost), step, samples, seconds)

    def is_stopping(self) -> bool:
        """Whether the run is asked to stop. Does not wait for the supervisor."""
        return self.group.noticed("is_stopping", self.channel.is_stopping)

    def take_spares(self) -> bool:
        """Whether all missing spares have been connected since the last call. Does not wait for the supervisor."""
        return self.group.noticed("spares", self.channel.take_spares)

    def has_passed(self, seconds: float, since_s: float) -> bool:
        """Whether ``seconds`` have passed since the clock read ``since_s``."""
        return self.group.noticed("time", lambda: self.clock() - since_s >= seconds)
