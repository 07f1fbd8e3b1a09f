"""From what a file claims to a FailureLog: rules for what real logs get wrong, each a sentence, each counted."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.core.errors import TraceError
from harness.traces.log import Outage

HOUR_S = 3600.0
DAY_S = 86_400.0
LAST_S = 4_102_444_800.0  # the year 2100, in seconds since 1970; hours of a log that count from 0 have room enough
CALENDAR_S = 631_152_000.0  # the year 1990: a log from 0 is shorter than twenty years, one from 1970 is later

NEGATIVE = "records that end before they start dropped"
ZERO = "records that end when they start: kept, repair time unknown"
SAME = "second records of a node at one instant dropped, the later end kept"
DOWN = "failures of a node that was down already: kept, the outage before ends there, the later end counts"
ORDER = "events earlier than the event before them: put in their place"


@dataclass(slots=True)
class Failure:
    """A record as the file has it: seconds on the file's own clock, and where it stands (``file:line``)."""

    node: str
    start_s: float
    end_s: float | None
    where: str


@dataclass(slots=True)
class Event:
    """Something that happened to ``node``: ``kind`` and ``detail`` are the format's words for it."""

    time_s: float
    kind: str
    node: str
    where: str
    detail: Any = None


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All that an importer finds. ``first_s`` and ``last_s`` are of whatever the log saw, failures or not.

    ``has_calendar``: times are seconds since 1970, of the log's own time zone; None: to be seen from their size.
    """

    failures: list[Failure]
    nodes: Iterable[str]
    first_s: float
    last_s: float
    has_calendar: bool | None


class Cleaning:
    """Counts what is read and what each rule does to it; ``strict`` refuses the first record that needs a rule."""

    def __init__(self, *, strict: bool) -> None:
        self.num_read = 0
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self._strict = strict

    def drop(self, rule: str, where: str) -> None:
        """A record is gone."""
        self._act(self.dropped, rule, where)

    def change(self, rule: str, where: str) -> None:
        """A record was mended and kept, or a line that is no failure was passed over."""
        self._act(self.changed, rule, where)

    def _act(self, counts: Counter[str], rule: str, where: str) -> None:
        if self._strict:
            raise TraceError(f"{where}: --strict refuses this; without it: {rule}")
        counts[rule] += 1


class Watch:
    """The earliest and the latest time met."""

    def __init__(self) -> None:
        self.first_s, self.last_s = math.inf, -math.inf

    def saw(self, *times_s: float | None) -> None:
        """Note these times; None is no time."""
        for time_s in times_s:
            if time_s is not None:
                self.first_s, self.last_s = min(self.first_s, time_s), max(self.last_s, time_s)


def in_order(events: list[Event], cleaning: Cleaning) -> list[Event]:
    """By time; events of one instant stay in the file's order. A clock that steps back is counted."""
    latest_s = -math.inf
    for event in events:
        if event.time_s < latest_s:
            cleaning.change(ORDER, event.where)
        latest_s = max(latest_s, event.time_s)
    return sorted(events, key=lambda event: event.time_s)


def finish_pending_save(failures: Iterable[Failure], cleaning: Cleaning) -> list[Failure]:
    """No outage of a node overlaps another of it, and the hours in which a node is down stay what they were."""
    by_node: dict[str, list[Failure]] = {}
    for failure in failures:
        by_node.setdefault(failure.node, []).append(failure)
    settled: list[Failure] = []
    for node_failures in by_node.values():
        settled += _apart(sorted(node_failures, key=lambda failure: failure.start_s), cleaning)
    return settled


def _apart(failures: list[Failure], cleaning: Cleaning) -> Iterator[Failure]:
    """The failures of one node, in order of time."""
    current: Failure | None = None
    for failure in failures:
        end_s = _checked_end(failure, cleaning)
        if end_s is not None and end_s < failure.start_s:
            continue
        if current is not None and failure.start_s == current.start_s:
            cleaning.drop(SAME, failure.where)
            current.end_s = _later(current.end_s, end_s)
            continue
        if current is not None:
            if current.end_s is not None and failure.start_s < current.end_s:
                cleaning.change(DOWN, failure.where)
                end_s = _later(current.end_s, end_s)
                current.end_s = failure.start_s
            yield current
        current = Failure(failure.node, failure.start_s, end_s, failure.where)
    if current is not None:
        yield current


def _checked_end(failure: Failure, cleaning: Cleaning) -> float | None:
    """When it was repaired, if that can be. What ends before it starts is dropped, and by the caller passed over."""
    if failure.end_s is None or failure.end_s > failure.start_s:
        return failure.end_s
    if failure.end_s < failure.start_s:
        cleaning.drop(NEGATIVE, failure.where)
        return failure.end_s
    cleaning.change(ZERO, failure.where)
    return None


def _later(one_s: float | None, other_s: float | None) -> float | None:
    return max((time_s for time_s in (one_s, other_s) if time_s is not None), default=None)


def hour_zero(observed: Observed, source: str) -> tuple[float, str | None]:
    """Second of the file's clock at which the log begins, and what the calendar says then.

    A log with a calendar begins at the midnight before its first event, so that the time of day is ``hour mod 24`` and
    no gap is zero by construction; others begin at their own 0.

    Raises:
        TraceError: some times count from 1970, some from 0.
    """
    has_calendar = observed.has_calendar
    if has_calendar is None:
        has_calendar = observed.last_s >= CALENDAR_S
        if has_calendar and observed.first_s < CALENDAR_S:
            raise TraceError(
                f"{source}: times of {observed.first_s:.15g} s and of {observed.last_s:.15g} s; "
                "all must count from 1970, or all from the log's beginning"
            )
    if not has_calendar:
        return 0.0, None
    zero_s = observed.first_s // DAY_S * DAY_S
    return zero_s, datetime.fromtimestamp(zero_s, UTC).replace(tzinfo=None).isoformat()


def to_outages(failures: Iterable[Failure], zero_s: float) -> tuple[Outage, ...]:
    """In hours since ``zero_s``, ordered by (start, node)."""
    outages = [
        Outage(
            node=failure.node,
            start_h=(failure.start_s - zero_s) / HOUR_S,
            end_h=None if failure.end_s is None else (failure.end_s - zero_s) / HOUR_S,
        )
        for failure in failures
    ]
    return tuple(sorted(outages, key=lambda outage: (outage.start_h, outage.node)))
