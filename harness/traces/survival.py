"""Survival and hazard of the time between failures, no family assumed; some durations cut short.

Lines of arrays: T different durations that ended, K classes of duration.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.traces.families import F64, Family, Sample
from harness.traces.intervals import CONFIDENCE, Interval, mean_interval

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Survival:
    """Kaplan & Meier's curve (JASA 53, 1958), just after each duration at which something ended.

    ``low_T``, ``high_T``: pointwise interval by Greenwood's variance, on the log-log scale (so inside 0 to 1).
    ``variance_T``: Greenwood's sum, times the number of durations. ``cumulative_hazard_T``: Nelson & Aalen's.
    """

    hours_T: F64
    num_at_risk_T: I64
    num_ended_T: I64
    survival_T: F64
    low_T: F64
    high_T: F64
    variance_T: F64
    cumulative_hazard_T: F64
    num: int

    @property
    def median_h(self) -> float | None:
        """The first duration that at most half outlast; None if more do, as far as was observed."""
        index = int(np.searchsorted(-self.survival_T, -0.5 - 1e-12))
        return float(self.hours_T[index]) if index < len(self.hours_T) else None


def survival_of(sample: Sample, confidence: float = CONFIDENCE) -> Survival:
    """What ends at an instant is at risk there, and so is what is cut short there."""
    hours_T, num_ended_T = np.unique(sample.ended_E, return_counts=True)
    all_N = np.sort(np.append(sample.ended_E, sample.cut_C))
    num = len(all_N)
    num_at_risk_T = num - np.searchsorted(all_N, hours_T, side="left")
    survival_T = np.cumprod(1 - num_ended_T / num_at_risk_T, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood_T = np.cumsum(num_ended_T / (num_at_risk_T * (num_at_risk_T - num_ended_T)))
        spread_T = float(special.ndtri((1 + confidence) / 2)) * np.sqrt(greenwood_T) / -np.log(survival_T)
        low_T, high_T = (survival_T ** np.exp(sign * spread_T) for sign in (1, -1))
    return Survival(
        hours_T=hours_T,
        num_at_risk_T=num_at_risk_T,
        num_ended_T=num_ended_T,
        survival_T=survival_T,
        low_T=np.where(survival_T > 0, low_T, 0.0),
        high_T=np.where(survival_T > 0, high_T, np.append(1.0, high_T[:-1])),  # nothing left: the bound of before
        variance_T=num * greenwood_T,
        cumulative_hazard_T=np.cumsum(num_ended_T / num_at_risk_T),
        num=num,
    )


def distance_of(curve: Survival, family: Family, theta_P: F64) -> float:
    """The largest difference between a family's survival function and the curve, weighted as in Hall & Wellner's band.

    With nothing cut short the weight is 1 and this is Kolmogorov's distance (Hall & Wellner, Biometrika 67, 1980);
    elsewhere it falls where few were observed for so long, so that the same law holds.
    """
    fitted_T = np.exp(family.log_survival(theta_P, curve.hours_T))
    with np.errstate(divide="ignore", invalid="ignore"):
        weight_T = 1 / ((1 + curve.variance_T) * curve.survival_T)
    before_T = np.append(1.0, curve.survival_T[:-1])
    weight_before_T = np.append(1.0, weight_T[:-1])
    weight_T = np.where(np.isfinite(weight_T), weight_T, weight_before_T)  # all ended: the weight of just before
    after = np.abs(fitted_T - curve.survival_T) * weight_T
    return float(np.maximum(after, np.abs(fitted_T - before_T) * weight_before_T).max())


def kolmogorov_bound(distance: float, num: int) -> float:
    """Chance of so large a distance if the parameters had been known in advance: above the p-value of fitted ones."""
    return float(special.kolmogorov(math.sqrt(num) * distance))


@dataclass(frozen=True)
class HazardClass:
    """Failures per hour of what had lasted from ``from_h`` to ``to_h``."""

    from_h: float
    to_h: float
    num_events: int
    exposure_h: float
    interval: Interval

    @property
    def rate_per_h(self) -> float:
        """Events by exposure."""
        return self.num_events / self.exposure_h


def hazard_of(sample: Sample, num_classes: int = 8, confidence: float = CONFIDENCE) -> tuple[HazardClass, ...]:
    """The hazard in classes of duration with about equally many failures, at least five; exact Poisson intervals."""
    num_classes = max(1, min(num_classes, sample.num_events // 5))
    quantiles_K = np.quantile(sample.ended_E, np.arange(1, num_classes) / num_classes)
    edges = np.unique([0.0, *quantiles_K, max(sample.ended_E.max(), sample.cut_C.max(initial=0.0))])
    all_N = np.append(sample.ended_E, sample.cut_C)
    classes: list[HazardClass] = []
    for first, last in itertools.pairwise(edges):
        num = int(np.count_nonzero((sample.ended_E > first) & (sample.ended_E <= last)))
        exposure_h = float(np.clip(all_N - first, 0, last - first).sum())
        mean = mean_interval(exposure_h, num, confidence, is_cut=True)
        interval = Interval(1 / mean.high if mean.high else 0.0, 1 / mean.low if mean.low else math.inf)
        classes.append(HazardClass(float(first), float(last), num, exposure_h, interval))
    return tuple(classes)
