"""A leash ends this process when another process ends."""

import os
import select
import signal
import threading

ORPHANED = 112
"""Exit code of a process that its leash has ended."""


def ignore_interrupts() -> None:
    """Ignore SIGINT. Ctrl-C reaches all foreground processes; only the one that the user started handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def hold_leash(pid: int) -> None:
    """End this process, at once and without clean-up, as soon as process ``pid`` has ended for any reason.

    A thread waits on a pidfd: SIGKILL of ``pid`` is detected within milliseconds, also across a forkserver, where
    PR_SET_PDEATHSIG and ``daemon=True`` do not work. To be called first in a process that was started for ``pid``.
    """
    try:
        holder = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(ORPHANED)
    threading.Thread(target=_wait, args=(holder,), name=f"leash-{pid}", daemon=True).start()


def _wait(holder: int) -> None:
    poll = select.poll()
    poll.register(holder, select.POLLIN)
    while not poll.poll():
        pass
    os._exit(ORPHANED)
