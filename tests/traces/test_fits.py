"""Fits find what scipy finds, have the intervals of the information, and refuse what has no answer."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import special, stats

from harness.core.errors import TraceError
from harness.traces.fits import FAMILIES, distance_of, distribution, fit, verdict
from harness.traces.gaps import Sample

TRUE = {
    "exponential": {"mean_h": 20.0},
    "gamma": {"shape": 0.6, "scale_h": 30.0},
    "weibull": {"shape": 0.7, "scale_h": 12.0},
    "lognormal": {"sigma": 1.4, "median_h": 8.0},
}


def drawn(family: str, num: int, seed: int, *, is_cut: bool) -> Sample:
    """Durations of the true family, cut short at random by an exponential clock if asked for."""
    rng = np.random.default_rng(seed)
    lasted_N = distribution(family, [*TRUE[family].values()]).rvs(num, random_state=rng)
    cut_N = rng.exponential(40, num) if is_cut else np.full(num, np.inf)
    return Sample(lasted_N[lasted_N <= cut_N], cut_N[lasted_N > cut_N])


def ended(*hours: float, cut: Sequence[float] = ()) -> Sample:
    return Sample(np.array(hours), np.array(cut))


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fit_is_the_maximum_that_scipy_finds(family: str, is_cut: bool) -> None:
    """Parameters and log likelihood are those of scipy's own fit of the same durations.

    Durations in minutes give the same shape and interval, and 60 times the scale.
    """
    sample = drawn(family, 150, seed=3, is_cut=is_cut)
    fitted = fit(family, sample)
    likelihood = fitted.law.logpdf(sample.ended_E).sum() + fitted.law.logsf(sample.cut_C).sum()
    assert fitted.log_likelihood == pytest.approx(likelihood, rel=1e-12)
    if family != "exponential":
        shape, _, scale = FAMILIES[family].dist.fit(stats.CensoredData(sample.ended_E, right=sample.cut_C), floc=0)
        assert [*fitted.parameters.values()] == pytest.approx([shape, scale], rel=2e-3)
    by_minute = fit(family, Sample(sample.ended_E * 60, sample.cut_C * 60))
    for name, value in fitted.parameters.items():
        factor, (hours, minutes) = 60 if name.endswith("_h") else 1, (f.intervals[name] for f in (fitted, by_minute))
        assert by_minute.parameters[name] == pytest.approx(value * factor, rel=1e-5)
        assert (minutes.low, minutes.high) == pytest.approx((hours.low * factor, hours.high * factor), rel=1e-4)


def test_an_exponential_fit_is_events_by_exposure() -> None:
    fitted = fit("exponential", ended(1, 2, 3, cut=[4]))
    assert fitted.parameters == {"mean_h": pytest.approx(10 / 3)}
    cut, uncut = fitted.intervals["mean_h"], fit("exponential", ended(1, 2, 3)).intervals["mean_h"]
    assert (cut.low, cut.high) == pytest.approx((20 / stats.chi2.ppf(0.975, 8), 20 / stats.chi2.ppf(0.025, 6)))
    assert (uncut.low, uncut.high) == pytest.approx((12 / stats.chi2.ppf(0.975, 6), 12 / stats.chi2.ppf(0.025, 6)))


@pytest.mark.parametrize("family", ["gamma", "weibull", "lognormal"])
def test_intervals_are_those_of_the_information_in_closed_form(family: str) -> None:
    """Standard errors of log parameters, of 80 durations; those of the Weibull family are censored.

    Lognormal: 1 / sqrt(2 n) of sigma, sigma / sqrt(n) of the median. Gamma: the information is n (k² psi'(k), k; k, k)
    of (log k, log scale), so that the two are correlated. Weibull, of r events, and u = k log(t / scale) and H =
    exp(u) of all durations: (r + sum H u², -k sum H u; -k sum H u, k² r).
    """
    sample = drawn(family, 80, seed=7, is_cut=family == "weibull")
    fitted = fit(family, sample)
    shape = next(iter(fitted.parameters.values()))
    errors = 160**-0.5, shape * 80**-0.5
    if family == "gamma":
        information = 80 * np.array([[shape**2 * special.polygamma(1, shape), shape], [shape, shape]])
        errors = np.sqrt(np.diag(np.linalg.inv(information))).tolist()
    if family == "weibull":
        u_N, num = shape * np.log(sample.all_N / fitted.parameters["scale_h"]), len(sample.ended_E)
        mixed = -shape * (np.exp(u_N) @ u_N)
        information = np.array([[num + np.exp(u_N) @ u_N**2, mixed], [mixed, shape**2 * num]])
        errors = np.sqrt(np.diag(np.linalg.inv(information))).tolist()
    for (name, value), error in zip(fitted.parameters.items(), errors, strict=True):
        ends = value * np.exp([-1.959964 * error, 1.959964 * error])
        assert (fitted.intervals[name].low, fitted.intervals[name].high) == pytest.approx(tuple(ends), rel=1e-4)


def test_the_distance_is_kolmogorov_and_smirnovs() -> None:
    """With nothing cut short that of the one-sample test; else p is uniform for parameters known in advance."""
    sample = drawn("weibull", 80, seed=2, is_cut=False)
    fitted = fit("exponential", sample)
    test = stats.kstest(sample.ended_E, stats.expon(scale=fitted.parameters["mean_h"]).cdf, method="asymp")
    assert (fitted.distance, fitted.p) == (pytest.approx(test.statistic), pytest.approx(test.pvalue))
    values_P = np.array([*TRUE["weibull"].values()])
    ps = [distance_of("weibull", values_P, drawn("weibull", 40, seed, is_cut=True))[1] for seed in range(150)]
    assert stats.kstest(ps, "uniform").pvalue > 0.001


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
    with pytest.raises(TraceError, match=message):
        fit("weibull", sample)
    with pytest.raises(TraceError, match="no family 'normal'; expected one of exponential, gamma"):
        fit("normal", sample)


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
