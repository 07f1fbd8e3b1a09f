"""Runs the unfinished cells of an experiment in a :class:`CellPool`: as processes of this machine or as jobs.

A cell that fails, crashes or is killed has a failed outcome; the other cells continue.
"""

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Protocol

from harness.config.experiment import Cell
from harness.core.errors import RunFailed, RunStopped, StoreError
from harness.grid.process import CellProcess, Outcome, end_all, is_done, start
from harness.grid.worker import RunCell
from harness.processes.stop import StopRequest
from harness.record.rundir import RunDir, verify

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


class GridView(Protocol):
    """Callbacks for the progress of a grid. By default no-ops."""

    def started(self, cell: Cell) -> None:
        """Called when the cell's process has started."""

    def status(self, cell: Cell, status: "RunStatus") -> None:
        """Called with each new status of a running cell."""

    def ended(self, outcome: Outcome) -> None:
        """Called once per cell with an outcome: when the cell has ended, or at the start if it was already done."""


class SilentView(GridView):
    """A view of a grid that shows nothing."""


class CellPool(Protocol):
    """Where cells run: :class:`LocalPool`, or jobs of a scheduler (``harness.jobs``)."""

    def prepare(self) -> None:
        """Start what must be forked before this process has threads. Called at most once, before :meth:`run`.

        By default nothing.
        """

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        """Run ``cells`` and yield the outcome of each when it ends.

        Once ``stop`` is set, some cells may get no outcome. Raises UserError.
        """
        ...


def run_cells(
    cells: Sequence[Cell],
    pool: CellPool,
    view: GridView,
    *,
    stop: StopRequest | None = None,
) -> list[Outcome]:
    """Run in ``pool`` every cell that is not done, and verify the files of all that are.

    Returns one outcome per cell, in the order of ``cells``. ``stop``: once it is set, no further cell starts.

    Raises:
        StoreError: before any cell starts, a cell's folder holds files that are not of its run.
        RunStopped: ``stop`` was set, and some cells are not done.
        UserError: the pool cannot run the cells.
    """
    kept = [cell for cell in cells if is_done(cell)]
    outcomes = {cell.run_dir: Outcome(cell=cell, status="skipped") for cell in kept}
    for outcome in outcomes.values():
        view.ended(outcome)
    waiting = [cell for cell in cells if cell.run_dir not in outcomes]
    if waiting:
        with closing(pool.run(waiting, view, stop=stop)) as ended:
            for outcome in ended:
                outcomes[outcome.cell.run_dir] = outcome
                view.ended(outcome)
    if any(cell.run_dir not in outcomes or outcomes[cell.run_dir].status == "stopped" for cell in cells):
        raise RunStopped(None)
    return [_checked(outcomes[cell.run_dir]) for cell in cells]


def _checked(outcome: Outcome) -> Outcome:
    if outcome.status != "failed":
        try:
            verify(RunDir(outcome.cell.run_dir))
        except StoreError as error:
            return replace(outcome, status="damaged", error=str(error))
    return outcome


class LocalPool:
    """Runs cells in order, each in a process of its own, at most ``jobs`` at once; a cell of engine ``rpc`` runs alone.

    ``jobs``: None runs as many cells at once as there are cores for their threads. The running cells are killed if an
    exception (also KeyboardInterrupt) leaves :meth:`run`, or if this process is killed. If the grid's folder is moved,
    the cells that have not started fail.
    """

    def __init__(self, run_cell: RunCell, jobs: int | None = None) -> None:
        self._run_cell = run_cell
        self._jobs = jobs

    def prepare(self) -> None:
        from harness.run import assemble  # noqa: PLC0415 - torch takes a second to import

        assemble.prepare_fork_server()

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        waiting, running = deque(cells), list[CellProcess]()
        slots = partial(_slots, self._jobs)
        try:
            while waiting or running:
                room = self._jobs or _num_cores()  # now, as of the slots: the affinity may change
                while waiting and sum(slots(one.cell) for one in running) + slots(waiting[0]) <= room:
                    cell = waiting.popleft()
                    try:
                        running.append(start(self._run_cell, cell))
                    except (StoreError, RunFailed) as error:
                        yield Outcome(cell=cell, status="failed", error=str(error))
                    else:
                        view.started(cell)
                if running:
                    yield from _receive(running, view, stop)
                if stop is not None and stop.is_set:
                    for one in running:
                        one.ask_to_stop()
                    waiting.clear()
                    stop = None
        finally:
            end_all(running)


def _receive(running: list[CellProcess], view: GridView, stop: StopRequest | None) -> Iterator[Outcome]:
    """Wait for messages of cells or the request to stop; pass statuses to ``view``.

    Yields the outcome of each cell that has ended, and removes the cell from ``running``.
    """
    ready = wait([*(one.pipe for one in running), *([] if stop is None else [stop.fileno()])])
    for one in [one for one in running if one.pipe in ready]:
        try:
            status = one.receive()
        except EOFError:
            outcome = one.outcome()
            running.remove(one)
            yield outcome
        else:
            if status is not None:
                view.status(one.cell, status)


def _slots(jobs: int | None, cell: Cell) -> int:
    """How many of the ``jobs`` places a cell takes; if ``jobs`` is None, how many of the cores."""
    if cell.config.engine == "rpc":
        return jobs or _num_cores()
    return min(cell.config.trainer.num_threads, _num_cores()) if jobs is None else 1


def num_at_once(cell: Cell, jobs: int | None) -> int:
    """How many cells like ``cell`` a :class:`LocalPool` with ``jobs`` runs at once."""
    return max(1, (jobs or _num_cores()) // _slots(jobs, cell))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
