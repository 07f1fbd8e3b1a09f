"""Fits find what scipy finds, cover what they should, and refuse what has no answer."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from harness.core.errors import TraceError
from harness.traces.fits import FAMILIES, Fit, distance_of, distribution, fit, mean_interval
from harness.traces.gaps import Sample
from harness.traces.verdict import verdict

TRUE = {
    "exponential": {"mean_h": 20.0},
    "gamma": {"shape": 0.6, "scale_h": 30.0},
    "weibull": {"shape": 0.7, "scale_h": 12.0},
    "lognormal": {"sigma": 1.4, "median_h": 8.0},
}
SCIPY = {"gamma": stats.gamma, "weibull": stats.weibull_min, "lognormal": stats.lognorm}
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
@pytest.mark.parametrize("family", SCIPY)
def test_a_fit_is_the_maximum_that_scipy_finds(family: str, is_cut: bool) -> None:
    """Parameters and log likelihood are those of scipy's own fit of the same durations."""
    sample = drawn(family, 150, seed=3, is_cut=is_cut)
    fitted = fit(family, sample)
    data = stats.CensoredData(sample.ended_E, right=sample.cut_C)
    shape, _, scale = SCIPY[family].fit(data, floc=0)
    expected = {"shape": shape, "scale_h": scale} if family != "lognormal" else {"sigma": shape, "median_h": scale}
    assert fitted.parameters == pytest.approx(expected, rel=2e-3)
    assert fitted.log_likelihood >= -SCIPY[family].nnlf((shape, 0, scale), sample.all_N) - 1e-3 or is_cut


@pytest.mark.parametrize("is_cut", [False, True])
@EVERY_FAMILY
def test_the_likelihood_is_scipys(family: str, is_cut: bool) -> None:
    """Densities of durations that ended and survival of those cut short, at parameters near and far."""
    sample = drawn(family, 40, seed=8, is_cut=is_cut)
    log_likelihood = FAMILIES[family].log_likelihood(sample)
    for values in ([*TRUE[family].values()], [0.3, 50.0][-len(TRUE[family]) :], [3.0, 2.0][-len(TRUE[family]) :]):
        law = distribution(family, values)
        expected = law.logpdf(sample.ended_E).sum() + law.logsf(sample.cut_C).sum()
        assert log_likelihood(*values) == pytest.approx(expected, rel=1e-12)


def test_an_exponential_fit_is_events_by_exposure() -> None:
    """The mean is exposure / events, and its interval the exact one of chi-square."""
    fitted = fit("exponential", ended(1, 2, 3, cut=[4]))
    assert fitted.parameters == {"mean_h": pytest.approx(10 / 3)}
    low, high = 2 * 10 / stats.chi2.ppf(0.975, 8), 2 * 10 / stats.chi2.ppf(0.025, 6)
    assert (fitted.intervals["mean_h"].low, fitted.intervals["mean_h"].high) == pytest.approx((low, high))
    uncut = fit("exponential", ended(1, 2, 3)).intervals["mean_h"]
    assert (uncut.low, uncut.high) == pytest.approx((12 / stats.chi2.ppf(0.975, 6), 12 / stats.chi2.ppf(0.025, 6)))


def test_a_mean_without_failures_is_bounded_below_only() -> None:
    """No failure in 100 h: the mean is at least 100 / 3.69 h (the rule of three, two-sided), and has no upper end."""
    interval = mean_interval(100.0, 0, is_cut=True)
    assert interval.low == pytest.approx(100 / -math.log(0.025))
    assert interval.high == math.inf


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


def test_an_unknown_family_is_refused() -> None:
    """The line names those there are."""
    with pytest.raises(TraceError, match="no family 'normal'; expected one of exponential, gamma"):
        fit("normal", ended(1, 2))


def test_the_distance_is_kolmogorov_and_smirnovs() -> None:
    """With nothing cut short, distance and bound are those of the one-sample test against the fitted law."""
    sample = drawn("weibull", 80, seed=2, is_cut=False)
    fitted = fit("exponential", sample)
    test = stats.kstest(sample.ended_E, stats.expon(scale=fitted.parameters["mean_h"]).cdf, method="asymp")
    assert fitted.distance == pytest.approx(test.statistic)
    assert fitted.p == pytest.approx(test.pvalue)


def fits_of(sample: Sample) -> list[Fit]:
    """Every family."""
    return [fit(family, sample) for family in FAMILIES]


def test_the_verdict_names_a_family_where_the_data_can_tell() -> None:
    """2,000 strongly Weibull gaps: Weibull alone, with its falling hazard, and not refuted."""
    sentence = verdict(fits_of(drawn("weibull", 2000, seed=1, is_cut=False)))
    assert sentence.startswith("Of these families weibull fits best: its AIC is ")
    assert "The hazard falls with the time since the last failure (Weibull shape 0.7" in sentence
    assert "refute" not in sentence


def test_the_verdict_claims_nothing_where_they_cannot() -> None:
    """60 exponential gaps: exponential is among those that cannot be told apart, and no trend of the hazard is told."""
    sentence = verdict(fits_of(drawn("exponential", 60, seed=1, is_cut=False)))
    assert sentence.startswith("The data cannot tell ")
    assert "exponential" in sentence
    assert sentence.endswith("nothing speaks against a constant hazard.")


def test_the_verdict_of_few_gaps_is_that_they_are_few() -> None:
    """Nineteen gaps name no family, whatever the AICs; none at all is said so."""
    sample = drawn("lognormal", 19, seed=1, is_cut=False)
    assert verdict(fits_of(sample)).startswith("19 times between failures: too few")
    assert verdict([]).startswith("No family can be fitted")


def test_the_verdict_refutes_them_all() -> None:
    """Two kinds of gap, a hundred times apart, are no member of any family, and the sentence says so."""
    rng = np.random.default_rng(3)
    hours_N = np.concatenate([rng.normal(1, 0.01, 300), rng.normal(100, 1, 300)])
    assert "Yet the observed times refute " in verdict(fits_of(ended(*hours_N)))
