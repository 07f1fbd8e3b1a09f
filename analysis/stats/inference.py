"""Inference from paired differences: one-sided t-tests, Holm's correction, numbers of seeds needed, skewness."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.stats.estimates import Estimate
from harness.core.seeds import generator

ALPHA = 0.05
"""Accepted probability that one or more claims of a kind are false, among the strategies of a block."""
POWER = 0.8
"""Probability of a decision for which :func:`more_seeds` counts seeds."""
MOST_SEEDS = 1000
"""The largest result of :func:`more_seeds`."""
_NUM_DRAWS = 2000


@dataclass(frozen=True)
class Claims:
    """The claims that tests allow on each loss, in order. All of a kind are true with probability >= 1 - ``ALPHA``."""

    non_inferior: list[bool]
    """The loss is below the margin."""
    inferior: list[bool]
    """The loss is above the margin."""
    superior: list[bool]
    """The loss is below 0."""


def claims_of(losses: Sequence[Estimate], margin: float) -> Claims:
    """The claims by one-sided t-tests with Holm's correction. If ``margin`` >= 0, superior losses are non-inferior."""
    return Claims(
        non_inferior=holm([p_below(loss, margin) for loss in losses]),
        inferior=holm([p_above(loss, margin) for loss in losses]),
        superior=holm([p_below(loss, 0.0) for loss in losses]),
    )


def p_above(value: Estimate, bound: float) -> float:
    """p-value (Student's t) of the hypothesis "the true mean is at most ``bound``"; 1 if the spread is unknown or 0."""
    from scipy import special  # noqa: PLC0415 - takes a fifth of a second to import

    if not value.standard_error:
        return 1.0
    return float(special.stdtr(value.degrees, (bound - value.mean) / value.standard_error))


def p_below(value: Estimate, bound: float) -> float:
    """p-value, as of :func:`p_above`, of the hypothesis "the true mean is at least ``bound``"."""
    return p_above(value.negated, -bound)


def holm(p_values: Sequence[float]) -> list[bool]:
    """Whether Holm's method rejects each hypothesis; all rejections are right with probability >= 1 - ``ALPHA``."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    rejected = [False] * len(p_values)
    for rank, place in enumerate(order):
        if p_values[place] > ALPHA / (len(p_values) - rank):
            break
        rejected[place] = True
    return rejected


def more_seeds(value: Estimate, bound: float, alpha_above: float, alpha_below: float) -> int | None:
    """The number of further seeds that show with probability ``POWER`` on which side of ``bound`` the mean is.

    The tests are :func:`p_above` at level ``alpha_above`` and :func:`p_below` at level ``alpha_below``, of old and new
    seeds together. The probability is predictive: the true mean and variance have the distribution that follows from
    the values so far, with Jeffreys' prior. None if more than ``MOST_SEEDS`` are needed, or the spread is unknown or 0.
    """
    if not value.standard_error:
        return None

    def is_enough(more: int) -> bool:
        return _power(value, bound, (alpha_above, alpha_below), more) >= POWER

    if not is_enough(MOST_SEEDS):
        return None
    low, high = 0, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _power(value: Estimate, bound: float, alphas: tuple[float, float], more: int) -> float:
    """Share of the draws of the mean and variance after ``more`` further seeds in which a test rejects."""
    from scipy import special  # noqa: PLC0415 - as above

    assert value.standard_error
    old, draws = value.degrees + 1, generator(0, "future")
    squares_before = value.standard_error**2 * old * value.degrees
    variances = squares_before / draws.chisquare(value.degrees, _NUM_DRAWS)
    shifts = draws.standard_normal(_NUM_DRAWS) * np.sqrt(variances * (1 / old + 1 / more))
    num = old + more
    within = variances * generator(0, "future", more).chisquare(more - 1, _NUM_DRAWS) if more > 1 else 0.0
    squares = squares_before + within + old * more / num * shifts**2
    ratios = (value.mean - bound + more / num * shifts) / np.sqrt(squares / (num - 1) / num)
    above, below = (-special.stdtrit(num - 1, alpha) for alpha in alphas)
    return float(np.mean((ratios >= above) | (ratios <= -below)))


_QUANTILE = 1.1
"""Normal quantile of :func:`is_skewed`: it calls one of eight grids of normal losses skewed."""
_CORRELATION = 0.125
"""Correlation of two strategies' sample skewness if half of the variance of their losses comes from ``none``: 0.5^3."""


def skewness(values: Sequence[float]) -> float:
    """Third central moment over the 1.5th power of the second; 0 without a spread."""
    centred = np.asarray(values) - np.mean(values)
    variance = float(np.mean(centred**2))
    return float(np.mean(centred**3)) / variance**1.5 if variance else 0.0


def is_skewed(losses: Sequence[Sequence[float]]) -> bool:
    """Whether the losses of several strategies are on average more skewed to great losses than normal ones by chance.

    The mean skewness over the strategies is tested, since a few seeds of one strategy show nothing: if they miss the
    rare great loss, they look symmetric. The standard deviation of this mean follows from the standard deviation of a
    normal sample's skewness and from ``_CORRELATION``. Strategies with fewer than three losses are left out.
    """
    known = [values for values in losses if len(values) >= 3]
    if not known:
        return False
    num, share = min(map(len, known)), 1 / len(known)
    of_one = math.sqrt(6 * (num - 2) / ((num + 1) * (num + 3)))
    limit = _QUANTILE * of_one * math.sqrt(share + (1 - share) * _CORRELATION)
    return float(np.mean([skewness(values) for values in known])) > limit
