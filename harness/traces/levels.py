"""MTBF, regularity, hazard and fits of the times between failures: of one rank, or of any rank.

Array letters: E durations that ended, N all gaps, K classes of duration, W windows of time, or ranks.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.traces.bootstrap import bootstrapped
from harness.traces.fits import CONFIDENCE, Fit, Interval, fit_all, mean_interval
from harness.traces.gaps import I64, First, Gaps, Observed, Per, Sample, gaps_of

_EVENTS_PER_WINDOW = 5  # on average, for a variance of counts to mean something
_LEAST_WINDOWS, _MAX_WINDOWS = 5, 50
_NUM_CLASSES = 8


@dataclass(frozen=True)
class HazardClass:
    """Failures per hour among gaps that had lasted from ``from_h`` to ``to_h`` hours; ``interval`` is of that rate."""

    from_h: float
    to_h: float
    num_events: int
    rate_per_h: float
    interval: Interval


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """All statistics of one kind of gap; None is unknown.

    ``mtbf_h``: hours observed divided by failures, infinite without any. ``poisson``: its exact interval if failures
    are independent and their rate constant. ``dispersed``: its interval by the variance of the numbers of failures over
    ranks or windows of time, if that is above Poisson's, as bursts and repeat offenders make it (Student's t on the log
    scale). ``dispersion``: that variance divided by the mean number, 1 if Poisson.

    ``cv``: the coefficient of variation of the gaps that ended. ``memory``: the correlation of a gap with the next of
    its process. ``refused``: by family, why it could not be fitted.
    """

    mtbf_h: float
    poisson: Interval
    dispersed: Interval | None
    dispersion: float | None
    sample: Sample
    num_zero: int
    cv: float | None
    memory: float | None
    hazard: tuple[HazardClass, ...]
    fits: tuple[Fit, ...]
    refused: Mapping[str, str]

    @property
    def burstiness(self) -> float | None:
        """(cv - 1) / (cv + 1), from -1 (clockwork) over 0 (Poisson) to 1 (Goh & Barabási, EPL 81, 2008)."""
        return None if self.cv is None else (self.cv - 1) / (self.cv + 1)


def level_of(
    observed: Observed, per: Per, *, first: First, bootstrap: int, seed: int, tick: Callable[[], None]
) -> Level:
    """The statistics of ``per``; with ``bootstrap`` samples of each kind for each fit, ``tick`` called before each."""
    gaps = gaps_of(observed, per, first=first)
    sample = gaps.sample
    exposure_h, num_W = _counts(observed, per)
    num = int(num_W.sum())
    mtbf_h = exposure_h / num if num else math.inf
    dispersed = dispersion = None
    if num and len(num_W) > 1:
        dispersion = float(num_W.var(ddof=1) / num_W.mean())
        quantile = float(stats.t.isf((1 - CONFIDENCE) / 2, len(num_W) - 1))
        spread = math.exp(quantile * math.sqrt(max(dispersion, 1.0) / num))
        dispersed = Interval(mtbf_h / spread, mtbf_h * spread)
    fits, refused = fit_all(sample)
    if bootstrap:
        fits = [bootstrapped(one, sample, gaps.watched_R, num=bootstrap, seed=seed, tick=tick) for one in fits]
    return Level(
        mtbf_h=mtbf_h,
        poisson=mean_interval(exposure_h, num, is_cut=True),
        dispersed=dispersed,
        dispersion=dispersion,
        sample=sample,
        num_zero=gaps.num_zero,
        cv=float(stats.variation(sample.ended_E, ddof=1)) if sample.num_events > 1 else None,
        memory=_memory(gaps),
        hazard=_hazard(sample) if sample.num_events else (),
        fits=tuple(fits),
        refused=refused,
    )


def _counts(observed: Observed, per: Per) -> tuple[float, I64]:
    """Hours observed, and numbers of failures: of each rank, so that a few bad ones widen the interval; or of instants
    in equal windows of time (index of dispersion, Cox & Lewis, 1966), one window where failures are few.
    """
    if per == "rank":
        assert observed.rank_E is not None
        assert observed.num_ranks is not None
        return observed.num_ranks * observed.length_h, np.bincount(observed.rank_E, minlength=observed.num_ranks)
    hour_I = observed.instants[0]
    num_windows = min(_MAX_WINDOWS, len(hour_I) // _EVENTS_PER_WINDOW)
    num_windows = num_windows if num_windows >= _LEAST_WINDOWS else 1
    return observed.length_h, np.histogram(hour_I, num_windows, (0, observed.length_h))[0]


def _memory(gaps: Gaps) -> float | None:
    """Correlation of successive gaps of one process; None for fewer than three pairs, or equal gaps."""
    is_pair = gaps.process_E[1:] == gaps.process_E[:-1]
    before, after = gaps.sample.ended_E[:-1][is_pair], gaps.sample.ended_E[1:][is_pair]
    if len(before) < 3 or np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def _hazard(sample: Sample) -> tuple[HazardClass, ...]:
    """The hazard in classes of duration with equal numbers of failures, five at least; exact Poisson intervals."""
    num_classes = max(1, min(_NUM_CLASSES, sample.num_events // 5))
    edges_K = np.quantile(sample.ended_E, np.arange(1, num_classes) / num_classes)
    classes: list[HazardClass] = []
    for first, last in itertools.pairwise(np.unique([0.0, *edges_K, sample.all_N.max()]).tolist()):
        num = int(((sample.ended_E > first) & (sample.ended_E <= last)).sum())
        exposure_h = float(np.clip(sample.all_N - first, 0, last - first).sum())
        mean = mean_interval(exposure_h, num, is_cut=True)
        classes.append(HazardClass(first, last, num, num / exposure_h, Interval(1 / mean.high, 1 / mean.low)))
    return tuple(classes)
