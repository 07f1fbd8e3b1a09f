"""Logs of intervals in which nodes were down: a generic one, and the Failure Trace Archive's ``event_trace.tab``.

The generic one is ``node,start,end``, one outage a line, in any unit, since 1970 or since the log's beginning.

Source of the other: the archive's description of its format (fta.scem.westernsydney.edu.au, FTAFormat): tab-separated
``event_id component_id node_id platform_id node_name event_type event_start_time event_stop_time event_end_reason``,
times in seconds since 1970, event_type 1 = available, 0 = unavailable; comment lines begin with ``#``.
"""

import io

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, HOUR_S, Count, Findings, Name, Number, Record, csv_rows, shown

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": HOUR_S, "d": DAY_S}  # seconds
_FIELDS = ("node", "start", "end")


class _Line(Record):
    node: Name
    start: Number
    end: Number | None


def read_intervals(text: str, found: Findings) -> None:
    """Read each line as one outage; ``end`` may be empty. A first line ``node,start,end`` is skipped."""
    unit_s = _UNITS[found.how.unit]
    for where, fields in csv_rows(text, found.source):
        if not found.failures and [field.lower() for field in fields] == [*_FIELDS]:
            continue
        if len(fields) != len(_FIELDS):
            raise TraceError(f"{where}: expected 3 columns (node,start,end), got {len(fields)}")
        line = _Line.of(_FIELDS, fields, where)
        found.fail(line.node, line.start * unit_s, None if line.end is None else line.end * unit_s, where)
    if not found.failures:
        raise TraceError(f"{found.source}: expected at least one outage, got column names only")


# --- the Failure Trace Archive ----------------------------------------------------------------------------------------

OTHER_TYPE = "events of a type other than up (1) and down (0) dropped"

_FTA_COLUMNS = {2: "node_id", 5: "event_type", 6: "event_start_time", 7: "event_stop_time"}
_NUM_COLUMNS = 8, 9  # event_end_reason is not always there


class _Event(Record):
    node_id: Count
    event_type: Count
    event_start_time: Number
    event_stop_time: Number | None


def read_fta(text: str, found: Findings) -> None:
    """Read each event of type 0 as a failure of its ``node_id``, also where only a component of the node was down.

    Events of type 1 (up) show that the node was watched; those of other types are dropped.
    """
    for number, raw in enumerate(io.StringIO(text, newline=None), start=1):
        where = f"{found.source}:{number}"
        fields = [field.strip() for field in (raw.split("\t") if "\t" in raw else raw.split())]  # tabs may be lost
        if not any(fields) or raw.startswith("#") or fields[0] == "event_id":
            _check_names(fields, where)
            continue
        if len(fields) not in _NUM_COLUMNS:
            raise TraceError(
                f"{where}: expected 8 or 9 columns separated by tabs, as in event_trace.tab, got {len(fields)}"
            )
        texts = ["" if fields[column] == "NULL" else fields[column] for column in _FTA_COLUMNS]
        event = _Event.of([*_FTA_COLUMNS.values()], texts, where)
        node = texts[0]
        found.nodes[node] = None
        found.saw(where, event.event_start_time, event.event_stop_time)
        if event.event_type == 0:
            found.fail(node, event.event_start_time, event.event_stop_time, where)
        elif event.event_type != 1:
            found.drop(OTHER_TYPE, where)
    if not found.nodes:
        raise TraceError(f"{found.source}: expected at least one event, got none")


def _check_names(fields: list[str], where: str) -> None:
    """Raise TraceError if a comment line names other columns than those of the format."""
    if len(fields) not in _NUM_COLUMNS or fields[0].lstrip("# ") != "event_id":
        return
    for column, name in _FTA_COLUMNS.items():
        if fields[column] not in (name, name.replace("stop", "end")):
            raise TraceError(f"{where}: column {column + 1}: expected {name!r}, got {shown(fields[column])}")
