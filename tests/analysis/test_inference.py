"""Tests of differences, Holm's correction, and the number of seeds that decides."""

import numpy as np
import pytest
from scipy import stats

from analysis.stats import ALPHA, POWER, Estimate, estimate, holm, more_seeds, p_above, p_below


def estimated(*values: float) -> Estimate:
    """The estimate of these values."""
    result = estimate(values)
    assert result is not None
    return result


def test_p_values_are_those_of_the_one_sided_t_test() -> None:
    """As scipy's test of one sample, on both sides; one value, or values without a spread, reject nothing."""
    values = (0.3, -0.1, 0.4, 0.2)
    for alternative, p_value in (("greater", p_above), ("less", p_below)):
        expected = stats.ttest_1samp(values, 0.1, alternative=alternative)[1]
        assert p_value(estimated(*values), 0.1) == pytest.approx(expected)
    assert p_above(estimated(5.0), 0.0) == p_above(estimated(5.0, 5.0), 0.0) == 1.0


def test_holm_rejects_step_by_step() -> None:
    """The k-th smallest p-value is held against ALPHA / (m - k + 1), up to the first that fails."""
    assert holm([0.2, ALPHA / 3, ALPHA / 2]) == [False, True, True]
    assert holm([0.04, ALPHA / 3, ALPHA / 2]) == [True, True, True]
    assert holm([ALPHA / 2 + 1e-9, 0.0, ALPHA / 2 + 2e-9]) == [False, True, False]
    assert holm([ALPHA / 2, ALPHA / 2, 0.9]) == [False, False, False]
    assert holm([]) == []


def test_more_seeds_are_needed_for_more_noise_and_a_stricter_level() -> None:
    """The number grows with the spread and with a stricter level; it is unknown without a spread."""
    calm, noisy = (estimated(*(scale * np.array([-1.0, 0.0, 1.0]))) for scale in (1.0, 3.0))
    few, many, strict = (
        more_seeds(calm, 2.0, 0.05, 0.05),
        more_seeds(noisy, 2.0, 0.05, 0.05),
        more_seeds(calm, 2.0, 0.01, 0.01),
    )
    assert few is not None
    assert many is not None
    assert strict is not None
    assert few < strict
    assert few < many
    assert more_seeds(estimated(1.0), 2.0, 0.05, 0.05) is None


def test_more_seeds_follow_the_predictive_distribution() -> None:
    """With 400 values the spread is known, and the probability of a decision is that of a normal distribution."""
    values = np.random.default_rng(0).normal(0, 1, 400)
    known = estimated(*(values - values.mean()) / values.std(ddof=1) + 0.08)
    promised = more_seeds(known, 0.0, 0.05, 0.05)

    def probability(more: int) -> float:
        num, quantile = 400 + more, float(stats.norm.isf(0.05))
        law = stats.norm(0.08, (more / 400 / num) ** 0.5)
        return float(law.sf(quantile / num**0.5) + law.cdf(-quantile / num**0.5))

    expected = next(more for more in range(1, 5000) if probability(more) >= POWER)
    assert promised == pytest.approx(expected, rel=0.15)


def test_a_loss_at_the_bound_is_not_promised() -> None:
    """Where the values lie around the bound, more than any counted number of seeds would be needed."""
    assert more_seeds(estimated(*np.linspace(-1, 1, 200)), 0.0, 0.05, 0.05) is None
