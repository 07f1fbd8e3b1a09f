"""Confidence intervals, and the exact one of a mean time between failures."""

import math
from dataclasses import dataclass

from scipy import special

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``low`` 0 or ``high`` infinite where the data set no bound."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def mean_interval(exposure_h: float, num_events: int, confidence: float = CONFIDENCE, *, is_cut: bool) -> Interval:
    """Of the mean time between failures of constant hazard, by the chi-square law of twice the exposure over the mean.

    Exact where observation ended with a failure. Where it was cut in between, by the clock, the number of failures is
    Poisson's, and the lower end takes two degrees of freedom more (Garwood, Biometrika 28, 1936): at least as sure as
    asked. No failure leaves the upper end open.
    """
    tail = (1 - confidence) / 2
    # gammaincinv(d, q) is half the chi-square quantile of 2 d degrees of freedom
    high = exposure_h / float(special.gammaincinv(num_events, tail)) if num_events else math.inf
    num_low = num_events + (1 if is_cut else 0)
    return Interval(exposure_h / float(special.gammaincinv(num_low, 1 - tail)) if num_low else 0.0, high)
