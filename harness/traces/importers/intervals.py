"""Anybody's log: ``node,start,end``, one outage a line, in any unit, since 1970 or since the log's beginning."""

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import DAY_S, HOUR_S, Cleaning, Failure, Observed, Watch
from harness.traces.importers.reading import as_name, as_seconds, csv_rows, shown

LICENCE = "not stated in the file"
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": HOUR_S, "d": DAY_S}
"""Seconds of each unit."""


def read(text: str, source: str, cleaning: Cleaning, *, unit: str = "s") -> Observed:
    """A record is a line; ``end`` may be empty. A first line ``node,start,end`` is passed over.

    Times later than 1990 when counted from 1970 have a calendar (UTC); others count from the log's beginning.

    Raises:
        TraceError: the first line that is not as described, or no such unit.
    """
    if unit not in UNITS:
        raise TraceError(f"option unit: {shown(unit)}; there are {', '.join(UNITS)}")
    failures: list[Failure] = []
    watch = Watch()
    for where, fields in csv_rows(text, source):
        if not failures and [field.lower() for field in fields] == ["node", "start", "end"]:
            continue
        if len(fields) != 3:
            raise TraceError(f"{where}: {len(fields)} columns; expected 'node,start,end'")
        node = as_name(fields[0], "the node", where)
        start_s = as_seconds(fields[1], "start", where, unit_s=UNITS[unit])
        end_s = as_seconds(fields[2], "end", where, unit_s=UNITS[unit]) if fields[2] else None
        watch.saw(start_s, end_s)
        cleaning.num_read += 1
        failures.append(Failure(node, start_s, end_s, where))
    if not failures:
        raise TraceError(f"{source}: no lines but the column names")
    nodes = {failure.node for failure in failures}
    return Observed(failures=failures, nodes=nodes, first_s=watch.first_s, last_s=watch.last_s, has_calendar=None)
