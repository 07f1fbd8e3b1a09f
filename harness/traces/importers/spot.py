"""Spot instances that come and go: Bamboo's events, and SkyPilot's counts.

Sources: Bamboo (Thorpe et al., NSDI 2023), github.com/uclasystem/bamboo, lines ``milliseconds,add|remove,instance``;
github.com/skypilot-org/spot-traces (Wu et al., "Can't Be Late", NSDI 2024), JSON objects ``{"metadata":
{"gap_seconds": 300}, "data": [4, 4, 2, ...]}``, some with a list ``prices``, which is not used.
"""

from collections import deque
from typing import Annotated, Literal

from pydantic import Field

from harness.core.errors import TraceError
from harness.traces.importers.findings import Count, Failure, Findings, Name, Number, Record, csv_rows, read_json, shown

GONE = "removals of an instance that is gone already dropped"
THERE = "additions of an instance that is there already: passed over"

_MILLISECOND_S = 1e-3
_MAX_INSTANCES = 10_000


class Slots:
    """The slots of a cluster that instances occupy; the outages of a slot are the times in which it is empty.

    A job sees slots, not instances: a preempted instance is replaced by one of another name. A new instance takes the
    slot that has been empty for longest, or a new slot.
    """

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._empty: deque[str] = deque()
        self._open: dict[str, Failure] = {}
        self.slot_of: dict[str, str] = {}
        """The slot of each instance that is there, in order of arrival."""

    def enter(self, instance: str, time_s: float | None) -> None:
        """Record that ``instance`` arrived at ``time_s``; None: before the log began."""
        slot = self._empty.popleft() if self._empty else f"slot{len(self.slot_of)}"
        self.slot_of[instance] = slot
        self._found.nodes[slot] = None
        if slot in self._open:
            self._open.pop(slot).end_s = time_s

    def leave(self, instance: str, time_s: float, where: str, reason: str = "") -> None:
        slot = self.slot_of.pop(instance)
        self._empty.append(slot)
        self._open[slot] = self._found.fail(slot, time_s, None, where, reason)


class _Line(Record):
    time: Number
    kind: Literal["add", "remove"]
    instance: Name
    reason: str | None


def read_events(text: str, found: Findings) -> None:
    """Read a log of Bamboo: each removal of an instance is a failure of its slot, until another instance takes it.

    An instance that is removed without having been added was there when the log began. A fourth field is the reason of
    a removal.
    """
    slots = Slots(found)
    events = [*found.in_order([_event(where, fields) for where, fields in csv_rows(text, found.source)])]
    if not events:
        raise TraceError(f"{found.source}: expected lines 'milliseconds,add|remove,instance', got empty ones only")
    first: dict[str, str] = {}
    for _, _, line in events:
        first.setdefault(line.instance, line.kind)
    for instance in (instance for instance, kind in first.items() if kind == "remove"):
        slots.enter(instance, None)
    for time_s, where, line in events:
        is_here = line.instance in slots.slot_of
        if line.kind == "add":
            if is_here:
                found.changed[THERE] += 1
            else:
                slots.enter(line.instance, time_s)
        elif is_here:
            slots.leave(line.instance, time_s, where, line.reason or "")
        else:
            found.dropped[GONE] += 1


def _event(where: str, fields: list[str]) -> tuple[float, str, _Line]:
    if len(fields) not in (3, 4) or fields[1] not in ("add", "remove"):
        raise TraceError(f"{where}: expected 'milliseconds,add|remove,instance', got {shown(','.join(fields))}")
    line = _Line.of(("time", "kind", "instance", "reason"), [*fields, ""][:4], where)
    return line.time * _MILLISECOND_S, where, line


class _Metadata(Record):
    gap_seconds: Annotated[Number, Field(gt=0)]


class _Counts(Record):
    metadata: _Metadata
    data: list[Annotated[Count, Field(le=_MAX_INSTANCES)]]


def read_counts(text: str, found: Findings) -> None:
    """Read a log of SkyPilot: the number of instances at each tick. A count that falls by n is n preemptions.

    Instances have no names; the oldest is assumed to go first. The gaps between failures of the cluster are those of
    the log; the gaps of one node follow from that assumption and from ``Slots``. A preemption gets the time of the
    lower count, and happened between the previous tick and this one.
    """
    source = found.source
    log: _Counts = read_json(_Counts, text, source)
    num_counts, gap_s = len(log.data), log.metadata.gap_seconds
    if num_counts < 2:
        raise TraceError(f"{source}: expected at least 2 counts in the list 'data', got {num_counts}")
    found.saw(f"{source}: gap_seconds", 0.0, gap_s * (num_counts - 1))
    slots = Slots(found)
    num_ever = 0
    for tick, count in enumerate(log.data):
        while len(slots.slot_of) > count:
            slots.leave(next(iter(slots.slot_of)), tick * gap_s, f"{source}: data[{tick}]")
        while len(slots.slot_of) < count:
            slots.enter(str(num_ever), tick * gap_s)
            num_ever += 1
    if not num_ever:
        raise TraceError(f"{source}: data: expected a count of instances above 0, got zeros only, so none can fail")
