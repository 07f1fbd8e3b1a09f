"""The clock of deadlines of other processes."""

import time
from collections.abc import Callable


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
