"""Outages of the nodes of a Slurm cluster: ``sacctmgr show event -P``, or a table of node states with such columns.

Sources: the man pages sacctmgr(1), LIST/SHOW EVENT FORMAT OPTIONS, sinfo(1), NODE STATE CODES, and scontrol(1), reboot;
``as_mysql_node_down`` and ``node_state_string_compact`` in Slurm's code. The first line names the columns, which
``format=`` chooses: by default Cluster, NodeName, TimeStart, TimeEnd, State, Reason and User. Times are local, the end
of an open event is ``Unknown``, and an event of the whole cluster has no node. When the state or the reason of a node
that is down changes, its event ends, and another begins in the same second.
"""

import math
import re
from dataclasses import dataclass

from harness.core.errors import TraceError
from harness.core.faults import longest
from harness.traces.importers.findings import Findings, shown
from harness.traces.importers.intervals import Row, table

PLANNED = "planned drains and maintenance dropped"
SAME = "events that follow another one of their node at once: one outage with it"
UP = "events of a node that is neither down nor drained dropped"
NO_NODE = "events of the whole cluster dropped"

_STATE = re.compile(r"([a-z_]+(?:\+[a-z_]+)*|\?)([-*~#!%$@^+]*)", re.IGNORECASE)  # words, then flags
_DOWN = {"DOWN", "ERROR", "FAIL", "FAILG", "FAILING", "INVAL", "DRAIN", "DRNG", "DRAINED", "DRAINING"}
_MAINTENANCE = {"MAINT", "MAINTENANCE", "BOOT", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"}
_RESERVED = "$"  # a flag: the node is in a reservation for maintenance
_PLANNED = re.compile(
    r"^(?!.*(unplanned|unscheduled|emergency)).*(mainten|planned|scheduled|upgrad|reboot asap)", re.IGNORECASE
)


@dataclass(frozen=True)
class _Event:
    start_s: float
    end_s: float | None
    where: str
    reason: str
    is_planned: bool


def read(text: str, found: Findings) -> None:
    """Read each outage of a node, from the event that takes it down to the end of the last one that follows at once.

    An outage is a failure unless its first event is planned: by the state (maintenance, a reboot that was asked for) or
    by the reason, such as ``quarterly maintenance``. Later events of an outage have no say: a broken node is drained
    for its repair, and one that is switched off for maintenance does not respond.
    """
    events: dict[str, list[_Event]] = {}
    for where, row, start_s, end_s in table(text, found, has_state=True):
        if row.node is None:
            found.dropped[NO_NODE] += 1
            continue
        found.nodes[row.node] = None
        found.saw(where, start_s, end_s)
        is_planned = _is_planned(row, where)
        if is_planned is None:
            found.dropped[UP] += 1
        else:
            events.setdefault(row.node, []).append(_Event(start_s, end_s, where, row.reason or "", is_planned))
    if not found.nodes:
        raise TraceError(f"{found.source}: expected at least one event of a node, got none")
    for node, of_node in events.items():
        for outage in _outages(of_node):
            first, last = outage[0], outage[-1]
            if first.is_planned:
                found.dropped[PLANNED] += len(outage)
            else:
                end_s = None if last.end_s is None else longest(event.end_s for event in outage)
                found.fail(node, first.start_s, end_s, first.where, first.reason)
                found.dropped.update([SAME] * (len(outage) - 1))


def _outages(events: list[_Event]) -> list[list[_Event]]:
    """The events of a node in order of their starts, those together that begin no later than one before ends."""
    outages: list[list[_Event]] = []
    until_s = -math.inf
    for event in sorted(events, key=lambda event: event.start_s):
        if event.start_s > until_s:
            outages.append([])
        outages[-1].append(event)
        until_s = max(until_s, event.start_s if event.end_s is None else event.end_s)
    return outages


def _is_planned(row: Row, where: str) -> bool | None:
    """Whether an event is planned; None if the node is neither down nor drained. Raises TraceError for no state."""
    state = _STATE.fullmatch(row.state or "")
    if state is None:
        expected = "expected a node state of Slurm such as DOWN*, DRAIN or MAINT"
        raise TraceError(f"{where}: state: {expected}, got {shown(row.state or '')}")
    words = {*state[1].upper().split("+")}
    if words & _MAINTENANCE or _RESERVED in state[2]:
        return True
    return _PLANNED.search(row.reason or "") is not None if words & _DOWN else None
