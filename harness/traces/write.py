"""A trace as text, in the format of failure_traces/README.md. Reading it back gives the same trace."""

import csv
import io
from collections.abc import Mapping

from harness.traces.trace import Trace


def to_text(trace: Trace, *, command: str | None = None) -> str:
    """Header, column line, a line for each entry. ``command``: how to make the file again."""
    header: Mapping[str, str] = {**trace.header, **({} if command is None else {"command": command})}
    out = io.StringIO()
    for key, value in header.items():
        out.write(f"# {key}: {' '.join(value.split())}\n")
    columns = list(dict.fromkeys(name for entry in trace.entries for name in entry.extra)) or ["repair_h", "node"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["hour", "rank", *columns])
    for entry in trace.entries:
        writer.writerow([f"{entry.hour:.12g}", entry.who, *(entry.extra.get(name, "") for name in columns)])
    return out.getvalue()
