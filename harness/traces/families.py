"""Distributions of the time between failures: exponential, gamma, Weibull, lognormal.

Every parameter is above zero, and what is fitted is its logarithm: ``theta_P``, in the order of ``parameters``. Hours.
The likelihoods are of durations of which some are cut short by the end of observation (right-censored): one that ended
counts by its density, one that was cut by its survival function. Sums that do not depend on the parameters are taken
once, so that a step of a fit costs little even with many durations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

F64 = NDArray[np.float64]
LogLikelihood = Callable[[F64], float]

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)
_NODE_STEP = 0.05  # in log hours
_STENCIL = 8  # nodes that interpolate between two of them
_SMOOTH_SHAPE = 30.0  # of a gamma, below which its survival function is smooth between nodes: error below 1e-6


@dataclass(frozen=True, eq=False)
class Sample:
    """Durations above zero, in hours: ``ended_E`` were seen to end, ``cut_C`` lasted at least so long."""

    ended_E: F64
    cut_C: F64

    @property
    def num_events(self) -> int:
        """How many ended."""
        return len(self.ended_E)

    @cached_property
    def exposure_h(self) -> float:
        """Hours observed."""
        return math.fsum(self.ended_E) + math.fsum(self.cut_C)

    @cached_property
    def sum_log(self) -> float:
        """Of the logarithms of those that ended."""
        return float(np.log(self.ended_E).sum())

    @cached_property
    def mean_log(self) -> float:
        """Of those that ended."""
        return self.sum_log / self.num_events

    @cached_property
    def var_log(self) -> float:
        """Mean squared deviation of the logarithms of those that ended."""
        return float(np.log(self.ended_E).var())


class Family(Protocol):
    """One family of distributions of durations."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names, in the order of ``theta_P``; of hours they end in ``_h``."""
        ...

    def guess(self, sample: Sample) -> F64:
        """A ``theta_P`` to start from; at the maximum where that has a formula."""
        ...

    def log_likelihood(self, sample: Sample) -> LogLikelihood:
        """Of ``theta_P``, given the sample; minus infinity where it cannot be told from zero likelihood."""
        ...

    def log_survival(self, theta_P: F64, hours: ArrayLike) -> F64:
        """Logarithm of the chance to last longer than ``hours``."""
        ...

    def log_density(self, theta_P: F64, hours: ArrayLike) -> F64:
        """Logarithm of the density, per hour."""
        ...

    def mean_h(self, theta_P: F64) -> float:
        """Mean duration."""
        ...

    def draw(self, theta_P: F64, rng: np.random.Generator, size: tuple[int, ...]) -> F64:
        """Durations of this distribution."""
        ...


class Exponential:
    """Constant hazard ``1 / mean_h``."""

    parameters = ("mean_h",)

    def guess(self, sample: Sample) -> F64:
        """The maximum itself: exposure / events."""
        return np.array([math.log(sample.exposure_h / sample.num_events)])

    def log_likelihood(self, sample: Sample) -> LogLikelihood:
        """``-d log m - exposure / m``."""
        num, exposure_h = sample.num_events, sample.exposure_h
        return lambda theta_P: float(-num * theta_P[0] - exposure_h * math.exp(-theta_P[0]))

    def log_survival(self, theta_P: F64, hours: ArrayLike) -> F64:
        """``-t / m``."""
        return -np.asarray(hours) * math.exp(-theta_P[0])

    def log_density(self, theta_P: F64, hours: ArrayLike) -> F64:
        """``-log m - t / m``."""
        return self.log_survival(theta_P, hours) - theta_P[0]

    def mean_h(self, theta_P: F64) -> float:
        """The parameter."""
        return math.exp(theta_P[0])

    def draw(self, theta_P: F64, rng: np.random.Generator, size: tuple[int, ...]) -> F64:
        """Durations of this distribution."""
        return rng.exponential(math.exp(theta_P[0]), size)


class Gamma:
    """Density ``t^(shape-1) exp(-t/scale_h) / (Gamma(shape) scale_h^shape)``; hazard falls if shape < 1."""

    parameters = ("shape", "scale_h")

    def guess(self, sample: Sample) -> F64:
        """Minka's closed-form approximation (Estimating a Gamma distribution, 2002), its mean the exposure / events."""
        mean_h = sample.exposure_h / sample.num_events
        gap = max(math.log(mean_h) - sample.mean_log, 1e-9)
        shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
        return np.array([math.log(shape), math.log(mean_h / shape)])

    def log_likelihood(self, sample: Sample) -> LogLikelihood:
        """By the sums of durations and logarithms for those that ended, term by term for those cut."""
        num, sum_log, sum_h, cut_C = sample.num_events, sample.sum_log, float(sample.ended_E.sum()), sample.cut_C
        node_M, weight_M = _nodes(cut_C)

        def of(theta_P: F64) -> float:
            shape, scale_h = math.exp(theta_P[0]), math.exp(theta_P[1])
            ended = (shape - 1) * sum_log - sum_h / scale_h - num * (shape * theta_P[1] + math.lgamma(shape))
            if shape > _SMOOTH_SHAPE:
                return ended + float(_log_gammaincc(shape, cut_C / scale_h).sum())
            return ended + float(weight_M @ _log_gammaincc(shape, node_M / scale_h))

        return of

    def log_survival(self, theta_P: F64, hours: ArrayLike) -> F64:
        """By the regularised upper incomplete gamma function."""
        return _log_gammaincc(math.exp(theta_P[0]), np.asarray(hours, np.float64) / math.exp(theta_P[1]))

    def log_density(self, theta_P: F64, hours: ArrayLike) -> F64:
        """As in the class's docstring."""
        shape, scale_h = np.exp(theta_P)
        hours_N = np.asarray(hours, np.float64)
        return (shape - 1) * np.log(hours_N) - hours_N / scale_h - shape * theta_P[1] - math.lgamma(shape)

    def mean_h(self, theta_P: F64) -> float:
        """``shape * scale_h``."""
        return math.exp(theta_P[0] + theta_P[1])

    def draw(self, theta_P: F64, rng: np.random.Generator, size: tuple[int, ...]) -> F64:
        """Durations of this distribution."""
        return rng.gamma(math.exp(theta_P[0]), math.exp(theta_P[1]), size)


class Weibull:
    """Survival ``exp(-(t/scale_h)^shape)``; hazard falls if shape < 1, rises if above."""

    parameters = ("shape", "scale_h")

    def guess(self, sample: Sample) -> F64:
        """The shape whose logarithms scatter as these do; the scale that is best for it."""
        shape = math.pi / math.sqrt(6 * max(sample.var_log, 1e-12))
        power = math.fsum(np.exp(shape * (np.log(np.append(sample.ended_E, sample.cut_C)) - sample.mean_log)))
        return np.array([math.log(shape), sample.mean_log + math.log(power / sample.num_events) / shape])

    def log_likelihood(self, sample: Sample) -> LogLikelihood:
        """By the sum of logarithms of those that ended, and the cumulative hazards of all."""
        num, sum_log, logs_N = sample.num_events, sample.sum_log, np.log(np.append(sample.ended_E, sample.cut_C))

        def of(theta_P: F64) -> float:
            shape = math.exp(theta_P[0])
            hazard = float(np.exp(shape * (logs_N - theta_P[1])).sum())
            return num * (theta_P[0] - shape * theta_P[1]) + (shape - 1) * sum_log - hazard

        return of

    def log_survival(self, theta_P: F64, hours: ArrayLike) -> F64:
        """``-(t / scale)^shape``."""
        return -((np.asarray(hours, np.float64) * math.exp(-theta_P[1])) ** math.exp(theta_P[0]))

    def log_density(self, theta_P: F64, hours: ArrayLike) -> F64:
        """Log hazard plus log survival."""
        shape = math.exp(theta_P[0])
        logs_N = np.log(np.asarray(hours, np.float64)) - theta_P[1]
        return theta_P[0] - theta_P[1] + (shape - 1) * logs_N - np.exp(shape * logs_N)

    def mean_h(self, theta_P: F64) -> float:
        """``scale_h * Gamma(1 + 1/shape)``; infinite where that is beyond a float."""
        exponent = theta_P[1] + math.lgamma(1 + math.exp(-theta_P[0]))
        return math.exp(exponent) if exponent < 700 else math.inf

    def draw(self, theta_P: F64, rng: np.random.Generator, size: tuple[int, ...]) -> F64:
        """Durations of this distribution."""
        return math.exp(theta_P[1]) * rng.weibull(math.exp(theta_P[0]), size)


class Lognormal:
    """The logarithm is normal with mean ``log(median_h)`` and standard deviation ``sigma``."""

    parameters = ("median_h", "sigma")

    def guess(self, sample: Sample) -> F64:
        """The maximum itself where none is cut short; those cut count as if they had just ended."""
        logs_N = np.log(np.append(sample.ended_E, sample.cut_C))
        return np.array([logs_N.mean(), 0.5 * math.log(max(logs_N.var(), 1e-12))])

    def log_likelihood(self, sample: Sample) -> LogLikelihood:
        """By the first two moments of the logarithms of those that ended, term by term for those cut."""
        num, mean, var, cut_logs_C = sample.num_events, sample.mean_log, sample.var_log, np.log(sample.cut_C)
        constant = -sample.sum_log - num * _LOG_ROOT_TAU

        def of(theta_P: F64) -> float:
            sigma = math.exp(theta_P[1])
            ended = constant - num * (theta_P[1] + (var + (mean - theta_P[0]) ** 2) / (2 * sigma * sigma))
            return ended + float(special.log_ndtr((theta_P[0] - cut_logs_C) / sigma).sum())

        return of

    def log_survival(self, theta_P: F64, hours: ArrayLike) -> F64:
        """By the normal distribution function."""
        with np.errstate(divide="ignore"):
            return special.log_ndtr((theta_P[0] - np.log(np.asarray(hours, np.float64))) / math.exp(theta_P[1]))

    def log_density(self, theta_P: F64, hours: ArrayLike) -> F64:
        """Of the normal distribution, per hour."""
        logs_N = np.log(np.asarray(hours, np.float64))
        return -0.5 * ((logs_N - theta_P[0]) / math.exp(theta_P[1])) ** 2 - theta_P[1] - logs_N - _LOG_ROOT_TAU

    def mean_h(self, theta_P: F64) -> float:
        """``median_h * exp(sigma^2 / 2)``; infinite where that is beyond a float."""
        exponent = theta_P[0] + 0.5 * math.exp(2 * theta_P[1])
        return math.exp(exponent) if exponent < 700 else math.inf

    def draw(self, theta_P: F64, rng: np.random.Generator, size: tuple[int, ...]) -> F64:
        """Durations of this distribution."""
        return rng.lognormal(theta_P[0], math.exp(theta_P[1]), size)


FAMILIES: dict[str, Family] = {
    "exponential": Exponential(),
    "gamma": Gamma(),
    "weibull": Weibull(),
    "lognormal": Lognormal(),
}


def _nodes(hours_C: F64) -> tuple[F64, F64]:
    """Few durations with weights, over which the sum of a smooth function is that over ``hours_C``.

    The incomplete gamma function takes a microsecond for each of thousands of ranks and each step of a fit. Lagrange's
    interpolation is linear in the function's values at the nodes, so the weights can be summed once. Durations fewer
    than nodes are their own nodes.
    """
    own = hours_C, np.ones(len(hours_C))
    if len(hours_C) <= _STENCIL:
        return own
    logs_C = np.log(hours_C)
    num_nodes = int((logs_C.max() - logs_C.min()) / _NODE_STEP) + _STENCIL
    if num_nodes >= len(hours_C):
        return own
    first = logs_C.min() - _NODE_STEP * (_STENCIL // 2 - 1)
    place_C = (logs_C - first) / _NODE_STEP
    start_C = np.clip(place_C.astype(int) - (_STENCIL // 2 - 1), 0, num_nodes - _STENCIL)
    weight_M = np.zeros(num_nodes)
    for one in range(_STENCIL):
        share_C = np.ones(len(hours_C))
        for other in range(_STENCIL):
            if other != one:
                share_C *= (place_C - start_C - other) / (one - other)
        weight_M += np.bincount(start_C + one, share_C, num_nodes)
    return np.exp(first + _NODE_STEP * np.arange(num_nodes)), weight_M


def _log_gammaincc(shape: float, x_N: F64) -> F64:
    """Logarithm of the regularised upper incomplete gamma function.

    Far out, where the function itself is below the smallest float, two levels of its continued fraction (DLMF 8.9.2).
    """
    upper_N = special.gammaincc(shape, x_N)
    if upper_N.size == 0 or upper_N.min() > 1e-280:
        return np.log(upper_N)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner_N = x_N + 3 - shape + (shape - 2) * 2 / (x_N + 5 - shape)
        far_N = shape * np.log(x_N) - x_N - math.lgamma(shape) - np.log(x_N + 1 - shape + (shape - 1) / inner_N)
        return np.where(upper_N > 1e-280, np.log(upper_N), far_N)
