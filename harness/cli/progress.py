"""Progress on stderr: bars with the remaining time on a terminal, elsewhere only a plain line per ended cell."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness.cli.console import Console, note
from harness.config.experiment import Cell
from harness.grid.process import Outcome
from harness.grid.runner import GridView

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


@contextmanager
def grid_progress(cells: Sequence[Cell]) -> Iterator[GridView]:
    """Yields the :class:`GridView` of a running grid."""
    with _bars() as progress:
        yield _GridBars(progress, len(cells))


@contextmanager
def runs_progress(name: str) -> Iterator[Callable[[int, int, "RunStatus"], None]]:
    """Yields a callback ``(number, num_runs, status)`` that shows consecutive runs in one bar; ``number`` is from 1."""
    with _bar(name) as update:

        def follow(number: int, num_runs: int, status: "RunStatus") -> None:
            info = f"run {number} of {num_runs}  " * (num_runs > 1) + _status_text(status)
            update(total=num_runs, completed=number - 1 + _fraction(status), info=info)

        yield follow


@contextmanager
def amount_progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback ``(done, total)`` that shows the progress of one task in a bar."""
    with _bar(name) as update:
        yield lambda done, total: update(completed=done, total=total)


class _GridBars:
    """A bar for the whole grid and one for each running cell; without a terminal only a line per ended cell.

    The whole grid's bar counts the finished fraction of running cells.
    """

    def __init__(self, progress: Progress, num_cells: int) -> None:
        self._progress = progress
        self._num_cells = num_cells
        self._num_ended = self._num_skipped = 0
        self._fractions: dict[Path, float] = {}
        self._tasks: dict[Path, TaskID] = {}
        self._all = progress.add_task("all cells", total=num_cells, info="")

    def started(self, cell: Cell) -> None:
        self._tasks[cell.run_dir] = self._progress.add_task(cell.slug, total=None, info="starts")
        self._refresh()

    def status(self, cell: Cell, status: "RunStatus") -> None:
        self._fractions[cell.run_dir] = _fraction(status)
        self._progress.update(
            self._tasks[cell.run_dir], completed=status.step, total=status.num_steps, info=_status_text(status)
        )
        self._refresh()

    def ended(self, outcome: Outcome) -> None:
        self._num_ended += 1
        self._fractions.pop(outcome.cell.run_dir, None)
        if (task := self._tasks.pop(outcome.cell.run_dir, None)) is not None:
            self._progress.remove_task(task)
        is_skipped = outcome.status == "skipped"
        self._num_skipped += is_skipped
        line = _outcome_text(outcome)
        if self._progress.disable:
            number = f"{self._num_ended:>{len(str(self._num_cells))}}"
            note(f"[{number}/{self._num_cells}] {line}")
        elif not is_skipped:
            self._progress.console.print(line, markup=False, soft_wrap=True)
        self._refresh()

    def _refresh(self) -> None:
        """Update the bar of all cells; skipped cells are not part of it, as they would distort the remaining time."""
        ended, total = self._num_ended - self._num_skipped, self._num_cells - self._num_skipped
        completed = ended + sum(self._fractions.values())
        self._progress.update(self._all, completed=completed, total=total, info=f"{ended} of {total}")


@contextmanager
def _bar(name: str) -> Iterator[Callable[..., None]]:
    """Show a single bar; yields the function that updates it, with the fields of ``Progress.update``."""
    with _bars() as progress:
        yield partial(progress.update, progress.add_task(name, total=None, info=""))


def _bars() -> Progress:
    console = Console(stderr=True, highlight=False, emoji=False)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}", markup=False),
        console=console,
        disable=not console.file.isatty(),
    )


def _fraction(status: "RunStatus") -> float:
    return min(1.0, status.step / max(1, status.num_steps))


def _status_text(status: "RunStatus") -> str:
    parts = [status.phase, f"step {status.step}/{status.num_steps}"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.generation > 0:
        parts.append(f"generation {status.generation}")
    return "  ".join(parts)


def _outcome_text(outcome: Outcome) -> str:
    slug, finished = outcome.cell.slug, outcome.finished
    if outcome.status == "skipped":
        return f"{slug}  was done before"
    if outcome.status == "stopped":
        return f"{slug}  stopped after {outcome.seconds:.1f} s: {outcome.error}"
    if finished is None:
        return f"{slug}  FAILED after {outcome.seconds:.1f} s: {outcome.error}"
    auc = "unknown" if finished.auc is None else f"{finished.auc:.4f}"
    overhead = "unknown" if finished.overhead_frac is None else f"{finished.overhead_frac:.2%}"
    return f"{slug}  {outcome.seconds:.1f} s  AUC {auc}  PLS {finished.pls:.4f}  overhead {overhead}"
