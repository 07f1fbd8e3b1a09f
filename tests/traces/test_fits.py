"""Fits are maxima of the likelihood, and the verdict on them claims what the data can tell."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from harness.traces.fits import FAMILIES, Fit, distance_of, fits_of, verdict
from harness.traces.gaps import Sample

TRUE = {
    "exponential": stats.expon(scale=20.0),
    "gamma": stats.gamma(0.6, scale=30.0),
    "weibull": stats.weibull_min(0.7, scale=12.0),
    "lognormal": stats.lognorm(1.4, scale=8.0),
}


def drawn(family: str, num: int, seed: int, *, is_cut: bool) -> Sample:
    """Durations of the true law, cut short at random by an exponential clock if asked for."""
    rng = np.random.default_rng(seed)
    lasted_N = TRUE[family].rvs(num, random_state=rng)
    cut_N = rng.exponential(40, num) if is_cut else np.full(num, np.inf)
    return Sample(lasted_N[lasted_N <= cut_N], cut_N[lasted_N > cut_N])


def ended(*hours: float, cut: Sequence[float] = ()) -> Sample:
    return Sample(np.array(hours), np.array(cut))


def fit(family: str, sample: Sample) -> Fit:
    return next(found for found in fits_of(sample) if found.family == family)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fit_is_the_maximum_of_the_likelihood(family: str, is_cut: bool) -> None:
    """No parameters near it are likelier, times that were cut counted. In minutes it has the same shape, 60 times the
    scale."""
    sample = drawn(family, 150, seed=3, is_cut=is_cut)
    fitted, by_minute = fit(family, sample), fit(family, Sample(sample.ended_E * 60, sample.cut_C * 60))
    *shape, scale = fitted.parameters.values()
    for factor in (0.999, 1.001):
        for nearby in ((*shape, scale * factor), *((value * factor, scale) for value in shape)):
            law = FAMILIES[family][0](*nearby[:-1], scale=nearby[-1])
            likelihood = law.logpdf(sample.ended_E).sum() + law.logsf(sample.cut_C).sum()
            assert likelihood < fitted.log_likelihood < likelihood + 0.01
    assert [*by_minute.parameters.values()] == pytest.approx([*shape, scale * 60], rel=1e-5)


def test_an_exponential_fit_is_events_by_exposure() -> None:
    assert fit("exponential", ended(1, 2, 3, cut=[4])).parameters == {"mean_h": pytest.approx(10 / 3)}


def test_the_distance_is_kolmogorov_and_smirnovs() -> None:
    """With nothing cut short that of the one-sample test; else p is uniform for parameters known in advance."""
    sample = drawn("weibull", 80, seed=2, is_cut=False)
    fitted = fit("exponential", sample)
    test = stats.kstest(sample.ended_E, stats.expon(scale=fitted.parameters["mean_h"]).cdf, method="asymp")
    assert (fitted.distance, fitted.p) == (pytest.approx(test.statistic), pytest.approx(test.pvalue))
    ps = [distance_of(TRUE["weibull"], drawn("weibull", 40, seed, is_cut=True))[1] for seed in range(150)]
    assert stats.kstest(ps, "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("sample", "families"),
    [
        (ended(cut=[1, 2]), set()),
        (ended(5), {"exponential"}),
        (ended(2, 2, 2 + 1e-9, cut=[3]), {"exponential"}),
        (ended(2, 2.1, cut=[3]), {*FAMILIES}),
    ],
)
def test_what_cannot_be_fitted_is_left_out(sample: Sample, families: set[str]) -> None:
    """Law: no shape without two different times that ended, and nothing without one."""
    assert {found.family for found in fits_of(sample)} == families


TWO_KINDS = np.concatenate([np.linspace(0.98, 1.02, 300), np.linspace(98, 102, 300)])


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            drawn("weibull", 2000, seed=1, is_cut=False),
            r"Of these families weibull fits best: its AIC is .* The hazard falls with .* .Weibull shape 0.7\d\)",
        ),
        (
            drawn("exponential", 60, seed=1, is_cut=False),
            "The data cannot tell .*exponential.* apart .* nothing speaks against a constant hazard.$",
        ),
        (drawn("lognormal", 19, seed=1, is_cut=False), "19 times between failures: too few"),
        (ended(*TWO_KINDS), ".*Yet the observed times refute "),
        (ended(*[2] * 20), "All times between failures are equal"),
    ],
)
def test_the_verdict_claims_what_the_data_can_tell(sample: Sample, words: str) -> None:
    """A family and its hazard, several, none of few or equal gaps; a fit that the times refute is told as such."""
    found = verdict(fits_of(sample), sample)
    assert re.match(words, found)
    assert ("refute" in found) == ("refute" in words)
