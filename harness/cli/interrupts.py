"""Signals that end a command: one line on stderr, and exit code 128 + number of the signal.

SIGINT (Ctrl-C), SIGTERM and SIGHUP. The first one is raised as :class:`Interrupted`, so that the command ends its
processes and removes its temporary files. During an import, which an exception may leave half done, and at the second
signal, this process ends at once; the processes that it started end with it.

While a command trains (:func:`stoppable`), the first SIGINT or SIGTERM asks it to stop at the next boundary between two
steps. If it has not ended after some seconds of grace, it ends as above.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from harness.processes.stop import StopRequest

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # progress bars hide it


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by the first SIGINT, SIGTERM or SIGHUP. ``number``: the number of that signal."""

    def __init__(self, number: int) -> None:
        self.number = number


class _State:
    hint = "nothing was done yet"
    can_raise = False
    is_said = False
    stop: StopRequest | None = None
    stopped_by = signal.SIGINT
    grace_s = 0.0


def install() -> None:
    """Handle the signals from now on, except those that this process was started to ignore (``nohup``)."""
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _handle)


def begin(hint: str) -> None:
    """Let the first SIGINT, SIGTERM or SIGHUP from now on raise :class:`Interrupted`.

    ``hint``: how to resume the command, or empty.
    """
    _State.hint, _State.can_raise, _State.is_said = hint, True, False


def end() -> None:
    """Let a signal end the process at once from now on, since the command has ended."""
    _State.can_raise = False


@contextmanager
def stoppable(grace_s: float) -> Iterator[StopRequest]:
    """In the block the first SIGINT or SIGTERM sets the request that is yielded.

    If the block has not ended ``grace_s`` seconds later, :class:`Interrupted` is raised in it. ``grace_s`` of 0: the
    first signal raises it, and the request is never set.
    """
    stop, before = StopRequest(), signal.signal(signal.SIGALRM, _end_grace)
    _State.stop, _State.grace_s = stop, grace_s
    try:
        yield stop
    finally:
        _State.stop = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        stop.close()


def ending(number: int | None = None, hint: str | None = None) -> tuple[str, int]:
    """The line to print when a signal has ended a command, and the exit code. The caller prints the line once.

    ``number``: the signal's; None: the signal that set the request to stop. ``hint``: replaces that of :func:`begin`.
    """
    _State.is_said = True
    number = _State.stopped_by if number is None else number
    return _line(number, _State.hint if hint is None else hint), 128 + number


def _line(number: int, hint: str) -> str:
    return f"{_WORDS[signal.Signals(number)]}; {hint}" if hint else _WORDS[signal.Signals(number)]


def _handle(number: int, frame: FrameType | None, /) -> None:
    stop = _State.stop
    is_second = stop is not None and stop.is_set
    if stop is not None and not is_second and number in {signal.SIGINT, signal.SIGTERM} and _State.grace_s > 0:
        _State.stopped_by = signal.Signals(number)
        stop.set()
        signal.setitimer(signal.ITIMER_REAL, _State.grace_s)
        return
    if _State.can_raise and not is_second and not _is_importing(frame):
        _State.can_raise = False
        raise Interrupted(number)
    if not _State.is_said:
        cursor = _SHOW_CURSOR if os.isatty(2) else b""
        os.write(2, cursor + f"{_line(number, _State.hint)}\n".encode())
    os._exit(128 + number)


def _end_grace(_number: int, frame: FrameType | None, /) -> None:
    """Handler of the end of the grace period: raises :class:`Interrupted`, as a command that is not stoppable does."""
    _State.stop = None
    _handle(_State.stopped_by, frame)


def _is_importing(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
