"""Checks of a run that has ended: whether its result is valid, and which faults of its trace damaged a file."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cluster.supervisor import Supervisor
from harness.core.events import Injected
from harness.core.faults import FAULTS, PlannedFault
from harness.record.event_log import read_events
from harness.run.spec import RunSpec

_log = logging.getLogger(__name__)


def problem_of(run_spec: RunSpec, supervisor: Supervisor) -> str | None:
    """Why the result of a run that has ended is invalid; None if it is valid."""
    unfired, trace = supervisor.unfired, run_spec.config.trace
    if unfired and trace.inject == "wall":
        lines = ", ".join(str(strike.line) for kill in unfired for strike in kill.strikes.values())
        _log.info("note: the run ended before kills of the trace (trace.inject=wall): lines %s", lines)
        unfired = []
    if trace.clock == "wall":  # later ones may lie after the job's end
        unfired = [kill for kill in unfired if kill.hour <= run_spec.costs.job_h]
    if unfired:
        return "\n".join(_unfired_words(trace.path, unfired))
    if supervisor.num_unplanned and not trace.allow_unplanned:
        return (
            f"trace: expected only planned deaths of ranks, got {supervisor.num_unplanned} others; "
            "the record is kept; trace.allow_unplanned=true accepts such runs: start it again with --afresh"
        )
    return None


def _unfired_words(path: str | None, unfired: Sequence[PlannedFault]) -> Iterator[str]:
    """One line for all kills at boundaries that did not happen, and one for each kill whose phase never came."""
    if steps := [str(kill.step) for kill in unfired if kill.phase == "boundary"]:
        yield (
            f"trace: expected every planned kill, got none at steps {', '.join(steps)}; the result is invalid, run it "
            "again"
        )
    for kill in unfired:
        if kill.phase != "boundary":
            line = min(strike.line for strike in kill.strikes.values())
            yield (
                f"{path}:{line}: expected a phase {kill.phase} after step {kill.step}, in which {kill.fault.aim} "
                f"{', '.join(kill.ranks)}, got none; the result is invalid; give the line an earlier hour or another "
                "phase"
            )


def damage_in(problem: str, events: Path) -> str:
    """The faults of the trace that damaged the file named in ``problem``, in words; empty if none did.

    ``events``: the record of the run; it is read only if ``problem`` reports damage.
    """
    lines: dict[str, list[str]] = {}
    record = read_events(events) if ": damaged" in problem else []
    for event in (each for each in record if isinstance(each, Injected)):
        what = FAULTS[event.fault].damage
        if what and f"{event.details['path']}: damaged" in problem:
            lines.setdefault(what, []).append(str(event.line))
    return "; ".join(f"{what} by line {', '.join(which)} of the trace" for what, which in lines.items())
