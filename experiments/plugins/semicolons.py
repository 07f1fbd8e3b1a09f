"""Importer ``semicolons`` of failure logs, for ``run.py trace import FILE format=semicolons``."""

from harness.core.errors import TraceError
from harness.traces.importers import FORMATS, Importer
from harness.traces.importers.findings import Findings, Name, Number, Record


def read_semicolons(text: str, found: Findings) -> None:
    """A record is a line ``node;start;end``, in seconds."""
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{found.source}:{number}"
        fields = line.split(";")
        if len(fields) != 3:
            raise TraceError(f"{where}: {len(fields)} fields; expected 'node;start;end'")
        outage = Outage.of(("node", "start_s", "end_s"), fields, where)
        found.fail(outage.node, outage.start_s, outage.end_s, where)


class Outage(Record):
    """A line: a node, when it failed, when it was back."""

    node: Name
    start_s: Number
    end_s: Number | None


FORMATS["semicolons"] = Importer(read=read_semicolons, has_calendar=None)
