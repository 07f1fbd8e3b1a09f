"""The event-driven simulator against a walk over every boundary, and against exact expectations on the wall clock."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.config.laws import Law
from harness.core.errors import ConfigError
from harness.core.faults import PlannedFault, Strike
from harness.core.overhead import o_full_h, o_full_interrupted_h, o_part_h, o_part_interrupted_h
from harness.core.placement import Placement
from harness.core.plans import Costs, Progress, SavePlan, ps_rank, trainer_rank
from harness.core.pls import rank_weights
from harness.core.strategies import OPTIONS, STRATEGIES, Full, Strategy, make_strategy, options_of
from harness.planning.simulate import Job, Outcome, SaveSizes, due_saves, save_sizes, saves_of, simulate
from harness.planning.spread import planned_kills_at
from harness.store.kinds import RowCounts
from harness.traces.draw import WALL_LENGTH
from harness.traces.generate import generate_many
from harness.traces.spec import GeneratorSpec
from tests.known_jobs import CPR56, planned_under, small_job

NUM_STEPS, BATCH, NUM_PS = 400, 8, 4
COSTS = replace(
    CPR56, mtbf_h=5.6, o_save_h=0.1, o_load_h=0.04, o_res_h=0.05, num_ps=NUM_PS, total_samples=NUM_STEPS * BATCH
)
COSTS = replace(COSTS, tier_frac={"disk": 1.0, "memory": 1.0})
JOB = Job(
    costs=COSTS,
    batch_size=BATCH,
    num_steps=NUM_STEPS,
    weights=rank_weights(Placement("row", (10,), NUM_PS)),
    sizes=SaveSizes(
        ranks=[RowCounts(all=240, tracked=230, chosen=10, mirrored=5)],
        width=1,
        dense=40,
        shards={ps_rank(k): 240 for k in range(NUM_PS)},
    ),
)


def draw_strikes(rng: random.Random) -> tuple[PlannedFault, ...]:
    """Up to a dozen strikes of one to three ranks, boundaries 0 and the last among them."""
    steps = sorted(rng.sample([0, 1, NUM_STEPS - 1, *range(2, NUM_STEPS - 1)], rng.randrange(12)))
    ranks = [tuple(ps_rank(i) for i in sorted(rng.sample(range(NUM_PS), rng.randint(1, 3)))) for _ in steps]
    return tuple(
        PlannedFault(step=step, strikes=dict.fromkeys(who, Strike(0.0, 1)))
        for step, who in zip(steps, ranks, strict=True)
    )


def walk(strategy: Strategy, planned_kills: Sequence[PlannedFault]) -> tuple[float, float, int, int]:
    """(PLS, lost hours, bytes saved, saves): every step run, lost steps run again, every boundary asked."""
    pending = {planned_kill.step: planned_kill for planned_kill in planned_kills}
    step, lost_steps, num_bytes, num_saves = 0, 0, 0, 0
    held: dict[str, int] = {"shared": 0}
    since = dict.fromkeys(JOB.weights, 0)
    pls_samples = 0
    while True:
        saved_step = max(held.values())
        progress = Progress(
            step=step,
            samples=step * BATCH,
            previous_samples=max(0, step - 1) * BATCH,
            total_samples=COSTS.total_samples,
            saved_step=saved_step,
            saved_samples=saved_step * BATCH,
        )
        plan = strategy.plan_save(progress) if step > saved_step else None
        if plan:
            held[plan.tier], num_saves = step, num_saves + 1
            num_bytes += {"priority": 160, "tracked": 120, "with_mirror": 200}.get(plan.kind, 1000)
            if plan.closes_interval:
                since = dict.fromkeys(since, step)
        planned_kill = pending.pop(step, None)
        for tier in strategy.lost_tiers(frozenset(planned_kill.ranks), planned_kill.injection) if planned_kill else ():
            held.pop(tier, None)
        saved_step = max(held.values())
        recovery = planned_kill and strategy.plan_recovery(frozenset(planned_kill.ranks), progress)
        if recovery and "rollback" in recovery.kinds.values():
            lost_steps, step = lost_steps + step - saved_step, saved_step
        elif recovery:
            for rank in (rank for rank, kind in recovery.kinds.items() if kind not in ("replica", "parity")):
                pls_samples += (step - since[rank]) * BATCH
                since[rank] = step
        if step == NUM_STEPS:
            return pls_samples / COSTS.total_samples / NUM_PS, lost_steps / NUM_STEPS * 56, num_bytes, num_saves
        step += 1


def test_a_spare_is_ready_again_by_the_hours_of_the_saves_before() -> None:
    """Two deaths of a rank 0.14 h apart, and a spare, ready again after 1 h, which a save between them takes."""
    costs = replace(COSTS, o_save_h=1.0, o_res_h=1.0, spare_o_res_h=0.25, num_spares=1)
    deaths = [PlannedFault(step=step, strikes={trainer_rank(1): Strike(0.0, 1)}, num_trainers=2) for step in (10, 11)]
    for interval, expected_h in ((10 * BATCH, 0.25 + 1.0), (11 * BATCH, 0.25 + 0.25)):
        strategy = make_strategy(options_of("full", interval_samples=interval), costs)
        found = simulate(strategy, replace(JOB, costs=costs), deaths)
        assert found.reschedule_h == pytest.approx(expected_h), interval


def draw_tiers(rng: random.Random, interval: int | None) -> dict[str, int | None]:
    """Samples between saves of two tiers, each with saves at which none that survives more saves too."""
    drawn: dict[str, int | None] = {"interval_samples": interval}
    for tier in ("disk", "memory"):
        safer = [samples for samples in drawn.values() if samples is not None]
        own = [samples for samples in (8, 30, 70, 500) if all(samples % other for other in safer)]
        drawn[f"{tier}_samples"] = rng.choice([None, *own])
    return drawn


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"none"}))
def test_the_simulator_equals_a_walk_over_every_boundary(name: str) -> None:
    """PLS, lost hours, bytes and saves of random schedules, at intervals from below a batch to beyond the job."""
    rng = random.Random(name)
    for interval in (None, 1, 8, 60, 250, 801, 3192, 5000):
        untracked = "interval" if name == "cpr_mirror" else rng.choice(["priority", "interval"])
        settings = {"interval_samples": interval, "r": rng.choice([0.125, 0.3, 0.1, 1.0]), "untracked": untracked}
        settings |= {**draw_tiers(rng, interval), "kill_loses": rng.choice(["process", "node"])}
        own = {key: value for key, value in settings.items() if key in OPTIONS[name].model_fields}
        strategy = make_strategy(options_of(name, **own), COSTS)
        for _ in range(10 if name == "tiers" else 2):
            planned_kills = draw_strikes(rng)
            outcome = simulate(strategy, JOB, planned_kills)
            pls, lost_h, num_bytes, num_saves = walk(strategy, planned_kills)
            assert (outcome.payload_bytes, outcome.num_saves) == (num_bytes, num_saves)
            assert outcome.pls == pytest.approx(pls, rel=1e-12)
            assert outcome.lost_h == pytest.approx(lost_h, rel=1e-12)
            assert outcome.load_h == pytest.approx(len(planned_kills) * 0.04)
            assert outcome.reschedule_h == pytest.approx(len(planned_kills) * 0.05)


class Adaptive(Full):
    """Saves 40 samples after the newest save for as long as that lies in the first half, then after 100."""

    def __init__(self, asked: list[Progress]) -> None:
        super().__init__(Full.Options(name="full"), COSTS)
        self.asked = asked

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """At the first boundary that the forecast of the newest save names."""
        self.asked.append(progress)
        assert progress.saved_samples is not None
        return SavePlan(kind="full") if progress.samples >= self._due(progress.saved_samples) else None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """The newest save's, None beyond the run."""
        assert progress.saved_samples is not None
        due = self._due(progress.saved_samples)
        return due if due < progress.total_samples else None

    def _due(self, saved_samples: int) -> int:
        return saved_samples + (40 if saved_samples < COSTS.total_samples // 2 else 100)


def test_an_adaptive_strategy_is_asked_with_what_is_true() -> None:
    """It is asked where it forecast a save, with the newest save of then, and never before."""
    asked: list[Progress] = []
    saves = saves_of(Adaptive(asked), batch_size=BATCH, num_steps=NUM_STEPS, total_samples=COSTS.total_samples)
    steps = [step for step, _ in saves]
    assert steps == [*range(5, 201, 5), *range(213, 400, 13)]
    assert [progress.step for progress in asked] == steps
    assert [progress.saved_step for progress in asked] == [0, *steps[:-1]]


def test_sizes_add_up_over_shards() -> None:
    """Tables of 100 and 30 rows on 4 ranks, the first tracked: K = floor(25/8) = 3 rows and ids on each.

    A mirror of 2 rows of each rank is in saves at the end of an interval only.
    """

    def sizes(share: float) -> SaveSizes:
        return save_sizes(Placement("row", (100, 30), 4), width=16, dense_bytes=7, tracked=(0,), r=0.125, share=share)

    assert sizes(0).full.num == 130 * 64 + 7
    assert sizes(0).of("priority").num == 4 * 3 * (64 + 4) + 30 * 64 + 7
    assert sizes(0.08).of("tracked").num == 4 * 3 * (64 + 4) + 7
    assert sizes(0.08).of("with_mirror").num == 4 * 5 * (64 + 4) + 30 * 64 + 7
    assert sizes(1.0).of("tracked").num == 7, "no row is left to choose"
    assert sizes(1.0).of("with_mirror").num == 100 * (64 + 4) + 30 * 64 + 7
    with pytest.raises(ConfigError, match=r"kind of save: expected one of full, .*, got 'no such'"):
        sizes(0).of("no such")


@pytest.mark.parametrize("name", ["full", "partial", "never_save"])
def test_only_lost_ranks_are_failures(name: str) -> None:
    """Writes that fail and bits that flip are no deaths. A failure costs ``detect_h`` more, once, if ranks hang;
    else ``detect_death_h``, if that is not the longer of both.
    """
    text = "hour,rank,fault\n9,ps2,disk_full\n20,ps3,bitflip\n30,ps0,kill\n40,ps1,hang\n40,ps2,hang\n"
    planned = planned_under(text.splitlines(), COSTS, BATCH)
    for death_h, expected_h in ((0.0, 0.5), (0.25, 0.75), (0.75, 1.5)):
        costs = replace(COSTS, detect_h=0.5, detect_death_h=death_h)
        outcome = simulate(make_strategy(options_of(name), costs), replace(JOB, costs=costs), planned)
        assert outcome.num_failures == 2
        assert outcome.reschedule_h == pytest.approx(2 * COSTS.o_res_h + expected_h)


# --- the wall clock ---------------------------------------------------------------------------------------------------

WALL = replace(CPR56, mtbf_h=3.09, total_samples=2_000_000)
"""`cpr56` with a failure every 3.09 h, as in `preset-llama3`: full recovery costs more than a quarter of the job."""


def outcomes_of(job: Job, name: str, num_traces: int) -> list[Outcome]:
    """The outcomes of one strategy under Poisson failures, which go on after the job's end."""
    strategy = make_strategy(options_of(name), job.costs)
    saves, length_h = due_saves(strategy, job), job.costs.job_h * WALL_LENGTH
    spec = GeneratorSpec(law=Law(mtbf_h=job.costs.mtbf_h), ranks=8, job_h=length_h)
    deaths = generate_many(spec, 7, num_traces)
    return [simulate(strategy, job, planned_kills_at(*deaths.of(k), job), saves) for k in range(num_traces)]


def full_overhead_h(costs: Costs, interval_h: float) -> float:
    """Expected overhead of full recovery on the wall clock under Poisson failures, steps taken as infinitely short.

    With t hours between saves, s hours a save, R = O_load + O_res and rate l = 1 / T_fail: to train t hours without a
    failure takes (exp(l t) - 1) / l hours and exp(l t) - 1 failures. A failure costs R, and each R is followed by
    another with probability 1 - exp(-l R), so R exp(l R). The hours of a save have a failure with probability
    1 - exp(-l s), which strikes when the save is done and loses nothing but R exp(l R). The last interval has no save.
    """
    rate, save_h = 1 / costs.mtbf_h, costs.o_save_h
    wait_h = costs.o_load_h + costs.o_res_h
    failure_h = wait_h * math.exp(rate * wait_h)

    def training_h(hours: float) -> float:
        num_failures = math.exp(rate * hours) - 1
        return num_failures / rate - hours + num_failures * failure_h

    num_saves, rest_h = divmod(costs.job_h, interval_h)
    each_h = training_h(interval_h) + save_h + (1 - math.exp(-rate * save_h)) * failure_h
    return num_saves * each_h + training_h(rest_h)


def test_full_recovery_costs_what_memoryless_failures_make_it_cost() -> None:
    """The mean over traces equals the exact expectation.

    T_fail is the mean of hours per failure, overhead included.
    """
    found = outcomes_of(replace(small_job(WALL), clock="wall"), "full", 150)
    interval: Any = make_strategy(options_of("full"), WALL).interval.samples
    expected = full_overhead_h(WALL, interval / WALL.total_samples * WALL.job_h) / WALL.job_h
    overheads = np.array([outcome.overhead_frac for outcome in found])
    error = float(np.std(overheads, ddof=1)) / len(overheads) ** 0.5
    assert abs(overheads.mean() - expected) < 3 * error + 1e-3, "a step of 0.003 h for each of two dozen failures"
    num_failures = sum(outcome.num_failures for outcome in found)
    hours = WALL.job_h * (len(found) + overheads.sum())
    assert hours / num_failures == pytest.approx(WALL.mtbf_h, rel=3 / num_failures**0.5 + 0.01)


@pytest.mark.parametrize(("name", "save_h"), [("full", 0.5), ("partial", 0.5), ("partial", 2.0), ("never_save", 0.0)])
def test_interrupted_saves_and_recoveries_cost_what_the_closed_form_says(name: str, save_h: float) -> None:
    """The mean over Poisson traces equals it; the first-order form is far off. The last of 28 intervals has no save."""
    costs = replace(WALL, o_save_h=save_h, o_load_h=0.5, o_res_h=0.4, detect_death_h=0.1)
    job, interval_h = replace(small_job(costs), clock="wall", interrupts=True), costs.job_h / 28
    options = {"interval_samples": costs.samples_of(interval_h)} if save_h else {}
    strategy, rng = make_strategy(options_of(name, **options), costs), np.random.default_rng(1)
    saves, found = due_saves(strategy, job), list[float]()
    for _ in range(300):
        hours_E = np.cumsum(rng.exponential(costs.mtbf_h, 400))
        planned = planned_kills_at(hours_E, rng.integers(0, costs.num_ps, 400), job)
        outcome = simulate(strategy, job, planned, saves)
        assert outcome.total_h is not None
        assert outcome.total_h + costs.job_h < hours_E[-1]
        found.append(outcome.total_h)
    form, first_order = (o_full_interrupted_h, o_full_h) if name == "full" else (o_part_interrupted_h, o_part_h)
    most, last = (replace(costs, job_h=costs.job_h * part) for part in (27 / 28, 1 / 28))
    expected_h = form(most, interval_h) + form(replace(last, o_save_h=0.0), interval_h)
    mean_h, error_h = float(np.mean(found)), float(np.std(found, ddof=1)) / len(found) ** 0.5
    assert abs(mean_h - expected_h) < 3 * error_h
    assert mean_h - first_order(costs, interval_h) > 5 * error_h
