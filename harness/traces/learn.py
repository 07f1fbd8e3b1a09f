"""Laws that are learned from a trace: models `fit` and `empirical` of ``trace.law``."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from harness.config.laws import Law
from harness.core.errors import TraceError
from harness.traces.gaps import Per, Sample, gaps_of, observe
from harness.traces.trace import Trace, read_trace

_LEAST = 3  # failures: two gaps, so that they can differ
_FEW = 10  # gaps


def doubts(trace: Trace, per: Per) -> Iterator[str]:
    """A sentence on each reason to doubt a law that is learned from the gaps of ``trace``.

    Gaps include the time of repair: for a rank that never came back, all hours until the trace's end. Raises TraceError
    as ``observe`` and ``gaps_of``.
    """
    num_gaps = gaps_of(observe(trace), per, first="left_out").num_events
    if num_gaps < _FEW:
        gaps = "gap between failures is" if num_gaps == 1 else "gaps between failures are"
        yield f"{num_gaps} {gaps} few to learn a law from"
    last = {entry.who: entry.repair_h for entry in trace.failures}
    num_gone = sum(repair_h is None for repair_h in last.values())
    if per == "rank" and num_gone and any(entry.repair_h is not None for entry in trace.failures):
        ranks, its = ("rank is", "its") if num_gone == 1 else ("ranks are", "their")
        yield f"{num_gone} {ranks} not known to have come back from {its} last failure; the hours after it count as up"


def learned(law: Law) -> tuple[Law, tuple[float, ...], tuple[float, ...]]:
    """``law`` with what its trace says where its keys are null, and the gaps and repair times to draw from, in hours.

    Learned are the law of the gaps, the MTBF (hours / instants, for as many nodes as the trace says it has ranks), the
    ranks that die at an instant, and the repair times. With model `fit` the law is the family of the lowest AIC, or the
    exponential if its AIC is within 2 of that, and repairs are lognormal. With `empirical` the gaps and repair times of
    the trace are drawn again.

    A gap lasts from failure to failure, and the last one is censored. The time before a first failure is left out,
    since it is the rest of a gap. The MTBF is hours / instants, which holds for any law, and not the fitted mean.

    Raises TraceError: no trace, too few failures to learn from, or as ``observe`` and ``gaps_of``.
    """
    assert law.trace is not None, "the model has a trace"
    trace = read_trace(Path(law.trace))
    observed = observe(trace)
    sizes_I = observed.instants[1]
    if len(sizes_I) < _LEAST:
        raise TraceError(f"{trace.source}: {len(sizes_I)} failures; at least {_LEAST} are needed to learn from")
    gaps = gaps_of(observed, law.per, first="left_out")
    if not gaps.num_events:
        raise TraceError(f"{trace.source}: no rank failed twice; trace.law.per=system learns from the gaps of all")
    changes, gaps_h = ({}, tuple(gaps.ended_E.tolist())) if law.model == "empirical" else (_fitted(gaps), ())
    if law.mtbf_h is None and law.node_mtbf_h is None:
        changes |= {"mtbf_h": _rounded(observed.length_h / len(sizes_I)), "nodes": observed.num_ranks}
    if law.group_probability is None:
        groups = [(size, float(count)) for size, count in sorted(Counter(sizes_I.tolist()).items()) if size > 1]
        probability = sum(weight for _, weight in groups) / len(sizes_I)
        changes |= {"group_probability": probability, "group_sizes": tuple(groups)}
    repairs_h: tuple[float, ...] = ()
    if law.repair_median_h is None:
        repairs_h = tuple(entry.repair_h for entry in trace.failures if entry.repair_h is not None)
        if law.model == "fit":
            changes, repairs_h = changes | _repairs([hours for hours in repairs_h if hours > 0]), ()
    return law.model_copy(update=changes | {"trace": None}), gaps_h, repairs_h


def _repairs(hours: list[float]) -> dict[str, Any]:
    """Median and mean of a lognormal law of repair times; none without any."""
    if not hours:
        return {}
    median_h, mean_h = _rounded(geometric_mean(hours)), _rounded(fmean(hours))
    return {"repair_median_h": median_h, "repair_mean_h": max(mean_h, median_h)}


def _fitted(gaps: Sample) -> dict[str, Any]:
    """Family and shape of the gaps' law, by AIC."""
    from harness.traces.fits import TOO_CLOSE, fits_of  # noqa: PLC0415 - scipy.stats, a third of a second

    # the exponential unless another family is clearly better
    chosen = min(fits_of(gaps), key=lambda found: found.aic - TOO_CLOSE * (found.family == "exponential"))
    *shape, _ = chosen.parameters.values()
    # three digits are below its standard error, and any machine's search finds the same
    return {"model": chosen.family, "shape": float(f"{shape[0]:.3g}") if shape else None}


def _rounded(value: float) -> float:
    """``value`` rounded to six significant digits."""
    return float(f"{value:.6g}")
