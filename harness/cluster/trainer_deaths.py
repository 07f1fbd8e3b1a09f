"""The supervisor's part in the deaths of trainers: their deadlines, replacements, repeated calls and last exchange."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from harness.cluster.deadlines import ListeningClock
from harness.cluster.link import Connections, ExchangeOutcome
from harness.cluster.processes import REAP_S, Processes
from harness.config.model import ClusterConfig
from harness.core.errors import HarnessError, RunFailed
from harness.core.plans import Rank, is_spare_trainer, rank_order, spare_trainer_name


class TrainerWatch:
    """Finds the trainers, and the processes that wait to replace trainers, that miss a deadline.

    Args:
        trainers: names of all trainers of the run.
        progress_timeout_s: seconds within which a trainer must finish something; None: no deadline.
    """

    def __init__(
        self,
        trainers: Iterable[Rank],
        options: ClusterConfig,
        processes: Processes,
        connections: Connections,
        clock: ListeningClock,
        *,
        progress_timeout_s: float | None,
    ) -> None:
        self._join_s = options.join_timeout_s
        self._processes, self._connections, self._clock = processes, connections, clock
        self._met: set[Rank] = set()  # that have connected
        self._progress = {
            rank: TrainerProgress(clock, mute_s=options.rpc_timeout_s, idle_s=progress_timeout_s) for rank in trainers
        }

    def begins(self, trainer: Rank, *, is_connected: bool = False) -> None:
        """Record that a new process is ``trainer`` now. ``is_connected``: it is a spare that had connected before."""
        self._met = {*self._met, trainer} if is_connected else self._met - {trainer}
        self._connections.stuck.discard(trainer)
        self._progress[trainer].hear("start")

    def hear(self, trainer: Rank, kind: str, *args: Any) -> None:
        if kind == "hello":
            self._met.add(trainer)
        self._progress[trainer].hear(kind, *args)

    def silent_s(self, trainer: Rank) -> float:
        return self._clock.read() - self._progress[trainer].heard_s

    def has_ended(self, trainer: Rank) -> bool:
        """Whether the trainer's process has ended and its connection was read to the end."""
        return trainer not in self._connections and self._processes.has_ended(trainer)

    def problem(self, trainer: Rank, *, is_replacement: bool) -> str | None:
        """Why a trainer must be killed, in words: it has missed a deadline, or closed its connection. Else None.

        ``is_replacement``: it is a member of no generation yet, so its deadline for connecting is checked here. Raises
        RunFailed if its process can be watched no more.
        """
        if trainer in self._connections:
            return self._progress[trainer].problem
        if trainer in self._connections.stuck:
            return self._progress[trainer].silence  # in the middle of a message
        if trainer not in self._met:
            is_late = is_replacement and self.silent_s(trainer) > self._join_s
            return f"did not connect within {self._join_s:g} s (cluster.join_timeout_s)" if is_late else None
        self._processes[trainer].join(REAP_S)
        self._processes.launcher.check()
        return None if self.has_ended(trainer) else "closed its connection"


class TrainerProgress:
    """The deadlines of a trainer: for signs of life, and for progress.

    A heartbeat says what the trainer has finished, and whether it waits for another trainer, which suspends the
    deadline for progress. Any other message counts as progress.

    Args:
        mute_s: seconds within which it must send a message (``cluster.rpc_timeout_s``).
        idle_s: seconds within which it must finish something (``trainer.progress_timeout_s``); None: no deadline.

    Attributes:
        heard_s: time of its last message, by the clock.
        silence: the words for a trainer that sent nothing before its deadline.
    """

    def __init__(self, clock: ListeningClock, *, mute_s: float, idle_s: float | None) -> None:
        self._clock = clock
        self._mute_s, self._idle_s = mute_s, idle_s
        self.silence = f"gave no sign of life for {mute_s:g} s (cluster.rpc_timeout_s)"
        self._finished = (0, 0)  # steps, and all things
        self.heard_s = self._advanced_s = 0.0

    def hear(self, kind: str, *args: Any) -> None:
        self.heard_s = self._clock.read()
        if kind != "alive" or args != (*self._finished, False):
            self._advanced_s = self.heard_s
        if kind == "alive":
            self._finished = args[0], args[1]

    @property
    def problem(self) -> str | None:
        """The deadline that the trainer has missed, in words; None if there is none."""
        now_s = self._clock.read()
        if now_s - self.heard_s > self._mute_s:
            return self.silence
        if self._idle_s is None or now_s - self._advanced_s <= self._idle_s:
            return None
        return f"finished nothing for {self._idle_s:g} s, last step {self._finished[0]} (trainer.progress_timeout_s)"


class Replacements(Mapping[Rank, bool]):
    """The processes that replace dead trainers and wait to take part: by name of the trainer, whether it is ready.

    A spare trainer is a process started in advance: it has read the data and has all objects of a trainer, but no
    number. It replaces the next trainer that dies.

    Args:
        spawn: starts a process under a name.

    Attributes:
        is_entering: whether the trainers have begun to admit the replacements, and have not finished.
    """

    def __init__(
        self,
        options: ClusterConfig,
        processes: Processes,
        connections: Connections,
        spawn: Callable[[Rank], None],
    ) -> None:
        self._options, self._spawn = options, spawn
        self._processes, self._connections = processes, connections
        self._ready: dict[Rank, bool] = {}
        self._spares: dict[Rank, bool] = {}
        self._num_started = 0  # spares: a name is never used again
        self._num_restarts = 0  # in a row
        self.is_entering = False
        self._admitter: Rank | None = None

    def __getitem__(self, trainer: Rank) -> bool:
        return self._ready[trainer]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ready)

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def waiting(self) -> list[Rank]:
        """Names of all these processes, spare trainers included."""
        return [*self._ready, *self._spares]

    def refill(self) -> None:
        """Start the spare trainers that are missing."""
        for spare in filter(self._processes.has_ended, [*self._spares]):
            self._processes.forget(spare)
            del self._spares[spare]
        for _ in range(self._options.spare_trainers - len(self._spares)):
            spare = spare_trainer_name(self._num_started)
            self._num_started += 1
            self._spawn(spare)
            self._spares[spare] = False

    def start(self, trainer: Rank) -> Rank | None:
        """Replace a dead trainer by a connected spare trainer, or else by a new process.

        Returns the name that the spare trainer had; None for a new process.
        """
        there = [spare for spare in self._spares if spare in self._connections and not self._processes.has_ended(spare)]
        if not there:
            self._spawn(trainer)
            self._ready[trainer] = False
            return None
        spare = max(there, key=self._spares.__getitem__)  # the first that is ready, if any is
        self._ready[trainer] = self._spares.pop(spare)
        self._processes.rename(spare, trainer)
        self._connections.rename(spare, trainer)
        return spare

    def restart(self, trainer: Rank, how: str) -> Rank | None:
        """As :meth:`start`, in place of a replacement that has ended. Raises RunFailed after too many in a row."""
        self._num_restarts += 1
        if self._num_restarts > self._options.max_replacements_in_a_row:
            raise RunFailed(
                f"{trainer} {how}; so did {self._num_restarts - 1} before it (cluster.max_replacements_in_a_row)"
            )
        return self.start(trainer)

    def ready(self, rank: Rank) -> None:
        """Record that a replacement or spare trainer is ready to take part."""
        (self._spares if is_spare_trainer(rank) else self._ready)[rank] = True

    def begin(self) -> Rank | None:
        """Begin the admission if all replacements are ready and a trainer waits for them: returns it, else None."""
        if self._admitter is None or not self._ready or not all(self._ready.values()):
            return None
        admitter, self._admitter, self.is_entering = self._admitter, None, True
        return admitter

    def await_all(self, admitter: Rank) -> None:
        """Record that trainer ``admitter`` waits until all replacements are ready."""
        self._admitter = admitter

    def lost(self, trainer: Rank) -> None:
        """Record that a trainer has died. If it waited for the replacements, the trainer that acts next waits anew."""
        if self._admitter == trainer:
            self._admitter = None

    def took_part(self) -> None:
        """Remove all replacements, which are trainers now."""
        self._ready, self.is_entering, self._num_restarts = {}, False, 0

    def give_up(self) -> None:
        """Remove all replacements, since every trainer that could admit them has died. Spare trainers stay."""
        self._ready, self.is_entering, self._admitter = {}, False, None


Result = tuple[Any, HarnessError | None]
"""The value that a call returned, and the error that it raised instead, if any."""


class NumberedCalls:
    """Carries out each numbered call of the supervisor once, also if another trainer repeats a dead one's call."""

    def __init__(self) -> None:
        self._last = 0
        self._result: Result = (None, None)

    def is_new(self, number: int | None) -> bool:
        """Register a call; whether no earlier one had this number or a higher one. A call without a number is new."""
        if number is None:
            return True
        is_new, self._last = number > self._last, max(number, self._last)
        return is_new

    def result(self, number: int | None, carry_out: Callable[[], Result]) -> Result:
        """Carry out a new call and return its result; for a repetition, return the result of the last numbered call."""
        if not self.is_new(number):
            return self._result
        result = carry_out()
        if number is not None:
            self._result = result
        return result


class ExchangeOutcomes:
    """Settles an exchange in which a trainer has died: waits until all others ask, then answers all at once.

    Args:
        tell: sends a message to a trainer.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._finished: set[Rank] = set()
        self._asking: dict[Rank, tuple[int, Mapping[int, bytes]]] = {}

    def finished(self, trainer: Rank) -> None:
        """Record that a trainer has finished its job; it will not ask any more."""
        self._finished.add(trainer)

    def have_finished(self, trainers: Collection[Rank]) -> bool:
        return self._finished.issuperset(trainers)

    def ask(self, trainer: Rank, num_calls: int, values: Mapping[int, bytes]) -> None:
        """Record that a trainer waits for the outcome; see :meth:`harness.cluster.link.ControlLink.ask_outcome`."""
        self._asking[trainer] = num_calls, values

    def ask_again(self) -> None:
        """Tell all waiting trainers to ask again, because another one has died."""
        for trainer in self._asking:
            self._tell(trainer, "result", None, None)
        self._asking.clear()

    def settle(self, trainers: Collection[Rank]) -> None:
        """Send the outcome to the ``trainers`` that have not finished, once all of these have asked for it.

        ``trainers``: the living ones. The values of the trainer that has completed the most exchanges count.
        """
        waiting = set(trainers) - self._finished
        if not self._asking or self._asking.keys() != waiting:
            return
        living = tuple(rank_order(trainer)[1] for trainer in trainers)
        num_calls, values = max(self._asking.values(), key=lambda each: each[0])
        for trainer in waiting:
            self._tell(trainer, "result", ExchangeOutcome(living, num_calls, values), None)
        self._asking.clear()
