"""A process that must not outlive another holds a leash on it."""

import os
import select
import signal
import threading

ORPHANED = 112
"""Exit code of a process whose leash was cut."""


def ignore_interrupts() -> None:
    """Ctrl-C on a terminal reaches every process of the foreground; only the one that the user started decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def hold_leash(pid: int) -> None:
    """End this process, at once and without clean-up, when process ``pid`` has ended, however it ended.

    A thread waits on a pidfd: SIGKILL of the holder is seen within milliseconds, also across a forkserver, where
    PR_SET_PDEATHSIG and ``daemon=True`` do not help. Call it first thing in a process that was started for ``pid``.
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
