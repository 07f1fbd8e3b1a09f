"""Failures of Los Alamos' clusters: a CSV of 26 columns, LA-UR-05-7318, 1996 to 2005.

Source: the README that comes with the data. Dates are US dates of local time, to the minute; ``Down Time`` is in
minutes. Local times are not corrected for daylight saving: where the clock changes, a gap between
failures is an hour too long or too short.
"""

from harness.core.errors import TraceError
from harness.traces.importers.findings import Findings
from harness.traces.importers.reading import as_count, as_number, csv_rows, date_seconds, shown

NOT_POSITIVE = "records with down time <= 0 dropped"
NO_TIME = "records without a start dropped"
NO_NODE = "records without a node number dropped"
DIFFERS = "records whose down time is not end - start: kept, the down time believed"

_MINUTE_S = 60.0
_NUM_COLUMNS = 26
_MAX_NODES = 100_000
_MAX_DOWN_MINUTES = 10 * 365 * 24 * 60  # ten years, longer than any system of the log ran
_COLUMNS = {0: "System", 2: "nodes", 6: "nodenumz", 16: "Prob Started", 17: "Prob Fixed", 18: "Down Time"}
_SYSTEM, _NODES, _NODE, _STARTED, _FIXED, _DOWN = _COLUMNS


def read(text: str, found: Findings, *, system: str | int | None = None) -> None:
    """A record is a line; ``system`` selects the lines of one system. A node is ``system-number``, numbers from 0.

    The column ``nodes`` also counts nodes that never failed. Where a line has no down time, end - start is taken.
    """
    wanted = None if system is None else as_count(system, "system", "option system", most=_MAX_NODES)
    num_nodes: dict[int, int] = {}
    for where, fields in csv_rows(text, found.source):
        if _is_header(fields, where, is_first=not num_nodes):
            continue
        number = as_count(fields[_SYSTEM], "System", where, most=_MAX_NODES)
        nodes = as_count(fields[_NODES], "nodes", where, most=_MAX_NODES)
        num_nodes[number] = max(num_nodes.get(number, 0), nodes)
        if wanted in (None, number):
            _read_line(fields, number, found, where)
    if wanted is not None and wanted not in num_nodes:
        systems = shown(", ".join(map(str, sorted(num_nodes))))
        raise TraceError(f"{found.source}: option system: expected one of {systems}, got {wanted}")
    if not found.failures:
        raise TraceError(f"{found.source}: expected at least one failure, got none")
    for number in num_nodes.keys() if wanted is None else {wanted}:
        found.nodes |= dict.fromkeys(f"{number}-{node}" for node in range(num_nodes[number]))


def _is_header(fields: list[str], where: str, *, is_first: bool) -> bool:
    """Whether this line holds the column names; only the first line can."""
    if len(fields) != _NUM_COLUMNS:
        raise TraceError(f"{where}: expected {_NUM_COLUMNS} columns, got {len(fields)}")
    if not is_first or fields[_SYSTEM].isdigit():
        return False
    for column, name in _COLUMNS.items():
        if not fields[column].lower().startswith(name.lower()):
            raise TraceError(f"{where}: column {column + 1}: expected {name!r}, got {shown(fields[column])}")
    return True


def _read_line(fields: list[str], system: int, found: Findings, where: str) -> None:
    """Add the line to ``found``: as a failure, or as dropped by a rule. Raises TraceError."""
    for column, rule in ((_STARTED, NO_TIME), (_NODE, NO_NODE)):
        if not fields[column]:
            found.drop(rule, where)
            return
    node = f"{system}-{as_count(fields[_NODE], 'nodenumz', where, most=_MAX_NODES)}"
    start_s = _date_s(fields[_STARTED], "Prob Started", where)
    between_s = _date_s(fields[_FIXED], "Prob Fixed", where) - start_s if fields[_FIXED] else None
    down_s = between_s
    if fields[_DOWN]:
        minutes = as_number(fields[_DOWN], "Down Time", where)
        if abs(minutes) > _MAX_DOWN_MINUTES:
            raise TraceError(f"{where}: Down Time: expected minutes within ten years, got {shown(fields[_DOWN])}")
        down_s = minutes * _MINUTE_S
    if down_s is not None and down_s <= 0:
        found.drop(NOT_POSITIVE, where)
        return
    if None not in (between_s, down_s) and between_s != down_s:
        # In system 20's log: three times an hour of daylight saving, which the down time has right, twice a minute.
        found.change(DIFFERS, where)
    found.fail(node, start_s, None if down_s is None else start_s + down_s, where)


def _date_s(text: str, what: str, where: str) -> float:
    formats = ("%m/%d/%Y %H:%M", "%m/%d/%y %H:%M")
    return date_seconds(text, what, where, formats=formats, like="6/21/2005 10:54, month first")
