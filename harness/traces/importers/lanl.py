"""Failures of Los Alamos' clusters: a CSV of 26 columns, LA-UR-05-7318, 1996 to 2005.

Source: the README that comes with the data. Dates are US dates of local time, to the minute; ``Down Time`` is in
minutes. Local times are not corrected for daylight saving: where the clock changes, a gap between
failures is an hour too long or too short.
"""

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from harness.core.errors import TraceError
from harness.traces.importers.findings import Count, Findings, Number, Record, csv_rows, shown

NOT_POSITIVE = "records with down time <= 0 dropped"
NO_TIME = "records without a start dropped"
NO_NODE = "records without a node number dropped"
DIFFERS = "records whose down time is not end - start: kept, the down time believed"

_MINUTE_S = 60.0
_NUM_COLUMNS = 26
_CAUSES = slice(19, 25)  # facilities, hardware, human error, network, undetermined, software
_MAX_NODES = 100_000
_COLUMNS = {0: "System", 2: "nodes", 6: "nodenumz", 16: "Prob Started", 17: "Prob Fixed", 18: "Down Time"}
_US_FORMATS = ("%m/%d/%Y %H:%M", "%m/%d/%y %H:%M")
_1970 = datetime(1970, 1, 1)


def _seconds(value: Any) -> float:
    """Seconds since 1970 on the clock of the log."""
    for form in _US_FORMATS:
        with suppress(ValueError):
            return (datetime.strptime(str(value), form) - _1970).total_seconds()
    raise ValueError("expected a date and time like 6/21/2005 10:54, month first")


_Date = Annotated[float, BeforeValidator(_seconds)]


class _Line(Record):
    system: Count = Field(alias="System")
    nodes: Annotated[Count, Field(le=_MAX_NODES)]
    node: Count | None = Field(alias="nodenumz")
    start_s: _Date | None = Field(alias="Prob Started")
    end_s: _Date | None = Field(alias="Prob Fixed")
    down_minutes: Number | None = Field(alias="Down Time")


def read(text: str, found: Findings) -> None:
    """Read each line as a failure of the node ``SYSTEM-NUMBER``; ``system`` selects the lines of one system.

    The column ``nodes`` counts all nodes, also those that never failed; numbers start at 0. A line without down time
    lasts from its start to its end.
    """
    wanted = found.how.system
    num_nodes: dict[int, int] = {}
    for where, fields in csv_rows(text, found.source):
        if _is_header(fields, where, is_first=not num_nodes):
            continue
        line = _Line.of([*_COLUMNS.values()], [fields[column] for column in _COLUMNS], where)
        num_nodes[line.system] = max(num_nodes.get(line.system, 0), line.nodes)
        if wanted in (None, line.system):
            _add(line, found, where, ": ".join(filter(None, fields[_CAUSES])))
    if wanted is not None and wanted not in num_nodes:
        systems = shown(", ".join(map(str, sorted(num_nodes))))
        raise TraceError(f"{found.source}: system: expected one of {systems}, got {wanted}")
    if not found.failures and not found.censored:
        raise TraceError(f"{found.source}: expected at least one failure, got none")
    for number in num_nodes.keys() if wanted is None else {wanted}:
        found.nodes |= dict.fromkeys(f"{number}-{node}" for node in range(num_nodes[number]))


def _is_header(fields: list[str], where: str, *, is_first: bool) -> bool:
    """Whether this line holds the column names; only the first line can."""
    if len(fields) != _NUM_COLUMNS:
        raise TraceError(f"{where}: expected {_NUM_COLUMNS} columns, got {len(fields)}")
    if not is_first or fields[0].isdigit():
        return False
    for column, name in _COLUMNS.items():
        if not fields[column].lower().startswith(name.lower()):
            raise TraceError(f"{where}: column {column + 1}: expected {name!r}, got {shown(fields[column])}")
    return True


def _add(line: _Line, found: Findings, where: str, cause: str) -> None:
    if line.start_s is None or line.node is None:
        found.dropped[NO_TIME if line.start_s is None else NO_NODE] += 1
        return
    between_s = None if line.end_s is None else line.end_s - line.start_s
    down_s = between_s if line.down_minutes is None else line.down_minutes * _MINUTE_S
    if down_s is not None and down_s <= 0:
        found.dropped[NOT_POSITIVE] += 1
        return
    if None not in (between_s, down_s) and between_s != down_s:
        # In system 20's log: three times an hour of daylight saving, which the down time has right, twice a minute.
        found.changed[DIFFERS] += 1
    end_s = None if down_s is None else line.start_s + down_s
    found.fail(f"{line.system}-{line.node}", line.start_s, end_s, where, cause)
