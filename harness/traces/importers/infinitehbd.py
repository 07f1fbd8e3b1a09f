"""Faults of the servers of an LLM cluster: InfiniteHBD's JSON list of ``fault_start`` and ``fault_end`` events.

Source: arXiv 2502.03885, github.com/stepfun-ai/InfiniteHBD-Trace. ``event_time`` is in days since the log begins. The
cluster has 400 servers; only those with a fault are named.
"""

from typing import Any, Literal

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, Failure, Findings, Name, Number, Record, read_json

NO_START = "fault_end events of a server without a fault dropped"


class _Event(Record):
    event_type: Literal["fault_start", "fault_end"]
    node_id: Name
    event_time: Number
    fault_type: Any = None


def read(text: str, found: Findings) -> None:
    """Read each ``fault_start`` with its ``fault_end`` as a failure of its server.

    An end belongs to the earliest open fault of its server and ``fault_type``, else to the server's earliest open one;
    it is dropped if the server has none. A fault without an end has no repair time.
    """
    records: list[_Event] = read_json(list[_Event], text, found.source)
    if not records:
        raise TraceError(f"{found.source}: expected at least one event, got none")
    events = [(each.event_time * DAY_S, f"{found.source}: record {k}", each) for k, each in enumerate(records, start=1)]
    open_faults: dict[str, list[tuple[Any, Failure]]] = {}
    for time_s, where, event in found.in_order(events):
        found.nodes[event.node_id] = None
        faults = open_faults.setdefault(event.node_id, [])
        if event.event_type == "fault_start":
            kind = event.fault_type
            reason = ": ".join(map(str, kind.values())) if isinstance(kind, dict) else str(kind or "")
            faults.append((kind, found.fail(event.node_id, time_s, None, where, reason)))
        elif faults:
            number = next((number for number, (kind, _) in enumerate(faults) if kind == event.fault_type), 0)
            faults.pop(number)[1].end_s = time_s
        else:
            found.dropped[NO_START] += 1
