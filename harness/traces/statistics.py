"""Statistics of a failure trace, with their uncertainty: how often, which ranks, and how many ranks at once.

Array letters: I instants, R ranks, K known repair times, W windows of time, or ranks.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.core.errors import TraceError
from harness.core.plans import Rank
from harness.traces.fits import CONFIDENCE, Fit, Interval, fits_of, mtbf_interval
from harness.traces.gaps import F64, I64, First, Observed, Per, Sample, first_of, gaps_of, observe, without_repeats
from harness.traces.trace import Trace

_EVENTS_PER_WINDOW = 5  # on average, for a variance of counts to mean something
_LEAST_WINDOWS, _MAX_WINDOWS = 5, 50


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """Statistics of one kind of gap: of one rank, or of any rank.

    ``mtbf_h``: hours observed divided by failures, infinite without any. ``poisson``: its interval if failures are
    independent and their rate constant. ``dispersed``: its interval by the variance of the numbers of failures over
    ranks or windows of time, which bursts and repeat offenders raise; it is taken to be at least Poisson's (Student's t
    on the log scale). None without failures, or for a single rank or window. ``fits``: as ``fits_of`` returns them.
    """

    mtbf_h: float
    poisson: Interval
    dispersed: Interval | None
    sample: Sample
    fits: list[Fit]


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceStatistics:
    """All statistics of a trace; None is unknown.

    ``first``: whether the times before first failures are among the gaps (``gaps.first_of``). ``group_sizes``: by a
    number of ranks, the instants at which so many died. ``num_R``: the deaths of each rank. ``p_alike``: the p-value of
    equal Poisson rates of ranks (chi-square test), None for a single rank. ``nodes``: by rank, how often each node of
    the source failed, where that names nodes. ``repair_K``: the known repair times in hours.
    ``num_with_notice``: deaths of which the ranks were told before.
    """

    title: str
    observed: Observed
    first: First
    rank: Level | None
    system: Level
    group_sizes: Mapping[int, int]
    num_R: I64 | None
    p_alike: float | None
    nodes: Mapping[Rank | int, Mapping[str, int]]
    repair_K: F64
    num_unknown_repairs: int
    num_with_notice: int


def describe(trace: Trace) -> TraceStatistics:
    """All statistics of ``trace``. Raises TraceError as ``observe``, and for a trace without hours observed."""
    observed, first = observe(trace), first_of(trace)
    trace = without_repeats(trace)
    if not observed.length_h:
        raise TraceError(f"{trace.source}: no hours observed; add '# length_h: HOURS' to its header")
    nodes: dict[Rank | int, Counter[str]] = {}
    for entry in trace.failures:
        if node := entry.extra.get("node"):
            nodes.setdefault(entry.who, Counter())[node] += 1
    repairs = [entry.repair_h for entry in trace.failures if entry.repair_h is not None]
    rank_E, num_ranks = observed.rank_E, observed.num_ranks
    is_ranked = rank_E is not None and num_ranks is not None
    num_R = np.bincount(rank_E, minlength=num_ranks) if rank_E is not None and len(rank_E) and num_ranks else None
    return TraceStatistics(
        title=trace.header.get("title", "") or trace.source,
        observed=observed,
        first=first,
        rank=_level(observed, "rank", first) if is_ranked else None,
        system=_level(observed, "system", first),
        group_sizes=dict(sorted(Counter(observed.instants[1].tolist()).items())),
        num_R=num_R,
        p_alike=None if num_R is None or len(num_R) < 2 else float(stats.chisquare(num_R).pvalue),
        nodes=nodes,
        repair_K=np.array(repairs),
        num_unknown_repairs=len(trace.failures) - len(repairs),
        num_with_notice=sum(each.who if isinstance(each.who, int) else 1 for each in trace.failures if each.notice_s),
    )


def _level(observed: Observed, per: Per, first: First) -> Level:
    sample = gaps_of(observed, per, first=first)
    exposure_h, num_W = _counts(observed, per)
    num = int(num_W.sum())
    mtbf_h = exposure_h / num if num else math.inf
    dispersed = None
    if num and len(num_W) > 1:
        dispersion = float(num_W.var(ddof=1) / num_W.mean())  # 1 if Poisson
        quantile = float(stats.t.isf((1 - CONFIDENCE) / 2, len(num_W) - 1))
        spread = math.exp(quantile * math.sqrt(max(dispersion, 1.0) / num))
        dispersed = Interval(mtbf_h / spread, mtbf_h * spread)
    interval = mtbf_interval(exposure_h, num)
    return Level(mtbf_h=mtbf_h, poisson=interval, dispersed=dispersed, sample=sample, fits=fits_of(sample))


def _counts(observed: Observed, per: Per) -> tuple[float, I64]:
    """Hours observed, and the number of failures of each rank, or (``per`` system) in each of equal windows of time.

    The variance of these numbers widens the interval of the MTBF if a few ranks or bursts have most failures (index of
    dispersion, Cox & Lewis, 1966). With few failures there is one window.
    """
    if per == "rank":
        assert observed.rank_E is not None
        assert observed.num_ranks is not None
        return observed.num_ranks * observed.length_h, np.bincount(observed.rank_E, minlength=observed.num_ranks)
    hour_I = observed.instants[0]
    num_windows = min(_MAX_WINDOWS, len(hour_I) // _EVENTS_PER_WINDOW)
    num_windows = num_windows if num_windows >= _LEAST_WINDOWS else 1
    return observed.length_h, np.histogram(hour_I, num_windows, (0, observed.length_h))[0]
