"""CPR's closed forms, and the ledger against them."""

import dataclasses
import math

import pytest

from harness.config.costs import job_costs
from harness.config.model import Config
from harness.core.overhead import (
    OverheadLedger,
    expected_pls,
    interval_in_samples,
    o_full_h,
    o_part_h,
    t_save_full_h,
    t_save_part_h,
)
from harness.core.plans import Costs

COSTS = Costs(
    job_h=100,
    mtbf_h=20,
    o_save_h=0.1,
    o_load_h=0.2,
    o_res_h=0.3,
    num_ps=4,
    ranks_per_failure=2,
    pls_target=0.05,
    total_samples=1_000_000,
)


def test_young_s_interval_is_where_full_recovery_costs_least() -> None:
    """O_full is larger a thousandth to either side of T_save,full, and there equals the closed fraction."""
    best_h = t_save_full_h(COSTS)
    least_h = o_full_h(COSTS, best_h)
    assert least_h < min(o_full_h(COSTS, 0.999 * best_h), o_full_h(COSTS, 1.001 * best_h))
    assert least_h / COSTS.job_h == pytest.approx(math.sqrt(2 * 0.1 / 20) + (0.2 + 0.3) / 20, rel=1e-12)


def test_partial_recovery_saves_exactly_the_lost_computation() -> None:
    """At any interval O_full - O_part is half an interval per failure."""
    assert o_full_h(COSTS, 7) - o_part_h(COSTS, 7) == pytest.approx(7 / 2 * 100 / 20, rel=1e-12)


def test_the_partial_interval_meets_the_target() -> None:
    """E[PLS] at T_save,part is the target with k in it, and k times the target without."""
    assert expected_pls(COSTS, t_save_part_h(COSTS)) == pytest.approx(0.05, rel=1e-12)
    assert expected_pls(COSTS, t_save_part_h(COSTS, counts_ranks=False)) == pytest.approx(0.10, rel=1e-12)


def test_free_saves_are_made_at_every_boundary() -> None:
    """With O_save = 0 the best interval is 0 hours, one sample, and full recovery costs load and reschedule alone."""
    free = dataclasses.replace(COSTS, o_save_h=0.0)
    assert interval_in_samples(t_save_full_h(free), free) == 1
    assert o_full_h(free, t_save_full_h(free)) == pytest.approx(0.5 * 5, rel=1e-12)


def test_the_interval_in_samples_is_the_nearest_whole_number() -> None:
    """Hours scale to samples by S_total / T_total."""
    assert interval_in_samples(0.000_26, COSTS) == 3
    assert interval_in_samples(0.000_24, COSTS) == 2


def test_the_profile_gives_the_published_levels() -> None:
    """cpr56: T_save,full 2.29 h, T_save,part 44.8 h, E[PLS] 0.1 (docs/CPR.md)."""
    costs = job_costs(Config(profile="cpr56"), total_samples=1000)
    assert t_save_full_h(costs) == pytest.approx(2.29, abs=0.005)
    assert t_save_part_h(costs) == pytest.approx(44.8, rel=1e-12)
    assert expected_pls(costs, 44.8) == pytest.approx(0.1, rel=1e-12)


def test_keys_of_the_run_override_the_profile() -> None:
    """cluster.num_ps and strategy.pls_target win over the profile's."""
    config = Config.model_validate({"cluster": {"num_ps": 3}, "strategy": {"name": "cpr_mfu", "pls_target": 0.02}})
    costs = job_costs(config, total_samples=10)
    assert (costs.num_ps, costs.pls_target, costs.total_samples) == (3, 0.02, 10)


def test_a_save_costs_by_its_bytes() -> None:
    """Saves that together write a whole model cost O_save, in however many parts."""
    ledger = OverheadLedger(COSTS)
    parts_h = [ledger.charge_save(size, 1000) for size in (125, 375, 500)]
    assert parts_h == [pytest.approx(0.0125), pytest.approx(0.0375), pytest.approx(0.05)]
    assert ledger.save_h == pytest.approx(COSTS.o_save_h, rel=1e-12)
    assert (ledger.num_saves, ledger.payload_bytes) == (3, 1000)


def test_buckets_of_evenly_spread_failures_match_the_closed_form() -> None:
    """A save every 5 h and failures half an interval after one: the ledger's total is O_full."""
    ledger = OverheadLedger(COSTS)
    for _ in range(20):
        ledger.charge_save(1000, 1000)
    for _ in range(5):
        cost = ledger.charge_failure(rerun_samples=25_000)
        assert (cost.load_h, cost.lost_h, cost.reschedule_h) == (0.2, 2.5, 0.3)
    assert ledger.num_failures == 5
    assert ledger.total_h == pytest.approx(o_full_h(COSTS, 5), rel=1e-12)
    assert ledger.overhead_frac == pytest.approx(o_full_h(COSTS, 5) / 100, rel=1e-12)


def test_partial_recovery_loses_no_computation() -> None:
    """Without samples to run again the lost bucket stays exactly 0."""
    ledger = OverheadLedger(COSTS)
    ledger.charge_failure()
    assert (ledger.lost_h, ledger.load_h, ledger.reschedule_h) == (0.0, 0.2, 0.3)
