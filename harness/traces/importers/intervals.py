"""A generic log: ``node,start,end``, one outage a line, in any unit, since 1970 or since the log's beginning."""

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, HOUR_S, Findings
from harness.traces.importers.reading import as_name, as_seconds, csv_rows, shown

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": HOUR_S, "d": DAY_S}
"""Seconds of each unit."""


def read(text: str, found: Findings, *, unit: str = "s") -> None:
    """A record is a line; ``end`` may be empty. A first line ``node,start,end`` is skipped."""
    if unit not in UNITS:
        raise TraceError(f"option unit: expected one of {', '.join(UNITS)}, got {shown(unit)}")
    for where, fields in csv_rows(text, found.source):
        if not found.failures and [field.lower() for field in fields] == ["node", "start", "end"]:
            continue
        if len(fields) != 3:
            raise TraceError(f"{where}: expected 3 columns (node,start,end), got {len(fields)}")
        node = as_name(fields[0], "the node", where)
        start_s = as_seconds(fields[1], "start", where, unit_s=UNITS[unit])
        found.fail(node, start_s, as_seconds(fields[2], "end", where, unit_s=UNITS[unit]) if fields[2] else None, where)
    if not found.failures:
        raise TraceError(f"{found.source}: expected at least one outage, got column names only")
