"""The Failure Trace Archive's ``event_trace.tab``: intervals in which a node was up or down.

Source: the archive's description of its format (fta.scem.westernsydney.edu.au, FTAFormat): tab-separated ``event_id
component_id node_id platform_id node_name event_type event_start_time event_stop_time event_end_reason``, times in
seconds since 1970, event_type 1 = available, 0 = unavailable; comment lines begin with ``#``.
"""

import io

from harness.core.errors import TraceError
from harness.traces.importers.findings import Findings
from harness.traces.importers.reading import as_count, as_name, as_seconds, shown

OTHER_TYPE = "events of a type other than up (1) and down (0) dropped"

_NODE, _TYPE, _START, _STOP = 2, 5, 6, 7
_NAMES = {
    _NODE: ("node_id",),
    _TYPE: ("event_type",),
    _START: ("event_start_time",),
    _STOP: ("event_stop_time", "event_end_time"),
}
_NUM_COLUMNS = 8, 9  # event_end_reason is not always there
_MAX_TYPE = 1_000_000  # types above 10,000 are user-defined


def read(text: str, found: Findings) -> None:
    """A record is an event that is not "up". A node is its node_id, which is unique; a failed component
    counts as a failure of its node.

    Times count from 1970, or in traces without a calendar from their beginning.
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
        node = as_name(fields[_NODE], "node_id", where)
        if not node.isdigit():
            raise TraceError(f"{where}: node_id: expected a number, got {shown(node)}; check the order of the columns")
        kind = as_count(fields[_TYPE], "event_type", where, most=_MAX_TYPE)
        start_s, stop = as_seconds(fields[_START], "event_start_time", where), fields[_STOP]
        stop_s = None if stop in ("", "NULL") else as_seconds(stop, "event_stop_time", where)
        found.nodes[node] = None
        found.saw(start_s, stop_s)
        if kind == 0:
            found.fail(node, start_s, stop_s, where)
        elif kind != 1:
            found.drop(OTHER_TYPE, where)
    if not found.nodes:
        raise TraceError(f"{found.source}: expected at least one event, got none")


def _check_names(fields: list[str], where: str) -> None:
    """A comment line may hold the names of the columns."""
    if len(fields) not in _NUM_COLUMNS or fields[0].lstrip("# ") != "event_id":
        return
    for column, names in _NAMES.items():
        if fields[column] not in names:
            raise TraceError(f"{where}: column {column + 1}: expected {names[0]!r}, got {shown(fields[column])}")
