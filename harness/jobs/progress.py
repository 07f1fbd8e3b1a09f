"""Progress and outcome of a cell that another process runs, read from the cell's folder and its job's log."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.experiment import Cell
from harness.grid.process import Outcome
from harness.grid.runner import GridView
from harness.jobs.arrays import JobFiles
from harness.record.event_log import EventLog, newest_events
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


def show_progress(cells: Iterable[Cell], view: GridView) -> None:
    """Pass the status of each cell that has events to ``view``."""
    for cell in cells:
        if (status := progress_of(cell.run_dir)) is not None:
            view.status(cell, status)


def done_outcome(cell: Cell, seconds: float) -> Outcome:
    """The outcome of a cell that is done. ``seconds``: the run's duration if its record has none."""
    finished = EventLog.of(RunDir(cell.run_dir)).finished
    assert finished is not None, "a run that is done has a result"
    return Outcome(cell=cell, status="done", seconds=finished.machine.get("seconds", seconds), finished=finished)


def reason_of(cell: Cell) -> str:
    """Why a cell ended without being done, in one line: from error.txt, else the last line of its log."""
    files = JobFiles(cell.run_dir)
    return f"{RunDir(cell.run_dir).reason() or files.last_line() or 'it has printed nothing'} (see {files.log})"


def progress_of(run_dir: Path) -> "RunStatus | None":
    """The status of a run by its newest events, for display; None before the first event. Raises nothing."""
    from harness.run.assemble import RunStatus  # noqa: PLC0415 - torch takes a second to import

    events = newest_events(RunDir(run_dir).events)
    if not events or not isinstance(num_steps := events[0].get("num_steps"), int):
        return None
    losses = [event["losses"][-1] for event in events if event.get("losses")]
    steps = [event["step"] for event in events if isinstance(event.get("step"), int)]
    return RunStatus(
        step=steps[-1] if steps else 0,
        num_steps=num_steps,
        loss=losses[-1] if losses else None,
        phase="train",
        generation=0,
    )
