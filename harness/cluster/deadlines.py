"""A clock for the deadlines of other processes, which leaves out the time in which this process was stopped."""

import time
from collections.abc import Callable


class ListeningClock:
    """Seconds during which this process has listened to others.

    A process that was stopped (Ctrl-Z) or busy has not heard the others meanwhile. That time must not count against
    their deadlines, so the clock advances by at most twice ``tick_s`` between two readings.

    Args:
        tick_s: the longest time, in seconds, for which the thread that waits for messages leaves the clock unread.
        clock: seconds, monotonic.
    """

    def __init__(self, tick_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.tick_s = tick_s
        self._clock = clock
        self._read_s = clock()
        self._total_s = 0.0

    def read(self) -> float:
        """Advance the clock and return its seconds."""
        now_s = self._clock()
        self._total_s += min(now_s - self._read_s, 2 * self.tick_s)
        self._read_s = now_s
        return self._total_s
