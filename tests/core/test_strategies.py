"""When strategies save and how they recover."""

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from harness.core.errors import RunFailed
from harness.core.overhead import o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import Costs, Progress, SavePlan
from harness.core.strategies import OPTIONS, STRATEGIES, Strategy, make_strategy, options_of
from harness.store import SAVE_KINDS
from tests.known_jobs import CPR56

COSTS = dataclasses.replace(CPR56, total_samples=20_000)
BATCH = 10
PRIORITY = ("cpr_random", "cpr_mfu", "cpr_ssu", "cpr_mass", "cpr_scar", "cpr_mirror", "cpr_oldest", "cpr_state")
ALL = tuple(STRATEGIES)
DEAD = frozenset({"ps1", "ps5"})


def at(step: int, *, batch: int = BATCH, total: int = COSTS.total_samples) -> Progress:
    """Progress at a boundary of a run in batches."""
    previous = max(0, step - 1) * batch
    return Progress(step=step, samples=step * batch, previous_samples=previous, total_samples=total)


def saves(strategy: Strategy, *, batch: int = BATCH, total: int = COSTS.total_samples) -> dict[int, SavePlan]:
    """Every save of a run, by step: the strategy is asked at every boundary, and held to its forecast."""
    made: dict[int, SavePlan] = {}
    progress = at(0, batch=batch, total=total)
    for step in range(1, total // batch + 1):
        due = strategy.next_save(progress)
        progress = at(step, batch=batch, total=total)
        plan = strategy.plan_save(progress)
        is_due = due is not None and progress.samples >= due
        assert (plan is not None) == (is_due and progress.samples < total), "a forecast that was not exact"
        if plan:
            made[step] = plan
    return made


def make(name: str, costs: Costs = COSTS, **settings: object) -> Strategy:
    return make_strategy(options_of(name, **settings), costs)


def test_options_reach_the_tracker() -> None:
    """Only a strategy with a tracker has options for it; each option of a strategy is described."""
    assert {name for name in ALL if make(name).tracker_options} == {*PRIORITY}
    assert make("cpr_random", pool="all").tracker_options == {"r": 0.125, "pool": "all"}
    assert make("cpr_ssu", eviction="oldest", period=5).tracker_options == {"r": 0.125, "eviction": "oldest"}
    assert make("cpr_ssu", period=5).sample_period == 5
    assert [name for name in ALL if not make(name).injects_failures] == ["none"]
    assert all(field.description for options in OPTIONS.values() for field in options.model_fields.values())


def test_full_and_partial_save_everything_at_young_s_interval_and_the_controls_never() -> None:
    """Every T_save,full, as a whole number of samples."""
    for name in ("none", "never_save"):
        strategy = make(name)
        assert (strategy.next_save(at(0)), strategy.interval.samples, saves(strategy)) == (None, None, {})
        assert not strategy.saves_initially
    strategy = make("full")
    assert saves(make("partial")) == saves(strategy)
    interval = round(t_save_full_h(COSTS) / COSTS.job_h * COSTS.total_samples)
    assert strategy.interval.samples == interval
    due = range(interval, COSTS.total_samples, interval)
    assert list(saves(strategy)) == [-(-sample // BATCH) for sample in due]
    assert set(saves(strategy).values()) == {SavePlan(kind="full", closes_interval=True)}
    assert strategy.saves_initially


@pytest.mark.parametrize("name", ["cpr_mfu", "cpr_mirror"])
@pytest.mark.parametrize(
    ("batch", "interval", "r"),
    [(1, 4001, 0.125), (128, 4001, 0.125), (3000, 4001, 0.125), (7, 4001, 0.1), (10, 1000, 0.3)],
)
def test_priority_saves_fall_at_exact_multiples_and_close_where_vanilla_saves(
    name: str, batch: int, interval: int, r: float
) -> None:
    """Every r * interval, a fraction of decimals, at the first boundary at or after it; the first save at or after one
    of vanilla's closes the interval.
    """
    total = 13_000 // batch * batch
    vanilla = saves(make("cpr_vanilla", interval_samples=interval), batch=batch, total=total)
    quantum = Fraction(str(r)) * interval
    due = {int(-(-(number * quantum) // batch)) for number in range(1, int(total / quantum) + 2)}
    made = saves(make(name, interval_samples=interval, r=r), batch=batch, total=total)
    assert list(made) == sorted(step for step in due if step * batch < total)
    kinds = {"tracked", "with_mirror"} if name == "cpr_mirror" else {"priority"}
    assert {plan.kind for plan in made.values()} <= kinds
    closing = [step for step, plan in made.items() if plan.closes_interval]
    assert closing == sorted({min(step for step in made if step >= at) for at in vanilla if at <= max(made)})


@pytest.mark.parametrize("name", ["cpr_mfu", "cpr_ssu"])
def test_untracked_tables_may_wait_for_the_end_of_an_interval(name: str) -> None:
    """Same saves, closing the same intervals; the others of another kind. On fallback there is none of it."""
    usual, sparse = make(name, interval_samples=4001), make(name, interval_samples=4001, untracked="interval")
    kinds = {True: "priority", False: "tracked"}
    made = saves(usual)
    assert saves(sparse) == {
        step: dataclasses.replace(plan, kind=kinds[plan.closes_interval]) for step, plan in made.items()
    }
    assert {plan.closes_interval for plan in made.values()} == {True, False}
    costs = dataclasses.replace(COSTS, pls_target=0.0001)
    assert saves(make(name, costs, untracked="interval")) == saves(make("full", costs))


def test_differential_saves_and_recovers_as_full_or_partial() -> None:
    """At their boundaries, by kinds named after the bits; only 32 bits are said to be exact."""
    for recovery in ("full", "partial"):
        for bits, kind in ((32, "differential"), (8, "differential_8"), (4, "differential_4"), (2, "differential_2")):
            strategy = make("differential", bits=bits, recovery=recovery)
            assert strategy.plan_recovery(DEAD, at(9)) == make(recovery).plan_recovery(DEAD, at(9))
            expected = {step: dataclasses.replace(plan, kind=kind) for step, plan in saves(make(recovery)).items()}
            assert saves(strategy) == expected
            assert kind in SAVE_KINDS
            assert strategy.restores_exactly == (bits == 32)
    assert all(make(name).restores_exactly for name in ALL)


@pytest.mark.parametrize(("name", "whole"), [("full", {}), ("cpr_vanilla", {}), ("cpr_mfu", {"r": 1.0})])
def test_nothing_is_saved_at_the_last_step(name: str, whole: dict[str, Any]) -> None:
    """A save due within the last step or at its end is not made; one step earlier it is."""
    strategy = make(name, interval_samples=1000, **whole)
    assert list(saves(strategy, total=1000)) == []
    assert list(saves(strategy, total=1010)) == [100]
    assert strategy.next_save(at(0, total=1000)) is None
    late = make(name, interval_samples=995, **whole)
    assert late.plan_save(at(100, total=1000)) is None
    assert late.next_save(at(99, total=1000)) == 995


def test_the_override_is_recorded_and_keeps_a_cpr_strategy_from_falling_back() -> None:
    """With a target that would fall back, a given interval still means partial recovery."""
    costs = dataclasses.replace(COSTS, pls_target=0.0001)
    for name in ("full", "partial", "cpr_vanilla", "cpr_mfu"):
        interval = make(name, costs, interval_samples=123).interval
        assert (interval.samples, interval.overridden, interval.fallback) == (123, True, False)
    plan = make("cpr_mfu", costs, interval_samples=123).plan_recovery(DEAD, at(5))
    assert plan.kinds == dict.fromkeys(DEAD, "checkpoint")


@pytest.mark.parametrize("name", ["cpr_vanilla", "cpr_ssu", "cpr_mirror"])
def test_on_fallback_a_cpr_strategy_decides_as_full_does(name: str) -> None:
    """Same saves, same recovery, no tracker; only the record says fallback."""
    costs = dataclasses.replace(COSTS, pls_target=0.0001)
    strategy, full = make(name, costs), make("full", costs)
    assert strategy.interval.fallback
    assert dataclasses.replace(strategy.interval, fallback=False) == full.interval
    assert (strategy.tracker, strategy.mirror) == (None, None)
    assert saves(strategy) == saves(full) != {}
    assert strategy.plan_recovery(DEAD, at(9)) == full.plan_recovery(DEAD, at(9))


def test_cpr_strategies_take_the_partial_interval() -> None:
    """cpr56's one save falls at 44.8 of 56 h; k = 4 quarters the interval unless told otherwise; 1/r is the divisor."""
    assert saves(make("cpr_vanilla")) == {1600: SavePlan(kind="full", closes_interval=True)}
    costs = dataclasses.replace(COSTS, ranks_per_failure=4)
    assert make("cpr_vanilla", costs).interval.samples == 4000
    assert make("cpr_vanilla", costs, interval_counts_ranks=False).interval.samples == 16_000
    made = (make("full"), make("cpr_mfu"), make("cpr_mfu", r=0.5))
    assert [strategy.interval.divisor for strategy in made] == [1, 8, 2]


def test_fallback_happens_where_partial_recovery_costs_no_less() -> None:
    """The decision is O_part(T_save,part) >= O_full(T_save,full); for cpr56 the turn is near a target of 0.0026."""
    decisions = {}
    for target in (0.0020, 0.0024, 0.0025, 0.0026, 0.0027, 0.003, 0.1):
        costs = dataclasses.replace(COSTS, pls_target=target)
        costs_more = o_part_h(costs, t_save_part_h(costs)) >= o_full_h(costs, t_save_full_h(costs))
        decisions[target] = make("cpr_vanilla", costs).interval.fallback
        assert decisions[target] == costs_more
    assert decisions[0.0024]
    assert not decisions[0.0027]


def test_recovery_names_the_dead_and_only_full_rollbacks() -> None:
    """full: everything from the checkpoint. never_save: initial values. All others: the dead shards' newest rows."""
    rare = {"full": "rollback", "differential": "rollback", "never_save": "initial", "cpr_mirror": "mirror"}
    rare |= {"buddy": "replica", "parity": "parity", "tiers": "rollback"}
    for name in sorted(set(ALL) - {"none"}):
        kind = rare.get(name, "checkpoint")
        assert make(name).plan_recovery(DEAD, at(9)).kinds == dict.fromkeys(DEAD, kind)
        assert kind in STRATEGIES[name].recoveries
    with pytest.raises(RunFailed, match="step 9: ps1, ps5 died"):
        make("none").plan_recovery(DEAD, at(9))


def test_buddy_restores_from_replicas_unless_the_buddy_died_too() -> None:
    """The buddy is the next rank, the first after the last; no save but the initial one unless an interval is set."""
    strategy = make("buddy")
    for dead, without_replica in (
        ({"ps1", "ps5"}, set()),
        ({"ps1", "ps2"}, {"ps1"}),
        ({"ps7", "ps0"}, {"ps7"}),
        ({f"ps{k}" for k in range(8)}, {f"ps{k}" for k in range(8)}),
    ):
        plan = strategy.plan_recovery(frozenset(dead), at(9))
        assert plan.kinds == {rank: "checkpoint" if rank in without_replica else "replica" for rank in dead}
    assert strategy.saves_initially
    assert not saves(strategy)
    assert list(saves(make("buddy", interval_samples=1000))) == list(range(100, 2000, 100))


@pytest.mark.parametrize(
    ("size", "lost", "from_checkpoint"),
    [
        (4, {"ps1", "ps5"}, set()),  # of two groups
        (4, {"ps0", "ps4"}, {"ps0", "ps4"}),  # each holds the parity of the other's group
        (4, {"ps1", "ps4"}, {"ps1"}),  # ps4 holds the parity of ps1
        (4, {"ps1", "ps2"}, {"ps1", "ps2"}),
        (3, {"ps0", "ps7"}, {"ps7"}),  # the last group has two ranks, and its parity is at the first
        (3, {"ps5", "ps6"}, {"ps5"}),
        (7, {"ps7"}, set()),
        (1, {"ps7", "ps0"}, {"ps7"}),
    ],
)
def test_parity_restores_a_rank_that_died_without_its_group_and_holder(
    size: int, lost: set[str], from_checkpoint: set[str]
) -> None:
    """Otherwise its newest saved rows; as for buddy with groups of one."""
    plan = make("parity", group_size=size).plan_recovery(frozenset(lost), at(9))
    assert {rank for rank, kind in plan.kinds.items() if kind == "checkpoint"} == from_checkpoint
    assert {*plan.kinds.values()} <= {"checkpoint", "parity"}
