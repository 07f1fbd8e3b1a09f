"""CPR's closed forms, and the ledger against them."""

import dataclasses
import math
from typing import Any

import pytest

from harness.config.derived import job_costs
from harness.config.model import Config
from harness.core.events import STALLS
from harness.core.overhead import (
    FullSave,
    Moved,
    OverheadLedger,
    expected_pls,
    load_part_h,
    o_full_h,
    o_part_h,
    save_price,
    saves_h,
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


def test_intervals_meet_the_target_and_the_published_levels() -> None:
    """E[PLS] at T_save,part is the target with k in it, and k times the target without.

    cpr56: T_save,full 2.29 h, T_save,part 44.8 h, E[PLS] 0.1 (docs/CPR.md).
    """
    assert expected_pls(COSTS, t_save_part_h(COSTS)) == pytest.approx(0.05, rel=1e-12)
    assert expected_pls(COSTS, t_save_part_h(COSTS, counts_ranks=False)) == pytest.approx(0.10, rel=1e-12)
    costs = job_costs(Config(), total_samples=1000)
    assert t_save_full_h(costs) == pytest.approx(2.29, abs=0.005)
    assert t_save_part_h(costs) == pytest.approx(44.8, rel=1e-12)
    assert expected_pls(costs, 44.8) == pytest.approx(0.1, rel=1e-12)
    assert o_full_h(COSTS, 7) == 0.1 * 100 / 7 + (0.2 + 7 / 2 + 0.3) * (100 / 20)
    assert o_part_h(COSTS, 7) == 0.1 * 100 / 7 + (0.2 + 0.3) * 100 / 20


def test_buckets_of_evenly_spread_failures_match_the_closed_form() -> None:
    """A save every 5 h and failures half an interval after one: the ledger's total is O_full."""
    ledger = OverheadLedger(COSTS)
    for _ in range(20):
        ledger.charge_save()
    for _ in range(5):
        cost = ledger.charge_failure(rerun_samples=25_000)
        assert (cost.load_h, cost.lost_h, cost.reschedule_h) == (0.2, 2.5, 0.3)
    assert ledger.num_failures == 5
    assert ledger.total_h == pytest.approx(o_full_h(COSTS, 5), rel=1e-12)
    assert ledger.overhead_frac == pytest.approx(o_full_h(COSTS, 5) / 100, rel=1e-12)


def test_the_death_of_some_trainers_costs_rescheduling_and_by_a_key_a_load() -> None:
    """Nothing is read: they lose nothing while one lives."""
    for key, load_h in ((False, 0.0), (True, 0.2)):
        cost = OverheadLedger(dataclasses.replace(COSTS, trainer_load=key)).charge_failure(loads=False)
        assert (cost.load_h, cost.reschedule_h) == (load_h, 0.3)


# --- prices -----------------------------------------------------------------------------------------------------------

BY_BYTES = dataclasses.replace(COSTS, load="by_bytes")
FIXED = dataclasses.replace(COSTS, o_save_fixed_h=0.01)


def in_background(snapshot_frac: float) -> Costs:
    return dataclasses.replace(FIXED, snapshot_frac=snapshot_frac)


def test_a_load_may_be_priced_by_bytes_and_a_save_have_a_fixed_part() -> None:
    """One shard of eight costs an eighth, all of them exactly O_load, initial values nothing.

    n saves cost n times o_save_fixed_h more, and Young's interval is that of the whole price.
    """
    ledger = OverheadLedger(BY_BYTES, full=FullSave(72))
    eighth, whole, nothing = (ledger.charge_failure(read=Moved(size, size)) for size in (9, 72, 0))
    assert (eighth.load_h, whole.load_h, nothing.load_h) == (0.2 / 8, 0.2, 0.0)
    assert ledger.load_bytes == 81
    assert load_part_h(BY_BYTES) == 0.2 * 2 / 4
    assert o_full_h(BY_BYTES, 7) == o_full_h(COSTS, 7)
    ledgers = [OverheadLedger(costs, full=FullSave(1000)) for costs in (COSTS, FIXED)]
    plain, fixed = (sum(each.charge_save(Moved(size, size)) for size in (5, 0)) for each in ledgers)
    assert fixed - plain == pytest.approx(2 * 0.01, rel=1e-12)
    assert t_save_full_h(FIXED) == pytest.approx(math.sqrt(2 * 0.11 * 20), rel=1e-12)


@pytest.mark.parametrize(
    ("num_spares", "failures", "expected"),
    [
        (0, [(0, 1, None), (5, 1, 1.5)], [0.3, 1.5]),
        (1, [(0, 1, None), (5, 1, 1.5)], [0.02, 0.02]),
        (2, [(0, 1, 1.5), (0.01, 1, 1.5), (0.01, 1, 1.5), (2, 1, 1.5)], [0.02, 0.02, 1.5, 0.02]),
        (2, [(0, 3, 1.5), (0.01, 2, 1.5)], [1.5, 0.02]),
        (2, [(0, 0, 1.5), (0, 2, 1.5)], [1.5, 0.02]),
    ],
)
def test_a_spare_is_rescheduled_at_its_own_price_and_ready_again_when_the_dead_rank_is(
    num_spares: int, failures: list[tuple[float, int, float | None]], expected: list[float]
) -> None:
    """1.5 h later, by the wall clock. A failure of more ranks than there are ready spares waits, and takes none.

    Failures: hour of computation, ranks that a spare may replace, and hours of repair by the trace.
    """
    ledger = OverheadLedger(dataclasses.replace(COSTS, spare_o_res_h=0.02, num_spares=num_spares))
    hours = [
        ledger.charge_failure(0, repair_h, samples=round(at_h * 10_000), num_ranks=num).reschedule_h
        for at_h, num, repair_h in failures
    ]
    assert hours == expected


def charged_h(costs: Costs, positions: list[int]) -> list[float]:
    """Hours of full saves at ``positions``."""
    ledger = OverheadLedger(costs)
    return [ledger.charge_save(samples=samples) for samples in positions]


def test_a_save_waits_until_the_one_before_is_written() -> None:
    """Hand-made: 0.11 h to write, 0.05 h (500 samples) between: it waits 0.06 h, by the wall clock of the job."""
    ledger = OverheadLedger(in_background(0.0))
    assert ledger.charge_save(samples=1000) == 0
    assert ledger.charge_save(samples=1500) == pytest.approx(0.06, rel=1e-9)
    assert ledger.wall_h(1500) == pytest.approx(0.15 + 0.06, rel=1e-12)
    ledger.charge_failure()  # half an hour of overhead, in which the second save is written
    assert ledger.charge_save(samples=1600) == 0


@pytest.mark.parametrize("snapshot_frac", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("step", [1, 500, 1100, 4000])
def test_a_save_in_the_background_costs_at_most_one_that_is_waited_for(snapshot_frac: float, step: int) -> None:
    """At any distance of saves and any speed of the copy; and evenly spread saves meet the closed form."""
    assert charged_h(in_background(0.25), [10_000, 20_000]) == [0.1 / 4] * 2, "far apart: a fraction of the hours"
    costs, positions = in_background(snapshot_frac), [step * number for number in range(1, 201)]
    hours = charged_h(costs, positions)
    assert sum(hours) <= sum(charged_h(FIXED, positions)) * (1 + 1e-12)
    each_h = saves_h(costs, step / 10_000) * (step / 10_000) / costs.job_h
    assert hours[1:] == pytest.approx([each_h] * 199, rel=1e-6)


@pytest.mark.parametrize("snapshot_frac", [None, 1e-6, 0.01, 0.3, 1.0])
def test_young_s_interval_is_where_full_recovery_costs_least(snapshot_frac: float | None) -> None:
    """O_full is no smaller a thousandth to either side of T_save,full; without a background it is the closed fraction.

    Also where the interval is what a save takes to be written.
    """
    costs = COSTS if snapshot_frac is None else in_background(snapshot_frac)
    best_h = t_save_full_h(costs)
    least_h = o_full_h(costs, best_h)
    assert least_h <= min(o_full_h(costs, 0.999 * best_h), o_full_h(costs, 1.001 * best_h))
    if snapshot_frac is None:
        assert least_h / COSTS.job_h == pytest.approx(math.sqrt(2 * 0.1 / 20) + (0.2 + 0.3) / 20, rel=1e-12)


@pytest.mark.parametrize("bound", [{"io_bound": "storage"}, {"io_bound": "link"}, {"storage_links": 2.0}])
def test_a_full_save_of_even_shards_costs_o_save_whatever_bounds_it(bound: dict[str, Any]) -> None:
    """Of four shards of 25 bytes one of 50 takes twice as long by links; one alone half as long by two links' storage.

    Closed forms agree: k of N shards.
    """
    costs = dataclasses.replace(BY_BYTES, **({"io_bound": "both"} | bound))
    full = FullSave.of(100, [25] * 4)
    prices = [save_price(costs, Moved(100, most), full).write_h for most in (25, 50)]
    assert prices[0] == save_price(costs).write_h == pytest.approx(0.1)
    assert prices[1] == pytest.approx({"storage": 0.1, "link": 0.2}.get(costs.io_bound, 0.1))
    load_h = OverheadLedger(costs, full=full).charge_failure(read=Moved(50, 25)).load_h
    assert load_h == pytest.approx({"storage": 0.1, "link": 0.2}.get(costs.io_bound, 0.1))
    assert load_h == pytest.approx(load_part_h(costs))


def test_steps_pay_for_their_parts_and_an_unknown_price_is_no_zero() -> None:
    """Steps that run again pay too; a part without a price makes the total unknown, and no prices none of it."""
    priced = dataclasses.replace(COSTS, step_frac={"mfu": 0.03, "mirror": 0.01}, num_trainers=2)
    cases = (((), 0.0), (("mfu",), 0.03), (("mfu", "mirror"), 0.04), (("mfu", "replica"), None))
    for parts, frac in cases:
        ledger = OverheadLedger(priced, parts)
        cost = ledger.charge_failure(rerun_samples=50_000)
        stall_h = sum(getattr(cost, f"{name}_h") for name in STALLS[1:])
        if frac is None:
            assert (ledger.steps_h, ledger.total_h, ledger.overhead_frac, ledger.node_h) == (None,) * 4
            continue
        assert ledger.steps_h == pytest.approx(frac * (100 + 5), rel=1e-12)
        assert ledger.total_h == pytest.approx(stall_h + frac * 105, rel=1e-12)
        assert ledger.wall_h(500_000) == pytest.approx(50 * (1 + frac) + stall_h + frac * 5, rel=1e-12)
        assert o_part_h(priced, 7, parts) == pytest.approx(o_part_h(COSTS, 7) + frac * 100, rel=1e-12)
    unpriced = OverheadLedger(COSTS, ("replica",))
    assert (unpriced.steps_h, unpriced.total_h) == (None, 0.0)


def test_node_hours_count_every_node_of_the_job() -> None:
    """Overhead hours times ranks and trainers; a spare is occupied for the job besides; unknown without trainers."""
    known = dataclasses.replace(COSTS, num_trainers=6)
    spared = dataclasses.replace(known, num_spares=2)
    for costs, expected in ((COSTS, None), (known, 5.0), (spared, 0.5 * 12 + 200)):
        ledger = OverheadLedger(costs)
        ledger.charge_failure()
        assert ledger.node_h == (expected if expected is None else pytest.approx(expected, rel=1e-12))
