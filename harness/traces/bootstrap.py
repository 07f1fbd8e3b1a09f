"""What resampling says of a fit: intervals of its parameters, and the p-value of its distance from the data.

Two bootstraps, for two questions. Intervals: durations are drawn anew from those observed, each with its mark of
censoring (Efron, JASA 76, 1981), so no family is trusted. The p-value: renewal processes of the fitted family are
drawn and observed for as long as the real ones, so that censoring comes about as it did, and each is fitted in turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.families import F64, FAMILIES, Sample
from harness.traces.fits import Fit, goodness_of, maximise
from harness.traces.intervals import Interval

_MOST_DRAWS = 20_000_000  # 160 MB; a fit whose durations are mostly next to zero would fill any memory
_LEAST_H = 1e-300  # a duration drawn as zero, by the floats' doing


def bootstrapped(
    fit: Fit, sample: Sample, watched_R: F64, *, num: int, seed: int, tick: Callable[[], None] = lambda: None
) -> Fit:
    """``fit`` with bootstrap intervals and p-value, of ``num`` samples each, drawn by (seed, family).

    ``watched_R``: for how long each of the renewal processes was watched that ``sample`` is of. ``tick`` is called
    before each of the ``2 * num`` samples is drawn.
    """
    return replace(
        fit,
        bootstrap_intervals=_intervals(fit, sample, num, generator(seed, "bootstrap", "cases", fit.family), tick),
        goodness=replace(
            fit.goodness,
            p_bootstrap=_p_value(fit, num, watched_R, generator(seed, "bootstrap", "renewals", fit.family), tick),
        ),
    )


def draw_renewals(family: str, theta_P: F64, watched_R: F64, rng: np.random.Generator) -> Sample:
    """The times between events of renewal processes that begin with an event and are watched for ``watched_R`` hours.

    Lines of arrays: R processes, B draws. Raises TraceError if there are too many events to hold.
    """
    kind = FAMILIES[family]
    expected = watched_R.max() / kind.mean_h(theta_P)
    num_draws = int(expected + 4 * np.sqrt(expected)) + 8
    gaps_RB = kind.draw(theta_P, rng, (len(watched_R), num_draws))
    while (gaps_RB.sum(1) <= watched_R).any():
        if gaps_RB.size > _MOST_DRAWS:
            raise TraceError(f"{family}: such processes fail too often to be drawn")
        gaps_RB = np.hstack([gaps_RB, kind.draw(theta_P, rng, gaps_RB.shape)])
    gaps_RB = np.maximum(gaps_RB, _LEAST_H)
    ends_RB = np.cumsum(gaps_RB, 1)
    has_ended_RB = ends_RB <= watched_R[:, None]
    lasts_R = np.where(has_ended_RB, ends_RB, 0.0).max(1)
    return Sample(gaps_RB[has_ended_RB], watched_R - lasts_R)


def _intervals(
    fit: Fit, sample: Sample, num: int, rng: np.random.Generator, tick: Callable[[], None]
) -> Mapping[str, Interval]:
    """Percentiles of the parameters over samples drawn with replacement."""
    all_N = np.append(sample.ended_E, sample.cut_C)
    found: list[F64] = []
    for _ in range(num):
        tick()
        chosen_N = rng.integers(len(all_N), size=len(all_N))
        has_ended_N = chosen_N < sample.num_events
        if (
            theta_P := _refit(fit.family, Sample(all_N[chosen_N[has_ended_N]], all_N[chosen_N[~has_ended_N]]))
        ) is not None:
            found.append(np.exp(theta_P))
    if not found:
        return {}
    tail = (1 - fit.confidence) / 2
    low_P, high_P = np.quantile(found, (tail, 1 - tail), axis=0)
    return {
        name: Interval(float(low), float(high)) for name, low, high in zip(fit.parameters, low_P, high_P, strict=True)
    }


def _p_value(fit: Fit, num: int, watched_R: F64, rng: np.random.Generator, tick: Callable[[], None]) -> float | None:
    """How often a process of the fitted family lies as far from its own fit; the data are one of ``num + 1``.

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
    """The best log parameters; None where the sample has none."""
    if not sample.num_events:
        return None
    try:
        return maximise(family, sample)[0]
    except TraceError:
        return None
