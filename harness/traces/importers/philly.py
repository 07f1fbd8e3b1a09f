"""Jobs of Microsoft's Philly clusters and their attempts: the JSON list ``cluster_job_log``.

Source: github.com/msr-fiddle/philly-traces, its README (Jeon et al., ATC 2019, arXiv 1901.05758). The log is of jobs,
not of machines: which attempts a job made, and how the last one ended.
"""

from typing import Any

from harness.core.errors import TraceError
from harness.traces.importers.findings import Findings
from harness.traces.importers.reading import as_list, as_name, date_seconds, member, parse_json, shown

NO_END = "failures of attempts without an end_time dropped"
NO_SERVER = "failures of attempts without a server dropped"
STEPS_BACK = "failures of attempts whose next one starts no later than they end: kept, repair time unknown"
BACKWARDS = "failures of attempts that end before they start dropped"

_STATUSES = "Pass", "Killed", "Failed"
_Attempt = tuple[float | None, float | None, tuple[str, ...]]  # start and end in seconds, servers


def read(text: str, found: Findings) -> None:
    """A record is a failed attempt on one of its servers: an attempt that another one followed, or the last one of a
    job whose status is ``Failed`` (``Killed`` is a user's doing).

    All servers of an attempt fail at its end, at one instant; they are repaired when the job runs again. Most of these
    failures are of programs, not of machines, and a server may do other work in its repair time.
    """
    jobs = as_list(parse_json(text, found.source), "the file", found.source)
    for number, job in enumerate(jobs, start=1):
        where = f"{found.source}: record {number}"
        status = member(job, "status", where)
        if status not in _STATUSES:
            raise TraceError(f"{where}: status: expected one of {', '.join(_STATUSES)}, got {shown(status)}")
        found.saw(_time(job, "submitted_time", where))
        attempts = [_attempt(one, where) for one in as_list(member(job, "attempts", where), "attempts", where)]
        for start_s, end_s, servers in attempts:
            found.nodes |= dict.fromkeys(servers)
            found.saw(start_s, end_s)
        for attempt, following in zip(attempts, [*attempts[1:], None], strict=False):
            if following is not None or status == "Failed":
                _fail(attempt, None if following is None else following[0], found, where)
    if not found.nodes or found.last_s < 0:
        raise TraceError(f"{found.source}: expected an attempt with a server and a time, got none")


def _attempt(attempt: Any, where: str) -> _Attempt:
    details = as_list(member(attempt, "detail", where), "detail", where)
    servers = dict.fromkeys(as_name(member(detail, "ip", where), "ip", where) for detail in details)
    return _time(attempt, "start_time", where), _time(attempt, "end_time", where), tuple(servers)


def _time(value: Any, key: str, where: str) -> float | None:
    time = member(value, key, where)
    if time in (None, "", "None"):
        return None
    formats = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
    return date_seconds(time, key, where, formats=formats, like="2017-10-07 01:12:09")


def _fail(attempt: _Attempt, again_s: float | None, found: Findings, where: str) -> None:
    """Add a failure of each server of an attempt to ``found``, or drop it. ``again_s``: start of the next attempt."""
    start_s, end_s, servers = attempt
    if not servers:
        found.drop(NO_SERVER, where)
    for server in servers:
        if end_s is None:
            found.drop(NO_END, where)
        elif start_s is not None and end_s < start_s:
            found.drop(BACKWARDS, where)
        else:
            is_back = again_s is not None and again_s <= end_s
            if is_back:
                found.change(STEPS_BACK, where)
            found.fail(server, end_s, None if is_back else again_s, where)
