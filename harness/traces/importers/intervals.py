"""Tables of the intervals in which nodes were down.

There is an outage a line, in columns that are found by their names: the node, start and end, as dates or as numbers in
any unit since 1970 or since the log's beginning, and a reason.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

from pydantic import PlainValidator

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, HOUR_S, Findings, Name, Record, csv_rows, shown

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": HOUR_S, "d": DAY_S}  # seconds
_NAMES: Mapping[str, tuple[str, ...]] = {
    "node": ("node", "nodename", "nodeid", "host", "hostname", "machine", "server", "instance"),
    "start": ("start", "starttime", "timestart", "startedat", "began", "down", "downat", "failed", "failedat"),
    "end": ("end", "endtime", "timeend", "endedat", "ended", "up", "upat", "back", "backat", "repaired", "repairedat"),
    "reason": ("reason", "cause"),
    "state": ("state", "nodestate"),
}
"""Names of columns by what they hold, in small letters and digits only."""
_OPTIONAL = ("end", "reason")
_OPEN = ("unknown", "none", "null", "nan", "n/a", "na", "-")  # words for an end that is not known
_DELIMITERS = ",;|\t"


def _time(value: object) -> float | datetime:
    text = str(value)
    with suppress(ValueError):
        if "_" not in text and math.isfinite(number := float(text)):
            return number
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    raise ValueError("expected a finite number, or a date like 2026-01-31T06:00")


def _end(value: object) -> float | datetime | None:
    return None if value is None or str(value).lower() in _OPEN else _time(value)


class Row(Record):
    """A line of a table of outages. A time is a date, or a number of ``unit``."""

    node: Name | None
    start: Annotated[float | datetime, PlainValidator(_time)]
    end: Annotated[float | datetime | None, PlainValidator(_end)] = None
    reason: str | None = None
    state: str | None = None


def read_intervals(text: str, found: Findings) -> None:
    """Read each line as one outage, whose end may be unknown."""
    for where, row, start_s, end_s in table(text, found):
        if row.node is None:
            raise TraceError(f"{where}: node: expected the name of a machine, got null")
        found.fail(row.node, start_s, end_s, where, row.reason or "")
    if not found.failures and not found.censored:
        raise TraceError(f"{found.source}: expected at least one outage, got column names only")


def table(text: str, found: Findings, *, has_state: bool = False) -> Iterator[tuple[str, Row, float, float | None]]:
    """Yield ``file:line``, the row, and its start and end in seconds (None: unknown) of each line of a table.

    Columns are found by the names in the first line, or by ``columns``: node, start, and end and reason if there are
    such, with ``has_state`` the state. Without names and without ``has_state`` they are node, start and end. They are
    separated by the character of ``,;|`` and tab that the first line has most of. Raises TraceError for any other file.
    """
    first = next(line for line in text.splitlines() if line.strip())
    columns: dict[str, int] | None = None
    width = 0
    for where, fields in csv_rows(text, found.source, max(_DELIMITERS, key=first.count)):
        if columns is None:
            width, columns = len(fields), _columns(fields, found, where, has_state=has_state)
            if columns:
                rest = [name for place, name in enumerate(fields) if place not in columns.values()]
                read = {key: fields[place] for key, place in columns.items()}
                taken = ", ".join(name if name == key else f"{name} as {key}" for key, name in read.items())
                found.columns = f"columns: {taken}" + f"; not read: {', '.join(rest)}" * bool(rest)
                continue
            columns = dict(zip(_NAMES, range(3), strict=False))
        if len(fields) != width:
            raise TraceError(f"{where}: expected {width} columns as in the first line, got {len(fields)}")
        row = Row.of([*columns], [fields[place] for place in columns.values()], where)
        start_s = _seconds(row.start, found, where)
        yield where, row, start_s, None if row.end is None else _seconds(row.end, found, where)


def _columns(fields: list[str], found: Findings, where: str, *, has_state: bool) -> dict[str, int]:
    """The place of each column that the first line names; empty if it has no names, but an outage.

    Raises TraceError for a line without names of other than 3 columns, names that leave out a column that is needed or
    mean one twice, and ``columns`` that the file does not have.
    """
    keys, words = [key for key in _NAMES if key != "state" or has_state], found.how.columns
    if words is not None:
        asked = {key.strip(): name.strip() for key, _, name in (pair.partition(":") for pair in words.split(","))}
        if wrong := [key for key, name in asked.items() if key not in keys or name not in fields]:
            expected = f"expected KEY:NAME with keys of {', '.join(keys)} and names of {', '.join(fields)}"
            raise TraceError(f"{where}: columns: {expected}, got {shown(f'{wrong[0]}:{asked[wrong[0]]}')}")
        names = {key: [asked[key]] if key in asked else [] for key in keys}
    else:
        plain = {name: "".join(filter(str.isalnum, name.lower())) for name in fields}
        names = {key: [name for name in fields if plain[name] in _NAMES[key]] for key in keys}
        if not has_state and not any(names.values()) and any(map(_is_time, fields)):
            if len(fields) == 3:
                return {}
            raise TraceError(f"{where}: expected 3 columns (node,start,end), or column names first, got {len(fields)}")
    for key, of_key in names.items():
        if len(of_key) > 1 or fields.count("".join(of_key)) > 1 or (key not in _OPTIONAL and not of_key):
            got = f"{' and '.join(of_key)}" if of_key else f"the columns {', '.join(fields)}"
            hint = f"columns={','.join(f'{key}:NAME' for key in keys)} names them"
            raise TraceError(f"{where}: expected one column named {key}, got {shown(got)}; {hint}")
    return {key: fields.index(of_key[0]) for key, of_key in names.items() if of_key}


def _is_time(text: str) -> bool:
    try:
        _time(text)
    except ValueError:
        return False
    return True


def _seconds(time: float | datetime, found: Findings, where: str) -> float:
    """``time`` in seconds. Raises TraceError if times before were written in another way."""
    kind = "a number" if not isinstance(time, datetime) else "a date" if time.tzinfo is None else "a date with a zone"
    if found.time_kind not in ("", kind):
        raise TraceError(f"{where}: expected {found.time_kind} as before, got {kind}; write all times in one way")
    found.time_kind = kind
    if isinstance(time, datetime):
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return time * _UNITS[found.how.unit]
