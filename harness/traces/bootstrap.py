"""Bootstrap intervals of a fit's parameters, and the bootstrap p-value of its distance from the data.

Intervals resample the durations, each with its mark of censoring, and trust no family (Efron, JASA 76, 1981). The
p-value draws renewal processes of the fitted family and observes each for as long as the real ones, so that censoring
comes about as it did, and fits each in turn; ``scipy.stats.goodness_of_fit`` takes no censored data.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.families import FAMILIES
from harness.traces.fits import Fit, goodness_of, maximise
from harness.traces.survival import F64, Interval, Sample

_MOST_DRAWS = 20_000_000  # 160 MB
_LEAST_H = 1e-300  # of a drawn duration; floats may round one to zero


def bootstrapped(fit: Fit, sample: Sample, watched_R: F64, *, num: int, seed: int, tick: Callable[[], None]) -> Fit:
    """``fit`` with bootstrap intervals and p-value from ``num`` samples each, a function of (seed, family).

    ``watched_R``: hours for which each of the renewal processes behind ``sample`` was watched. ``tick`` is called
    before each of the ``2 * num`` samples.
    """
    rng = generator(seed, "bootstrap", "cases", fit.family)
    intervals = _intervals(fit, sample, num, rng, tick)
    p = _p_value(fit, num, watched_R, generator(seed, "bootstrap", "renewals", fit.family), tick)
    return replace(fit, bootstrap_intervals=intervals, goodness=replace(fit.goodness, p_bootstrap=p))


def draw_renewals(family: str, theta_P: F64, watched_R: F64, rng: np.random.Generator) -> Sample:
    """The times between events of renewal processes that begin with an event and are watched for ``watched_R`` hours.

    Array letters: R processes, B draws. Raises TraceError if there are too many events to hold.
    """
    law = FAMILIES[family].at(theta_P)
    with np.errstate(over="ignore"):
        expected = watched_R.max() / law.mean()
    size = len(watched_R), int(expected + 4 * np.sqrt(expected)) + 8
    gaps_RB = law.rvs(size, random_state=rng)
    while (gaps_RB.sum(1) <= watched_R).any():
        if gaps_RB.size > _MOST_DRAWS:
            raise TraceError(f"{family}: such processes fail too often to be drawn")
        gaps_RB = np.hstack([gaps_RB, law.rvs(gaps_RB.shape, random_state=rng)])
    gaps_RB = np.maximum(gaps_RB, _LEAST_H)
    ends_RB = np.cumsum(gaps_RB, 1)
    has_ended_RB = ends_RB <= watched_R[:, None]
    return Sample(gaps_RB[has_ended_RB], watched_R - np.where(has_ended_RB, ends_RB, 0.0).max(1))


def _intervals(
    fit: Fit, sample: Sample, num: int, rng: np.random.Generator, tick: Callable[[], None]
) -> Mapping[str, Interval]:
    """Percentiles of the parameters over samples drawn with replacement."""
    found: list[F64] = []
    for _ in range(num):
        tick()
        chosen_N = rng.integers(len(sample.all_N), size=len(sample.all_N))
        has_ended_N = chosen_N < sample.num_events
        drawn = Sample(sample.all_N[chosen_N[has_ended_N]], sample.all_N[chosen_N[~has_ended_N]])
        if (theta_P := _refit(fit.family, drawn)) is not None:
            found.append(np.exp(theta_P))
    if not found:
        return {}
    ends_2P = np.quantile(found, ((1 - fit.confidence) / 2, (1 + fit.confidence) / 2), axis=0)
    return {name: Interval(*ends) for name, ends in zip(fit.parameters, ends_2P.T.tolist(), strict=True)}


def _p_value(fit: Fit, num: int, watched_R: F64, rng: np.random.Generator, tick: Callable[[], None]) -> float | None:
    """The share of processes of the fitted family at least as far from their own fit; the data count as one of them.

    None if such processes cannot be drawn, or not be fitted.
    """
    num_fitted = num_farther = 0
    for _ in range(num):
        tick()
        try:
            sample = draw_renewals(fit.family, fit.theta_P, watched_R, rng)
        except TraceError:
            return None
        if (theta_P := _refit(fit.family, sample)) is not None:
            num_fitted += 1
            num_farther += goodness_of(fit.family, theta_P, sample).distance >= fit.goodness.distance
    return (1 + num_farther) / (1 + num_fitted) if num_fitted else None


def _refit(family: str, sample: Sample) -> F64 | None:
    """The log parameters of maximum likelihood; None where there is no maximum."""
    try:
        return maximise(family, sample)[0] if sample.num_events else None
    except TraceError:
        return None
