"""Faults of an LLM training cluster of 400 servers: a JSON list of ``fault_start`` and ``fault_end`` events.

Source: InfiniteHBD (arXiv 2502.03885), github.com/stepfun-ai/InfiniteHBD-Trace. ``event_time`` is in days since the log
begins; only servers with a fault are named.
"""

from typing import Any

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, Event, Failure, Findings
from harness.traces.importers.reading import as_list, as_name, as_seconds, member, parse_json, shown

NO_START = "fault_end events of a server without a fault dropped"


def read(text: str, found: Findings) -> None:
    """A record is a fault: a ``fault_start``, with the ``fault_end`` of its server, or such an end alone.

    An end belongs to the earliest open fault of its server and ``fault_type``, else to the earliest open one. A fault
    without an end has no repair time.
    """
    records = as_list(parse_json(text, found.source), "the file", found.source)
    if not records:
        raise TraceError(f"{found.source}: expected at least one event, got none")
    events = [_event(record, f"{found.source}: record {number}") for number, record in enumerate(records, start=1)]
    open_faults: dict[str, list[tuple[Any, Failure]]] = {}
    for event in found.in_order(events):
        found.nodes[event.node] = None
        faults = open_faults.setdefault(event.node, [])
        if event.kind == "fault_start":
            faults.append((event.detail, found.fail(event.node, event.time_s, None, event.where)))
        elif faults:
            number = next((number for number, (kind, _) in enumerate(faults) if kind == event.detail), 0)
            faults.pop(number)[1].end_s = event.time_s
        else:
            found.drop(NO_START, event.where)


def _event(record: Any, where: str) -> Event:
    kind = member(record, "event_type", where)
    if kind not in ("fault_start", "fault_end"):
        raise TraceError(f"{where}: event_type: expected 'fault_start' or 'fault_end', got {shown(kind)}")
    node = as_name(member(record, "node_id", where), "node_id", where)
    days = member(record, "event_time", where)
    return Event(as_seconds(days, "event_time", where, unit_s=DAY_S), kind, node, where, record.get("fault_type"))
