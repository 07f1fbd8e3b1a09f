"""Faults of an LLM training cluster of 400 servers: a JSON list of ``fault_start`` and ``fault_end`` events.

Source: InfiniteHBD (arXiv 2502.03885), github.com/stepfun-ai/InfiniteHBD-Trace. ``event_time`` is in days since the log
begins; only servers with a fault are named.
"""

from typing import Any

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import DAY_S, Cleaning, Event, Failure, Observed, Watch, in_order
from harness.traces.importers.reading import as_list, as_name, as_seconds, member, parse_json, shown

LICENCE = "Apache-2.0, stepfun-ai/InfiniteHBD-Trace (arXiv 2502.03885)"
NO_START = "fault_end events of a server without a fault dropped"


def read(text: str, source: str, cleaning: Cleaning) -> Observed:
    """A record is a fault: a ``fault_start``, with the ``fault_end`` of its server, or such an end alone.

    An end belongs to the earliest open fault of its server and ``fault_type``, else to the earliest open one. A fault
    that the log does not see ending has no repair time.
    """
    records = as_list(parse_json(text, source), "the file", source)
    if not records:
        raise TraceError(f"{source}: no events")
    events = [_event(record, f"{source}: record {number}") for number, record in enumerate(records, start=1)]
    failures: list[Failure] = []
    open_faults: dict[str, list[tuple[Any, Failure]]] = {}
    watch = Watch()
    for event in in_order(events, cleaning):
        watch.saw(event.time_s)
        faults = open_faults.setdefault(event.node, [])
        if event.kind == "fault_start":
            cleaning.num_read += 1
            failures.append(Failure(event.node, event.time_s, None, event.where))
            faults.append((event.detail, failures[-1]))
        elif faults:
            number = next((number for number, (kind, _) in enumerate(faults) if kind == event.detail), 0)
            faults.pop(number)[1].end_s = event.time_s
        else:
            cleaning.num_read += 1
            cleaning.drop(NO_START, event.where)
    return Observed(
        failures=failures, nodes=open_faults, first_s=watch.first_s, last_s=watch.last_s, has_calendar=False
    )


def _event(record: Any, where: str) -> Event:
    kind = member(record, "event_type", where)
    if kind not in ("fault_start", "fault_end"):
        raise TraceError(f"{where}: event_type is {shown(kind)}, neither 'fault_start' nor 'fault_end'")
    node = as_name(member(record, "node_id", where), "node_id", where)
    days = member(record, "event_time", where)
    return Event(as_seconds(days, "event_time", where, unit_s=DAY_S), kind, node, where, record.get("fault_type"))
