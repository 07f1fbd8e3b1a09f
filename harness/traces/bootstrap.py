"""Bootstrap intervals of a fit's parameters, and the bootstrap p-value of its distance from the data.

``scipy.stats.bootstrap`` has no place for samples without a maximum, ``scipy.stats.goodness_of_fit`` takes no censored
data.

Array letters: N all durations, P parameters, R processes, B draws.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.fits import CONFIDENCE, Fit, Interval, distance_of, distribution, maximise
from harness.traces.gaps import F64, Sample

_MOST_DRAWS = 20_000_000  # 160 MB
_LEAST_H = 1e-300  # of a drawn duration; floats may round one to zero


def bootstrapped(fit: Fit, sample: Sample, watched_R: F64, *, num: int, seed: int, tick: Callable[[], None]) -> Fit:
    """``fit`` with bootstrap intervals and p-value from ``num`` samples each, a function of (seed, family).

    Intervals are percentiles over resampled durations, each with its mark of censoring (Efron, JASA 76, 1981).
    The p-value is the share of renewal processes of the fitted family, watched for ``watched_R`` hours each, at least
    as far from their own fit; the data count as one of them. ``tick`` is called before each of the ``2 * num``.
    """
    num_N, values_P = len(sample.all_N), np.array([*fit.parameters.values()])
    rng, found = generator(seed, "bootstrap", "cases", fit.family), []
    for _ in range(num):
        tick()
        chosen_N = rng.integers(num_N, size=num_N)
        has_ended_N = chosen_N < sample.num_events
        with suppress(TraceError):  # no maximum
            resampled = Sample(sample.all_N[chosen_N[has_ended_N]], sample.all_N[chosen_N[~has_ended_N]])
            found.append(maximise(fit.family, resampled))
    rng, distances = generator(seed, "bootstrap", "renewals", fit.family), []
    for _ in range(num):
        tick()
        with suppress(TraceError):
            drawn = draw_renewals(fit.family, values_P, watched_R, rng)
            distances.append(distance_of(fit.family, maximise(fit.family, drawn), drawn)[0])
    ends_P2 = np.quantile(found, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=0).T.tolist() if found else []
    intervals = {name: Interval(*ends) for name, ends in zip(fit.parameters, ends_P2, strict=False)}
    p = (1 + sum(distance >= fit.distance for distance in distances)) / (1 + len(distances)) if distances else fit.p
    return replace(fit, bootstrap_intervals=intervals, p=p, is_bound=not distances)


def draw_renewals(family: str, values_P: F64, watched_R: F64, rng: np.random.Generator) -> Sample:
    """The times between events of renewal processes that begin with an event and are watched for ``watched_R`` hours.

    Raises TraceError if there are too many events to hold.
    """
    law = distribution(family, values_P)
    with np.errstate(over="ignore"):
        expected = watched_R.max() / law.mean()
    gaps_RB = law.rvs((len(watched_R), int(expected + 4 * np.sqrt(expected)) + 8), random_state=rng)
    while (gaps_RB.sum(1) <= watched_R).any():
        if gaps_RB.size > _MOST_DRAWS:
            raise TraceError(f"{family}: too many failures to simulate with these parameters")
        gaps_RB = np.hstack([gaps_RB, law.rvs(gaps_RB.shape, random_state=rng)])
    gaps_RB = np.maximum(gaps_RB, _LEAST_H)
    ends_RB = np.cumsum(gaps_RB, 1)
    has_ended_RB = ends_RB <= watched_R[:, None]
    return Sample(gaps_RB[has_ended_RB], watched_R - np.where(has_ended_RB, ends_RB, 0.0).max(1))
