"""Runs the cells of an experiment, several at once, each in a process of its own.

A cell that fails, crashes or is killed has a failed outcome; the other cells continue.
"""

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.cluster.stop import StopRequest
from harness.config.experiment import Cell
from harness.core.errors import RunStopped
from harness.grid.process import CellProcess, CellStarter, Outcome, is_done
from harness.grid.worker import RunCell

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


class GridView(Protocol):
    """Receiver of the progress of a grid; ``harness.cli.progress`` has one for terminals and one for files."""

    def started(self, cell: Cell) -> None:
        """The cell's process has started."""
        ...

    def status(self, cell: Cell, status: "RunStatus") -> None:
        """The running cell has made progress."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """The cell has ended, or was already done."""
        ...


def run_grid(
    cells: Sequence[Cell],
    run_cell: RunCell,
    view: GridView,
    *,
    jobs: int | None = None,
    stale: Collection[Path] = (),
    stop: StopRequest | None = None,
) -> list[Outcome]:
    """Run every cell that is not done, in order, at most ``jobs`` at once; a cell of engine ``rpc`` runs alone.

    ``jobs``: None starts as many as this process has cores for their threads.
    ``stale``: folders of finished cells that are run anew. Such a result stands until the new one is done.
    Returns one outcome per cell, in the order of ``cells``. If an exception (also KeyboardInterrupt) leaves this
    function or this process is killed, the started cells are ended. ``stop``: once it is set, running cells are asked
    to stop, and no other starts.

    Raises StoreError, before any cell starts, if a cell's folder holds files that are not of its run; RunStopped where
    ``stop`` has left cells that are not done.
    """
    kept = [cell for cell in cells if is_done(cell) and cell.run_dir not in stale]
    outcomes = {cell.run_dir: Outcome(cell=cell, status="skipped") for cell in kept}
    for outcome in outcomes.values():
        view.ended(outcome)
    waiting = deque(cell for cell in cells if cell.run_dir not in outcomes)
    if not waiting:
        return [outcomes[cell.run_dir] for cell in cells]
    running: list[CellProcess] = []
    slots = partial(_slots, jobs)
    room = jobs or _num_cores()
    starter = CellStarter(run_cell)
    try:
        while waiting or running:
            while waiting and sum(slots(one.cell) for one in running) + slots(waiting[0]) <= room:
                cell = waiting.popleft()
                running.append(starter.start(cell))
                view.started(cell)
            for outcome in _receive(running, view, stop):
                outcomes[outcome.cell.run_dir] = outcome
                view.ended(outcome)
            if stop is not None and stop.is_set:
                for one in running:
                    one.ask_to_stop()
                waiting.clear()
                stop = None
    finally:
        starter.end_all()
    if any(cell.run_dir not in outcomes or outcomes[cell.run_dir].status == "stopped" for cell in cells):
        raise RunStopped(None)
    return [outcomes[cell.run_dir] for cell in cells]


def _receive(running: list[CellProcess], view: GridView, stop: StopRequest | None) -> Iterator[Outcome]:
    """Wait for messages, or the request to stop, and pass statuses to ``view``.

    Yields outcomes of ended cells, which leave ``running``.
    """
    ready = wait([*(one.pipe for one in running), *([] if stop is None else [stop.fileno()])])
    for one in [one for one in running if one.pipe in ready]:
        try:
            status = one.receive()
        except EOFError:
            running.remove(one)
            yield one.outcome()
        else:
            if status is not None:
                view.status(one.cell, status)


def _slots(jobs: int | None, cell: Cell) -> int:
    """What a cell takes of ``jobs``, or of the cores if that is None."""
    if cell.config.engine == "rpc":
        return jobs or _num_cores()
    return min(cell.config.trainer.num_threads, _num_cores()) if jobs is None else 1


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
