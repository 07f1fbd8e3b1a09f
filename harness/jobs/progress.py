"""The progress of a cell that runs elsewhere, from the end of its event log."""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.record.event_log import newest_events
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


def progress_of(run_dir: Path) -> "RunStatus | None":
    """The status by the newest event of a run; None before the first one. Raises nothing: it is for display."""
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
