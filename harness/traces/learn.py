"""From a trace to the parameters of more like it: ``--model fit:TRACE.csv`` and ``--model empirical:TRACE.csv``."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from harness.core.errors import TraceError
from harness.traces.families import FAMILIES
from harness.traces.fits import Fit, fit
from harness.traces.gaps import Gaps, gaps_of, observe
from harness.traces.spec import GeneratorSpec, Sizes
from harness.traces.survival import I64
from harness.traces.trace import Trace

_LEAST = 3  # failures: two gaps, so that they can differ
_AIC_TIE = 2.0  # below it the data do not tell two families apart (Burnham & Anderson, 2002, section 2.6)
_SUPERSEDES = (
    ({"mtbf_h", "node_mtbf_h"}, {"mtbf_h", "nodes"}),
    ({"group_probability", "group_sizes"}, {"group_probability", "group_sizes"}),
    ({"repair_median_h", "repair_mean_h"}, {"repair_median_h", "repair_mean_h", "repairs_h"}),
)
"""If one of the former is asked for, the latter are not learned."""
_SHAPES = {"gamma": "shape", "weibull": "shape", "lognormal": "sigma"}


def spec_like(trace: Trace, how: Literal["fit", "empirical"], asked: Mapping[str, Any]) -> GeneratorSpec:
    """Parameters under which a trace is made like ``trace``, but for those of ``GeneratorSpec`` in ``asked``.

    Learned are the law of the gaps, the MTBF (hours / instants, of as many nodes as the trace says it has ranks), how
    many ranks die at an instant, and hours down. ``fit`` takes the family of the lowest AIC, the exponential if it is
    within 2 of it, and lognormal repairs; ``empirical`` draws the gaps and repairs of ``trace`` again.

    The law is of gaps from failure to failure, the last one cut short; what came before a first failure is no gap but
    the rest of one. The MTBF is not the fitted mean: hours over instants hold for any law.

    Raises:
        TraceError: too few failures to learn from, or ranks that are not named.
    """
    observed = observe(trace)
    sizes_I = observed.instants[1]
    if len(sizes_I) < _LEAST:
        raise TraceError(f"{trace.source}: {len(sizes_I)} failures; to learn a law from their gaps takes {_LEAST}")
    gaps = gaps_of(trace, asked.get("per", "system"), first="left_out")
    if gaps.is_cut_N.all():
        raise TraceError(f"{trace.source}: no rank failed twice; --per system learns from the gaps of all")
    num_ranks = observed.num_ranks or int(observed.num_E.max())
    room = asked.get("rack_size") or asked.get("ranks", num_ranks)
    learned: dict[str, Any] = {
        "ranks": num_ranks,
        "length_h": observed.length_h,
        "like": trace.source,
        "mtbf_h": _rounded(observed.length_h / len(sizes_I)),
        "nodes": observed.num_ranks,
        **_groups(sizes_I, room),
        **_repairs(trace, how),
        **_law(trace, how, gaps),
    }
    for wanted, superseded in _SUPERSEDES:
        if wanted & set(asked):
            learned = {name: value for name, value in learned.items() if name not in superseded}
    return GeneratorSpec(**{**learned, **asked})


def _groups(sizes_I: I64, room: int) -> dict[str, Any]:
    """Shares of instants by the number of ranks; no group is larger than there is room for."""
    counts = Counter(np.minimum(sizes_I, room).tolist())
    sizes: Sizes = tuple((size, float(count)) for size, count in sorted(counts.items()) if size > 1)
    share = sum(weight for _, weight in sizes) / len(sizes_I)
    return {"group_probability": share, "group_sizes": sizes}


def _repairs(trace: Trace, how: str) -> dict[str, Any]:
    """Hours down, of the deaths of which they are known."""
    known = tuple(float(text) for entry in trace.entries if (text := entry.extra.get("repair_h")))
    if how == "empirical":
        return {"repairs_h": known}
    positive = [hours for hours in known if hours > 0]
    if not positive:
        return {}
    median_h = math.exp(math.fsum(map(math.log, positive)) / len(positive))
    mean_h = math.fsum(positive) / len(positive)
    return {"repair_median_h": _rounded(median_h), "repair_mean_h": max(_rounded(mean_h), _rounded(median_h))}


def _law(trace: Trace, how: str, gaps: Gaps) -> dict[str, Any]:
    """The gaps themselves; or family and shape by AIC, the exponential unless another one is clearly better."""
    if how == "empirical":
        return {"model": "empirical", "gaps_h": tuple(gaps.sample.ended_E.tolist())}
    fits: list[Fit] = []
    for family in FAMILIES:
        try:
            fits.append(fit(family, gaps.hours_N, gaps.is_cut_N))
        except TraceError:  # a family whose likelihood has no maximum for these gaps is out of the contest
            continue
    if not fits:
        raise TraceError(f"{trace.source}: no law fits its {gaps.sample.num_events} gaps")
    best = min(fits, key=lambda found: (found.aic, found.family))
    simplest = next((found for found in fits if found.family == "exponential"), best)
    chosen = simplest if simplest.aic - best.aic < _AIC_TIE else best
    shape = _SHAPES.get(chosen.family)
    return {"model": chosen.family, "shape": None if shape is None else _rounded(chosen.parameters[shape])}


def _rounded(value: float) -> float:
    """To six digits, far below any standard error, so that it can be read in a command line."""
    return float(f"{value:.6g}")
