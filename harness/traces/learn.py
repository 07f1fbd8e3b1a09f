"""Generator parameters learned from a trace: ``model=fit:TRACE.csv`` and ``model=empirical:TRACE.csv``."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from harness.core.errors import TraceError
from harness.files import expanded
from harness.traces.gaps import Per, Sample, gaps_of, observe
from harness.traces.spec import GeneratorSpec
from harness.traces.trace import Trace, read_trace

_LEAST = 3  # failures: two gaps, so that they can differ
_FEW = 10  # gaps
_SUPERSEDES = (
    ({"mtbf_h", "node_mtbf_h"}, {"mtbf_h", "nodes"}),
    ({"group_probability", "group_sizes"}, {"group_probability", "group_sizes"}),
    ({"repair_median_h", "repair_mean_h"}, {"repair_median_h", "repair_mean_h", "repairs_h"}),
)
"""Pairs of sets of parameters: if one of the first set is asked for, none of the second is learned."""


def spec_of_model(model: str, asked: Mapping[str, Any]) -> GeneratorSpec | None:
    """The parameters that ``model``, ``fit:FILE`` or ``empirical:FILE``, asks to learn from a trace file.

    None if ``model`` has no colon: it is then the name of a law. ``asked``: see :func:`spec_like`. Raises TraceError
    for another word before the colon, and as ``read_trace`` and ``spec_like``.
    """
    how, colon, path = model.partition(":")
    if not colon:
        return None
    if how not in ("fit", "empirical") or not path:
        raise TraceError(f"model: {how}:{path or '…'}; expected fit:TRACE.csv or empirical:TRACE.csv")
    return spec_like(read_trace(Path(expanded(path))), how, asked)


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


def spec_like(trace: Trace, how: str, asked: Mapping[str, Any]) -> GeneratorSpec:
    """Parameters that generate traces like ``trace``; parameters in ``asked`` are used instead of learned ones.

    Learned are the law of the gaps, the MTBF (hours / instants, for as many nodes as the trace says it has ranks), the
    ranks that die at an instant, and the repair times. With ``how`` ``fit`` the law is the family of the lowest AIC,
    or the exponential if its AIC is within 2 of that, and repairs are lognormal. With ``empirical`` the gaps and repair
    times of ``trace`` are drawn again.

    A gap lasts from failure to failure, and the last one is censored. The time before a first failure is left out,
    since it is the rest of a gap. The MTBF is hours / instants, which holds for any law, and not the fitted mean.

    Raises TraceError: too few failures to learn from, parameters that contradict each other, or as ``observe`` and
    ``gaps_of``.
    """
    observed = observe(trace)
    sizes_I = observed.instants[1]
    if len(sizes_I) < _LEAST:
        raise TraceError(f"{trace.source}: {len(sizes_I)} failures; at least {_LEAST} are needed to learn from")
    gaps = gaps_of(observed, asked.get("per", "system"), first="left_out")
    if not gaps.num_events:
        raise TraceError(f"{trace.source}: no rank failed twice; per=system learns from the gaps of all")
    num_ranks = observed.num_ranks or int(observed.num_E.max())
    sizes_I = np.minimum(sizes_I, asked.get("rack_size") or asked.get("ranks", num_ranks))
    groups = tuple((size, float(count)) for size, count in sorted(Counter(sizes_I.tolist()).items()) if size > 1)
    learned: dict[str, Any] = {
        "ranks": num_ranks,
        "length_h": observed.length_h,
        "like": trace.source,
        "mtbf_h": _rounded(observed.length_h / len(sizes_I)),
        "nodes": observed.num_ranks,
        "group_probability": sum(weight for _, weight in groups) / len(sizes_I),
        "group_sizes": groups,
        **_repairs(trace, how),
        **_law(trace, how, gaps),
    }
    superseded = {name for wanted, names in _SUPERSEDES if wanted & asked.keys() for name in names}
    return GeneratorSpec(**{name: learned[name] for name in learned.keys() - superseded} | dict(asked))


def _repairs(trace: Trace, how: str) -> dict[str, Any]:
    """Parameters of repairs. ``empirical``: the known times; ``fit``: a lognormal's median and mean."""
    known = [entry.repair_h for entry in trace.failures if entry.repair_h is not None]
    if how == "empirical":
        return {"repairs_h": tuple(known)}
    positive = [hours for hours in known if hours > 0]
    if not positive:
        return {}
    median_h, mean_h = _rounded(geometric_mean(positive)), _rounded(fmean(positive))
    return {"repair_median_h": median_h, "repair_mean_h": max(mean_h, median_h)}


def _law(trace: Trace, how: str, gaps: Sample) -> dict[str, Any]:
    """Parameters of the gaps' law: the gaps (``empirical``), or family and shape by AIC (``fit``)."""
    if how == "empirical":
        return {"model": "empirical", "gaps_h": tuple(gaps.ended_E.tolist())}
    from harness.traces.fits import TOO_CLOSE, fits_of  # noqa: PLC0415 - scipy.stats, a third of a second

    # the exponential unless another family is clearly better
    chosen = min(fits_of(gaps), key=lambda found: found.aic - TOO_CLOSE * (found.family == "exponential"))
    *shape, _ = chosen.parameters.values()
    # three digits are below its standard error, and any machine's search finds the same
    return {"model": chosen.family, "shape": float(f"{shape[0]:.3g}") if shape else None}


def _rounded(value: float) -> float:
    """``value`` rounded to six significant digits, to keep command lines short."""
    return float(f"{value:.6g}")
