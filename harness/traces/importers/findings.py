"""A clean FailureLog from the records of a log, which are pydantic models; faulty ones are counted by their rule.

A wrong value raises a TraceError that names its place, what was expected, and the value. Types of fields are ``Name``
of a node, ``Number`` and ``Count``.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from harness.config.words import mistakes_of
from harness.core.errors import TraceError, printable
from harness.core.faults import longest
from harness.traces.importers.words import Parameters

T = TypeVar("T")

HOUR_S = 3600.0
DAY_S = 86_400.0
LAST_S = 4_102_444_800.0
"""The year 2100 in seconds since 1970; long enough for a log that counts from 0."""
CALENDAR_S = 631_152_000.0  # the year 1990: logs that count from 0 are shorter than twenty years

NEGATIVE = "records that end before they start dropped"
ZERO = "records that end when they start: kept, repair time unknown"
SAME = "second records of a node at one instant dropped, the later end kept"
DOWN = "failures of a node that was down already: kept, the outage before ends there, the later end counts"
ORDER = "events earlier than the event before them: put in their place"


@dataclass(frozen=True, kw_only=True, order=True)
class Outage:
    """``node`` failed at ``start_h`` and was back at ``end_h`` (None if unknown), in hours since the log begins."""

    start_h: float
    node: str
    end_h: float | None = None

    @property
    def repair_h(self) -> float | None:
        return None if self.end_h is None else self.end_h - self.start_h


@dataclass(frozen=True, kw_only=True)
class FailureLog:
    """A clean log: outages in order of (start, node), inside the log; those of one node do not overlap.

    ``nodes`` are all known nodes, without an outage too, where the format names them. ``began`` is the calendar time of
    hour 0 (ISO 8601), None where the log has none; ``first_h`` the hour of the first record. ``dropped`` and
    ``changed`` count, by the rule's sentence, records that were left out, and records that were corrected and kept.
    ``columns`` says which columns were read, where these are found by name. ``reasons`` count failures by their reason,
    where the log has any; ``censored`` the ends that are no failures.
    """

    format: str
    source: str
    licence: str
    checksum: str
    outages: tuple[Outage, ...]
    nodes: tuple[str, ...]
    length_h: float
    began: str | None = None
    first_h: float = 0.0
    columns: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    censored: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_kept(self) -> int:
        return len(self.outages)

    @property
    def num_read(self) -> int:
        """The number of records read: kept, dropped, or no failures."""
        return self.num_kept + sum(self.dropped.values()) + sum(self.censored.values())


@dataclass(slots=True)
class Failure:
    """A record of the file, in seconds on the file's own clock."""

    node: str
    start_s: float
    end_s: float | None


class LogFormat(Parameters):
    """The options by which a log is read: the words of ``run.py trace import``."""

    format: str = ""
    """Format of the log (docs/TRACES.md): infinitehbd, lanl, bamboo, skypilot, slurm or intervals."""
    merge_h: Annotated[float, Field(ge=0)] | None = None
    """Reports of a node within so many hours of its last report, or of that one's end, are one failure."""
    censored: str | None = None
    """For `intervals`, `slurm`, `bamboo`, `lanl`, `infinitehbd`: a regular expression found in reasons that are no
    failures, such as `owner|maintenance`, in any case of letters."""
    system: Annotated[int, Field(ge=0)] | None = None
    """For `lanl`: number of the system whose failures are taken; without it, those of all systems."""
    unit: Literal["ms", "s", "m", "h", "d"] = "s"
    """For `intervals`, `slurm`: unit of start and end that are numbers."""
    columns: str | None = None
    """For `intervals`, `slurm`: names of the file's columns, as `node:HOST,start:DOWN,end:UP,reason:WHY`; for columns
    that are named otherwise than in docs/TRACES.md."""


class Findings:
    """Collects what an importer finds in a file.

    ``dropped`` and ``changed`` count by a rule's sentence: records that are left out; records that are corrected and
    kept, and skipped lines without a failure.
    """

    def __init__(self, source: str, how: LogFormat) -> None:
        self.source, self.how = source, how
        self.failures: list[Failure] = []
        self.nodes: dict[str, None] = {}
        self.first_s, self.last_s = math.inf, -math.inf
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.censored: Counter[str] = Counter()
        self.time_kind, self.columns = "", ""
        try:
            self._no_failure = None if how.censored is None else re.compile(how.censored, re.IGNORECASE)
        except re.error as error:
            raise TraceError(f"censored: expected a regular expression, got {how.censored!r}: {error}") from error

    def saw(self, where: str, *times_s: float | None) -> None:
        """Extend the time that the log covers to ``times_s``, of failures or not; None is ignored.

        Raises TraceError, which begins with ``where``, for a time before 0 or after the year 2100.
        """
        known_s = [time_s for time_s in times_s if time_s is not None]
        if wrong := [time_s for time_s in known_s if not 0 <= time_s <= LAST_S]:
            raise TraceError(
                f"{where}: expected times from 0 (or 1970) to the year 2100, got {wrong[0]:.15g} s; check their unit"
            )
        self.first_s, self.last_s = min([self.first_s, *known_s]), max([self.last_s, *known_s])

    def fail(self, node: str, start_s: float, end_s: float | None, where: str, reason: str = "") -> Failure:
        """Add a failure of ``node`` and return it; a later event may still set its ``end_s``. Raises as :meth:`saw`.

        If ``how.censored`` is found in ``reason``, the end is counted as no failure, and none is added.
        """
        self.nodes[node] = None
        self.saw(where, start_s, end_s)
        failure = Failure(node, start_s, end_s)
        if reason and self._no_failure is not None and self._no_failure.search(reason):
            self.censored[reason] += 1
            return failure
        if reason:
            self.reasons[reason] += 1
        self.failures.append(failure)
        return failure

    def in_order(self, events: Sequence[tuple[float, str, T]]) -> Iterator[tuple[float, str, T]]:
        """The events (seconds, place, record) sorted by time; equal times keep the file's order.

        Counts events that are out of order as changed, and extends the time that the log covers. Raises as :meth:`saw`.
        """
        latest_s = -math.inf
        for time_s, _, _ in events:
            if time_s < latest_s:
                self.changed[ORDER] += 1
            latest_s = max(latest_s, time_s)
        for event in sorted(events, key=lambda event: event[0]):
            self.saw(event[1], event[0])
            yield event

    def outages(self, zero_s: float) -> tuple[Outage, ...]:
        """The failures as outages, in hours since ``zero_s``, sorted by (start, node); faulty records are left out.

        An outage that overlaps the node's next one ends where that starts, and the next one gets the later end, so the
        time for which the node is down does not change.
        """
        by_node: dict[str, list[Failure]] = {}
        for failure in self.failures:
            by_node.setdefault(failure.node, []).append(failure)
        clean = (
            Outage(
                node=failure.node,
                start_h=(failure.start_s - zero_s) / HOUR_S,
                end_h=None if failure.end_s is None else (failure.end_s - zero_s) / HOUR_S,
            )
            for failures in by_node.values()
            for failure in self._without_overlap(sorted(failures, key=lambda failure: failure.start_s))
        )
        return tuple(sorted(clean, key=lambda outage: (outage.start_h, outage.node)))

    def _without_overlap(self, failures: Iterable[Failure]) -> Iterator[Failure]:
        """The failures of one node (in order of start) without faulty records and overlaps, which are counted."""
        current: Failure | None = None
        merge_s, reported_s = -math.inf if self.how.merge_h is None else self.how.merge_h * HOUR_S, -math.inf
        for failure in failures:
            end_s = failure.end_s
            if end_s is not None and end_s < failure.start_s:
                self.dropped[NEGATIVE] += 1
                continue
            if end_s == failure.start_s:
                self.changed[ZERO] += 1
                end_s = None
            is_again = failure.start_s - reported_s <= merge_s
            reported_s = max(reported_s, failure.start_s if end_s is None else end_s)
            if current is not None and is_again:
                self.dropped[f"reports within {self.how.merge_h:g} h of the node's last one: one failure with it"] += 1
                still_s = current.end_s if (current.end_s or 0.0) > failure.start_s else None
                current.end_s = longest((still_s, end_s))
                continue
            if current is not None and failure.start_s == current.start_s:
                self.dropped[SAME] += 1
                current.end_s = longest((current.end_s, end_s))
                continue
            if current is not None:
                if current.end_s is not None and failure.start_s < current.end_s:
                    self.changed[DOWN] += 1
                    end_s, current.end_s = longest((current.end_s, end_s)), failure.start_s
                yield current
            current = Failure(failure.node, failure.start_s, end_s)
        if current is not None:
            yield current

    def hour_zero(self, has_calendar: bool | None) -> tuple[float, str | None]:
        """The second of the file's clock at which the log begins, and its calendar time; None without a calendar.

        A log with a calendar (times since 1970) begins at the midnight before its first event, so that the time of day
        is ``hour mod 24``; others begin at their own 0. ``has_calendar`` None: the log has one if its last time lies in
        1990 or later. Raises TraceError if then some times count from 1970 and some from 0.
        """
        has_dates = self.time_kind.startswith("a date")
        if has_calendar is None and not has_dates:
            has_calendar = self.last_s >= CALENDAR_S
            if has_calendar and self.first_s < CALENDAR_S:
                raise TraceError(
                    f"{self.source}: expected all times since 1970 or all since the log's beginning, "
                    f"got {self.first_s:.15g} s and {self.last_s:.15g} s"
                )
        if not (has_calendar or has_dates):
            return 0.0, None
        zero_s = self.first_s // DAY_S * DAY_S
        return zero_s, datetime.fromtimestamp(zero_s, UTC).replace(tzinfo=None).isoformat()


# --- records ----------------------------------------------------------------------------------------------------------

_MAX_NAME = 128  # characters of a node's name


class Record(BaseModel):
    """A record of a log, or a part of one. Keys that it does not have are ignored."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, names: Sequence[str], texts: Sequence[str], where: str) -> Self:
        """The record with these texts as fields; an empty text is None. ``where``: the beginning of a TraceError."""
        try:
            return cls.model_validate({name: text or None for name, text in zip(names, texts, strict=True)})
        except ValidationError as error:
            raise TraceError(f"{where}: {mistakes_of(error)[0]}") from None


def read_json(model: Any, text: str, source: str) -> Any:
    """The JSON value ``text`` as ``model``. Records of a list count from 1 in a TraceError."""
    try:
        return TypeAdapter(model).validate_json(text)
    except ValidationError as error:
        mistake = re.sub(r"^([0-9]+)[.:] ?", lambda found: f"record {int(found[1]) + 1}: ", mistakes_of(error)[0])
        raise TraceError(f"{source}: {mistake}") from None


def csv_rows(text: str, source: str, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
    """Yield ``file:line`` and the stripped fields of each CSV row; rows with empty fields only are skipped.

    LF, CRLF and CR end lines. A quoted field may hold line breaks; the line is then the row's last one. Between ``|``
    nothing is quoted. Raises TraceError for text that is no CSV.
    """
    quoting = csv.QUOTE_NONE if delimiter == "|" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter, quoting=quoting)
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if any(fields):
                yield f"{source}:{reader.line_num}", fields
    except csv.Error as error:
        raise TraceError(
            f"{source}:{reader.line_num}: expected a line of CSV, got text that the reader rejects ({error})"
        ) from error


def _number(value: Any) -> Any:
    """Refuse ``true`` and ``1_0``, which pydantic takes for numbers."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError("expected a number")
    return value


def _name(value: str) -> str:
    name = value.strip()
    if not name or len(name) > _MAX_NAME or not name.isprintable() or set(name) & set(",\"'"):
        raise ValueError(f"expected a printable name of 1 to {_MAX_NAME} characters without commas and quotation marks")
    return name


Name = Annotated[str, AfterValidator(_name)]
Number = Annotated[float, BeforeValidator(_number)]
"""A finite number, or its text."""
Count = Annotated[int, BeforeValidator(_number), Field(ge=0)]
"""A whole number, or its text."""


def counted(numbers: Mapping[str, int], most: int = 5) -> str:
    """The ``most`` frequent keys with their numbers: ``owner stop 725, maintenance 4 and 2 others``."""
    first = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{' '.join(key.split())} {num:,}" for key, num in first[:most])
    return listed + f" and {len(first) - most} others" * (len(first) > most)


def shown(value: str) -> str:
    """``value`` quoted for a message, at most 60 characters."""
    return printable(repr(value), 60)
