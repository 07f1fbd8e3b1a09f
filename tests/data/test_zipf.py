import numpy as np
import pytest

from harness.data.zipf import Popularity, solve_exponent, top_share


def _exact_share(num_rows: int, exponent: float, num_draws: int) -> float:
    chances = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    chances /= chances.sum()
    num_top = 0.01 * -np.expm1(-num_draws * chances).sum()
    return float(np.interp(num_top, np.arange(num_rows + 1), np.concatenate([[0], np.cumsum(chances)])))


@pytest.mark.parametrize("num_rows", [500, 4_096, 4_097, 60_000, 1_000_000])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3])
def test_buckets_sum_what_the_whole_table_sums(num_rows: int, exponent: float) -> None:
    """Summing ranks in buckets gives the share that summing them one by one gives."""
    exact = _exact_share(num_rows, exponent, 300_000)
    assert top_share(num_rows, exponent, 300_000) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("missing_frac", [0.0, 0.03])
@pytest.mark.parametrize("num_rows", [700, 50_000, 5_000_000])
def test_the_solved_exponent_gives_the_share(num_rows: int, missing_frac: float) -> None:
    """Bisection ends at the skew that was asked for."""
    exponent = solve_exponent(num_rows, 300_000, 0.72, missing_frac)
    assert top_share(num_rows, exponent, 300_000, missing_frac) == pytest.approx(0.72, abs=1e-6)


def test_draws_follow_the_law_at_both_ends_and_drift_between() -> None:
    """At the beginning row i has Zipf's chance of rank i; at the end the same chances belong to other rows in part."""
    num_rows, num_draws = 200, 200_000
    popularity = Popularity(num_rows, 1.0, np.random.default_rng(0))
    begin, end = (
        np.bincount(popularity.draw(np.random.default_rng(1), np.full(num_draws, time)), minlength=num_rows)
        for time in (0.0, 1.0)
    )
    chances = 1 / np.arange(1, num_rows + 1)
    expected = chances / chances.sum() * num_draws
    assert (np.abs(begin - expected) < 5 * np.sqrt(expected)).all()
    assert (np.abs(np.sort(end)[::-1] - expected) < 6 * np.sqrt(expected) + 0.05 * expected).all()
    moved = np.abs(end - expected) > 5 * np.sqrt(expected)
    assert moved.sum() > 20
    assert 0.7 < np.corrcoef(np.log(begin), np.log(end))[0, 1] < 0.99
