"""Survival and hazard of the time between failures without a distribution family; durations may be right-censored.

``scipy.stats.ecdf`` draws the same curve and band (a test compares them), but keeps private the numbers at risk, from
which the weights of ``distance_of`` are made, and takes longer than a whole fit of a bootstrap.

Array letters: E durations that ended, C censored durations, T different durations that ended, K classes of duration.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``low`` is 0 and ``high`` infinite where the data set no bound."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, eq=False)
class Sample:
    """Durations in hours, above zero: ``ended_E`` ended, ``cut_C`` are right-censored (lasted at least so long)."""

    ended_E: F64
    cut_C: F64

    @property
    def num_events(self) -> int:
        """The number of durations that ended."""
        return len(self.ended_E)

    @cached_property
    def all_N(self) -> F64:
        """Every duration, ended or not."""
        return np.append(self.ended_E, self.cut_C)

    @cached_property
    def exposure_h(self) -> float:
        """Hours observed: the sum of all durations."""
        return math.fsum(self.all_N)


def mean_interval(exposure_h: float, num_events: int, confidence: float = CONFIDENCE, *, is_cut: bool) -> Interval:
    """The exact interval of the mean time between failures, in hours, for a constant hazard.

    Twice the exposure over the mean has a chi-square distribution. It is exact where observation ended with a failure.
    Where the clock ended it (``is_cut``), the number of failures is Poisson and the lower end takes two more degrees of
    freedom (Garwood, Biometrika 28, 1936), which covers at least as often as asked. Without a failure the upper end is
    infinite.
    """
    tail = (1 - confidence) / 2
    # gammaincinv(d, q) is half the chi-square quantile of 2 d degrees of freedom
    high = exposure_h / float(special.gammaincinv(num_events, tail)) if num_events else math.inf
    num_low = num_events + (1 if is_cut else 0)
    return Interval(exposure_h / float(special.gammaincinv(num_low, 1 - tail)) if num_low else 0.0, high)


@dataclass(frozen=True, eq=False)
class Survival:
    """The Kaplan-Meier curve (JASA 53, 1958), just after each duration at which something ended.

    ``low_T``, ``high_T``: the pointwise interval by Greenwood's variance on the log-log scale, inside 0 to 1.
    ``variance_T``: Greenwood's sum times ``num``, the number of durations.
    """

    hours_T: F64
    survival_T: F64
    low_T: F64
    high_T: F64
    variance_T: F64
    num: int


def survival_of(sample: Sample, confidence: float = CONFIDENCE) -> Survival:
    """The curve of ``sample``. A duration that ends or is censored at an instant is still at risk there."""
    hours_T, num_ended_T = np.unique(sample.ended_E, return_counts=True)
    num = len(sample.all_N)
    at_risk_T = num - np.searchsorted(np.sort(sample.all_N), hours_T, side="left")
    survival_T = np.cumprod(1 - num_ended_T / at_risk_T, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood_T = np.cumsum(num_ended_T / (at_risk_T * (at_risk_T - num_ended_T)))
        spread_T = float(special.ndtri((1 + confidence) / 2)) * np.sqrt(greenwood_T) / -np.log(survival_T)
        low_T, high_T = (survival_T ** np.exp(sign * spread_T) for sign in (1, -1))
    return Survival(
        hours_T=hours_T,
        survival_T=survival_T,
        low_T=np.where(survival_T > 0, low_T, 0.0),
        high_T=np.where(survival_T > 0, high_T, np.append(1.0, high_T[:-1])),  # at zero: the bound of the step before
        variance_T=num * greenwood_T,
        num=num,
    )


def distance_of(curve: Survival, fitted_T: F64) -> float:
    """The largest difference between a fitted survival function, taken at ``curve.hours_T``, and the curve.

    It is weighted as in Hall and Wellner's band (Biometrika 67, 1980): Kolmogorov's distance if nothing is censored;
    the weight falls where few durations were observed for so long, so that the same limit law holds.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        weight_T = 1 / ((1 + curve.variance_T) * curve.survival_T)
    before_T, weight_before_T = np.append(1.0, curve.survival_T[:-1]), np.append(1.0, weight_T[:-1])
    weight_T = np.where(np.isfinite(weight_T), weight_T, weight_before_T)  # at zero: the weight of the step before
    after_T = np.abs(fitted_T - curve.survival_T) * weight_T
    return float(np.maximum(after_T, np.abs(fitted_T - before_T) * weight_before_T).max())


@dataclass(frozen=True)
class HazardClass:
    """Failures per hour among gaps that had lasted from ``from_h`` to ``to_h`` hours; ``interval`` is of that rate."""

    from_h: float
    to_h: float
    num_events: int
    exposure_h: float
    interval: Interval

    @property
    def rate_per_h(self) -> float:
        """Events divided by exposure."""
        return self.num_events / self.exposure_h


def hazard_of(sample: Sample, num_classes: int = 8) -> tuple[HazardClass, ...]:
    """The hazard in classes of duration with equal numbers of failures, five at least; exact Poisson intervals."""
    num_classes = max(1, min(num_classes, sample.num_events // 5))
    quantiles_K = np.quantile(sample.ended_E, np.arange(1, num_classes) / num_classes)
    classes: list[HazardClass] = []
    for first, last in itertools.pairwise(np.unique([0.0, *quantiles_K, sample.all_N.max()])):
        num = int(np.count_nonzero((sample.ended_E > first) & (sample.ended_E <= last)))
        exposure_h = float(np.clip(sample.all_N - first, 0, last - first).sum())
        mean = mean_interval(exposure_h, num, is_cut=True)
        rate = Interval(1 / mean.high, 1 / mean.low if mean.low else math.inf)
        classes.append(HazardClass(float(first), float(last), num, exposure_h, rate))
    return tuple(classes)
