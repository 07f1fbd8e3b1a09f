"""A leash: a thread that ends this process when another process, its owner, ends."""

import ctypes
import os
import pickle
import signal
import sys
import threading
from multiprocessing import spawn
from types import TracebackType
from typing import NoReturn

from harness.processes.pidfd import Pidfd

ORPHANED = 112
"""Exit code of a process that its leash has ended."""


INTERRUPTS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Ctrl-C reaches all foreground processes, and a scheduler may send SIGTERM to all of a job. Only the process that the
user started handles them: it lets the others finish their step."""


def ignore_interrupts() -> None:
    """Ignore SIGINT and SIGTERM, which the process that the user started handles."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


def end_quietly_without_orders() -> None:
    """For a fork server: suppress the traceback of a forked process whose starter died before it sent the work."""
    show = sys.excepthook

    def show_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        last = trace
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        reads_orders = last is not None and last.tb_frame.f_code.co_filename == spawn.__file__
        if not (reads_orders and isinstance(error, EOFError | pickle.UnpicklingError)):
            show(kind, error, trace)

    sys.excepthook = show_others


_ENDING_S = 0.1  # between the end of a process's connections and its own


class Leash:
    """Ends this process when process ``owner`` has ended; kills ``parent`` before. See :func:`hold_leash`."""

    def __init__(self, owner: Pidfd, parent: Pidfd | None) -> None:
        self._owner, self._parent = owner, parent

    def follow(self, timeout_s: float | None = _ENDING_S) -> None:
        """End this process if the owner ends within ``timeout_s`` (None: whenever it ends).

        To be called when a connection to the owner is found closed. If all processes of the owner just ended then, no
        leash would be left to kill a stopped ``parent``.
        """
        if self._owner.has_ended(timeout_s):
            _end_orphan(self._parent)


def _end_orphan(parent: Pidfd | None) -> NoReturn:
    """Kill ``parent`` and end this process."""
    if parent is not None:
        parent.send(signal.SIGKILL)
    os._exit(ORPHANED)


ENDS_WITH_PARENT_VARIABLE = "CPR_HARNESS_ENDS_WITH_PARENT"
"""An environment variable. It is set, and not empty, in a fork server that its parent's main thread has started.

Such a server may call :func:`end_with_parent`, since that thread lives as long as the parent.
"""


def end_with_parent() -> None:
    """Let the kernel kill this process, even while it is stopped, when the thread that forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def continue_after_parent() -> None:
    """Let the kernel continue this process, if it is stopped, when the thread that forked it ends.

    A stopped process cannot end by its leash. Once continued, it ends if its owner has ended, and else goes on.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def hold_leash(pid: int, *, parent: int | None = None) -> Leash:
    """End this process, at once and without clean-up, as soon as process ``pid`` has ended for any reason.

    A thread waits on a pidfd: SIGKILL of ``pid`` is detected within milliseconds, also across a forkserver, where
    PR_SET_PDEATHSIG and ``daemon=True`` do not work. To be called first in a process that was started for ``pid``.

    ``parent``: the process (a fork server of ``pid``) whose main thread forked this one. The kernel kills this process
    when ``parent`` ends, even while this process is stopped. When ``pid`` ends, this process kills ``parent``, as a
    signal may have stopped it.
    """
    held = None
    if parent is not None:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(ORPHANED)
        held = Pidfd(parent)
    try:
        leash = Leash(Pidfd(pid), held)
    except ProcessLookupError:
        _end_orphan(held)
    threading.Thread(target=leash.follow, args=(None,), name=f"leash-{pid}", daemon=True).start()
    return leash


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
