"""The supervisor's watch over the trainer: its deadlines, and its end."""

from typing import Any

from harness.cluster.deadlines import ListeningClock
from harness.cluster.launcher import END_S, Launcher
from harness.cluster.link import Connections
from harness.core.plans import CHIEF


class TrainerWatch:
    """Finds out whether ``trainer0`` has missed a deadline, or has ended.

    A heartbeat says what the trainer has finished. Any other message counts as progress.

    Args:
        mute_s: seconds within which it must send a message (``cluster.rpc_timeout_s``).
        idle_s: seconds within which it must finish something (``trainer.progress_timeout_s``); None: no deadline.
    """

    def __init__(
        self,
        launcher: Launcher,
        connections: Connections,
        clock: ListeningClock,
        *,
        mute_s: float,
        idle_s: float | None,
    ) -> None:
        self._launcher, self._connections, self._clock = launcher, connections, clock
        self._mute_s, self._idle_s = mute_s, idle_s
        self._has_met = False  # whether it has connected
        self._finished = (0, 0)  # steps, and all things
        self._heard_s = self._advanced_s = 0.0  # when it sent a message, and when it finished something

    def trainer_started(self) -> None:
        """Record that a new process is the trainer now."""
        self._has_met = False
        self._connections.stuck.discard(CHIEF)
        self.hear("start")

    def hear(self, kind: str, *args: Any) -> None:
        """Record a message of the trainer."""
        self._has_met = self._has_met or kind == "hello"
        self._heard_s = self._clock.read()
        if kind != "alive" or args != self._finished:
            self._advanced_s = self._heard_s
        if kind == "alive":
            self._finished = args[0], args[1]

    @property
    def silent_s(self) -> float:
        return self._clock.read() - self._heard_s

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended and its connection was read to the end."""
        return CHIEF not in self._connections and self._launcher.has_ended(CHIEF)

    @property
    def problem(self) -> str | None:
        """Why it must be killed, in words: it missed a deadline, or closed its connection without ending. Else None."""
        silence = f"gave no sign of life for {self._mute_s:g} s (cluster.rpc_timeout_s)"
        if CHIEF in self._connections:
            if self.silent_s > self._mute_s:
                return silence
            if self._idle_s is None or self._clock.read() - self._advanced_s <= self._idle_s:
                return None
            last = self._finished[0]
            return f"finished nothing for {self._idle_s:g} s, last step {last} (trainer.progress_timeout_s)"
        if CHIEF in self._connections.stuck:
            return silence  # in the middle of a message
        if not self._has_met:
            return None
        self._launcher[CHIEF].join(END_S)  # it has closed its connection, and should end now
        return None if self.has_ended else "closed its connection"
