"""Spot instances that join and leave: ``milliseconds,add|remove,instance``.

Source: Bamboo (Thorpe et al., NSDI 2023), github.com/uclasystem/bamboo, whose simulator replays these files.
"""

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import Cleaning, Event, Failure, Observed, Watch, in_order
from harness.traces.importers.reading import as_name, as_seconds, csv_rows, shown
from harness.traces.importers.slots import Slots

LICENCE = "MIT, uclasystem/bamboo (NSDI 2023)"
GONE = "removals of an instance that is gone already dropped"
THERE = "additions of an instance that is there already: passed over"

_MILLISECOND_S = 1e-3


def read(text: str, source: str, cleaning: Cleaning, *, by: str = "slot") -> Observed:
    """A record is a removal. By ``slot`` (importers/slots.py) a node is a place in the cluster, and is down until
    another instance takes it; by ``instance`` it is the instance itself, gone for good unless added again.

    An instance that is removed without having been added was there when the log began.
    """
    if by not in ("slot", "instance"):
        raise TraceError(f"option by: {shown(by)} is neither 'slot' nor 'instance'")
    slots = Slots()
    failures: list[Failure] = []
    last: dict[str, Failure] = {}
    instances: dict[str, None] = {}
    watch = Watch()
    for event in in_order(_events(text, source), cleaning):
        watch.saw(event.time_s)
        is_known = event.node in instances
        instances[event.node] = None
        if event.kind == "add":
            if event.node in slots:
                cleaning.change(THERE, event.where)
                continue
            slot = slots.enter(event.node)
            node = slot if by == "slot" else event.node
            if node in last:
                last.pop(node).end_s = event.time_s
            continue
        cleaning.num_read += 1
        if event.node not in slots:
            if is_known:
                cleaning.drop(GONE, event.where)
                continue
            slots.enter(event.node)
        slot = slots.leave(event.node)
        node = slot if by == "slot" else event.node
        failures.append(Failure(node, event.time_s, None, event.where))
        last[node] = failures[-1]
    nodes = slots.names if by == "slot" else [*instances]
    return Observed(failures=failures, nodes=nodes, first_s=watch.first_s, last_s=watch.last_s, has_calendar=False)


def _events(text: str, source: str) -> list[Event]:
    events: list[Event] = []
    for where, fields in csv_rows(text, source):
        if len(fields) != 3 or fields[1] not in ("add", "remove"):
            raise TraceError(f"{where}: {shown(','.join(fields))}; expected 'milliseconds,add|remove,instance'")
        time_s = as_seconds(fields[0], "time", where, unit_s=_MILLISECOND_S)
        events.append(Event(time_s, fields[1], as_name(fields[2], "the instance", where), where))
    return events
