"""Deadlines of trainers: whether each connects, gives signs of life, and makes progress."""

from collections.abc import Iterable
from typing import Any

from harness.cluster.connections import Connections
from harness.cluster.deadlines import ListeningClock
from harness.cluster.launcher import Launcher
from harness.cluster.processes import REAP_S, Processes
from harness.config.model import ClusterConfig
from harness.core.plans import Rank


class TrainerWatch:
    """Finds the trainers, and the processes that wait to replace trainers, that miss a deadline.

    Args:
        trainers: names of all.
        progress_timeout_s: seconds within which a trainer must finish something; None: no deadline.
    """

    def __init__(
        self,
        trainers: Iterable[Rank],
        *,
        options: ClusterConfig,
        launcher: Launcher,
        processes: Processes,
        connections: Connections,
        clock: ListeningClock,
        progress_timeout_s: float | None,
    ) -> None:
        self._join_s = options.join_timeout_s
        self._launcher, self._processes, self._connections = launcher, processes, connections
        self._clock = clock
        self._met: set[Rank] = set()  # that have connected
        self._progress = {
            rank: TrainerProgress(clock, mute_s=options.rpc_timeout_s, idle_s=progress_timeout_s) for rank in trainers
        }

    def __len__(self) -> int:
        """Number of trainers."""
        return len(self._progress)

    def begins(self, trainer: Rank, *, is_connected: bool = False) -> None:
        """Record that a new process is ``trainer`` now. ``is_connected``: it is a spare that had connected before."""
        self._met = {*self._met, trainer} if is_connected else self._met - {trainer}
        self._progress[trainer].hear("start")

    def hear(self, trainer: Rank, kind: str, *args: Any) -> None:
        """Record a message of the trainer."""
        if kind == "hello":
            self._met.add(trainer)
        self._progress[trainer].hear(kind, *args)

    def silent_s(self, trainer: Rank) -> float:
        """Seconds since the trainer's last message."""
        return self._clock.read() - self._progress[trainer].heard_s

    def has_ended(self, trainer: Rank) -> bool:
        """Whether the trainer's process has ended and all its messages were read."""
        return trainer not in self._connections and self._processes.has_ended(trainer)

    def problem(self, trainer: Rank, *, is_replacement: bool) -> str | None:
        """The deadline that a running trainer has missed, in words; None if there is none.

        ``is_replacement``: it is a member of no generation yet, so its deadline for connecting is checked here.
        """
        if trainer in self._connections:
            return self._progress[trainer].problem
        if trainer in self._connections.stuck:
            return self._progress[trainer].silence  # in the middle of a message
        if trainer not in self._met:
            is_late = is_replacement and self.silent_s(trainer) > self._join_s
            return f"did not connect within {self._join_s:g} s (cluster.join_timeout_s)" if is_late else None
        self._processes[trainer].join(REAP_S)
        self._launcher.check()
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
    """

    def __init__(self, clock: ListeningClock, *, mute_s: float, idle_s: float | None) -> None:
        self._clock = clock
        self._mute_s, self._idle_s = mute_s, idle_s
        self._finished = (0, 0)  # steps, and all things
        self.heard_s = self._advanced_s = 0.0

    def hear(self, kind: str, *args: Any) -> None:
        """Record a message of the trainer."""
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

    @property
    def silence(self) -> str:
        """The message about a trainer that sent nothing before its deadline."""
        return f"gave no sign of life for {self._mute_s:g} s (cluster.rpc_timeout_s)"
