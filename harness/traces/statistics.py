"""All statistics of a failure trace: how often, how regularly, which ranks, when, for how long, and how sure that is.

Array letters: I instants, R ranks, D gaps between deaths, K known repair times.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import numpy as np
from scipy import stats

from harness.core.errors import TraceError
from harness.core.plans import Rank, ps_rank
from harness.traces.fits import FAMILIES
from harness.traces.gaps import F64, First, Observed, first_of, observe, without_repeats
from harness.traces.levels import Level, level_of
from harness.traces.trace import Trace

_NUM_OFFENDERS = 5
_STRETCH = re.compile(r"(\S+) h to (\S+) h")


@dataclass(frozen=True, kw_only=True)
class Concentration:
    """How failures are spread over ranks.

    ``top_share``: the share of all deaths that falls on the ``num_top`` ranks that fail most, a tenth of all ranks and
    one at least. ``p``: the p-value of equal Poisson rates (chi-square test), None for a single rank. ``offenders``:
    rank, node (its name in the source, empty if unknown) and number of failures of ranks that failed often.
    """

    num_failed: int
    num_top: int
    top_share: float
    p: float | None
    offenders: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, kw_only=True)
class TimeOfDay:
    """Instants of failure by hour of the day and day of the week (Monday first).

    ``p``: Rayleigh's test of uniform hours of the day, against one peak a day, for independent instants.
    """

    num_by_hour: tuple[int, ...]
    num_by_weekday: tuple[int, ...]
    p: float


@dataclass(frozen=True, kw_only=True)
class Repairs:
    """Hours of repair, of the deaths with a known one.

    ``down_frac``: the share of all hours of all ranks in which a rank was down; None where deaths or ranks are not
    named. Each hour counts once per rank: ``num_overlapping`` repairs begin while their rank is down, as where a rank
    stands for several nodes, and ``num_cut`` last beyond the end of the trace, which cuts them.
    """

    num: int
    num_unknown: int
    mean_h: float
    median_h: float
    p90_h: float
    longest_h: float
    down_frac: float | None
    num_overlapping: int
    num_cut: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceStatistics:
    """All statistics of a trace; None is unknown. ``group_sizes``: the number of instants by ranks that died at them.

    ``death_gap_D``: hours from one death of any rank to the next, 0 where several die at once. ``first``: whether the
    times before first failures are among the gaps (``gaps.first_of``). ``trend``: score and p-value of Lewis and
    Robinson's test, Laplace's score divided by the gaps' coefficient of variation: about standard normal for a renewal
    process, below 0 if failures crowd at the beginning.
    """

    title: str
    observed: Observed
    first: First
    rank: Level | None
    system: Level
    death_gap_D: F64
    group_sizes: Mapping[int, int]
    concentration: Concentration | None
    trend: tuple[float, float] | None
    time_of_day: TimeOfDay | None
    repairs: Repairs | None
    num_bootstraps: int


def describe(
    trace: Trace, bootstrap: int = 0, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> TraceStatistics:
    """All statistics of ``trace``; with ``bootstrap`` samples of each kind for each fit, drawn by ``seed``.

    ``progress(begun, total)`` counts the samples; ``total`` is an upper bound.

    Raises:
        TraceError: a header that contradicts the entries or holds no number, or no hours observed.
    """
    observed, first = observe(trace), first_of(trace)
    trace = without_repeats(trace)
    if not observed.length_h:
        raise TraceError(f"{trace.source}: no hours observed; add '# length_h: HOURS' to its header")
    begun = itertools.count(1)

    def tick() -> None:
        if progress is not None:
            progress(next(begun), 2 * 2 * len(FAMILIES) * bootstrap)  # two kinds of sample, two kinds of gap

    level = partial(level_of, observed, first=first, bootstrap=bootstrap, seed=seed, tick=tick)
    is_ranked = observed.rank_E is not None and observed.num_ranks is not None
    rank, system = level("rank") if is_ranked else None, level("system")
    hour_I, num_I = observed.instants
    return TraceStatistics(
        title=trace.header.get("title", "") or trace.source,
        observed=observed,
        first=first,
        rank=rank,
        system=system,
        death_gap_D=np.diff(np.repeat(hour_I, num_I)),
        group_sizes=dict(sorted(Counter(num_I.tolist()).items())),
        concentration=_concentration(observed, trace) if is_ranked and observed.num_deaths else None,
        trend=_trend(hour_I, observed.length_h, system.cv),
        time_of_day=_time_of_day(trace, hour_I),
        repairs=_repairs(trace, observed),
        num_bootstraps=bootstrap,
    )


def _concentration(observed: Observed, trace: Trace) -> Concentration:
    assert observed.rank_E is not None
    assert observed.num_ranks is not None
    num_R = np.bincount(observed.rank_E, minlength=observed.num_ranks)
    order_R = np.argsort(-num_R, kind="stable")
    num_top = max(1, observed.num_ranks // 10)
    nodes = {entry.who: entry.extra.get("node", "") for entry in trace.failures}
    return Concentration(
        num_failed=int((num_R > 0).sum()),
        num_top=num_top,
        top_share=float(num_R[order_R[:num_top]].sum() / observed.num_deaths),
        p=float(stats.chisquare(num_R).pvalue) if observed.num_ranks > 1 else None,
        offenders=tuple(
            (rank, nodes.get(ps_rank(rank), ""), int(num_R[rank]))
            for rank in order_R[:_NUM_OFFENDERS].tolist()
            if num_R[rank] > 1
        ),
    )


def _trend(hour_I: F64, length_h: float, cv: float | None) -> tuple[float, float] | None:
    """None below five failures, or where gaps do not vary."""
    if len(hour_I) < 5 or not cv:
        return None
    score = (float(hour_I.mean()) / length_h - 0.5) * math.sqrt(12 * len(hour_I)) / cv
    return score, 2 * float(stats.norm.sf(abs(score)))


def _time_of_day(trace: Trace, hour_I: F64) -> TimeOfDay | None:
    """None if the trace does not say when it began. The hours of a stretched trace are scaled back to its log's.

    The p-value of Rayleigh's test is Zar's (Biostatistical Analysis, 2010, equation 27.4); scipy has no such test.
    """
    if "began" not in trace.header:
        return None
    try:
        began = datetime.fromisoformat(trace.header["began"])
    except ValueError:
        found = trace.header["began"]
        raise TraceError(f"{trace.source}: began {found!r} in its header; expected 2003-01-31T00:00:00") from None
    stretch = _STRETCH.fullmatch(trace.header.get("stretch", "1 h to 1 h"))
    if stretch is None or not len(hour_I):
        return None
    times = [began + timedelta(hours=float(hour) * float(stretch[1]) / float(stretch[2])) for hour in hour_I]
    hour_of_day_I = np.array([time.hour + time.minute / 60 + time.second / 3600 for time in times])
    num, length = len(times), abs(np.exp(2j * math.pi / 24 * hour_of_day_I).sum())
    return TimeOfDay(
        num_by_hour=tuple(np.bincount(hour_of_day_I.astype(int), minlength=24).tolist()),
        num_by_weekday=tuple(np.bincount([time.weekday() for time in times], minlength=7).tolist()),
        p=min(1.0, math.exp(math.sqrt(1 + 4 * num + 4 * (num * num - length * length)) - (1 + 2 * num))),
    )


def _repairs(trace: Trace, observed: Observed) -> Repairs | None:
    """None if no repair time is known."""
    known = [(entry, entry.repair_h) for entry in trace.failures if entry.repair_h is not None]
    if not known:
        return None
    repair_K = np.array([repair_h for _, repair_h in known])
    median_h, p90_h, longest_h = np.quantile(repair_K, [0.5, 0.9, 1.0]).tolist()
    outages = sorted((entry.hour, entry.hour + repair_h, entry.who) for entry, repair_h in known)
    down_h, num_overlapping = _down(outages, observed.length_h)
    is_known = observed.rank_E is not None and observed.num_ranks is not None
    return Repairs(
        num=len(known),
        num_unknown=len(trace.failures) - len(known),
        mean_h=float(repair_K.mean()),
        median_h=median_h,
        p90_h=p90_h,
        longest_h=longest_h,
        down_frac=down_h / (observed.num_ranks * observed.length_h) if is_known and observed.num_ranks else None,
        num_overlapping=num_overlapping,
        num_cut=sum(end_h > observed.length_h for _, end_h, _ in outages),
    )


def _down(outages: Sequence[tuple[float, float, Rank | int]], length_h: float) -> tuple[float, int]:
    """Hours before ``length_h`` in which ranks were down, each hour once per rank, and the repairs that overlap.

    ``outages`` are (first hour, last hour, rank) in order of first hours.
    """
    down_h, num_overlapping = 0.0, 0
    up_h: dict[Rank | int, float] = {}  # hour at which a rank is up again
    for first_h, last_h, rank in outages:
        is_down_until_h = up_h.get(rank, 0.0)
        num_overlapping += first_h < is_down_until_h
        down_h += max(0.0, min(last_h, length_h) - max(first_h, is_down_until_h))
        up_h[rank] = max(is_down_until_h, last_h)
    return down_h, num_overlapping
