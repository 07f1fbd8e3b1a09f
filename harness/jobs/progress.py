"""The progress of a cell that runs elsewhere, from the end of its event log."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_BLOCK = 1 << 17  # bytes; a few events


def progress_of(run_dir: Path) -> "RunStatus | None":
    """The status by the newest event of a run; None before the first one. Raises nothing: it is for display."""
    from harness.run.assemble import RunStatus  # noqa: PLC0415 - torch takes a second to import

    path = RunDir(run_dir).events
    started = next(_events(_part(path, 0)), None)
    if started is None or not isinstance(num_steps := started.get("num_steps"), int):
        return None
    newest = [*_events(_part(path, -_BLOCK))] or [started]
    losses = [event["losses"][-1] for event in newest if event.get("losses")]
    steps = [event["step"] for event in newest if isinstance(event.get("step"), int)]
    return RunStatus(
        step=steps[-1] if steps else 0,
        num_steps=num_steps,
        loss=losses[-1] if losses else None,
        phase="train",
        generation=0,
    )


def _part(path: Path, start: int) -> bytes:
    """A block from ``start`` on, which below 0 is from the end; empty where the file cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(start, -stream.seek(0, os.SEEK_END)), os.SEEK_END if start < 0 else os.SEEK_SET)
            return stream.read(_BLOCK)
    except OSError:
        return b""


def _events(text: bytes) -> Iterator[dict[str, Any]]:
    """The whole lines of ``text`` that are events."""
    for line in text.split(b"\n")[:-1]:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off at the start
        if isinstance(event, dict):
            yield event
