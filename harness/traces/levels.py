"""MTBF, regularity, survival, hazard and fits of the times between failures: of one rank, or of any rank.

Array letters: W equal windows of time, or ranks.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from harness.traces.bootstrap import bootstrapped
from harness.traces.fits import Fit, fit_all
from harness.traces.gaps import First, Gaps, Observed, Per, gaps_of
from harness.traces.survival import (
    CONFIDENCE,
    HazardClass,
    Interval,
    Sample,
    Survival,
    hazard_of,
    mean_interval,
    survival_of,
)
from harness.traces.verdict import verdict

_EVENTS_PER_WINDOW = 5  # on average, for a variance of counts to mean something
_LEAST_WINDOWS, _MAX_WINDOWS = 5, 50


@dataclass(frozen=True, kw_only=True)
class Mtbf:
    """Mean time between failures: hours observed divided by failures; infinite without any.

    ``poisson``: the exact interval if failures are independent and their rate constant. ``dispersed``: the interval by
    the variance of the numbers of failures over ranks or windows of time, if that is above Poisson's, as bursts and
    repeat offenders make it (Student's t on the log scale); None if unknown. ``dispersion``: that variance divided by
    the mean number, 1 if Poisson.
    """

    hours: float
    poisson: Interval
    dispersed: Interval | None = None
    dispersion: float | None = None


@dataclass(frozen=True, kw_only=True)
class GapSummary:
    """Regularity of the gaps that ended; None is unknown.

    ``burstiness``: (cv - 1) / (cv + 1), from -1 (clockwork) over 0 (Poisson) to 1. ``memory``: the correlation of a gap
    with the next of its process (both Goh & Barabási, EPL 81, 2008). ``num_different``: the number of different gaps,
    to a millionth of an hour; far below ``num`` where the log's clock is coarse.
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
    """All statistics of one kind of gap. ``refused``: by family, why it could not be fitted."""

    mtbf: Mtbf
    gaps: GapSummary
    sample: Sample
    survival: Survival | None
    hazard: tuple[HazardClass, ...]
    fits: tuple[Fit, ...]
    refused: Mapping[str, str]
    verdict: str


def level_of(
    observed: Observed, per: Per, *, first: First, bootstrap: int, seed: int, tick: Callable[[], None]
) -> Level:
    """The statistics of ``per``; with ``bootstrap`` samples of each kind for each fit, ``tick`` called before each."""
    gaps = gaps_of(observed, per, first=first)
    sample = gaps.sample
    fits, refused = fit_all(sample)
    if bootstrap:
        fits = [bootstrapped(one, sample, gaps.watched_R, num=bootstrap, seed=seed, tick=tick) for one in fits]
    return Level(
        mtbf=_mtbf(observed, per),
        gaps=_summary(gaps),
        sample=sample,
        survival=survival_of(sample) if sample.num_events else None,
        hazard=hazard_of(sample) if sample.num_events else (),
        fits=tuple(fits),
        refused=refused,
        verdict=verdict(fits),
    )


def _mtbf(observed: Observed, per: Per) -> Mtbf:
    """Of one rank, dispersed over ranks, so that a few bad ones widen the interval; or of instants, dispersed over
    equal windows of time (index of dispersion, Cox & Lewis, 1966).
    """
    if per == "rank":
        assert observed.rank_E is not None
        assert observed.num_ranks is not None
        exposure_h = observed.num_ranks * observed.length_h
        num_W = np.bincount(observed.rank_E, minlength=observed.num_ranks)
    else:
        exposure_h, hour_I = observed.length_h, observed.instants[0]
        num_windows = min(_MAX_WINDOWS, len(hour_I) // _EVENTS_PER_WINDOW)
        num_windows = num_windows if num_windows >= _LEAST_WINDOWS else 1
        num_W = np.histogram(hour_I, num_windows, (0, observed.length_h))[0]
    num = int(num_W.sum())
    hours = exposure_h / num if num else math.inf
    poisson = mean_interval(exposure_h, num, is_cut=True)
    if len(num_W) < 2 or not num:
        return Mtbf(hours=hours, poisson=poisson)
    dispersion = float(num_W.var(ddof=1) / num_W.mean())
    quantile = float(special.stdtrit(len(num_W) - 1, (1 + CONFIDENCE) / 2))
    spread = math.exp(quantile * math.sqrt(max(dispersion, 1.0) / num))
    return Mtbf(hours=hours, poisson=poisson, dispersed=Interval(hours / spread, hours * spread), dispersion=dispersion)


def _summary(gaps: Gaps) -> GapSummary:
    ended_E = gaps.sample.ended_E
    num = len(ended_E)
    cv = float(ended_E.std(ddof=1) / ended_E.mean()) if num > 1 else None
    return GapSummary(
        num=num,
        num_cut=int(gaps.is_cut_N.sum()),
        num_zero=gaps.num_zero,
        num_different=len(np.unique(ended_E.round(6))),
        mean_h=float(ended_E.mean()) if num else None,
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
