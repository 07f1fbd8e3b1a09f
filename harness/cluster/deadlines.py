"""Deadlines of other processes: their clock, and whether a trainer lives and makes progress."""

import time
from collections.abc import Callable
from typing import Any


class ListeningClock:
    """Seconds that this process has listened to others.

    A process that was stopped (Ctrl-Z) and goes on, or was at work itself, has not heard the others meanwhile, and must
    not blame them for it: between two readings at most twice ``tick_s`` pass.

    Args:
        tick_s: how often it is read, in seconds, by who waits for messages.
        clock: seconds, monotonic.
    """

    def __init__(self, tick_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.tick_s = tick_s
        self._clock = clock
        self._read_s = clock()
        self._total_s = 0.0

    def read(self) -> float:
        """Seconds so far."""
        now_s = self._clock()
        self._total_s += min(now_s - self._read_s, 2 * self.tick_s)
        self._read_s = now_s
        return self._total_s


class TrainerProgress:
    """Whether a trainer gives signs of life, and finishes anything.

    A sign of life says what it has finished, and whether it waits for another trainer: then it has nothing to finish.
    Any other message of a trainer is about something that it has done.

    Args:
        mute_s: within which it must be heard (``cluster.rpc_timeout_s``).
        idle_s: within which something must be finished (``trainer.progress_timeout_s``); None: there is no deadline.

    Attributes:
        heard_s: when it was last heard, by the clock.
    """

    def __init__(self, clock: ListeningClock, *, mute_s: float, idle_s: float | None) -> None:
        self._clock = clock
        self._mute_s, self._idle_s = mute_s, idle_s
        self._finished = (0, 0)  # steps, and all things
        self.heard_s = self._advanced_s = 0.0

    def hear(self, kind: str, *args: Any) -> None:
        """Take note of a message of the trainer."""
        self.heard_s = self._clock.read()
        if kind != "alive" or args != (*self._finished, False):
            self._advanced_s = self.heard_s
        if kind == "alive":
            self._finished = args[0], args[1]

    @property
    def problem(self) -> str | None:
        """What the trainer has failed to do in time; None if there is nothing."""
        now_s = self._clock.read()
        if now_s - self.heard_s > self._mute_s:
            return self.silence
        if self._idle_s is None or now_s - self._advanced_s <= self._idle_s:
            return None
        return f"finished nothing for {self._idle_s:g} s, last step {self._finished[0]} (trainer.progress_timeout_s)"

    @property
    def silence(self) -> str:
        """That it was not heard for too long, in words."""
        return f"gave no sign of life for {self._mute_s:g} s (cluster.rpc_timeout_s)"
