"""How often verdicts are wrong and intervals miss, by simulation with normal differences (docs/STATISTICS.md)."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.stats import ALPHA, estimate, estimate_pairs
from analysis.stats.inference import claims_of
from harness.core.seeds import generator

NUM_GRIDS, NUM_TABLES = 2000, 500
SPREADS_K = np.array([0.4, 0.6, 0.8, 1.0, 1.5, 2.0])  # standard deviations of K strategies' differences, in margins


def errors_of(rate: float, num: int) -> float:
    """Four standard errors of a rate that is counted in ``num`` draws."""
    return 4 * math.sqrt(rate * (1 - rate) / num)


@pytest.mark.parametrize("num_seeds", [3, 10])
def test_at_most_one_grid_in_twenty_has_a_wrong_claim(num_seeds: int) -> None:
    """Of six strategies at the margin none is called non-inferior or inferior, and of six at 0 none superior.

    Half of the variance is shared, as by the common run without failures.
    """
    rng = generator(0, "claims", num_seeds)
    wrong = np.zeros(3)
    for _ in range(NUM_GRIDS):
        noise_NK = rng.standard_normal((num_seeds, len(SPREADS_K))) + rng.standard_normal((num_seeds, 1))
        losses_NK = SPREADS_K * noise_NK / math.sqrt(2)
        at_margin, at_zero = (
            claims_of([each for own in values.T if (each := estimate(own)) is not None], 1.0)
            for values in (1 + losses_NK, losses_NK)
        )
        wrong += [any(at_margin.non_inferior), any(at_margin.inferior), any(at_zero.superior)]
    assert np.all(wrong / NUM_GRIDS <= ALPHA + errors_of(ALPHA, NUM_GRIDS))


@pytest.mark.parametrize(
    ("num_seeds", "num_traces", "shares", "is_nested"),
    [
        (5, 5, (0.12, 0.22, 0.66), False),  # of study `seeds`
        (5, 10, (0.49, 0.1, 0.41), False),
        (10, 5, (0.25, 0.5, 0.25), False),
        (3, 5, (0.12, 0.22, 0.66), True),
    ],
)
def test_intervals_hold_the_true_mean(
    num_seeds: int, num_traces: int, shares: tuple[float, float, float], is_nested: bool
) -> None:
    """In 95 of 100 tables, within the two points that a sum of components costs; or each trace has its own seeds.

    ``shares``: of seeds, traces and the rest in the variance of a pair's difference.
    """
    rng, (of_seeds, of_traces, rest) = generator(0, "coverage", num_seeds, num_traces), np.sqrt(shares)
    seeds, draws = (each.ravel() for each in np.indices((num_seeds, num_traces)))
    pairs = pd.DataFrame({"seed": seeds + num_seeds * draws if is_nested else seeds, "draw": draws})
    num_held = 0
    for _ in range(NUM_TABLES):
        seeds_ST = of_seeds * rng.standard_normal((num_seeds, num_traces if is_nested else 1))
        noise_ST = of_traces * rng.standard_normal(num_traces) + rest * rng.standard_normal((num_seeds, num_traces))
        found: Any = estimate_pairs(pairs.assign(loss=(seeds_ST + noise_ST).ravel()), "loss")
        assert found.half_width is not None
        num_held += abs(found.mean) <= found.half_width
    assert num_held / NUM_TABLES == pytest.approx(0.95, abs=0.02 + errors_of(0.95, NUM_TABLES))
