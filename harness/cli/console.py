"""What the command line shows: progress and errors on stderr, results on stdout. The one place that prints.

On a terminal progress is drawn by rich; elsewhere it is one plain line for each thing that is finished.
"""

import dataclasses
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from harness.config.experiment import Cell
from harness.core.errors import UserError
from harness.grid.runner import GridView
from harness.grid.worker import Outcome

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


_FILE_WIDTH = 160  # of text that goes to a file
_ENDLESS = 10_000  # wider than any table


def mend_streams() -> None:
    """See to it that stdout and stderr are open, and take every character that we write.

    Who is started with one of the first three files closed gets its number for the next file that is opened, be it a
    lock or a record, and what a child prints lands in there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_stdout() -> None:
    """Nobody takes what we write there: from now on it goes nowhere, also what is left of it when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@contextmanager
def _stdout() -> Iterator[TextIO]:
    """Where results go. Raises UserError where the system refuses them, BrokenPipeError where the reader has gone."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_stdout()
        raise UserError(f"stdout: cannot be written: {error.strerror}") from error


def say(text: str) -> None:
    """A plain line on stdout."""
    with _stdout() as stdout:
        stdout.write(text + "\n")


def show(result: RenderableType) -> None:
    """A table or text of rich on stdout, without control characters where that is no terminal.

    Text is broken to the console's width (160 where there is none); a table takes the width that it needs.
    """
    with _stdout() as stdout:
        console = Console(file=stdout, highlight=False)
        width = console.width if console.is_terminal else _FILE_WIDTH
        for part in result.renderables if isinstance(result, Group) else [result]:
            needed = _width_of(part, console) if isinstance(part, Table) else 0
            Console(file=stdout, highlight=False, width=max(width, needed)).print(part)


def _width_of(table: Table, console: Console) -> int:
    """Columns of ``table`` with no word of it broken or cut."""
    return Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum


def note(text: str) -> None:
    """A plain line on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(kind: str, message: str) -> None:
    """``kind: line`` on stderr for each line of ``message``."""
    for line in message.strip().splitlines():
        note(f"{kind}: {line}")


def show_values(record: Any) -> None:
    """A dataclass on stdout: a line for each value, a table for each list of dataclasses. Shares in percent."""
    tables: list[Table] = []
    names = [f.name for f in dataclasses.fields(record) if not dataclasses.is_dataclass(getattr(record, f.name))]
    for name in names:
        value = getattr(record, name)
        if isinstance(value, tuple | list) and value and dataclasses.is_dataclass(value[0]):
            columns = [field.name for field in dataclasses.fields(value[0])]
            table = Table(*(Column(column, justify="right") for column in columns), title=name, box=SIMPLE)
            for row in value:
                table.add_row(*(_value(column, getattr(row, column)) for column in columns))
            tables.append(table)
        else:
            say(f"{name:<{max(map(len, names))}}  {_value(name, value)}")
    for table in tables:
        show(table)


@contextmanager
def grid_progress(cells: Sequence[Cell]) -> Iterator[GridView]:
    """A view of a running grid: bars with the time left on a terminal, else a line per finished cell."""
    if not sys.stderr.isatty():
        yield _PlainGrid(len(cells))
        return
    with _bars() as progress:
        yield _LiveGrid(progress, len(cells))


@contextmanager
def run_progress(name: str) -> Iterator[Callable[["RunStatus"], None]]:
    """A callback that shows where one run stands."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    with _bars() as progress:
        task = progress.add_task(name, total=None, info="")

        def on_status(status: "RunStatus") -> None:
            progress.update(task, total=status.num_steps, completed=status.step, info=_where(status))

        yield on_status


@contextmanager
def amount_progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A callback ``(done, total)`` that shows how much of a job is through."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    with _bars() as progress:
        task = progress.add_task(name, total=None, info="")

        def on_amount(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield on_amount


class _PlainGrid:
    """One line for each cell that ended."""

    def __init__(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._num_ended = 0

    def started(self, cell: Cell) -> None:
        """Nothing: a line is for what is finished."""

    def status(self, cell: Cell, status: "RunStatus") -> None:
        """Nothing."""

    def ended(self, outcome: Outcome) -> None:
        """Number, name and result of the cell."""
        self._num_ended += 1
        note(f"[{self._num_ended:>{len(str(self._num_cells))}}/{self._num_cells}] {_ending(outcome)}")


class _LiveGrid:
    """A bar for all cells, which also counts the done part of those that run, and one for each of these."""

    def __init__(self, progress: Progress, num_cells: int) -> None:
        self._progress = progress
        self._num_ended = 0
        self._fractions: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._num_cells = num_cells
        self._all = progress.add_task("all cells", total=num_cells, info="")

    def started(self, cell: Cell) -> None:
        """A new bar."""
        self._tasks[cell.hash] = self._progress.add_task(cell.slug, total=None, info="starts")
        self._refresh()

    def status(self, cell: Cell, status: "RunStatus") -> None:
        """Its bar moves."""
        self._fractions[cell.hash] = min(1.0, status.step / max(1, status.num_steps))
        self._progress.update(
            self._tasks[cell.hash], completed=status.step, total=status.num_steps, info=_where(status)
        )
        self._refresh()

    def ended(self, outcome: Outcome) -> None:
        """The bar gives way to a line, which stays."""
        self._num_ended += 1
        self._fractions.pop(outcome.cell.hash, None)
        task = self._tasks.pop(outcome.cell.hash, None)
        if task is not None:
            self._progress.remove_task(task)
        if outcome.status == "kept":  # done before: no part of the speed that the time left is told from
            self._num_ended -= 1
            self._num_cells -= 1
        else:
            self._progress.console.print(_ending(outcome), markup=False, soft_wrap=True)
        self._refresh()

    def _refresh(self) -> None:
        through = self._num_ended + sum(self._fractions.values())
        info = f"{self._num_ended} of {self._num_cells}"
        self._progress.update(self._all, completed=through, total=self._num_cells, info=info)


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}", markup=False),
        console=Console(file=sys.stderr, highlight=False),
    )


def _where(status: "RunStatus") -> str:
    parts = [status.phase, f"step {status.step}/{status.num_steps}"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.generation > 0:
        parts.append(f"generation {status.generation}")
    return "  ".join(parts)


def _ending(outcome: Outcome) -> str:
    slug, finished = outcome.cell.slug, outcome.finished
    if outcome.status == "kept":
        return f"{slug}  was done before"
    if finished is None:
        return f"{slug}  FAILED after {outcome.seconds:.1f} s: {outcome.error}"
    auc = "unknown" if finished.auc is None else f"{finished.auc:.4f}"
    figures = f"AUC {auc}  PLS {finished.pls:.4f}  overhead {finished.overhead_frac:.2%}"
    return f"{slug}  {outcome.seconds:.1f} s  {figures}"


def _ignore(*_values: Any) -> None:
    """Takes a status and shows nothing."""


def _value(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2%}" if name.endswith(("_frac", "_share")) else f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(_value(name, item) for item in value) if isinstance(value, tuple | list) else str(value)
