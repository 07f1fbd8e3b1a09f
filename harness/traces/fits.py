"""Maximum-likelihood fits of the time between failures, right-censored durations included, and a verdict on them.

scipy fits censored durations too (``dist.fit`` of ``CensoredData``), but has no intervals of the parameters and no
goodness of fit for them. Intervals are Wald's on the logarithm of each parameter, from the observed information (Meeker
& Escobar, Statistical Methods for Reliability Data, 1998, section 8.4). The exponential has the exact chi-square
interval. The log likelihoods are those of scipy's distributions, written out: scipy's own check their arguments at
every call, which takes a hundred times as long as the arithmetic, and a fit asks a hundred times.

Array letters: E durations that ended, C censored durations, N all durations, P parameters.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.gaps import F64, Sample

CONFIDENCE = 0.95
_STEP = 1e-4  # of a log parameter, for second differences
_TOLERANCE = 1e-7  # of parameters of durations with mean 1
LogLikelihood = Callable[..., float]
"""The log likelihood of a sample as a function of a family's parameters, all above 0, in the order of its names."""

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


@dataclass(frozen=True)
class Family:
    """A family of distributions: scipy's object, the parameters' names (scale last), and the log likelihood.

    ``shape_of``: takes the standard deviation of the durations' logarithms and returns the shape at which the search
    begins. ``log_likelihood``: takes a sample and returns its log likelihood as a function of the parameters.
    """

    dist: Any
    names: tuple[str, ...]
    shape_of: Callable[[float], float]
    log_likelihood: Callable[[Sample], LogLikelihood]


FAMILIES: Mapping[str, Family] = {
    "exponential": Family(stats.expon, ("mean_h",), lambda _: 1.0, _exponential),
    "gamma": Family(stats.gamma, ("shape", "scale_h"), lambda spread: spread**-2, _gamma),
    "weibull": Family(stats.weibull_min, ("shape", "scale_h"), lambda spread: 1.28 / spread, _weibull),
    "lognormal": Family(stats.lognorm, ("sigma", "median_h"), lambda spread: spread, _lognormal),
}


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``low`` is 0 and ``high`` infinite where the data set no bound."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A family at its maximum likelihood.

    ``distance``: the Kolmogorov-Smirnov statistic of the residuals (``distance_of``). ``p``: its p-value for parameters
    known in advance. Fitted parameters come closer to the data, so the true p-value is below ``p``: a small ``p``
    refutes the family, a large one shows nothing.
    """

    family: str
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    log_likelihood: float
    num_events: int
    exposure_h: float
    distance: float
    p: float

    @property
    def aic(self) -> float:
        """Akaike's information criterion; less is better."""
        return 2 * len(self.parameters) - 2 * self.log_likelihood

    @property
    def law(self) -> Any:
        return distribution(self.family, [*self.parameters.values()])

    @property
    def mean_h(self) -> float:
        """Mean duration of the fitted distribution in hours; infinite if it overflows a float."""
        with np.errstate(over="ignore"):
            return float(self.law.mean())


def distribution(family: str, values_P: ArrayLike) -> Any:
    *shape, scale = np.asarray(values_P)
    return FAMILIES[family].dist(*shape, scale=scale)


def fit(family: str, sample: Sample) -> Fit:
    """The maximum-likelihood fit of ``family`` to the durations, with intervals of confidence ``CONFIDENCE``.

    Raises:
        TraceError: an unknown family, a duration that is not finite and above 0, no duration that ended, for a family
            with a shape fewer than two different ones that ended, or a likelihood without a maximum.
    """
    values_P = maximise(family, sample)
    names = FAMILIES[family].names
    theta_P = np.log(values_P)
    if len(names) == 1:
        intervals = [mean_interval(sample.exposure_h, sample.num_events, is_cut=len(sample.cut_C) > 0)]
    else:
        with np.errstate(all="ignore"):
            spread_P = float(stats.norm.isf((1 - CONFIDENCE) / 2)) * _standard_errors(family, theta_P, sample)
            ends_P2 = np.exp(theta_P[:, None] + spread_P[:, None] * [-1, 1])
        intervals = [Interval(*ends) if all(np.isfinite(ends)) else Interval(0, math.inf) for ends in ends_P2.tolist()]
    distance, p = distance_of(family, values_P, sample)
    with np.errstate(all="ignore"):
        log_likelihood = float(FAMILIES[family].log_likelihood(sample)(*np.exp(theta_P)))
    return Fit(
        family=family,
        parameters=dict(zip(names, values_P.tolist(), strict=True)),
        intervals=dict(zip(names, intervals, strict=True)),
        log_likelihood=log_likelihood,
        num_events=sample.num_events,
        exposure_h=sample.exposure_h,
        distance=distance,
        p=p,
    )


def fit_all(sample: Sample) -> tuple[list[Fit], dict[str, str]]:
    """A fit of every family that can be fitted, and for the others, by family, why it cannot.

    Both are empty if no duration of the sample ended.
    """
    fits: list[Fit] = []
    refused: dict[str, str] = {}
    for family in FAMILIES if sample.num_events else ():
        try:
            fits.append(fit(family, sample))
        except TraceError as error:
            refused[family] = str(error)
    return fits, refused


def mean_interval(exposure_h: float, num_events: int, *, is_cut: bool) -> Interval:
    """The confidence interval of the mean time between failures, in hours, for a constant hazard.

    If observation ended with a failure, twice the exposure divided by the mean has a chi-square distribution with two
    degrees of freedom for each failure. If it ended at a fixed hour (``is_cut``), the number of failures is Poisson,
    and the lower end takes two more degrees of freedom (Garwood, Biometrika 28, 1936). Without a failure the upper end
    is infinite.
    """
    tail = (1 - CONFIDENCE) / 2
    high = 2 * exposure_h / float(stats.chi2.ppf(tail, 2 * num_events)) if num_events else math.inf
    num_low = num_events + is_cut
    return Interval(2 * exposure_h / float(stats.chi2.isf(tail, 2 * num_low)) if num_low else 0.0, high)


def maximise(family: str, sample: Sample) -> F64:
    """The maximum-likelihood parameters of ``family``, (P,), in the order of its names. Raises as :func:`fit`."""
    if family not in FAMILIES:
        raise TraceError(f"no family {family!r}; expected one of {', '.join(FAMILIES)}")
    if not np.isfinite(sample.all_N).all() or (sample.all_N <= 0).any():
        raise TraceError("a fit takes durations above 0 h; count failures at one instant as one failure")
    if not sample.num_events:
        raise TraceError("a fit takes at least one duration that ended")
    law = FAMILIES[family]
    unit_h = sample.exposure_h / sample.num_events
    if len(law.names) == 1:
        return np.array([unit_h])
    if sample.ended_E.min() == sample.ended_E.max():
        raise TraceError(f"{family}: a fit of a shape takes at least two different durations that ended")

    scaled = Sample(sample.ended_E / unit_h, sample.cut_C / unit_h)
    log_likelihood = law.log_likelihood(scaled)

    def loss(values_P: F64) -> float:
        value = -log_likelihood(*values_P) if values_P.min() > 0 else math.inf
        return math.inf if math.isnan(value) else value

    shape = law.shape_of(max(float(np.log(sample.all_N).std()), 1e-6))
    scale = 1 / shape if family == "gamma" else 1.0
    options = {"xatol": _TOLERANCE, "fatol": _TOLERANCE, "maxiter": 1000}
    with np.errstate(all="ignore"):
        found: Any = optimize.minimize(loss, [shape, scale], method="Nelder-Mead", options=options)
    if not (found.success and math.isfinite(found.fun)):
        raise TraceError(f"{family}: the likelihood of these durations has no maximum")
    return found.x * [1, unit_h]


def distance_of(family: str, values_P: F64, sample: Sample) -> tuple[float, float]:
    """The Kolmogorov-Smirnov distance of a distribution from the sample, and its p-value for known parameters.

    The test compares residuals with the uniform distribution that they have if the durations follow the given one. The
    residual of a duration that ended is the cumulative probability at it. The residual of a censored duration is drawn,
    by a fixed seed, uniformly from the cumulative probability at it to 1 (Dunn & Smyth, J. Comput. Graph. Stat. 5,
    1996).
    """
    law = distribution(family, values_P)
    beyond_C = law.sf(sample.cut_C) * generator(0, "residuals").random(len(sample.cut_C))
    found = stats.kstest(np.append(law.cdf(sample.ended_E), 1 - beyond_C), "uniform", method="asymp")
    return float(found.statistic), float(found.pvalue)


def _standard_errors(family: str, theta_P: F64, sample: Sample) -> F64:
    """Standard errors of two log parameters, from the inverse of the observed information.

    They are not finite unless the information is positive definite.
    """
    log_likelihood = FAMILIES[family].log_likelihood(sample)

    def at(i: int, j: int) -> float:
        return log_likelihood(*np.exp(theta_P + _STEP * np.array([i, j])))

    here = 2 * at(0, 0)
    first, second = at(1, 0) + at(-1, 0) - here, at(0, 1) + at(0, -1) - here
    mixed = (at(1, 1) + at(-1, -1) - at(1, -1) - at(-1, 1)) / 4
    return _STEP * np.sqrt(np.array([-second, -first]) / (first * second - mixed**2))


# --- the verdict ------------------------------------------------------------------------------------------------------

MIN_EVENTS = 20
"""With fewer durations that ended, a shape's relative standard error is above 0.17 (Weibull, 0.78/sqrt(n)), and AIC,
which is asymptotic, is no guide."""
TOO_CLOSE = 2.0
"""A difference of AIC below which the family with the higher AIC still has substantial support (Burnham & Anderson,
Model Selection and Multimodel Inference, 2002, section 2.6)."""
_REFUTED = 0.05
_UNSEEN = 3.0


def verdict(fits: Sequence[Fit]) -> str:
    """Sentences that say which of the fits of a sample is best, if the data can tell, and the doubts about it."""
    if not fits:
        return "No family can be fitted: too few times between failures differ."
    ranked = sorted(fits, key=lambda fit: fit.aic)
    num = ranked[0].num_events
    if num < MIN_EVENTS:
        times = f"{num:,} {'time' if num == 1 else 'times'} between failures"
        return f"{times}: too few to tell families apart (at least {MIN_EVENTS} are needed)."
    close = [fit for fit in ranked if fit.aic - ranked[0].aic < TOO_CLOSE]
    return " ".join([_choice(close, ranked), *_doubts(close)])


def _choice(close: Sequence[Fit], ranked: Sequence[Fit]) -> str:
    names = [fit.family for fit in close]
    if len(close) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        apart = f"The data cannot tell {listed} apart (their AICs are within {TOO_CLOSE:g} of the least)"
        return f"{apart}; nothing speaks against a constant hazard." if "exponential" in names else f"{apart}."
    if len(ranked) == 1:
        return f"Only {names[0]} could be fitted."
    ahead, second = ranked[1].aic - ranked[0].aic, ranked[1].family
    return f"Of these families {names[0]} fits best: its AIC is {ahead:.1f} below that of {second}."


def _doubts(close: Sequence[Fit]) -> Iterator[str]:
    """A sentence each, if the closest fits are refuted, their mean is far beyond the data, or the hazard changes.

    ``close``: the fits that the data cannot tell from the best one, best first.
    """
    if all(fit.p < _REFUTED for fit in close):
        each = ", ".join(f"{fit.family} p < {max(fit.p, 1e-4):.2g}" for fit in close)
        yield f"Yet the observed times refute {'it' if len(close) == 1 else 'them'} ({each}): use the times themselves."
    times = close[0].mean_h / (close[0].exposure_h / close[0].num_events)
    if times >= _UNSEEN:
        mean = f"{times:.0f} times the hours observed per failure" if times < math.inf else "infinite"
        yield f"Its mean is {mean}: it rests on durations beyond those observed; do not extrapolate."
    by_name = {fit.family: fit for fit in close}
    if "weibull" in by_name and "exponential" not in by_name:
        shape, interval = by_name["weibull"].parameters["shape"], by_name["weibull"].intervals["shape"]
        if 1.0 not in interval:
            shown = f"Weibull shape {shape:.2f}, {interval.low:.2f} to {interval.high:.2f}"
            yield f"The hazard {'falls' if shape < 1 else 'rises'} with the time since the last failure ({shown})."
