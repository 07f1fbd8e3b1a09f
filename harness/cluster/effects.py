"""The effects of a trainer outside its own process, except its requests to PS ranks."""

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
    """The state from which new trainers start after a planned fault has killed all former trainers.

    ``state``: the state of a trainer's objects, without caches, mirror and dense network. ``lost``: how each dead rank
    died, in words. ``struck``: the facts of the failure that its charge depends on.
    """

    state: Any
    lost: Mapping[Rank, str]
    struck: Struck


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What a starting trainer gets: the state that it continues from, if any, and where resume points are written.

    ``root``: the folder of the resume points. ``next_number``: the number of the next point to write. The trainer
    continues from ``point`` or from ``succession``; at the start of a run both are None.
    """

    root: Path
    next_number: int
    point: ResumePoint | None
    succession: Succession | None = None


class LateWrite(Future[FileRecord]):
    """The file of a save that another trainer writes, as seen by a trainer that may have to write it instead.

    :meth:`result` is called only after that trainer has died. ``record``: of the file, if it is on disk already.
    """

    def __init__(self, write: Callable[[], FileRecord] | None, record: FileRecord | None = None) -> None:
        super().__init__()
        self._write, self._record = write, record
        self.set_running_or_notify_cancel()
        self.set_result(cast(FileRecord, None))

    def result(self, timeout: float | None = None) -> FileRecord:
        """Write the file unless it is on disk, and return its record."""
        if self._record is None:
            assert self._write is not None, "a file that is not there can be written"
            self._record = self._write()
        return self._record


class Channel(Protocol):
    """The interface of a trainer's connection with the supervisor; one class for each engine."""

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the supervisor and wait for its result. Raises the HarnessError that it raises."""
        ...

    def tell(self, name: str, **values: Any) -> None:
        """Send a call of a method of the supervisor, to be carried out after all calls before; do not wait."""
        ...

    def advanced(self, step: int) -> None:
        """Count a finished step or batch; ``step`` steps are finished. Sends nothing: the next heartbeat reports it."""

    def is_stopping(self) -> bool:
        """Whether the supervisor has said that the run is to stop. Does not wait."""
        ...

    def take_spares(self) -> bool:
        """Whether the supervisor has said, since the last call, that all spares are connected. Does not wait."""
        return False


class Effects:
    """The effects of a trainer outside its own process: calls of the supervisor, files, notices, its clock.

    A call of the supervisor is a method here and one of :class:`harness.cluster.supervisor.Supervisor`.

    Attributes:
        channel: the connection with the supervisor.
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
        """Carry out ``action`` in one trainer, and return its result, or raise its HarnessError, in all trainers.

        To be used for every action with an effect outside this process or a result from there. Methods without it use
        ``group.late_answer``, or change nothing outside: :meth:`advanced`, :meth:`begin_write`.
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
        """Count one finished step, or batch of an evaluation, of this trainer; ``step`` steps are finished."""
        self.channel.advanced(step)

    def begin_write(self, write: Callable[[], FileRecord]) -> Future[FileRecord]:
        """Begin to write a file of the trainer in the background. The caller waits for its record in :meth:`once`."""
        return in_background("save", write) if self.group.acts else LateWrite(write)

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint by writing its manifest. Raises StoreError; the previous checkpoint then stays valid."""
        self._call("commit", manifest)

    def resumption(self) -> Resumption:
        """The facts about resume points with which this trainer starts."""
        return self._call("resumption")

    def commit_point(self, number: int, step: int, checkpoint: int | None, files: Mapping[Rank, FileRecord]) -> None:
        """Commit a :class:`harness.store.ResumePoint`, whose files are on disk, as of the events recorded so far.

        Raises StoreError; the previous point then stays valid.
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
        """Have planned faults of one phase carried out, as one failure, and recorded. ``numbers``: of the faults.

        The ranks that they strike are not returned. ``seconds``: how long writes took that failed, by rank, if the
        ranks have carried out the fault themselves. ``state``: for :class:`Succession`, if the fault kills all
        trainers. Raises RunFailed for a fault that damages a file where there is none.
        """
        return self._call("inject", step, samples, tuple(numbers), seconds, state)

    def end_fault(self, number: int) -> None:
        """End the lasting fault with this number."""
        self._call("end_fault", number)

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """Have the ranks ``lost`` (rank to the transport's error) replaced. ``seconds``: from request to failure."""
        self._call("replace", dict(lost), step, samples, seconds)

    def is_stopping(self) -> bool:
        """Whether the run is asked to stop. Does not wait for the supervisor."""
        return self.group.late_answer("is_stopping", self.channel.is_stopping)

    def take_spares(self) -> bool:
        """Whether all missing spares have been connected since the last call. Does not wait for the supervisor."""
        return self.group.late_answer("spares", self.channel.take_spares)

    def has_passed(self, seconds: float, since_s: float) -> bool:
        """Whether ``seconds`` have passed since the clock read ``since_s``; answered late (``group.late_answer``)."""
        return self.group.late_answer("time", lambda: self.clock() - since_s >= seconds)
