"""A leash ends this process when another process ends."""

import ctypes
import os
import select
import signal
import threading
from contextlib import suppress

ORPHANED = 112
"""Exit code of a process that its leash has ended."""


INTERRUPTS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Ctrl-C reaches all foreground processes, and a scheduler may send SIGTERM to all of a job. Only the process that the
user started handles them: it lets the others finish their step."""


def ignore_interrupts() -> None:
    """Ignore the signals that the process handles which the user started."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


def ignore_stops() -> None:
    """Ignore Ctrl-Z. A rank that stopped with the others would miss their deadlines; it waits for the supervisor."""
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


def hold_leash(pid: int, *, parent: int | None = None) -> None:
    """End this process, at once and without clean-up, as soon as process ``pid`` has ended for any reason.

    A thread waits on a pidfd: SIGKILL of ``pid`` is detected within milliseconds, also across a forkserver, where
    PR_SET_PDEATHSIG and ``daemon=True`` do not work. To be called first in a process that was started for ``pid``.

    ``parent``: the process that forked this one, from its main thread, for ``pid`` too. The kernel ends this process
    with it, also while this process is stopped; and if ``pid`` ends, it is killed, since it may be stopped itself.
    """
    try:
        holder = os.pidfd_open(pid)
        held = None if parent is None else os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(ORPHANED)
    if parent is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(ORPHANED)
    threading.Thread(target=_wait, args=(holder, held), name=f"leash-{pid}", daemon=True).start()


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _wait(holder: int, held: int | None) -> None:
    poll = select.poll()
    poll.register(holder, select.POLLIN)
    while not poll.poll():
        pass
    if held is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    os._exit(ORPHANED)
