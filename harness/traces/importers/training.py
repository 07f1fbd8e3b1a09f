"""Logs of clusters that train, in JSON: faults of InfiniteHBD's servers, and jobs of Microsoft's Philly clusters.

InfiniteHBD (arXiv 2502.03885, github.com/stepfun-ai/InfiniteHBD-Trace): a list of ``fault_start`` and ``fault_end``
events of an LLM cluster of 400 servers. ``event_time`` is in days since the log begins; only servers with a fault are
named. Philly (Jeon et al., ATC 2019, arXiv 1901.05758, README of github.com/msr-fiddle/philly-traces): the list
``cluster_job_log`` is of jobs, not of machines: which attempts a job made, and how the last one ended.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from harness.core.errors import TraceError
from harness.traces.importers.findings import DAY_S, Failure, Findings, Name, Number, Record, date_seconds, read_json

NO_START = "fault_end events of a server without a fault dropped"


class _Event(Record):
    event_type: Literal["fault_start", "fault_end"]
    node_id: Name
    event_time: Number
    fault_type: Any = None


def read_infinitehbd(text: str, found: Findings) -> None:
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
            found.drop(NO_START, where)


# --- Philly -----------------------------------------------------------------------------------------------------------

NO_END = "failures of attempts without an end_time dropped"
NO_SERVER = "failures of attempts without a server dropped"
STEPS_BACK = "failures of attempts whose next one starts no later than they end: kept, repair time unknown"
BACKWARDS = "failures of attempts that end before they start dropped"


def _seconds(value: Any) -> float | None:
    if value in (None, "", "None"):
        return None
    return date_seconds(value, formats=("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"), like="2017-10-07 01:12:09")


_Time = Annotated[float | None, BeforeValidator(_seconds)]


class _Detail(Record):
    ip: Name


class _Attempt(Record):
    start_time: _Time
    end_time: _Time
    detail: list[_Detail]

    @property
    def servers(self) -> dict[str, None]:
        return dict.fromkeys(each.ip for each in self.detail)


class _Job(Record):
    status: Literal["Pass", "Killed", "Failed"]
    submitted_time: _Time
    attempts: list[_Attempt]


def read_philly(text: str, found: Findings) -> None:
    """Read each failed attempt of a job as a failure of all its servers, at the end of the attempt.

    An attempt has failed if another one followed it, or if it is the last one of a job whose status is ``Failed``
    (``Killed`` is the user's decision). The servers are repaired when the job runs again. Most of these failures are of
    programs, not of machines, and a server may do other work in its repair time.
    """
    jobs: list[_Job] = read_json(list[_Job], text, found.source)
    for number, job in enumerate(jobs, start=1):
        where = f"{found.source}: record {number}"
        found.saw(where, job.submitted_time)
        for attempt in job.attempts:
            found.nodes |= attempt.servers
            found.saw(where, attempt.start_time, attempt.end_time)
        for attempt, following in zip(job.attempts, [*job.attempts[1:], None], strict=False):
            if following is not None or job.status == "Failed":
                _fail(attempt, None if following is None else following.start_time, found, where)
    if not found.nodes or found.last_s < 0:
        raise TraceError(f"{found.source}: expected an attempt with a server and a time, got none")


def _fail(attempt: _Attempt, again_s: float | None, found: Findings, where: str) -> None:
    """Add a failure of each server of an attempt to ``found``, or drop it. ``again_s``: start of the next attempt."""
    start_s, end_s = attempt.start_time, attempt.end_time
    if not attempt.servers:
        found.drop(NO_SERVER, where)
    for server in attempt.servers:
        if end_s is None:
            found.drop(NO_END, where)
        elif start_s is not None and end_s < start_s:
            found.drop(BACKWARDS, where)
        else:
            is_back = again_s is not None and again_s <= end_s
            if is_back:
                found.change(STEPS_BACK, where)
            found.fail(server, end_s, None if is_back else again_s, where)
