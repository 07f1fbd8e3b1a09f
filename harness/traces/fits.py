"""Maximum-likelihood fits of the time between failures, right-censored durations included, with intervals.

scipy maximises (``scipy.optimize``) but has no likelihood-ratio intervals: the values of a parameter at which, all
others at their best, the log likelihood is at most ``chi2(1) / 2`` below its maximum (Meeker & Escobar, Statistical
Methods for Reliability Data, 1998, section 8.3). They need no symmetry and are open where the data set no bound, as
Wald's (``lifelines``) are not. The exponential has an exact interval.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from harness.core.errors import TraceError
from harness.traces.families import FAMILIES, LogLikelihood
from harness.traces.survival import CONFIDENCE, F64, Interval, Sample, distance_of, mean_interval, survival_of

_FAR = 25.0  # log units: beyond, an interval is open and a maximum does not exist
_BEYOND = 300.0  # log units: where exponentials of parameters leave the floats
_NEVER = 1e300  # a loss that Brent's parabolas can still compute with
_TOLERANCE = 1e-7  # of a log parameter, far below any standard error


@dataclass(frozen=True)
class Goodness:
    """How far a fit is from the data.

    ``distance``: the largest difference between the fitted distribution and Kaplan-Meier's (``survival.distance_of``).
    ``p_at_most``: its p-value by Kolmogorov's law, for parameters known in advance; fitted ones come closer, so the
    true p-value is below it: a small one refutes the family, a large one shows nothing. ``p_bootstrap``: the p-value
    by parametric bootstrap, None if none was asked for.
    """

    distance: float
    p_at_most: float
    p_bootstrap: float | None = None

    @property
    def p(self) -> float:
        """The bootstrap's p-value if there is one, else the bound."""
        return self.p_at_most if self.p_bootstrap is None else self.p_bootstrap


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A family at its maximum likelihood.

    ``intervals`` are likelihood-ratio intervals; ``bootstrap_intervals`` percentiles over resampled durations, None if
    none were asked for.
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
        """Akaike's information criterion: twice the number of parameters less twice the log likelihood."""
        return 2 * len(self.parameters) - 2 * self.log_likelihood

    @property
    def theta_P(self) -> F64:
        """Logarithms of the parameters."""
        return np.log([*self.parameters.values()])

    @property
    def law(self) -> Any:
        """The fitted scipy distribution, in hours."""
        return FAMILIES[self.family].law(*self.parameters.values())

    @property
    def mean_h(self) -> float:
        """Mean duration of the fitted distribution; infinite beyond the floats."""
        with np.errstate(over="ignore"):
            return float(self.law.mean())

    def hazard(self, hours: ArrayLike) -> F64:
        """Failures per hour of gaps that have lasted ``hours``."""
        return np.exp(self.law.logpdf(hours) - self.law.logsf(hours))


def fit(family: str, durations_h: ArrayLike, is_censored: ArrayLike | None = None) -> Fit:
    """The member of ``family`` under which the durations are most likely; by default none is censored.

    Raises:
        TraceError: an unknown family, durations not above zero, nothing ended, or the likelihood has no maximum (fewer
            than two different durations that ended, for families with a shape).
    """
    return fit_sample(family, sample_of(durations_h, is_censored))


def fit_sample(family: str, sample: Sample, *, confidence: float = CONFIDENCE) -> Fit:
    """``fit`` of a sample, with intervals of this confidence."""
    theta_P, likelihood = maximise(family, sample)
    names = FAMILIES[family].parameters
    if len(names) == 1:
        is_cut = bool(len(sample.cut_C))
        intervals = [mean_interval(sample.exposure_h, sample.num_events, confidence, is_cut=is_cut)]
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            step = 1 / math.sqrt(sample.num_events)
            intervals = [_profile_interval(likelihood, theta_P, index, confidence, step) for index in (0, 1)]
    return Fit(
        family=family,
        parameters=dict(zip(names, np.exp(theta_P).tolist(), strict=True)),
        intervals=dict(zip(names, intervals, strict=True)),
        confidence=confidence,
        log_likelihood=likelihood(theta_P),
        num_events=sample.num_events,
        num_censored=len(sample.cut_C),
        exposure_h=sample.exposure_h,
        goodness=goodness_of(family, theta_P, sample),
    )


def fit_all(sample: Sample) -> tuple[list[Fit], dict[str, str]]:
    """A fit of every family that can be fitted, and by family why the others cannot."""
    fits: list[Fit] = []
    refused: dict[str, str] = {}
    for family in FAMILIES if sample.num_events else ():
        try:
            fits.append(fit_sample(family, sample))
        except TraceError as error:
            refused[family] = str(error)
    return fits, refused


def goodness_of(family: str, theta_P: F64, sample: Sample) -> Goodness:
    """The distance of a family member from the sample, and the bound on its p-value."""
    curve = survival_of(sample)
    distance = distance_of(curve, FAMILIES[family].at(theta_P).sf(curve.hours_T))
    return Goodness(distance, float(special.kolmogorov(math.sqrt(curve.num) * distance)))


def sample_of(durations_h: ArrayLike, is_censored: ArrayLike | None = None) -> Sample:
    """Durations by whether they ended, without those censored at zero, which hold no information. Raises as ``fit``."""
    hours_N = np.asarray(durations_h, np.float64)
    cut_N = np.zeros(len(hours_N), bool) if is_censored is None else np.asarray(is_censored, bool)
    if hours_N.shape != cut_N.shape:
        raise TraceError(f"a fit takes one mark of censoring per duration; got {len(cut_N)} for {len(hours_N)}")
    if not np.isfinite(hours_N).all() or (hours_N < 0).any() or (hours_N[~cut_N] == 0).any():
        raise TraceError("a fit takes durations above 0 h; count failures at one instant as one failure")
    if cut_N.all():
        raise TraceError("a fit takes at least one duration that ended")
    return Sample(hours_N[~cut_N], hours_N[cut_N & (hours_N > 0)])


def maximise(family: str, sample: Sample) -> tuple[F64, LogLikelihood]:
    """The log parameters of maximum likelihood, and the log likelihood as a function of them. Raises as ``fit``."""
    if family not in FAMILIES:
        raise TraceError(f"no family {family!r}; expected one of {', '.join(FAMILIES)}")
    if len(FAMILIES[family].parameters) > 1 and sample.ended_E.min() == sample.ended_E.max():
        raise TraceError(f"{family}: a fit of a shape takes at least two different durations that ended")
    guess_P, likelihood = FAMILIES[family].start(sample)
    if len(guess_P) == 1:
        return guess_P, likelihood
    with np.errstate(over="ignore", invalid="ignore"):
        found: Any = optimize.minimize(
            lambda theta_P: -likelihood(theta_P) / sample.num_events if abs(theta_P).max() < _BEYOND else math.inf,
            guess_P,
            method="Nelder-Mead",
            options={
                "initial_simplex": guess_P + np.array([[0.0, 0.0], [0.1, 0.05], [-0.05, 0.1]]),
                "xatol": _TOLERANCE,
                "fatol": 1e-13,
                "maxiter": 1000,
            },
        )
    if not found.success or np.abs(found.x - guess_P).max() > _FAR:
        raise TraceError(f"{family}: the likelihood of these durations has no maximum")
    return found.x, likelihood


# --- intervals --------------------------------------------------------------------------------------------------------


def _profile_interval(likelihood: LogLikelihood, theta_P: F64, index: int, confidence: float, step: float) -> Interval:
    """The interval of parameter ``index`` (of two): where its profile has fallen by half the chi-square quantile.

    The root of the deviance is nearly linear in the log parameter, so a few steps find the crossing. ``step`` is about
    a standard error of the log parameter.
    """
    top, allowed = likelihood(theta_P), math.sqrt(special.chdtri(1, 1 - confidence))

    def excess(offset: float) -> float:
        """The root of the deviance at ``offset`` from the maximum, less the root that is allowed."""
        at_P = theta_P.copy()
        at_P[index] += offset

        def loss(other: float) -> float:
            at_P[1 - index] = other
            value = -likelihood(at_P) if abs(other) < _BEYOND else math.inf
            return value if math.isfinite(value) else _NEVER

        best = theta_P[1 - index]
        found: Any = optimize.minimize_scalar(loss, bracket=(best, best + step), options={"xtol": 1e-6})
        return math.sqrt(2 * max(top + float(found.fun), 0.0)) - allowed

    low, high = (theta_P[index] + _crossing(excess, side, step * allowed) for side in (-1, 1))
    return Interval(math.exp(low) if low > -math.inf else 0.0, math.exp(high) if high < 700 else math.inf)


def _crossing(excess: Callable[[float], float], side: int, step: float) -> float:
    """The offset on ``side`` (-1 or 1) at which ``excess`` passes zero; infinite if there is none within ``_FAR``."""
    near, far = 0.0, side * step
    while (found := excess(far)) < 0:
        if abs(far) >= _FAR:
            return side * math.inf
        near, far = far, max(-_FAR, min(_FAR, far * (1.25 if found > -0.5 else 2)))
    root: Any = optimize.brentq(excess, near, far, xtol=1e-6)
    return float(root)
