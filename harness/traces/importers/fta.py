"""The Failure Trace Archive's ``event_trace.tab``: intervals in which a node was up or down.

Source: the archive's description of its format (fta.scem.westernsydney.edu.au, FTAFormat): tab-separated ``event_id
component_id node_id platform_id node_name event_type event_start_time event_stop_time event_end_reason``, times in
seconds since 1970, event_type 1 = available, 0 = unavailable; comment lines begin with ``#``.
"""

import io

from harness.core.errors import TraceError
from harness.traces.importers.findings import Findings
from harness.traces.importers.reading import Count, Number, Record, shown

OTHER_TYPE = "events of a type other than up (1) and down (0) dropped"

_COLUMNS = {2: "node_id", 5: "event_type", 6: "event_start_time", 7: "event_stop_time"}
_NUM_COLUMNS = 8, 9  # event_end_reason is not always there


class _Event(Record):
    node_id: Count
    event_type: Count
    event_start_time: Number
    event_stop_time: Number | None


def read(text: str, found: Findings) -> None:
    """Read each event other than "up" as a failure of its node_id, also a component's. Times may count from 1970."""
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
        texts = ["" if fields[column] == "NULL" else fields[column] for column in _COLUMNS]
        event = _Event.of([*_COLUMNS.values()], texts, where)
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
    for column, name in _COLUMNS.items():
        if fields[column] not in (name, name.replace("stop", "end")):
            raise TraceError(f"{where}: column {column + 1}: expected {name!r}, got {shown(fields[column])}")
