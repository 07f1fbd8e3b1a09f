"""Fits find what scipy finds, cover what they should, and refuse what has no answer."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from harness.core.errors import TraceError
from harness.traces.fits import FAMILIES, distance_of, distribution, fit
from harness.traces.gaps import Sample
from harness.traces.verdict import verdict

TRUE = {
    "exponential": {"mean_h": 20.0},
    "gamma": {"shape": 0.6, "scale_h": 30.0},
    "weibull": {"shape": 0.7, "scale_h": 12.0},
    "lognormal": {"sigma": 1.4, "median_h": 8.0},
}
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def drawn(family: str, num: int, seed: int, *, is_cut: bool) -> Sample:
    """Durations of the true family, cut short at random by an exponential clock if asked for."""
    rng = np.random.default_rng(seed)
    lasted_N = distribution(family, [*TRUE[family].values()]).rvs(num, random_state=rng)
    cut_N = rng.exponential(40, num) if is_cut else np.full(num, np.inf)
    return Sample(lasted_N[lasted_N <= cut_N], cut_N[lasted_N > cut_N])


def ended(*hours: float, cut: Sequence[float] = ()) -> Sample:
    """Durations given one by one."""
    return Sample(np.array(hours), np.array(cut))


@pytest.mark.parametrize("is_cut", [False, True])
@EVERY_FAMILY
def test_a_fit_is_the_maximum_that_scipy_finds(family: str, is_cut: bool) -> None:
    """Parameters and log likelihood are those of scipy's own fit of the same durations."""
    sample = drawn(family, 150, seed=3, is_cut=is_cut)
    fitted = fit(family, sample)
    law = distribution(family, [*fitted.parameters.values()])
    likelihood = law.logpdf(sample.ended_E).sum() + law.logsf(sample.cut_C).sum()
    assert fitted.log_likelihood == pytest.approx(likelihood, rel=1e-12)
    if family != "exponential":
        shape, _, scale = FAMILIES[family].dist.fit(stats.CensoredData(sample.ended_E, right=sample.cut_C), floc=0)
        assert [*fitted.parameters.values()] == pytest.approx([shape, scale], rel=2e-3)


def test_an_exponential_fit_is_events_by_exposure() -> None:
    """The mean is exposure / events, and its interval the exact one of chi-square."""
    fitted = fit("exponential", ended(1, 2, 3, cut=[4]))
    assert fitted.parameters == {"mean_h": pytest.approx(10 / 3)}
    low, high = 2 * 10 / stats.chi2.ppf(0.975, 8), 2 * 10 / stats.chi2.ppf(0.025, 6)
    assert (fitted.intervals["mean_h"].low, fitted.intervals["mean_h"].high) == pytest.approx((low, high))
    uncut = fit("exponential", ended(1, 2, 3)).intervals["mean_h"]
    assert (uncut.low, uncut.high) == pytest.approx((12 / stats.chi2.ppf(0.975, 6), 12 / stats.chi2.ppf(0.025, 6)))


@EVERY_FAMILY
def test_units_do_not_matter(family: str) -> None:
    """Durations in minutes give the same shape and interval, and 60 times the scale."""
    sample = drawn(family, 60, seed=5, is_cut=True)
    hourly, by_minute = fit(family, sample), fit(family, Sample(sample.ended_E * 60, sample.cut_C * 60))
    for name, value in hourly.parameters.items():
        factor = 60 if name.endswith("_h") else 1
        assert by_minute.parameters[name] == pytest.approx(value * factor, rel=1e-5)
        ends = hourly.intervals[name], by_minute.intervals[name]
        assert ends[1].low == pytest.approx(ends[0].low * factor, rel=1e-4)
        assert ends[1].high == pytest.approx(ends[0].high * factor, rel=1e-4)


def test_intervals_are_those_of_the_information_in_closed_form() -> None:
    """Of an uncensored lognormal: standard errors sigma / sqrt(n) of the log median, 1 / sqrt(2 n) of log sigma."""
    fitted = fit("lognormal", drawn("lognormal", 80, seed=7, is_cut=False))
    sigma, median_h = fitted.parameters.values()
    for name, error in (("sigma", 160**-0.5), ("median_h", sigma * 80**-0.5)):
        ends = fitted.parameters[name] * np.exp([-1.959964 * error, 1.959964 * error])
        assert (fitted.intervals[name].low, fitted.intervals[name].high) == pytest.approx(tuple(ends), rel=1e-4)
    assert median_h in fitted.intervals["median_h"]


@EVERY_FAMILY
def test_p_is_uniform_for_parameters_known_in_advance(family: str) -> None:
    """Of 200 censored samples, 1 to 22 have p below 0.05 under the true parameters (99.9 %)."""
    values_P = np.array([*TRUE[family].values()])
    ps = [distance_of(family, values_P, drawn(family, 40, seed, is_cut=True))[1] for seed in range(200)]
    assert 1 <= sum(p < 0.05 for p in ps) <= 22
    assert stats.kstest(ps, "uniform").pvalue > 0.001


@EVERY_FAMILY
def test_intervals_cover(family: str) -> None:
    """In 60 samples of 60 durations, a third cut short, 95 % intervals miss a parameter 0 to 9 times (99.9 %)."""
    missed = dict.fromkeys(TRUE[family], 0)
    for seed in range(60):
        fitted = fit(family, drawn(family, 60, seed, is_cut=True))
        for name, value in TRUE[family].items():
            missed[name] += value not in fitted.intervals[name]
    assert all(count <= 9 for count in missed.values()), missed


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (ended(1, 0), "above 0 h"),
        (ended(1, math.nan), "above 0 h"),
        (ended(2, cut=[-1]), "above 0 h"),
        (ended(cut=[1, 2]), "at least one duration that ended"),
        (ended(), "at least one duration that ended"),
        (ended(2, 2, cut=[3]), "two different durations"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sample: Sample, message: str) -> None:
    """Bad durations, and those that leave a shape without a maximum, are refused in one line."""
    with pytest.raises(TraceError, match=message):
        fit("weibull", sample)
    with pytest.raises(TraceError, match="no family 'normal'; expected one of exponential, gamma"):
        fit("normal", sample)


def test_the_distance_is_kolmogorov_and_smirnovs() -> None:
    """With nothing cut short, distance and bound are those of the one-sample test against the fitted law."""
    sample = drawn("weibull", 80, seed=2, is_cut=False)
    fitted = fit("exponential", sample)
    test = stats.kstest(sample.ended_E, stats.expon(scale=fitted.parameters["mean_h"]).cdf, method="asymp")
    assert fitted.distance == pytest.approx(test.statistic)
    assert fitted.p == pytest.approx(test.pvalue)


TWO_KINDS = np.concatenate([np.linspace(0.98, 1.02, 300), np.linspace(98, 102, 300)])


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            drawn("weibull", 2000, seed=1, is_cut=False),
            "Of these families weibull fits best: its AIC is .* The hazard falls with the time .* .Weibull shape 0.7",
        ),
        (
            drawn("exponential", 60, seed=1, is_cut=False),
            "The data cannot tell .*exponential.* apart .* nothing speaks against a constant hazard.$",
        ),
        (drawn("lognormal", 19, seed=1, is_cut=False), "19 times between failures: too few"),
        (ended(*TWO_KINDS), ".*Yet the observed times refute "),
    ],
)
def test_the_verdict_claims_what_the_data_can_tell(sample: Sample, words: str) -> None:
    """A family and its hazard, several, none of few gaps; a fit that the times refute is told as such."""
    found = verdict([fit(family, sample) for family in FAMILIES])
    assert re.match(words, found)
    assert ("refute" in found) == ("refute" in words)
