"""Output of the command line: results on stdout, progress and errors on stderr. The only module that prints.

Printed text may come from a file. Its control characters are escaped, since a terminal would obey them.
"""

import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from harness.core.errors import UserError

_FILE_WIDTH = 160  # characters of a line of text in a file
_MAX_WIDTH = 10_000  # wider than any table
_HEIGHT = 25  # lines; only needed beside a width
_CONTROLS = (
    *(code for code in range(0x20) if chr(code) not in "\n\t"),
    *range(0x7F, 0xA0),
    *(0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # direction of text, lines
)
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _CONTROLS}


class Console(RichConsole):
    """A rich console that escapes control characters in text, but keeps its own control codes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_escaped(segment.text))


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def open_streams() -> None:
    """Make sure that stdin, stdout and stderr are open, and that stdout and stderr accept every character.

    Otherwise the next file that is opened (a lock, the event log) would get the free number, and the output of a child
    process would be written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, including what Python flushes when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


@contextmanager
def _stdout() -> Iterator[TextIO]:
    """Stdout, flushed at the end. Raises UserError if it cannot be written, BrokenPipeError if its reader is gone."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise UserError(f"stdout: cannot be written: {error.strerror}") from error


def say(text: str) -> None:
    """Write plain text and a line end to stdout. Raises UserError, BrokenPipeError."""
    with _stdout() as stdout:
        stdout.write(_escaped(text) + "\n")


def show(result: RenderableType) -> None:
    """Write a rich table or text to stdout, without control codes if stdout is not a terminal.

    Text is wrapped at the console's width (160 characters in a file). In a file a table has the width that it needs. On
    a terminal it has at most that of the terminal if it can leave columns out or fold them; if it still needs more, a
    note says so. Raises UserError, BrokenPipeError.
    """
    with _stdout() as stdout:
        console = Console(file=stdout, highlight=False)
        width = console.width if console.is_terminal else _FILE_WIDTH
        options = console.options.update(max_width=_MAX_WIDTH)
        widest = 0
        for part in result.renderables if isinstance(result, Group) else [result]:
            needs = Measurement(0, 0) if isinstance(part, Text) else Measurement.get(console, options, part)
            # A plain table of rich would break numbers to be narrower.
            is_fixed = isinstance(part, Table) or not console.is_terminal
            needed = needs.maximum if is_fixed else needs.minimum
            # The height is given too, as rich ignores a width alone where TERM=dumb.
            Console(file=stdout, highlight=False, width=max(width, needed), height=_HEIGHT).print(part)
            widest = max(widest, needed)
    if console.is_terminal and widest > width:
        note(f"note: tables of {widest} columns, a terminal of {width}: `| less -S` shows whole lines")


def show_numbers(title: str, names: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Show a table without lines, with text in its first column and numbers in the others. Raises as :func:`show`."""
    columns = (Column(name, justify="right" if place else "left") for place, name in enumerate(names))
    table = Table(*columns, title=title, title_justify="left", box=None)
    for row in rows:
        table.add_row(*row)
    show(table)


def note(text: str) -> None:
    """Write plain text and a line end to stderr. What finds no room there, or no reader, is lost."""
    with suppress(OSError):
        sys.stderr.write(_escaped(text) + "\n")
        sys.stderr.flush()


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def show_log() -> None:
    """Write the messages of the package's loggers, from level INFO on, to stderr from now on."""
    log = logging.getLogger("harness")
    log.setLevel(logging.INFO)
    log.handlers = [_Notes()]


def print_error(kind: str, message: str) -> None:
    """Write ``kind: line`` to stderr for each line of ``message``."""
    for line in message.strip().splitlines():
        note(f"{kind}: {line}")
