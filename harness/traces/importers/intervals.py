"""A generic log: ``node,start,end``, one outage a line, in any unit, since 1970 or since the log's beginning."""

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, HOUR_S, Findings
from harness.traces.importers.reading import Name, Number, Record, csv_rows

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": HOUR_S, "d": DAY_S}  # seconds
_NAMES = ("node", "start", "end")


class _Line(Record):
    node: Name
    start: Number
    end: Number | None


def read(text: str, found: Findings) -> None:
    """Read each line as one outage; ``end`` may be empty. A first line ``node,start,end`` is skipped."""
    unit_s = _UNITS[found.how.unit]
    for where, fields in csv_rows(text, found.source):
        if not found.failures and [field.lower() for field in fields] == [*_NAMES]:
            continue
        if len(fields) != len(_NAMES):
            raise TraceError(f"{where}: expected 3 columns (node,start,end), got {len(fields)}")
        line = _Line.of(_NAMES, fields, where)
        found.fail(line.node, line.start * unit_s, None if line.end is None else line.end * unit_s, where)
    if not found.failures:
        raise TraceError(f"{found.source}: expected at least one outage, got column names only")
