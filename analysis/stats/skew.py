"""Skewed losses, which few seeds misjudge: a test for skewness, and interquartile means with bootstrap intervals."""

import math
from collections.abc import Sequence

import numpy as np

from harness.core.seeds import generator

_QUANTILE = 1.1
"""Normal quantile of :func:`is_skewed`: one grid of normal losses in eight is called skewed (benchmarks/power.py)."""
_CORRELATION = 0.125
"""Of two strategies' sample skewness, where half of the variance of their losses is shared through ``none``: 0.5^3."""
_NUM_RESAMPLES = 2000


def skewness(values: Sequence[float]) -> float:
    """Third central moment over the 1.5th power of the second; 0 without a spread."""
    centred = np.asarray(values) - np.mean(values)
    variance = float(np.mean(centred**2))
    return float(np.mean(centred**3)) / variance**1.5 if variance else 0.0


def is_skewed(losses: Sequence[Sequence[float]]) -> bool:
    """Whether the losses of several strategies are on average skewed to great losses, more than normal ones by chance.

    The mean over the strategies is tested, as a few seeds of one strategy show nothing: those that miss the rare great
    loss look symmetric. Its standard deviation follows from that of a normal sample's skewness and ``_CORRELATION``.
    """
    known = [values for values in losses if len(values) >= 3]
    if not known:
        return False
    num, share = min(map(len, known)), 1 / len(known)
    of_one = math.sqrt(6 * (num - 2) / ((num + 1) * (num + 3)))
    limit = _QUANTILE * of_one * math.sqrt(share + (1 - share) * _CORRELATION)
    return float(np.mean([skewness(values) for values in known])) > limit


def interquartile_mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of the middle half of independent ``values``, and the ends of its 95 % bootstrap interval (percentile).

    A quarter of the values, rounded down, is cut at either end (Agarwal et al. 2021, section 4.3).
    """
    num = len(values)
    drawn = np.asarray(values)[generator(0, "resamples", num).integers(num, size=(_NUM_RESAMPLES, num))]
    low, high = np.quantile(_middle(drawn), (0.025, 0.975))
    return float(_middle(np.asarray(values))), float(low), float(high)


def _middle(values: "np.ndarray") -> "np.ndarray":
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)
