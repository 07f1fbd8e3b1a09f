"""Failure traces: which PS ranks die at which hour of the emulated job. The format is failure_traces/README.md.

Pure: text in, values out; whoever has the file reads it.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.core.clock import boundary_at, hour_to_samples
from harness.core.errors import TraceError
from harness.core.plans import PlannedKill, Rank, ps_index, ps_rank
from harness.core.seeds import generator

_PS = re.compile(r"ps(0|[1-9][0-9]*)")
_COUNT = re.compile(r"[1-9][0-9]*")
_TRAINER = re.compile(r"trainer[0-9]+")
MAX_HOURS = 1e9
"""No log and no job is longer: 114,000 years."""
MAX_RANKS = 1_000_000
"""Ranks of a trace at most, such as the nodes of a whole cluster."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a trace: at ``hour``, the rank named (``"ps3"``) or so many ranks, drawn by seed, die.

    ``repair_h``: hours until they were back, None where the trace does not say.
    """

    hour: float
    who: Rank | int
    repair_h: float | None = None
    line: int
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A failure trace, in order of hours. ``header`` holds the ``# key: value`` lines."""

    source: str
    entries: tuple[Entry, ...]
    header: Mapping[str, str]

    def schedule(
        self, *, job_h: float, total_samples: int, batch_size: int, num_steps: int, num_ps: int, seed: int
    ) -> tuple[PlannedKill, ...]:
        """When each entry strikes: at the first boundary with samples >= its hour's, at the latest the one before the
        last step. Entries at one boundary are one planned_kill.

        Ranks of a count are drawn by (seed, "trace", line), whatever else is in the trace.

        Raises:
            TraceError: an hour past the job's end, a rank that the run does not have, more ranks than there are.
        """
        planned_kills: dict[int, dict[Rank, Entry]] = {}
        for entry in self.entries:
            if entry.hour > job_h:
                raise self._error(entry, f"hour {entry.hour} is past the end of the job ({job_h} h)")
            due = hour_to_samples(entry.hour, job_h=job_h, total_samples=total_samples)
            step = max(0, min(boundary_at(due, batch_size), num_steps - 1))
            struck = planned_kills.setdefault(step, {})
            for rank in self._ranks(entry, num_ps, seed):
                struck.setdefault(rank, entry)
        return tuple(_kill_if_due(step, struck) for step, struck in sorted(planned_kills.items()))

    def _ranks(self, entry: Entry, num_ps: int, seed: int) -> list[Rank]:
        there_are = f"this run has {ps_rank(0)}" + (f" … {ps_rank(num_ps - 1)}" if num_ps > 1 else " alone")
        if isinstance(entry.who, str):
            if ps_index(entry.who) >= num_ps:
                raise self._error(entry, f"no rank {entry.who}; {there_are}")
            return [entry.who]
        if entry.who > num_ps:
            raise self._error(entry, f"{entry.who} ranks cannot die; {there_are}")
        drawn = generator(seed, "trace", entry.line).choice(num_ps, entry.who, replace=False)
        return [ps_rank(int(index)) for index in drawn]

    def _error(self, entry: Entry, message: str) -> TraceError:
        return TraceError(f"{self.source}:{entry.line}: {message}")


def _kill_if_due(step: int, struck: Mapping[Rank, Entry]) -> PlannedKill:
    ranks = tuple(sorted(struck, key=ps_index))
    return PlannedKill(
        step=step,
        ranks=ranks,
        hours=tuple(struck[rank].hour for rank in ranks),
        lines=tuple(struck[rank].line for rank in ranks),
        repair_h=max((entry.repair_h for entry in struck.values() if entry.repair_h is not None), default=None),
    )


def parse_trace(lines: Iterable[str], source: str) -> Trace:
    """Read a trace; ``source`` opens every message. Blank lines and CRLF are tolerated.

    Raises:
        TraceError: ``source:line: ...``, the first thing that is not as the format says.
    """
    header: dict[str, str] = {}
    columns: list[str] = []
    entries: list[Entry] = []
    number = 0
    for number, raw in enumerate(lines, start=1):
        text = raw.removeprefix("\ufeff").strip()
        where = f"{source}:{number}"
        if not text:
            continue
        if text.startswith("#"):
            key, colon, value = text.lstrip("# ").partition(":")
            if colon:
                header[key.strip()] = value.strip()
        elif not columns:
            columns = _columns(_split(text, where), where)
        else:
            entries.append(_entry(_split(text, where), columns, number, where))
            if len(entries) > 1 and entries[-1].hour < entries[-2].hour:
                order = f"hour {entries[-1].hour} comes after hour {entries[-2].hour}"
                raise TraceError(f"{where}: {order}; hours must not go backwards")
    if not columns:
        raise TraceError(f"{source}:{max(number, 1)}: no column line; expected 'hour,rank'")
    return Trace(source=source, entries=tuple(entries), header=header)


def _split(text: str, where: str) -> list[str]:
    try:
        return [value.strip() for value in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise TraceError(f"{where}: not a line of CSV ({error})") from error


def _columns(names: list[str], where: str) -> list[str]:
    if names[:2] != ["hour", "rank"]:
        raise TraceError(f"{where}: columns {','.join(names)!r}; the first two must be 'hour,rank'")
    if len(set(names)) < len(names):
        raise TraceError(f"{where}: two columns of one name in {','.join(names)!r}")
    return names


def _entry(values: list[str], columns: list[str], number: int, where: str) -> Entry:
    if len(values) != len(columns):
        raise TraceError(f"{where}: {len(values)} values for {len(columns)} columns ({','.join(columns)})")
    extra = dict(zip(columns[2:], values[2:], strict=True))
    repair = extra.get("repair_h")
    return Entry(
        hour=_hours("hour", values[0], where),
        who=_who(values[1], where),
        repair_h=_hours("repair_h", repair, where) if repair else None,
        line=number,
        extra=extra,
    )


def _hours(column: str, text: str, where: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        raise TraceError(f"{where}: {column} {text!r} is not a number") from None
    if not 0 <= hours <= MAX_HOURS:  # nan is not
        raise TraceError(f"{where}: {column} {text} cannot be; hours are from 0 to {MAX_HOURS:g}")
    return hours


def _who(text: str, where: str) -> Rank | int:
    if found := _PS.fullmatch(text):
        if _is_beyond(found[1], MAX_RANKS - 1):
            raise TraceError(f"{where}: no rank {_short(text)}; the last that a trace can name is ps{MAX_RANKS - 1}")
        return text
    if _COUNT.fullmatch(text):
        if _is_beyond(text, MAX_RANKS):
            raise TraceError(f"{where}: {_short(text)} ranks cannot die; {MAX_RANKS} at most")
        return int(text)
    if _TRAINER.fullmatch(text):
        raise TraceError(f"{where}: {text} cannot be killed: there is one trainer")
    raise TraceError(f"{where}: rank {text!r}; expected a name such as 'ps3', or how many ranks die, at least 1")


def _is_beyond(digits: str, most: int) -> bool:
    """Whether the number is above ``most``; thousands of digits would not even become an int."""
    return len(digits) > len(str(most)) or int(digits) > most


def _short(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:20]}…"
