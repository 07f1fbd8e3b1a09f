"""What can be said of a failure trace: how often, how regularly, who, when, for how long, and how sure that is.

Lines of arrays: E deaths, D gaps between them, I instants, R ranks, W windows of time.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from scipy import special

from harness.core.errors import TraceError
from harness.core.plans import ps_rank
from harness.traces.bootstrap import bootstrapped
from harness.traces.families import F64, FAMILIES, Sample
from harness.traces.fits import Fit, fit_sample
from harness.traces.gaps import First, Gaps, Observed, first_of, observe, rank_gaps, system_gaps
from harness.traces.intervals import CONFIDENCE, Interval, mean_interval
from harness.traces.survival import I64, HazardClass, Survival, hazard_of, survival_of
from harness.traces.trace import Entry, Trace
from harness.traces.verdict import verdict

_NUM_OFFENDERS = 5
_EVENTS_PER_WINDOW = 5  # on average, for a variance of counts to mean something
_LEAST_WINDOWS, _MAX_WINDOWS = 5, 50
_STRETCH = re.compile(r"(\S+) h to (\S+) h")


@dataclass(frozen=True, kw_only=True)
class Mtbf:
    """Mean time between failures: hours observed by failures; infinite without any.

    ``poisson``: exact if failures strike independently at a constant rate. ``dispersed``: as wide as the failures'
    numbers really scatter, over ranks or over windows of time, if that is wider than Poisson's, as bursts and repeat
    offenders make it; by Student's t on the log scale; None where there is too little to know the scatter.
    ``dispersion``: variance of those numbers by their mean, 1 if Poisson.
    """

    hours: float
    poisson: Interval
    dispersed: Interval | None = None
    dispersion: float | None = None


@dataclass(frozen=True, kw_only=True)
class GapSummary:
    """Of gaps that ended. ``burstiness``: (cv - 1) / (cv + 1), from -1 (clockwork) over 0 (Poisson) to 1; ``memory``:
    the correlation of a gap with the next of its process (both Goh & Barabási, EPL 81, 2008). None if unknown.
    ``num_different``: of gaps to a millionth of an hour; far below ``num`` where the log's clock is coarse.
    """

    num: int
    num_cut: int
    num_zero: int
    num_different: int
    mean_h: float | None
    median_h: float | None
    cv: float | None
    burstiness: float | None
    memory: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """The same questions to ranks, or to the system. ``refused``: why a family could not be fitted, by family."""

    mtbf: Mtbf
    gaps: GapSummary
    sample: Sample
    survival: Survival | None
    hazard: tuple[HazardClass, ...]
    fits: tuple[Fit, ...]
    refused: Mapping[str, str]
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Offender:
    """A rank that failed often. ``node``: the source's name of it, empty if unknown."""

    rank: int
    node: str
    num_failures: int


@dataclass(frozen=True, kw_only=True)
class Concentration:
    """Who fails. ``top_share``: of all deaths, by the tenth of the ranks (at least one) that fails most, of which there
    are ``num_top``. ``p``: chance of numbers so unequal if all ranks were alike and Poisson (chi-square test).
    """

    num_failed: int
    num_top: int
    top_share: float
    p: float | None
    offenders: tuple[Offender, ...]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Do failures crowd at one end? ``score``: about standard normal if failures are a renewal process (Lewis &
    Robinson's form of Laplace's test: divided by the gaps' coefficient of variation); below 0 they crowd at the
    beginning.
    """

    score: float
    p: float


@dataclass(frozen=True, kw_only=True)
class TimeOfDay:
    """Instants of failure by hour of the day and day of the week (Monday first). ``p``: Rayleigh's test of whether the
    hours of the day are uniform, against one high and one low time a day; independence supposed.
    """

    num_by_hour: tuple[int, ...]
    num_by_weekday: tuple[int, ...]
    p: float


@dataclass(frozen=True, kw_only=True)
class Repairs:
    """Hours down, of the deaths that say. ``down_frac``: of all hours of all ranks, as far as is known."""

    num: int
    num_unknown: int
    mean_h: float
    median_h: float
    p90_h: float
    longest_h: float
    down_frac: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceStatistics:
    """All of it. ``group_sizes``: how many instants by how many ranks died at them. None is unknown.

    ``death_gap_mean_h``, ``death_gap_median_h``: from one death of any rank to the next, 0 where several die at once.
    ``first``: whether the times before first failures are among the gaps (``gaps.first_of``).
    """

    source: str
    title: str
    length_h: float
    num_ranks: int | None
    num_deaths: int
    first: First
    hour_I: F64
    num_I: I64
    rank: Level | None
    system: Level
    death_gap_mean_h: float | None
    death_gap_median_h: float | None
    group_sizes: Mapping[int, int]
    concentration: Concentration | None
    trend: Trend | None
    time_of_day: TimeOfDay | None
    repairs: Repairs | None
    num_bootstraps: int


def describe(
    trace: Trace, bootstrap: int = 0, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> TraceStatistics:
    """Everything about ``trace``; with ``bootstrap`` samples for each fit, drawn by ``seed``.

    ``progress`` is told how many samples of how many (at most) have been begun.

    Raises TraceError if its header contradicts it or cannot be, or nothing was observed.
    """
    observed = observe(trace)
    if not observed.length_h:
        raise TraceError(f"{trace.source}: no hours observed; '# length_h: HOURS' in its header would be right")
    begun = itertools.count(1)

    def tick() -> None:
        if progress is not None:
            progress(next(begun), 2 * 2 * len(FAMILIES) * bootstrap)  # of two kinds, at two levels

    is_ranked = observed.rank_E is not None and observed.num_ranks is not None
    hour_I, num_I = observed.instants
    death_gap_D = np.diff(np.repeat(hour_I, num_I))
    first = first_of(trace)
    system = system_gaps(observed, first=first)
    ranks = rank_gaps(observed, first=first) if is_ranked else None
    return TraceStatistics(
        source=trace.source,
        title=trace.header.get("title", ""),
        length_h=observed.length_h,
        num_ranks=observed.num_ranks,
        num_deaths=observed.num_deaths,
        first=first,
        hour_I=hour_I,
        num_I=num_I,
        rank=None if ranks is None else _level(ranks, _rank_mtbf(observed), bootstrap, seed, tick),
        system=_level(system, _system_mtbf(observed), bootstrap, seed, tick),
        death_gap_mean_h=float(death_gap_D.mean()) if len(death_gap_D) else None,
        death_gap_median_h=float(np.median(death_gap_D)) if len(death_gap_D) else None,
        group_sizes=dict(sorted(Counter(num_I.tolist()).items())),
        concentration=_concentration(observed, trace) if is_ranked and observed.num_deaths else None,
        trend=_trend(hour_I, observed.length_h, system.sample),
        time_of_day=_time_of_day(trace, hour_I),
        repairs=_repairs(trace, observed),
        num_bootstraps=bootstrap,
    )


# --- how often --------------------------------------------------------------------------------------------------------


def _rank_mtbf(observed: Observed) -> Mtbf:
    """Of one rank; the scatter is that of ranks, so that a few bad ones widen the interval."""
    assert observed.rank_E is not None
    assert observed.num_ranks is not None
    num_R = np.bincount(observed.rank_E, minlength=observed.num_ranks)
    return _mtbf(observed.num_ranks * observed.length_h, num_R)


def _system_mtbf(observed: Observed) -> Mtbf:
    """Of instants; the scatter is that of equal windows of time (index of dispersion, Cox & Lewis, 1966)."""
    hour_I = observed.instants[0]
    num_windows = min(_MAX_WINDOWS, len(hour_I) // _EVENTS_PER_WINDOW)
    if num_windows < _LEAST_WINDOWS:
        return _mtbf(observed.length_h, np.array([len(hour_I)]))
    return _mtbf(observed.length_h, np.histogram(hour_I, num_windows, (0, observed.length_h))[0])


def _mtbf(exposure_h: float, num_W: I64) -> Mtbf:
    num = int(num_W.sum())
    hours = exposure_h / num if num else math.inf
    poisson = mean_interval(exposure_h, num, is_cut=True)
    if len(num_W) < 2 or not num:
        return Mtbf(hours=hours, poisson=poisson)
    dispersion = float(num_W.var(ddof=1) / num_W.mean())
    spread = math.exp(
        float(special.stdtrit(len(num_W) - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(max(dispersion, 1.0) / num)
    )
    return Mtbf(hours=hours, poisson=poisson, dispersed=Interval(hours / spread, hours * spread), dispersion=dispersion)


def _level(gaps: Gaps, mtbf: Mtbf, bootstrap: int, seed: int, tick: Callable[[], None]) -> Level:
    sample = gaps.sample
    fits, refused = _fits(sample) if sample.num_events else ((), {})
    if bootstrap:
        fits = tuple(bootstrapped(one, sample, gaps.watched_R, num=bootstrap, seed=seed, tick=tick) for one in fits)
    return Level(
        mtbf=mtbf,
        gaps=_summary(gaps),
        sample=sample,
        survival=survival_of(sample) if sample.num_events else None,
        hazard=hazard_of(sample) if sample.num_events else (),
        fits=fits,
        refused=refused,
        verdict=verdict(fits),
    )


def _fits(sample: Sample) -> tuple[tuple[Fit, ...], dict[str, str]]:
    fits: list[Fit] = []
    refused: dict[str, str] = {}
    for family in FAMILIES:
        try:
            fits.append(fit_sample(family, sample))
        except TraceError as error:
            refused[family] = str(error)
    return tuple(fits), refused


def _summary(gaps: Gaps) -> GapSummary:
    ended_E = gaps.sample.ended_E
    num = len(ended_E)
    mean_h = float(ended_E.mean()) if num else None
    cv = float(ended_E.std(ddof=1) / ended_E.mean()) if num > 1 else None
    return GapSummary(
        num=num,
        num_cut=int(gaps.is_cut_N.sum()),
        num_zero=gaps.num_zero,
        num_different=len(np.unique(ended_E.round(6))),
        mean_h=mean_h,
        median_h=float(np.median(ended_E)) if num else None,
        cv=cv,
        burstiness=None if cv is None else (cv - 1) / (cv + 1),
        memory=_memory(gaps),
    )


def _memory(gaps: Gaps) -> float | None:
    """Correlation of successive gaps of one process that both ended; None for fewer than three pairs, or equal gaps."""
    pairs = (gaps.process_N[1:] == gaps.process_N[:-1]) & ~gaps.is_cut_N[1:]
    before, after = gaps.hours_N[:-1][pairs], gaps.hours_N[1:][pairs]
    if len(before) < 3 or np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


# --- who, when, how long ----------------------------------------------------------------------------------------------


def _concentration(observed: Observed, trace: Trace) -> Concentration:
    assert observed.rank_E is not None
    assert observed.num_ranks is not None
    num_R = np.bincount(observed.rank_E, minlength=observed.num_ranks)
    order_R = np.argsort(-num_R, kind="stable")
    num_top = max(1, observed.num_ranks // 10)
    nodes = {entry.who: entry.extra.get("node", "") for entry in trace.entries}
    expected = observed.num_deaths / observed.num_ranks
    scatter = float(((num_R - expected) ** 2).sum() / expected)
    return Concentration(
        num_failed=int((num_R > 0).sum()),
        num_top=num_top,
        top_share=float(num_R[order_R[:num_top]].sum() / observed.num_deaths),
        p=float(special.chdtrc(observed.num_ranks - 1, scatter)) if observed.num_ranks > 1 else None,
        offenders=tuple(
            Offender(rank=int(rank), node=nodes.get(ps_rank(int(rank)), ""), num_failures=int(num_R[rank]))
            for rank in order_R[:_NUM_OFFENDERS]
            if num_R[rank] > 1
        ),
    )


def _trend(hour_I: F64, length_h: float, sample: Sample) -> Trend | None:
    """None below five failures, or where gaps do not vary."""
    if len(hour_I) < 5 or (spread := float(sample.ended_E.std(ddof=1) / sample.ended_E.mean())) == 0:
        return None
    laplace = (float(hour_I.mean()) / length_h - 0.5) * math.sqrt(12 * len(hour_I))
    score = laplace / spread
    return Trend(score=score, p=2 * float(special.ndtr(-abs(score))))


def _time_of_day(trace: Trace, hour_I: F64) -> TimeOfDay | None:
    """None if the trace does not say when it began. A stretched trace is taken back to its log's hours."""
    if "began" not in trace.header:
        return None
    try:
        began = datetime.fromisoformat(trace.header["began"])
    except ValueError:
        told = trace.header["began"]
        raise TraceError(f"{trace.source}: began: {told!r} in its header; 2003-01-31T00:00:00 would be right") from None
    scale = 1.0
    if "stretch" in trace.header:
        found = _STRETCH.fullmatch(trace.header["stretch"])
        if found is None:
            return None
        scale = float(found[1]) / float(found[2])
    if not len(hour_I):
        return None
    times = [began + timedelta(hours=float(hour) * scale) for hour in hour_I]
    hour_of_day_I = np.array([time.hour + time.minute / 60 + time.second / 3600 for time in times])
    return TimeOfDay(
        num_by_hour=tuple(np.bincount(hour_of_day_I.astype(int), minlength=24).tolist()),
        num_by_weekday=tuple(np.bincount([time.weekday() for time in times], minlength=7).tolist()),
        p=_rayleigh(hour_of_day_I * (2 * math.pi / 24)),
    )


def _rayleigh(angle_I: F64) -> float:
    """The chance of so long a mean vector if angles are uniform (Zar, Biostatistical Analysis, 2010, equation 27.4)."""
    num = len(angle_I)
    length = abs(complex(np.exp(1j * angle_I).sum()))
    return min(1.0, math.exp(math.sqrt(1 + 4 * num + 4 * (num * num - length * length)) - (1 + 2 * num)))


def _repair_h(entry: Entry, trace: Trace) -> float | None:
    """Hours down; None if it does not say."""
    text = entry.extra.get("repair_h", "")
    if not text:
        return None
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 <= hours < math.inf:
        raise TraceError(f"{trace.source}:{entry.line}: repair_h {text!r}; hours, at least 0, would be right")
    return hours


def _repairs(trace: Trace, observed: Observed) -> Repairs | None:
    """None if no death says."""
    told = [(entry.hour, _repair_h(entry, trace)) for entry in trace.entries]
    known = [(hour, repair_h) for hour, repair_h in told if repair_h is not None]
    if not known:
        return None
    hour_K, repair_K = np.array(known).T
    down_h = float(np.minimum(repair_K, observed.length_h - hour_K).sum())
    watched_h = None if observed.num_ranks is None else observed.num_ranks * observed.length_h
    return Repairs(
        num=len(known),
        num_unknown=len(trace.entries) - len(known),
        mean_h=float(repair_K.mean()),
        median_h=float(np.median(repair_K)),
        p90_h=float(np.quantile(repair_K, 0.9)),
        longest_h=float(repair_K.max()),
        down_frac=None if watched_h is None else down_h / watched_h,
    )
