"""Signals that end a command: one line on stderr, and exit code 128 + number of the signal.

SIGINT (Ctrl-C), SIGTERM and SIGHUP. The first one is raised as :class:`Interrupted`, so that the command ends its
processes and removes its temporary files. During an import, which an exception may leave half done, and at the second
signal, this process ends at once; the processes that it started end with it.
"""

import os
import signal
from types import FrameType
from typing import Any

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # progress bars hide it


class Interrupted(KeyboardInterrupt):
    """A signal has arrived."""

    def __init__(self, number: int) -> None:
        self.number = number


class _State:
    """What the handlers know, for the one process that has them."""

    hint = ""
    can_raise = False
    is_said = False


def install() -> None:
    """Handle the signals from now on, except those that this process was started to ignore (``nohup``)."""
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _handle)


def begin(hint: str) -> None:
    """A command begins, which is to end in order. ``hint``: how to go on; empty if there is nothing to say."""
    _State.hint, _State.can_raise, _State.is_said = hint, True, False


def end() -> None:
    """The command has ended: what follows is the end of the process."""
    _State.can_raise = False


def line(error: KeyboardInterrupt) -> tuple[str, int]:
    """The line that says what has happened, and the exit code. To be called once, by who writes the line."""
    number = error.number if isinstance(error, Interrupted) else signal.SIGINT
    _State.is_said = True
    return _line(number), 128 + number


def _line(number: int) -> str:
    return f"{_WORDS[signal.Signals(number)]}; {_State.hint}" if _State.hint else _WORDS[signal.Signals(number)]


def _handle(number: int, frame: FrameType | None, /) -> None:
    if _State.can_raise and not _is_importing(frame):
        _State.can_raise = False
        raise Interrupted(number)
    if not _State.is_said:
        cursor = _SHOW_CURSOR if os.isatty(2) else b""
        os.write(2, cursor + f"{_line(number)}\n".encode())
    os._exit(128 + number)


def _is_importing(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
