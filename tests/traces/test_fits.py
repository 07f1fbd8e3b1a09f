"""Fits find what scipy finds, cover what they should, and refuse what has no answer."""

import math

import numpy as np
import pytest
from scipy import stats

from harness.core.errors import TraceError
from harness.traces.bootstrap import bootstrapped, draw_renewals
from harness.traces.families import FAMILIES, log_gammaincc
from harness.traces.fits import Fit, fit, fit_sample
from harness.traces.survival import Sample, mean_interval, survival_of
from harness.traces.verdict import verdict

TRUE = {
    "exponential": {"mean_h": 20.0},
    "gamma": {"shape": 0.6, "scale_h": 30.0},
    "weibull": {"shape": 0.7, "scale_h": 12.0},
    "lognormal": {"median_h": 8.0, "sigma": 1.4},
}
SCIPY = {"gamma": stats.gamma, "weibull": stats.weibull_min, "lognormal": stats.lognorm}
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def drawn(family: str, num: int, seed: int, *, is_cut: bool) -> tuple[np.ndarray, np.ndarray]:
    """Durations of the true family, cut short at random by an exponential clock if asked for."""
    rng = np.random.default_rng(seed)
    lasted_N = FAMILIES[family].law(*TRUE[family].values()).rvs(num, random_state=rng)
    cut_N = rng.exponential(40, num) if is_cut else np.full(num, np.inf)
    return np.minimum(lasted_N, cut_N), lasted_N > cut_N


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("family", SCIPY)
def test_a_fit_is_the_maximum_that_scipy_finds(family: str, is_cut: bool) -> None:
    """Parameters and log likelihood are those of scipy's own fit of the same durations."""
    hours_N, is_cut_N = drawn(family, 150, seed=3, is_cut=is_cut)
    fitted = fit(family, hours_N, is_cut_N)
    data = stats.CensoredData.right_censored(hours_N, is_cut_N)
    shape, _, scale = SCIPY[family].fit(data, floc=0)
    expected = {"shape": shape, "scale_h": scale} if family != "lognormal" else {"median_h": scale, "sigma": shape}
    assert fitted.parameters == pytest.approx(expected, rel=2e-3)
    assert fitted.log_likelihood >= -SCIPY[family].nnlf((shape, 0, scale), hours_N) - 1e-3 or is_cut


def test_an_exponential_fit_is_events_by_exposure() -> None:
    """The mean is exposure / events, and its interval the exact one of chi-square."""
    fitted = fit("exponential", [1.0, 2.0, 3.0, 4.0], [False, False, False, True])
    assert fitted.parameters == {"mean_h": pytest.approx(10 / 3)}
    low, high = 2 * 10 / stats.chi2.ppf(0.975, 8), 2 * 10 / stats.chi2.ppf(0.025, 6)
    assert (fitted.intervals["mean_h"].low, fitted.intervals["mean_h"].high) == pytest.approx((low, high))
    uncut = fit("exponential", [1.0, 2.0, 3.0]).intervals["mean_h"]
    assert (uncut.low, uncut.high) == pytest.approx((12 / stats.chi2.ppf(0.975, 6), 12 / stats.chi2.ppf(0.025, 6)))


def test_a_mean_without_failures_is_bounded_below_only() -> None:
    """No failure in 100 h: the mean is at least 100 / 3.69 h (the rule of three, two-sided), and has no upper end."""
    interval = mean_interval(100.0, 0, is_cut=True)
    assert interval.low == pytest.approx(100 / -math.log(0.025))
    assert interval.high == math.inf


@EVERY_FAMILY
def test_units_do_not_matter(family: str) -> None:
    """Durations in minutes give the same shape and interval, and 60 times the scale."""
    hours_N, is_cut_N = drawn(family, 60, seed=5, is_cut=True)
    hourly, by_minute = fit(family, hours_N, is_cut_N), fit(family, hours_N * 60, is_cut_N)
    for name, value in hourly.parameters.items():
        factor = 60 if name.endswith("_h") else 1
        assert by_minute.parameters[name] == pytest.approx(value * factor, rel=1e-5)
        ends = hourly.intervals[name], by_minute.intervals[name]
        assert ends[1].low == pytest.approx(ends[0].low * factor, rel=1e-4)
        assert ends[1].high == pytest.approx(ends[0].high * factor, rel=1e-4)


@pytest.mark.parametrize("family", SCIPY)
def test_an_interval_ends_where_the_profile_has_fallen_far_enough(family: str) -> None:
    """With the parameter held at either end, the best log likelihood lies chi2(0.95) / 2 = 1.92 below the maximum."""
    hours_N, is_cut_N = drawn(family, 40, seed=7, is_cut=True)
    fitted = fit(family, hours_N, is_cut_N)
    _, likelihood = FAMILIES[family].start(Sample(hours_N[~is_cut_N], hours_N[is_cut_N]))
    grid_G = np.linspace(-2, 2, 8001)
    for index, name in enumerate(FAMILIES[family].parameters):
        for end in (fitted.intervals[name].low, fitted.intervals[name].high):
            theta_P = fitted.theta_P.copy()
            theta_P[index] = math.log(end)
            other = theta_P[1 - index]
            best = -math.inf
            for step in grid_G:
                theta_P[1 - index] = other + step
                best = max(best, likelihood(theta_P))
            assert fitted.log_likelihood - best == pytest.approx(1.9207, abs=2e-3)


@EVERY_FAMILY
def test_density_survival_and_mean_belong_together(family: str) -> None:
    """Hazard times survival is the slope of the survival function, and the mean its area."""
    fitted = fit(family, *drawn(family, 80, seed=9, is_cut=False))
    hours_T = np.array([0.1, 1.0, 10.0, 50.0])
    slope_T = -(fitted.law.sf(hours_T * 1.00001) - fitted.law.sf(hours_T * 0.99999)) / (2e-5 * hours_T)
    assert fitted.hazard(hours_T) * fitted.law.sf(hours_T) == pytest.approx(slope_T, rel=1e-4)
    grid_G = np.geomspace(1e-9, 1e6, 200_001)
    assert np.trapezoid(fitted.law.sf(grid_G), grid_G) == pytest.approx(fitted.mean_h, rel=1e-3)


@EVERY_FAMILY
def test_intervals_cover(family: str) -> None:
    """In 60 samples of 60 durations, a third cut short, 95 % intervals miss a parameter 0 to 9 times (99.9 %)."""
    missed = dict.fromkeys(TRUE[family], 0)
    for seed in range(60):
        fitted = fit(family, *drawn(family, 60, seed, is_cut=True))
        for name, value in TRUE[family].items():
            missed[name] += value not in fitted.intervals[name]
    assert all(count <= 9 for count in missed.values()), missed


def test_many_cut_durations_are_summed_over_few_nodes() -> None:
    """The gamma's likelihood of thousands of censored durations is that of the sum term by term."""
    rng = np.random.default_rng(1)
    cut_C = rng.exponential(20, 3000)
    sample = Sample(np.array([1.0, 2.0]), cut_C)
    _, of_all = FAMILIES["gamma"].start(sample)
    _, of_none = FAMILIES["gamma"].start(Sample(sample.ended_E, np.zeros(0)))
    for shape, scale_h in ((0.05, 3.0), (0.7, 30.0), (4.0, 5.0), (20.0, 1.0), (200.0, 0.1)):
        theta_P = np.log([shape, scale_h])
        expected = log_gammaincc(shape, cut_C / scale_h).sum()
        assert of_all(theta_P) - of_none(theta_P) == pytest.approx(expected, abs=1e-5, rel=1e-9)


@pytest.mark.parametrize("shape", [0.3, 1.0, 3.0, 40.0])
def test_a_gamma_survives_beyond_the_floats(shape: float) -> None:
    """Where its survival function is below the smallest float, its logarithm still falls smoothly."""
    logs = log_gammaincc(shape, np.array([600.0, 640.0, 680.0, 900.0, 1e5]))
    assert np.isfinite(logs).all()
    assert logs[:2] == pytest.approx(stats.gamma.logsf([600.0, 640.0], shape), rel=1e-9)
    assert -np.diff(logs[2:]) == pytest.approx([220, 1e5 - 900], rel=0.08)


@pytest.mark.parametrize(
    ("durations", "cut", "message"),
    [
        ([1.0, 0.0], None, "above 0 h"),
        ([1.0, math.nan], None, "above 0 h"),
        ([-1.0, 2.0], None, "above 0 h"),
        ([1.0, 2.0], [True, True], "at least one duration that ended"),
        ([], None, "at least one duration that ended"),
        ([2.0, 2.0, 3.0], [False, False, True], "two different durations"),
        ([1.0, 2.0], [True], "one mark of censoring"),
    ],
)
def test_what_cannot_be_fitted_is_refused(durations: list[float], cut: list[bool] | None, message: str) -> None:
    """Bad durations, and those that leave a shape without a maximum, are refused in one line."""
    with pytest.raises(TraceError, match=message):
        fit("weibull", durations, cut)


def test_an_unknown_family_is_refused() -> None:
    """The line names those there are."""
    with pytest.raises(TraceError, match="no family 'normal'; expected one of exponential, gamma"):
        fit("normal", [1.0, 2.0])


def test_the_distance_is_kolmogorov_and_smirnovs() -> None:
    """With nothing cut short, distance and bound are those of the one-sample test against the fitted law."""
    hours_N, _ = drawn("weibull", 80, seed=2, is_cut=False)
    fitted = fit("exponential", hours_N)
    test = stats.kstest(hours_N, stats.expon(scale=fitted.parameters["mean_h"]).cdf, method="asymp")
    assert fitted.goodness.distance == pytest.approx(test.statistic)
    assert fitted.goodness.p_at_most == pytest.approx(test.pvalue)


def test_survival_is_kaplan_and_meiers() -> None:
    """Curve and interval agree with scipy's and with hand arithmetic."""
    curve = survival_of(Sample(np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 3.0])))
    assert curve.survival_T == pytest.approx([5 / 6, 5 / 6 * 3 / 5, 0])
    data = stats.CensoredData.right_censored([1, 2, 2, 5, 2, 3], [0, 0, 0, 0, 1, 1])
    with pytest.warns(RuntimeWarning, match="undefined at some"):  # where nothing is left
        bounds = stats.ecdf(data).sf.confidence_interval(0.95, method="log-log")
    assert curve.low_T[:2] == pytest.approx(bounds.low.probabilities[:2])
    assert curve.high_T[:2] == pytest.approx(bounds.high.probabilities[:2])


def test_a_bootstrap_is_of_its_seed() -> None:
    """The same seed gives the same intervals and p-value, another seed others; both are near the likelihood's."""
    hours_N, is_cut_N = drawn("weibull", 50, seed=4, is_cut=True)
    sample = Sample(hours_N[~is_cut_N], hours_N[is_cut_N])
    plain = fit_sample("weibull", sample)
    first, again, other = (
        bootstrapped(plain, sample, np.array([float(hours_N.sum())]), num=60, seed=seed, tick=lambda: None)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first.bootstrap_intervals != other.bootstrap_intervals
    assert first.bootstrap_intervals is not None
    likely, resampled = plain.intervals["shape"], first.bootstrap_intervals["shape"]
    assert (resampled.low, resampled.high) == pytest.approx((likely.low, likely.high), rel=0.2)
    assert first.goodness.p_bootstrap is not None
    assert 0.02 < first.goodness.p_bootstrap <= 1


def test_a_wrong_family_is_refuted_by_the_bootstrap() -> None:
    """Clockwork is no exponential: its distance is exceeded by none of the renewal processes drawn."""
    hours_N = np.random.default_rng(0).normal(10, 1, 30)
    sample = Sample(hours_N, np.array([4.0]))
    watched_R = np.array([sample.exposure_h])
    fitted = bootstrapped(fit_sample("exponential", sample), sample, watched_R, num=40, seed=0, tick=lambda: None)
    assert fitted.goodness.p_bootstrap == pytest.approx(1 / 41)


def test_renewals_fill_the_time_watched() -> None:
    """Gaps and the rest of each process add up to the hours it was watched; one rest for each."""
    watched_R = np.array([50.0, 200.0, 1.0])
    sample = draw_renewals("lognormal", np.log([2.0, 2.0]), watched_R, np.random.default_rng(6))
    assert len(sample.cut_C) == 3
    assert sample.exposure_h == pytest.approx(watched_R.sum())


def fits_of(hours_N: np.ndarray) -> list[Fit]:
    """Every family."""
    return [fit(family, hours_N) for family in FAMILIES]


def test_the_verdict_names_a_family_where_the_data_can_tell() -> None:
    """2,000 strongly Weibull gaps: Weibull alone, with its falling hazard, and not refuted."""
    sentence = verdict(fits_of(drawn("weibull", 2000, seed=1, is_cut=False)[0]))
    assert sentence.startswith("Of these families weibull fits best: its AIC is ")
    assert "The hazard falls with the time since the last failure (Weibull shape 0.7" in sentence
    assert "refute" not in sentence


def test_the_verdict_claims_nothing_where_they_cannot() -> None:
    """60 exponential gaps: exponential is among those that cannot be told apart, and no trend of the hazard is told."""
    sentence = verdict(fits_of(drawn("exponential", 60, seed=1, is_cut=False)[0]))
    assert sentence.startswith("The data cannot tell ")
    assert "exponential" in sentence
    assert sentence.endswith("nothing speaks against a constant hazard.")


def test_the_verdict_of_few_gaps_is_that_they_are_few() -> None:
    """Nineteen gaps name no family, whatever the AICs; none at all is said so."""
    hours_N = drawn("lognormal", 19, seed=1, is_cut=False)[0]
    assert verdict(fits_of(hours_N)).startswith("19 times between failures: too few")
    assert verdict([]).startswith("No family can be fitted")


def test_the_verdict_refutes_them_all() -> None:
    """Two kinds of gap, a hundred times apart, are no member of any family, and the sentence says so."""
    rng = np.random.default_rng(3)
    hours_N = np.concatenate([rng.normal(1, 0.01, 300), rng.normal(100, 1, 300)])
    assert "Yet the observed times refute " in verdict(fits_of(hours_N))
