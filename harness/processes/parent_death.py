"""The end of a process with its parent, and the signals that only the process of the user handles."""

import ctypes
import os
import signal

INTERRUPTS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Ctrl-C reaches all foreground processes, and a scheduler may send SIGTERM to all of a job. Only the process that the
user started handles them: it lets the others finish their step."""

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process, even while it is stopped, when the thread that started it ends.

    ``parent``: the process that started it; if that has ended already, this process ends at once. A change of the user,
    or into another user namespace, undoes the order.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
