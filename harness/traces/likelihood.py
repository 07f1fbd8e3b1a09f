"""The log likelihood of right-censored durations under each family, as a function of its parameters.

The densities and survival functions are those of scipy's distributions, written out. scipy's own check their arguments
at every call, which takes a hundred times as long as the arithmetic, and a fit asks a hundred times.

Array letters: E durations that ended, C censored durations, N all durations.
"""

from collections.abc import Callable, Mapping

import numpy as np
from scipy import special

from harness.traces.gaps import Sample

LogLikelihood = Callable[..., float]
"""Takes the parameters of a family, all above 0, the scale last."""

_LOG_ROOT_TAU = 0.5 * float(np.log(2 * np.pi))


def _exponential(sample: Sample) -> LogLikelihood:
    num, exposure_h = sample.num_events, sample.exposure_h
    return lambda mean_h: -num * np.log(mean_h) - exposure_h / mean_h


def _gamma(sample: Sample) -> LogLikelihood:
    num, sum_h, sum_of_logs = sample.num_events, sample.ended_E.sum(), np.log(sample.ended_E).sum()

    def at(shape: float, scale_h: float) -> float:
        ended = (shape - 1) * sum_of_logs - sum_h / scale_h - num * (special.gammaln(shape) + shape * np.log(scale_h))
        return ended + np.log(special.gammaincc(shape, sample.cut_C / scale_h)).sum()

    return at


def _weibull(sample: Sample) -> LogLikelihood:
    num, sum_of_logs, all_N = sample.num_events, np.log(sample.ended_E).sum(), sample.all_N

    def at(shape: float, scale_h: float) -> float:
        hazards_N = (all_N / scale_h) ** shape  # cumulative
        return num * (np.log(shape) - shape * np.log(scale_h)) + (shape - 1) * sum_of_logs - hazards_N.sum()

    return at


def _lognormal(sample: Sample) -> LogLikelihood:
    num, logs_E, logs_C = sample.num_events, np.log(sample.ended_E), np.log(sample.cut_C)
    sum_of_logs = logs_E.sum()

    def at(sigma: float, median_h: float) -> float:
        z_E, z_C = ((logs - np.log(median_h)) / sigma for logs in (logs_E, logs_C))
        ended = -num * (np.log(sigma) + _LOG_ROOT_TAU) - sum_of_logs - z_E @ z_E / 2
        return ended + special.log_ndtr(-z_C).sum()

    return at


LOG_LIKELIHOODS: Mapping[str, Callable[[Sample], LogLikelihood]] = {
    "exponential": _exponential,
    "gamma": _gamma,
    "weibull": _weibull,
    "lognormal": _lognormal,
}
"""By family; its sample has durations above 0, one of which ended."""
