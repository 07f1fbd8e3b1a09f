"""The Failure Trace Archive's ``event_trace.tab``: intervals in which a node was up or down.

Source: the archive's description of its format (fta.scem.westernsydney.edu.au, FTAFormat): tab-separated ``event_id
component_id node_id platform_id node_name event_type event_start_time event_stop_time event_end_reason``, times in
seconds since 1970, event_type 1 = available, 0 = unavailable; lines of comment begin with ``#``.
"""

from dataclasses import dataclass

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import Cleaning, Failure, Observed, Watch
from harness.traces.importers.reading import as_count, as_name, as_seconds, numbered_lines, shown

LICENCE = "Failure Trace Archive; cite the archive and the data set's own source"
OTHER_TYPE = "events of a type other than up (1) and down (0) dropped"

_NODE, _TYPE, _START, _STOP = 2, 5, 6, 7
_NAMES = {
    _NODE: ("node_id",),
    _TYPE: ("event_type",),
    _START: ("event_start_time",),
    _STOP: ("event_stop_time", "event_end_time"),
}
_NUM_COLUMNS = 8, 9  # event_end_reason is not always there
_MAX_TYPE = 1_000_000  # types above 10,000 are the user's own, says the format


@dataclass(frozen=True)
class _Line:
    node: str
    kind: int
    start_s: float
    stop_s: float | None


def read(text: str, source: str, cleaning: Cleaning) -> Observed:
    """A record is an event that is not "up". A node is its node_id, which the format says is unique; of its components
    one that is down takes the node with it.

    Times count from 1970, or in traces without a calendar from their beginning.

    Raises:
        TraceError: the first line that is not as described.
    """
    failures: list[Failure] = []
    nodes: dict[str, None] = {}
    watch = Watch()
    for number, raw in numbered_lines(text):
        where = f"{source}:{number}"
        fields = _fields(raw)
        if not any(fields) or raw.startswith("#") or fields[0] == "event_id":
            _check_names(fields, where)
            continue
        line = _line(fields, where)
        nodes[line.node] = None
        watch.saw(line.start_s, line.stop_s)
        if line.kind == 1:
            continue
        cleaning.num_read += 1
        if line.kind == 0:
            failures.append(Failure(line.node, line.start_s, line.stop_s, where))
        else:
            cleaning.drop(OTHER_TYPE, where)
    if not nodes:
        raise TraceError(f"{source}: no events")
    return Observed(failures=failures, nodes=nodes, first_s=watch.first_s, last_s=watch.last_s, has_calendar=None)


def _fields(raw: str) -> list[str]:
    """By tabs; files that lost theirs have blanks."""
    return [field.strip() for field in (raw.split("\t") if "\t" in raw else raw.split())]


def _check_names(fields: list[str], where: str) -> None:
    """A line of comment may be the names of the columns."""
    if len(fields) not in _NUM_COLUMNS or fields[0].lstrip("# ") != "event_id":
        return
    for column, names in _NAMES.items():
        if fields[column] not in names:
            raise TraceError(f"{where}: column {column + 1} is {shown(fields[column])}; expected {names[0]!r}")


def _line(fields: list[str], where: str) -> _Line:
    if len(fields) not in _NUM_COLUMNS:
        raise TraceError(f"{where}: {len(fields)} columns; event_trace.tab has 9, separated by tabs")
    node = as_name(fields[_NODE], "node_id", where)
    if not node.isdigit():
        raise TraceError(f"{where}: node_id is {shown(node)}, not a number; are the columns in order?")
    kind = as_count(fields[_TYPE], "event_type", where, most=_MAX_TYPE)
    start_s = as_seconds(fields[_START], "event_start_time", where, unit_s=1.0)
    stop = fields[_STOP]
    return _Line(
        node, kind, start_s, None if stop in ("", "NULL") else as_seconds(stop, "event_stop_time", where, unit_s=1.0)
    )
