"""Distribution families of the time between failures, in hours, and their likelihoods of right-censored durations.

The distributions are scipy's. The likelihoods are not: ``scipy.stats.fit`` maximises, but gives no function to profile,
and it evaluates each density anew at every duration. Here sums that no parameter enters are taken once, which makes a
step of a fit of 24,000 durations some twenty times faster; a test compares the maxima with scipy's.

Every parameter is above zero and fitted by its logarithm: ``theta_P``, in the order of ``Family.parameters``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats
from scipy.interpolate import make_interp_spline

from harness.traces.survival import F64, Sample

LogLikelihood = Callable[[F64], float]

_NODE_STEP = 0.05  # in log hours
_SMOOTH_SHAPE = 30.0  # of a gamma; below it a spline between nodes is right to 1e-6


@dataclass(frozen=True)
class Family:
    """A distribution family.

    ``law(*parameters)`` is the scipy distribution. ``start(sample)`` gives a ``theta_P`` to search from and the log
    likelihood as a function of ``theta_P``; minus infinity where it is below the floats.
    """

    parameters: tuple[str, ...]
    law: Callable[..., Any]
    start: Callable[[Sample], tuple[F64, LogLikelihood]]

    def at(self, theta_P: F64) -> Any:
        """The scipy distribution with these log parameters."""
        return self.law(*np.exp(theta_P))


def _exponential(sample: Sample) -> tuple[F64, LogLikelihood]:
    """The start is the maximum itself: exposure / events."""
    num, exposure_h = sample.num_events, sample.exposure_h
    guess_P = np.array([math.log(exposure_h / num)])
    return guess_P, lambda theta_P: float(-num * theta_P[0] - exposure_h * math.exp(-theta_P[0]))


def _gamma(sample: Sample) -> tuple[F64, LogLikelihood]:
    num, sum_log, sum_h = sample.num_events, float(np.log(sample.ended_E).sum()), float(sample.ended_E.sum())
    log_survival = _gamma_log_survival(sample.cut_C)

    def of(theta_P: F64) -> float:
        shape, scale_h = math.exp(theta_P[0]), math.exp(theta_P[1])
        ended = (shape - 1) * sum_log - sum_h / scale_h - num * (shape * theta_P[1] + math.lgamma(shape))
        return ended + log_survival(shape, scale_h)

    shape = 1 / max(float(np.log(sample.ended_E).var()), 1e-12)
    return np.log([shape, sample.exposure_h / num / shape]), of


def _weibull(sample: Sample) -> tuple[F64, LogLikelihood]:
    num, logs_E, logs_N = sample.num_events, np.log(sample.ended_E), np.log(sample.all_N)
    sum_log = float(logs_E.sum())

    def of(theta_P: F64) -> float:
        shape = math.exp(theta_P[0])
        hazard = float(np.exp(shape * (logs_N - theta_P[1])).sum())
        return num * (theta_P[0] - shape * theta_P[1]) + (shape - 1) * sum_log - hazard

    return np.log([math.pi / math.sqrt(6 * max(float(logs_E.var()), 1e-12)), sample.exposure_h / num]), of


def _lognormal(sample: Sample) -> tuple[F64, LogLikelihood]:
    num, logs_E, cut_logs_C, logs_N = sample.num_events, *map(np.log, (sample.ended_E, sample.cut_C, sample.all_N))
    mean, var = float(logs_E.mean()), float(logs_E.var())
    constant = -num * (mean + 0.5 * math.log(2 * math.pi))

    def of(theta_P: F64) -> float:
        sigma = math.exp(theta_P[1])
        ended = constant - num * (theta_P[1] + (var + (mean - theta_P[0]) ** 2) / (2 * sigma * sigma))
        return ended + float(special.log_ndtr((theta_P[0] - cut_logs_C) / sigma).sum())

    return np.array([logs_N.mean(), 0.5 * math.log(max(float(logs_N.var()), 1e-12))]), of


FAMILIES: Mapping[str, Family] = {
    "exponential": Family(("mean_h",), lambda mean_h: stats.expon(scale=mean_h), _exponential),
    "gamma": Family(("shape", "scale_h"), lambda shape, scale_h: stats.gamma(shape, scale=scale_h), _gamma),
    "weibull": Family(("shape", "scale_h"), lambda shape, scale_h: stats.weibull_min(shape, scale=scale_h), _weibull),
    "lognormal": Family(
        ("median_h", "sigma"), lambda median_h, sigma: stats.lognorm(sigma, scale=median_h), _lognormal
    ),
}


def _gamma_log_survival(hours_C: F64) -> Callable[[float, float], float]:
    """The sum of a gamma's log survival over ``hours_C``, as a function of (shape, scale_h).

    The incomplete gamma function costs half a microsecond for each of thousands of ranks at each step of a fit, so it
    is taken at fewer nodes, a spline between them, where there are fewer nodes than durations.
    """
    logs_C = np.log(hours_C)
    num_nodes = int(np.ptp(logs_C) / _NODE_STEP) + 8 if len(hours_C) else 0
    node_logs_M = np.linspace(logs_C.min(), logs_C.max(), num_nodes) if 0 < num_nodes < len(hours_C) else logs_C

    def of(shape: float, scale_h: float) -> float:
        if shape > _SMOOTH_SHAPE or len(node_logs_M) == len(logs_C):
            return float(log_gammaincc(shape, hours_C / scale_h).sum())
        nodes_M = log_gammaincc(shape, np.exp(node_logs_M) / scale_h)
        return float(make_interp_spline(node_logs_M, nodes_M, k=7)(logs_C).sum())

    return of


def log_gammaincc(shape: float, x_N: F64) -> F64:
    """Logarithm of the regularised upper incomplete gamma function, finite also where that is below the floats.

    There it is two levels of the continued fraction (DLMF 8.9.2); scipy's ``gamma.logsf`` is minus infinity.
    """
    upper_N = special.gammaincc(shape, x_N)
    with np.errstate(divide="ignore", invalid="ignore"):
        if upper_N.size == 0 or upper_N.min() > 1e-280:
            return np.log(upper_N)
        far_N = (
            shape * np.log(x_N) - x_N - math.lgamma(shape) - np.log(x_N + 1 - shape + (shape - 1) / (x_N + 3 - shape))
        )
        return np.where(upper_N > 1e-280, np.log(upper_N), far_N)
