"""Runs the cells of an experiment, several at once, each in a process of its own.

A cell that fails, crashes or is killed is an outcome like any other: it is written down and the others go on.
"""

import os
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Protocol

from harness.config.experiment import Cell
from harness.grid.worker import CellProcess, CellStarter, Outcome, RunCell, is_done

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


class GridView(Protocol):
    """Is told what happens to the cells; ``console`` has one for terminals and one for files."""

    def started(self, cell: Cell) -> None:
        """The cell's process runs."""
        ...

    def status(self, cell: Cell, status: "RunStatus") -> None:
        """The cell stands there."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """The cell is through, or need not run."""
        ...


def default_jobs(cells: Sequence[Cell]) -> int:
    """As many cells as this process has cores for, at the most threads that one of them asks for."""
    threads = max((cell.config.trainer.num_threads for cell in cells), default=1)
    return max(1, len(os.sched_getaffinity(0)) // threads)


def run_grid(cells: Sequence[Cell], run_cell: RunCell, view: GridView, *, jobs: int) -> list[Outcome]:
    """Run every cell that is not done, in order, at most ``jobs`` at once; one of engine ``rpc`` runs alone.

    Returns one outcome per cell, in the order of ``cells``. Raises StoreError before anything runs where a cell's
    folder is not ours. Whatever ends this call early, KeyboardInterrupt too, ends the processes that it has started;
    SIGKILL of this process ends them as well.
    """
    outcomes = {cell.hash: Outcome(cell=cell, status="kept") for cell in cells if is_done(cell)}
    for outcome in outcomes.values():
        view.ended(outcome)
    waiting = deque(cell for cell in cells if cell.hash not in outcomes)
    if not waiting:
        return [outcomes[cell.hash] for cell in cells]
    running: list[CellProcess] = []
    starter = CellStarter(run_cell)
    try:
        while waiting or running:
            while waiting and sum(_slots(one.cell, jobs) for one in running) + _slots(waiting[0], jobs) <= jobs:
                cell = waiting.popleft()
                running.append(starter.start(cell))
                view.started(cell)
            for outcome in _listen(running, view):
                outcomes[outcome.cell.hash] = outcome
                view.ended(outcome)
    finally:
        starter.end_all()
    return [outcomes[cell.hash] for cell in cells]


def _listen(running: list[CellProcess], view: GridView) -> list[Outcome]:
    """Wait for messages and pass them on; the outcomes of the cells that ended, which leave ``running``."""
    outcomes: list[Outcome] = []
    ready = wait([one.pipe for one in running])
    for one in [one for one in running if one.pipe in ready]:
        try:
            status = one.receive()
        except EOFError:
            running.remove(one)
            outcomes.append(one.outcome())
        else:
            if status is not None:
                view.status(one.cell, status)
    return outcomes


def _slots(cell: Cell, jobs: int) -> int:
    return jobs if cell.config.engine == "rpc" else 1
