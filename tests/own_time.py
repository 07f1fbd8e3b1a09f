"""The time of a process: seconds in which the machine lets it run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.cluster.deadlines import ListeningClock

_TICK_S = 0.02


@contextmanager
def own_time() -> Iterator[ListeningClock]:
    """A clock that stands still while this process, or the machine, does. Upper limits of a law are read from it."""
    clock, is_over = ListeningClock(_TICK_S), threading.Event()

    def run() -> None:
        while not is_over.wait(_TICK_S):
            clock.read()

    thread = threading.Thread(target=run, name="own time", daemon=True)
    thread.start()
    try:
        yield clock
    finally:
        is_over.set()
        thread.join()
