"""The event log of a run as it is on disk: the one reader of ``events.jsonl``."""

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.core.errors import StoreError
from harness.core.events import Event, Finished, Started, from_json
from harness.files import read_file
from harness.record.rundir import RunDir

_BLOCK = 1 << 17  # bytes; a few events
_HUGE = sys.float_info.max
_PERHAPS_HUGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{300}|NaN|Infinity")  # searched for at memory speed


@dataclass(frozen=True)
class EventLog:
    """The events of a run, in order. ``is_torn``: a last line that a killed writer left incomplete was dropped."""

    events: list[Event]
    is_torn: bool = False

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file ``events.jsonl``, except an incomplete last line.

        Raises StoreError if the file cannot be read, a line (which the error names) is not an event, or anything
        follows a Finished event.
        """
        *lines, rest = read_file(path).split(b"\n")
        events: list[Event] = []
        for number, line in enumerate(lines, start=1):
            try:
                events.append(from_json(_values(line)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise StoreError(f"{path}:{number}: not an event of harness/core/events.py: {error}") from error
        end = next((number for number, event in enumerate(events, start=1) if isinstance(event, Finished)), None)
        if end is not None and (rest or end < len(events)):
            raise StoreError(f"{path}:{end + 1}: expected the end of the record after its finish event, got more")
        return cls(events, is_torn=bool(rest))

    @classmethod
    def of(cls, run: RunDir) -> Self:
        """The log of a run, empty before its first event. Raises StoreError if it cannot be read."""
        return cls.read(run.events) if run.events.exists() else cls([])

    @property
    def started(self) -> Started | None:
        """The first event if it is a Started event, as in every complete log; else None."""
        return self.events[0] if self.events and isinstance(self.events[0], Started) else None

    @property
    def finished(self) -> Finished | None:
        """The last event if it is a Finished event, which has the run's results; else None."""
        return self.events[-1] if self.events and isinstance(self.events[-1], Finished) else None


def read_events(path: Path) -> list[Event]:
    return EventLog.read(path).events


def newest_events(path: Path) -> list[dict[str, Any]]:
    """The first event of a log and then its newest ones, as JSON objects, for displays. A run may be writing to it.

    Reads at most 256 kB. In a log of up to 128 kB the newest events are all, so that the first one occurs twice. Lines
    that cannot be read are left out; without a file the list is empty.
    """
    return [*itertools.islice(_whole_events(_part(path, 0)), 1), *_whole_events(_part(path, -_BLOCK))]


def _part(path: Path, start: int) -> bytes:
    """Up to 128 kB of the file from ``start`` on; negative counts from the end. Empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(start, -stream.seek(0, os.SEEK_END)), os.SEEK_END if start < 0 else os.SEEK_SET)
            return stream.read(_BLOCK)
    except OSError:
        return b""


def _whole_events(text: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects in the whole lines of ``text``; other lines are left out."""
    for line in text.split(b"\n")[:-1]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off at the start, or no event
        if isinstance(event, dict):
            yield event


def _values(line: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError, also for a number that is NaN, infinite or beyond a float."""
    values = json.loads(line)
    if _PERHAPS_HUGE.search(line) and (field := next(not_finite(values), None)) is not None:
        raise ValueError(f"{field} is not finite")
    return values


def not_finite(value: Any, where: str = "") -> Iterator[str]:
    """The places (``a.b[0]``) of numbers that are NaN, infinite or beyond a float."""
    if isinstance(value, float | int) and not -_HUGE < value < _HUGE:
        yield where
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from not_finite(part, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from not_finite(part, f"{where}[{place}]")
