"""Laws fitted to the time between failures, right-censored times included, and a verdict on them.

Fits are scipy's: the maximum likelihood of a ``scipy.stats.CensoredData``, with the location 0.

Array letters: E durations that ended, C censored durations.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import optimize, stats

from harness.core.seeds import generator
from harness.traces.gaps import Sample

CONFIDENCE = 0.95
_TOLERANCE = 1e-5  # of the parameters of durations with mean 1, and of their log likelihood
_EQUAL = 1e-6  # relative difference of durations that count as equal
_SEARCH = partial(optimize.fmin, xtol=_TOLERANCE, ftol=_TOLERANCE)

FAMILIES: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "exponential": (stats.expon, ("mean_h",)),
    "gamma": (stats.gamma, ("shape", "scale_h")),
    "weibull": (stats.weibull_min, ("shape", "scale_h")),
    "lognormal": (stats.lognorm, ("sigma", "median_h")),
}
"""scipy's distribution of each family, and the names of its parameters, the scale last."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``low`` is 0 and ``high`` infinite where the data set no bound."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A family at its maximum likelihood. ``law`` is scipy's distribution, in hours.

    ``distance``: the Kolmogorov-Smirnov statistic of the residuals (:func:`distance_of`). ``p``: its p-value for
    parameters known in advance. Fitted parameters come closer to the data, so the true p-value is below ``p``: a small
    ``p`` refutes the family, a large one shows nothing.
    """

    family: str
    parameters: Mapping[str, float]
    law: Any
    log_likelihood: float
    distance: float
    p: float

    @property
    def aic(self) -> float:
        """Akaike's information criterion; less is better."""
        return 2 * len(self.parameters) - 2 * self.log_likelihood

    @property
    def mean_h(self) -> float:
        """Mean duration of the fitted distribution in hours; infinite if it overflows a float."""
        with np.errstate(over="ignore"):
            return float(self.law.mean())


def fits_of(sample: Sample) -> list[Fit]:
    """The fit of every family that has one, in the order of AIC, least first.

    Empty if no duration ended. If all durations that ended are equal, only the exponential is fitted: the shape of
    another family would grow without end.
    """
    if not sample.num_events:
        return []
    fits: list[Fit] = []
    unit_h = sample.exposure_h / sample.num_events
    data = stats.CensoredData(sample.ended_E / unit_h, right=sample.cut_C / unit_h)
    has_shape = np.ptp(sample.ended_E) > _EQUAL * sample.ended_E.max()
    for family, (dist, names) in FAMILIES.items():
        if len(names) == 1:
            shape, scale = [], 1.0
        elif has_shape:
            with np.errstate(all="ignore"):
                *shape, _, scale = dist.fit(data, 1.0, loc=0.0, scale=1.0, floc=0.0, optimizer=_SEARCH)
        else:
            continue
        law = dist(*shape, scale=scale * unit_h)
        distance, p = distance_of(law, sample)
        fits.append(
            Fit(
                family=family,
                parameters=dict(zip(names, map(float, (*shape, scale * unit_h)), strict=True)),
                law=law,
                log_likelihood=float(law.logpdf(sample.ended_E).sum() + law.logsf(sample.cut_C).sum()),
                distance=distance,
                p=p,
            )
        )
    return sorted(fits, key=lambda fit: fit.aic)


def distance_of(law: Any, sample: Sample) -> tuple[float, float]:
    """The Kolmogorov-Smirnov distance of a distribution from the sample, and its p-value for known parameters.

    The test compares residuals with the uniform distribution that they have if the durations follow the given one. The
    residual of a duration that ended is the cumulative probability at it. The residual of a censored duration is drawn,
    by a fixed seed, uniformly from the cumulative probability at it to 1 (Dunn & Smyth, J. Comput. Graph. Stat. 5,
    1996).
    """
    beyond_C = law.sf(sample.cut_C) * generator(0, "residuals").random(len(sample.cut_C))
    found = stats.kstest(np.append(law.cdf(sample.ended_E), 1 - beyond_C), "uniform", method="asymp")
    return float(found.statistic), float(found.pvalue)


def mtbf_interval(exposure_h: float, num_failures: int) -> Interval:
    """The exact confidence interval of the mean time between failures, in hours, if their number is Poisson.

    Source: Garwood, Biometrika 28, 1936. Without a failure the upper end is infinite.
    """
    tail = (1 - CONFIDENCE) / 2
    high = 2 * exposure_h / float(stats.chi2.ppf(tail, 2 * num_failures)) if num_failures else math.inf
    return Interval(2 * exposure_h / float(stats.chi2.isf(tail, 2 * num_failures + 2)), high)


# --- the verdict ------------------------------------------------------------------------------------------------------

MIN_EVENTS = 20
"""With fewer durations that ended, a shape's relative standard error is above 0.17 (Weibull, 0.78/sqrt(n)), and AIC,
which is asymptotic, is no guide."""
TOO_CLOSE = 2.0
"""A difference of AIC below which the family with the higher AIC still has substantial support (Burnham & Anderson,
Model Selection and Multimodel Inference, 2002, section 2.6)."""
_REFUTED = 0.05
_UNSEEN = 3.0


def verdict(fits: Sequence[Fit], sample: Sample) -> str:
    """Sentences that say which of the fits of ``sample`` is best, if its durations can tell, and the doubts about it.

    ``fits``: as :func:`fits_of` returns them.
    """
    if sample.num_events < MIN_EVENTS:
        times = f"{sample.num_events:,} time{'' if sample.num_events == 1 else 's'} between failures"
        return f"{times}: too few to tell families apart (at least {MIN_EVENTS} are needed)."
    if len(fits) == 1:
        return "All times between failures are equal, which no law of these families has."
    close = [fit for fit in fits if fit.aic - fits[0].aic < TOO_CLOSE]
    return " ".join([_choice(close, fits), *_doubts(close, fits, sample.exposure_h / sample.num_events)])


def _choice(close: Sequence[Fit], fits: Sequence[Fit]) -> str:
    names = [fit.family for fit in close]
    if len(close) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        apart = f"The data cannot tell {listed} apart (their AICs are within {TOO_CLOSE:g} of the least)"
        return f"{apart}; nothing speaks against a constant hazard." if "exponential" in names else f"{apart}."
    ahead, second = fits[1].aic - fits[0].aic, fits[1].family
    return f"Of these families {names[0]} fits best: its AIC is {ahead:.1f} below that of {second}."


def _doubts(close: Sequence[Fit], fits: Sequence[Fit], hours_per_failure: float) -> Iterator[str]:
    """A sentence each: the fits ``close`` to the best are refuted, its mean is beyond the data, the hazard changes.

    A Weibull law whose AIC is 2 below the exponential's has a likelihood ratio of 4; 3.84 refutes a shape of 1 at 5 %.
    """
    if all(fit.p < _REFUTED for fit in close):
        each = ", ".join(f"{fit.family} p < {max(fit.p, 1e-4):.2g}" for fit in close)
        yield f"Yet the observed times refute {'it' if len(close) == 1 else 'them'} ({each}): use the times themselves."
    times = close[0].mean_h / hours_per_failure
    if times >= _UNSEEN:
        yield f"Its mean is {times:.0f} times the hours observed per failure: do not extrapolate."
    by_name = {fit.family: fit for fit in fits}
    weibull = by_name["weibull"]
    if weibull in close and by_name["exponential"].aic - weibull.aic >= TOO_CLOSE:
        shape = weibull.parameters["shape"]
        changes = "falls" if shape < 1 else "rises"
        yield f"The hazard {changes} with the time since the last failure (Weibull shape {shape:.2f})."
