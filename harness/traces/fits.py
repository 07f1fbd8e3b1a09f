"""Fits of the time between failures by maximum likelihood, some durations cut short; how sure they are, which is best.

Intervals are those of the likelihood ratio: the values of a parameter at which, all others at their best, the log
likelihood is at most ``chi2(1) / 2`` below its maximum (Meeker & Escobar, Statistical Methods for Reliability Data,
1998, section 8.3). They need no symmetry and are open where the data set no bound. The exponential has an exact one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from harness.core.errors import TraceError
from harness.traces.families import F64, FAMILIES, Family, LogLikelihood, Sample
from harness.traces.intervals import CONFIDENCE, Interval, mean_interval
from harness.traces.survival import distance_of, kolmogorov_bound, survival_of

_FAR = 25.0  # in log units: where an interval's end is taken for none
_BEYOND = 300.0  # in log units: where exponentials of parameters leave the floats
_NEVER = 1e300  # a loss that Brent's parabolas can still reckon with
_TOLERANCE = 1e-7  # of a log parameter, far below any standard error


@dataclass(frozen=True)
class Goodness:
    """How far a fit is from the data.

    ``distance``: the largest difference between the fitted distribution function and Kaplan & Meier's, weighted for
    censoring as in Hall & Wellner's band (Biometrika 67, 1980); with nothing cut short, Kolmogorov and Smirnov's.
    ``p_at_most``: by Kolmogorov's law. That is for parameters known in advance; fitted ones make the distance smaller,
    so the true p-value is below it: small, the family is refuted; large, nothing is shown. ``p_bootstrap`` is the
    p-value proper (parametric bootstrap), None if none was asked for.
    """

    distance: float
    p_at_most: float
    p_bootstrap: float | None = None

    @property
    def p(self) -> float:
        """The best p-value known."""
        return self.p_at_most if self.p_bootstrap is None else self.p_bootstrap


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One family at its most likely.

    ``intervals`` are of the likelihood; ``bootstrap_intervals`` of resampled durations, None if none was asked for.
    """

    family: str
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    confidence: float
    log_likelihood: float
    num_events: int
    num_censored: int
    exposure_h: float
    goodness: Goodness
    bootstrap_intervals: Mapping[str, Interval] | None = None

    @property
    def aic(self) -> float:
        """Akaike's criterion: twice the number of parameters less twice the log likelihood."""
        return 2 * len(self.parameters) - 2 * self.log_likelihood

    @property
    def mean_h(self) -> float:
        """Mean duration under the fit."""
        return self._family.mean_h(self.theta_P)

    @property
    def theta_P(self) -> F64:
        """Logarithms of the parameters."""
        return np.log([self.parameters[name] for name in self._family.parameters])

    def survival(self, hours: ArrayLike) -> F64:
        """Chance to last longer than ``hours``."""
        return np.exp(self._family.log_survival(self.theta_P, hours))

    def hazard(self, hours: ArrayLike) -> F64:
        """Failures per hour of those that lasted so long."""
        return np.exp(self._family.log_density(self.theta_P, hours) - self._family.log_survival(self.theta_P, hours))

    @property
    def _family(self) -> Family:
        return FAMILIES[self.family]


def fit(
    family: str,
    durations_h: ArrayLike,
    is_censored: ArrayLike | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> Fit:
    """The member of ``family`` under which the durations are most likely; none is cut short if nothing is said.

    Raises:
        TraceError: a family that is none, durations not above zero, nothing ended, or the likelihood has no maximum
            (fewer than two different durations that ended, for families with a shape).
    """
    return fit_sample(family, sample_of(durations_h, is_censored), confidence=confidence)


def fit_sample(family: str, sample: Sample, *, confidence: float = CONFIDENCE) -> Fit:
    """As ``fit``."""
    theta_P, likelihood = maximise(family, sample)
    names = FAMILIES[family].parameters
    return Fit(
        family=family,
        parameters=dict(zip(names, np.exp(theta_P).tolist(), strict=True)),
        intervals=dict(zip(names, _intervals(family, sample, theta_P, likelihood, confidence), strict=True)),
        confidence=confidence,
        log_likelihood=likelihood(theta_P),
        num_events=sample.num_events,
        num_censored=len(sample.cut_C),
        exposure_h=sample.exposure_h,
        goodness=goodness_of(family, theta_P, sample),
    )


def goodness_of(family: str, theta_P: F64, sample: Sample) -> Goodness:
    """The distance from the data, and the bound on its p-value."""
    curve = survival_of(sample)
    distance = distance_of(curve, FAMILIES[family], theta_P)
    return Goodness(distance, kolmogorov_bound(distance, curve.num))


def sample_of(durations_h: ArrayLike, is_censored: ArrayLike | None = None) -> Sample:
    """Durations by whether they ended; those cut short at zero tell nothing and are left out. Raises as ``fit``."""
    hours_N = np.asarray(durations_h, np.float64)
    cut_N = np.zeros(len(hours_N), bool) if is_censored is None else np.asarray(is_censored, bool)
    if hours_N.shape != cut_N.shape:
        raise TraceError(f"a fit takes as many marks of censoring ({len(cut_N)}) as durations ({len(hours_N)})")
    if not np.isfinite(hours_N).all() or (hours_N < 0).any() or (hours_N[~cut_N] == 0).any():
        raise TraceError("a fit takes durations above 0 h; failures at one instant are to count as one")
    if cut_N.all():
        raise TraceError("a fit takes at least one duration that ended")
    return Sample(hours_N[~cut_N], hours_N[cut_N & (hours_N > 0)])


def maximise(family: str, sample: Sample) -> tuple[F64, LogLikelihood]:
    """The log parameters that make ``sample`` most likely, and the log likelihood they maximise. Raises as ``fit``."""
    if family not in FAMILIES:
        raise TraceError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    kind = FAMILIES[family]
    if len(kind.parameters) > 1 and sample.ended_E.min() == sample.ended_E.max():
        raise TraceError(f"{family}: a shape needs two different durations at least")
    likelihood, guess_P = kind.log_likelihood(sample), kind.guess(sample)
    if len(kind.parameters) == 1:
        return guess_P, likelihood
    num = sample.num_events
    with np.errstate(over="ignore", invalid="ignore"):
        simplex_VP = guess_P + np.array([[0.0, 0.0], [0.1, 0.05], [-0.05, 0.1]])
        found: Any = optimize.minimize(
            lambda theta_P: -likelihood(theta_P) / num if np.abs(theta_P).max() < _BEYOND else math.inf,
            guess_P,
            method="Nelder-Mead",
            options={"initial_simplex": simplex_VP, "xatol": _TOLERANCE, "fatol": 1e-13, "maxiter": 1000},
        )
    if not found.success or np.abs(found.x - guess_P).max() > _FAR:
        raise TraceError(f"{family}: the likelihood of these durations has no maximum")
    return found.x, likelihood


# --- how sure ---------------------------------------------------------------------------------------------------------


def _intervals(
    family: str, sample: Sample, theta_P: F64, likelihood: LogLikelihood, confidence: float
) -> list[Interval]:
    if family == "exponential":
        return [mean_interval(sample.exposure_h, sample.num_events, confidence, is_cut=bool(len(sample.cut_C)))]
    with np.errstate(over="ignore", invalid="ignore"):
        return [_profile_interval(likelihood, theta_P, index, confidence) for index in range(len(theta_P))]


def _profile_interval(likelihood: LogLikelihood, theta_P: F64, index: int, confidence: float) -> Interval:
    """Where the profile of log parameter ``index`` (of two) has fallen by half the chi-square quantile.

    The root of the deviance is nearly a straight line in the parameter, so few steps find where it crosses.
    """
    top = likelihood(theta_P)
    allowed = float(special.chdtri(1, 1 - confidence))
    slope, error = _curvature(likelihood, theta_P, index)

    def excess(offset: float) -> float:
        """Deviance at ``offset`` from the best value, as a root, less the root that is allowed."""
        guess = theta_P[1 - index] + slope * offset
        drop = top - _best_other(likelihood, index, theta_P[index] + offset, guess, abs(offset))
        return math.sqrt(2 * max(drop, 0.0)) - math.sqrt(allowed)

    ends = [_crossing(excess, side, error * math.sqrt(allowed)) for side in (-1, 1)]
    low, high = (theta_P[index] + end for end in ends)
    return Interval(math.exp(low) if low > -math.inf else 0.0, math.exp(high) if high < 700 else math.inf)


def _curvature(likelihood: LogLikelihood, theta_P: F64, index: int) -> tuple[float, float]:
    """How the other log parameter's best value moves with ``index``, and that one's standard error, at the maximum."""
    step = 1e-3  # of a log parameter: rounding and the fourth derivative both far below what a first step needs

    def at(own: float, other: float) -> float:
        return likelihood(theta_P + step * np.array([own, other] if index == 0 else [other, own]))

    own = (at(1, 0) + at(-1, 0) - 2 * at(0, 0)) / step**2
    other = (at(0, 1) + at(0, -1) - 2 * at(0, 0)) / step**2
    both = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / (4 * step**2)
    information = both**2 / other - own if other < 0 else 0.0
    return (-both / other, 1 / math.sqrt(information)) if information > 0 else (0.0, 1.0)


def _best_other(likelihood: LogLikelihood, index: int, value: float, guess: float, width: float) -> float:
    """The greatest log likelihood with log parameter ``index`` held at ``value``."""

    def loss(other: float) -> float:
        if abs(other) > _BEYOND:
            return _NEVER
        found = -likelihood(np.array([value, other] if index == 0 else [other, value]))
        return found if math.isfinite(found) else _NEVER

    reach = 0.1 * width + 1e-4
    bracket = (guess - reach, guess + reach)
    found: Any = optimize.minimize_scalar(loss, bracket=bracket, method="brent", options={"xtol": 1e-6})
    return -float(found.fun)


def _crossing(excess: Callable[[float], float], side: int, step: float) -> float:
    """The offset on ``side`` at which ``excess`` passes zero; infinite if it does not within ``_FAR``."""
    near, far = 0.0, side * step
    while (found := excess(far)) < 0:
        if abs(far) >= _FAR:
            return side * math.inf
        near, far = far, max(-_FAR, min(_FAR, far * (1.25 if found > -0.5 else 2)))
    root: Any = optimize.brentq(excess, near, far, xtol=1e-6)
    return float(root)
