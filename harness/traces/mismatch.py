"""Mismatches of a failure trace and a job: sentences for `run.py train` and `run.py plan`."""

import math
from collections.abc import Iterator

from harness.config.model import Config
from harness.core.plans import Costs
from harness.traces.fits import mtbf_interval
from harness.traces.gaps import Observed, longest_repairs, observe
from harness.traces.job_trace import job_trace, mtbf_and_ranks
from harness.traces.trace import Trace

_SAME_LENGTH = 0.01  # relative
_SAME_GROUP = 0.5  # ranks per failure
_ALL_HOURS = "the trace's MTBF is taken for the job"
_SILENT_GAPS = 3.0  # mean gaps after the last failure, in a trace that does not give its length


def mismatches(config: Config, costs: Costs, *, is_planned: bool = False) -> Iterator[str]:
    """A sentence for each mismatch of the trace of ``config`` (:func:`job_trace`) and the job.

    There is none without a trace, a failure in it or a known length. ``costs``: the run's cost constants.
    ``is_planned``: for `run.py plan`, where no run follows and intervals take the trace's MTBF for the whole job.

    Raises:
        TraceError, ConfigError: as ``job_trace`` and ``observe``.
    """
    trace = job_trace(config)
    observed = None if trace is None else observe(trace)
    if trace is None or observed is None or not observed.num_deaths or not observed.length_h:
        return
    yield from _length(trace, observed, costs.job_h, is_planned=is_planned, is_wall=config.trace.clock == "wall")
    yield from _rates(observed, costs, config.profile.name)
    yield from _ranks(observed, costs.num_ps)
    yield from _repairs(trace, costs, is_charged=config.trace.repair == "reschedule")


def _length(trace: Trace, observed: Observed, job_h: float, *, is_planned: bool, is_wall: bool) -> Iterator[str]:
    """A sentence if the trace is shorter or longer than the job; with ``is_wall`` overhead makes the job longer."""
    length_h, last_h = observed.length_h, float(observed.hour_E.max())
    is_given = bool({"length_h", "job_h"} & trace.header.keys())
    silent_h = _SAME_LENGTH * job_h if is_given else _SILENT_GAPS * last_h / len(observed.instants[0])
    if length_h < job_h - silent_h:
        lasts = (
            f"the trace lasts {length_h:.4g} h" if is_given else f"the last failure of the trace is at {last_h:.4g} h"
        )
        result = _ALL_HOURS if is_planned else f"no failure after hour {last_h:.4g}"
        yield f"{lasts}, the job {job_h:g} h: {result}; trace.stretch=true scales the trace to the job"
    elif is_wall and not is_planned and length_h <= job_h * (1 + _SAME_LENGTH) and "window_h" not in trace.header:
        yield (
            f"the trace lasts {length_h:.4g} h, and so does the job without overhead: on the wall clock "
            "(trace.clock=wall) its last hours meet no failure; take a longer trace"
        )
    elif length_h > job_h * (1 + _SAME_LENGTH) and (is_planned or not is_wall):
        result = _ALL_HOURS if is_planned else "the rest is left out"
        yield (
            f"the trace lasts {length_h:.5g} h, the job {job_h:g} h: {result}; trace.window=densest, median or "
            f"quietest takes {job_h:g} h of it, trace.stretch=true scales it to the job"
        )


def _rates(observed: Observed, costs: Costs, profile: str) -> Iterator[str]:
    """Sentences if the trace's MTBF (by the exact Poisson interval) or ranks per failure differ from the profile's."""
    mtbf_h, per_failure = mtbf_and_ranks(observed)
    num_instants = len(observed.instants[0])
    if costs.mtbf_h not in mtbf_interval(observed.length_h, num_instants):
        yield (
            f"MTBF {mtbf_h:.3g} h in the trace ({num_instants} failures in {observed.length_h:.4g} h), "
            f"{costs.mtbf_h:.3g} h in profile {profile}, by which intervals are chosen; profile.from_trace=true takes "
            "the trace's"
        )
    if abs(per_failure - costs.ranks_per_failure) >= _SAME_GROUP:
        yield (
            f"{per_failure:.3g} ranks per failure in the trace, {costs.ranks_per_failure:.3g} in profile {profile}; "
            "profile.from_trace=true takes the trace's"
        )


def _ranks(observed: Observed, num_ps: int) -> Iterator[str]:
    if observed.num_ranks is None or observed.num_ranks == num_ps:
        return
    more = observed.num_ranks > num_ps
    result = "failures of the others cannot happen" if more else f"ranks from ps{observed.num_ranks} on never fail"
    yield (
        f"{observed.num_ranks} ranks in the trace, {num_ps} PS ranks in the job: {result}; cluster.num_ps="
        f"{observed.num_ranks} takes the trace's, `trace import ranks={num_ps}` maps a log to the job's"
    )


def _repairs(trace: Trace, costs: Costs, *, is_charged: bool) -> Iterator[str]:
    longest = longest_repairs(trace)
    sum_h = math.fsum(longest.values())
    if is_charged and sum_h > costs.job_h:
        yield (
            f"repair times of {sum_h:.4g} h are charged to a job of {costs.job_h:g} h, which waits for its nodes; "
            "trace.repair=ignore charges O_res instead"
        )
    elif longest and not is_charged:
        yield (
            f"repair times of the trace ({sum_h:.4g} h) are not charged: a failure costs O_res, "
            f"{costs.o_res_h * 60:.3g} min, as if another node took over; trace.repair=reschedule charges them"
        )
