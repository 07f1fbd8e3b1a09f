"""Jobs of Microsoft's Philly clusters and their attempts: the JSON list ``cluster_job_log``.

Source: github.com/msr-fiddle/philly-traces, its README (Jeon et al., ATC 2019, arXiv 1901.05758). The log tells of
jobs, not of machines: that an attempt ended and another followed, and how the last one ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import Cleaning, Failure, Observed, Watch
from harness.traces.importers.reading import as_list, as_name, iso_seconds, member, parse_json, shown

LICENCE = "msr-fiddle/philly-traces, provided as is; cite Jeon et al., ATC 2019"
NO_END = "failures of attempts without an end_time dropped"
NO_SERVER = "failures of attempts without a server dropped"
STEPS_BACK = "failures of attempts whose next one starts no later than they end: kept, repair time unknown"
BACKWARDS = "failures of attempts that end before they start dropped"

_STATUSES = "Pass", "Killed", "Failed"


@dataclass(frozen=True)
class _Attempt:
    start_s: float | None
    end_s: float | None
    servers: tuple[str, ...]


def read(text: str, source: str, cleaning: Cleaning) -> Observed:
    """A record is a failed attempt on one of its servers: an attempt that another one followed, or the last one of a
    job whose status is ``Failed``. ``Killed`` is what a user did. All servers of an attempt fail at its end, at one
    instant; they are repaired when the job runs again.

    Most of these failures are of programs, not of machines, and a server may do other work in its repair time.

    Raises:
        TraceError: the first job that is not as described.
    """
    jobs = as_list(parse_json(text, source), "the file", source)
    failures: list[Failure] = []
    nodes: dict[str, None] = {}
    watch = Watch()
    for number, job in enumerate(jobs, start=1):
        where = f"{source}: record {number}"
        status = member(job, "status", where)
        if status not in _STATUSES:
            raise TraceError(f"{where}: status is {shown(status)}, not one of {', '.join(_STATUSES)}")
        watch.saw(_time(job, "submitted_time", where))
        attempts = as_list(member(job, "attempts", where), "attempts", where)
        read_attempts = [_attempt(attempt, where) for attempt in attempts]
        for attempt in read_attempts:
            nodes |= dict.fromkeys(attempt.servers)
            watch.saw(attempt.start_s, attempt.end_s)
        failures += _failures(read_attempts, where, cleaning, is_failed=status == "Failed")
    if not nodes or watch.last_s < 0:
        raise TraceError(f"{source}: no attempt on any server, or no time of any")
    return Observed(failures=failures, nodes=nodes, first_s=watch.first_s, last_s=watch.last_s, has_calendar=True)


def _attempt(attempt: Any, where: str) -> _Attempt:
    details = as_list(member(attempt, "detail", where), "detail", where)
    servers = dict.fromkeys(as_name(member(detail, "ip", where), "ip", where) for detail in details)
    return _Attempt(_time(attempt, "start_time", where), _time(attempt, "end_time", where), tuple(servers))


def _time(value: Any, key: str, where: str) -> float | None:
    time = member(value, key, where)
    return None if time in (None, "", "None") else iso_seconds(time, key, where)


def _failures(attempts: list[_Attempt], where: str, cleaning: Cleaning, *, is_failed: bool) -> Iterator[Failure]:
    """Those of one job."""
    last = len(attempts) - 1
    for number, attempt in enumerate(attempts[: last + is_failed]):
        again_s = attempts[number + 1].start_s if number < last else None
        if not attempt.servers:
            cleaning.num_read += 1
            cleaning.drop(NO_SERVER, where)
        for server in attempt.servers:
            cleaning.num_read += 1
            failure = _failure(server, attempt, again_s, where, cleaning)
            if failure is not None:
                yield failure


def _failure(server: str, attempt: _Attempt, again_s: float | None, where: str, cleaning: Cleaning) -> Failure | None:
    """One server's, if no rule drops it; the job ran again at ``again_s``."""
    if attempt.end_s is None:
        cleaning.drop(NO_END, where)
        return None
    if attempt.start_s is not None and attempt.end_s < attempt.start_s:
        cleaning.drop(BACKWARDS, where)
        return None
    if again_s is not None and again_s <= attempt.end_s:
        cleaning.change(STEPS_BACK, where)
        again_s = None
    return Failure(server, attempt.end_s, again_s, where)
