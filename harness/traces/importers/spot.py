"""Spot instances that come and go: Bamboo's events, and SkyPilot's counts.

Sources: Bamboo (Thorpe et al., NSDI 2023), github.com/uclasystem/bamboo, lines ``milliseconds,add|remove,instance``;
github.com/skypilot-org/spot-traces (Wu et al., "Can't Be Late", NSDI 2024), JSON objects ``{"metadata":
{"gap_seconds": 300}, "data": [4, 4, 2, ...]}``, some with a list ``prices`` as long as ``data``, which is not used.
"""

from collections import deque

from harness.core.errors import TraceError
from harness.traces.importers.findings import Event, Failure, Findings
from harness.traces.importers.reading import (
    LAST_S,
    as_count,
    as_list,
    as_name,
    as_number,
    as_seconds,
    csv_rows,
    member,
    parse_json,
    shown,
)

GONE = "removals of an instance that is gone already dropped"
THERE = "additions of an instance that is there already: passed over"

_MILLISECOND_S = 1e-3
_MAX_INSTANCES = 10_000


class Slots:
    """The places of a cluster that instances occupy and leave; a slot's outage is the time in which it is empty.

    A job sees slots, not instances: a preempted instance is replaced by one of another name. A newcomer takes the slot
    that has been empty for longest, or a new one. With ``is_named`` every instance has a slot of its own name.
    """

    def __init__(self, found: Findings, *, is_named: bool = False) -> None:
        self._found, self._is_named = found, is_named
        self._empty: deque[str] = deque()
        self._open: dict[str, Failure] = {}
        self.slot_of: dict[str, str] = {}
        """The slot of each instance that is there, in order of arrival."""

    def enter(self, instance: str, time_s: float | None) -> None:
        """``instance`` arrives at ``time_s``; None: it was there when the log began."""
        slot = instance
        if not self._is_named:
            slot = self._empty.popleft() if self._empty else f"slot{len(self.slot_of)}"
        self.slot_of[instance] = slot
        self._found.nodes[slot] = None
        if slot in self._open:
            self._open.pop(slot).end_s = time_s

    def leave(self, instance: str, time_s: float, where: str) -> None:
        """``instance`` is preempted at ``time_s``."""
        slot = self.slot_of.pop(instance)
        self._empty.append(slot)
        self._open[slot] = self._found.fail(slot, time_s, None, where)


def read_events(text: str, found: Findings, *, by: str = "slot") -> None:
    """Bamboo: a record is a removal.

    By ``slot`` a node is a place in the cluster, down until another instance takes it; by ``instance`` it is the
    instance itself. An instance that is removed without having been added was there when the log began.
    """
    if by not in ("slot", "instance"):
        raise TraceError(f"option by: expected 'slot' or 'instance', got {shown(by)}")
    slots = Slots(found, is_named=by == "instance")
    known: set[str] = set()
    for event in found.in_order([_event(where, fields) for where, fields in csv_rows(text, found.source)]):
        is_here, is_new = event.node in slots.slot_of, event.node not in known
        known.add(event.node)
        if event.kind == "add":
            if is_here:
                found.change(THERE, event.where)
            else:
                slots.enter(event.node, event.time_s)
        elif is_here or is_new:
            if is_new:
                slots.enter(event.node, None)
            slots.leave(event.node, event.time_s, event.where)
        else:
            found.drop(GONE, event.where)


def _event(where: str, fields: list[str]) -> Event:
    if len(fields) != 3 or fields[1] not in ("add", "remove"):
        raise TraceError(f"{where}: expected 'milliseconds,add|remove,instance', got {shown(','.join(fields))}")
    time_s = as_seconds(fields[0], "time", where, unit_s=_MILLISECOND_S)
    return Event(time_s, fields[1], as_name(fields[2], "the instance", where), where)


def read_counts(text: str, found: Findings) -> None:
    """Read a log of SkyPilot: the number of instances at each tick. A count that falls by n is n preemptions.

    Instances have no names; the oldest is assumed to go first. The gaps between failures of the cluster are those of
    the log; the gaps of one node follow from that assumption and from ``Slots``. A preemption gets the time of the
    lower count, and happened between the previous tick and this one.
    """
    source = found.source
    log = parse_json(text, source)
    gap_s = as_number(member(member(log, "metadata", source), "gap_seconds", source), "gap_seconds", source)
    counts = as_list(member(log, "data", source), "data", source)
    last_s = gap_s * (len(counts) - 1)
    if len(counts) < 2:
        raise TraceError(f"{source}: expected at least 2 counts in the list 'data', got {len(counts)}")
    if not 0 < last_s <= LAST_S:
        expected = f"expected seconds > 0 by which {len(counts)} counts span at most {LAST_S:.0f} s"
        raise TraceError(f"{source}: gap_seconds: {expected}, got {gap_s:g}")
    if "prices" in log:
        num_prices = len(as_list(log["prices"], "prices", source))
        if num_prices != len(counts):
            raise TraceError(f"{source}: expected {len(counts)} prices, one for each count in data, got {num_prices}")
    found.saw(0.0, last_s)
    slots = Slots(found)
    num_ever = 0
    for tick, value in enumerate(counts):
        where = f"{source}: data[{tick}]"
        count = as_count(value, "the count", where, most=_MAX_INSTANCES)
        while len(slots.slot_of) > count:
            slots.leave(next(iter(slots.slot_of)), tick * gap_s, where)
        while len(slots.slot_of) < count:
            slots.enter(str(num_ever), tick * gap_s)
            num_ever += 1
    if not num_ever:
        raise TraceError(f"{source}: data: expected a count of instances above 0, got zeros only, so none can fail")
