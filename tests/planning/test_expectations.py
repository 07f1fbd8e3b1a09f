"""The simulator against exact expectations at the shape of Criteo Kaggle, derived here without ledgers or strategies.

Let failures be n independent draws, each striking boundary s with probability m_s and taking k of N ranks at random.
Between two saves, a rank's deaths at boundaries s1 <= s2 <= ... add (s1 - a) + (s2 - s1) + ... samples, a being the
save before them: together just (last - a). So

    E[PLS] = 1 / (S_total N)  sum over ranks, periods  E[last death of the rank in the period - start of the period]

and, a failure taking a given rank with probability q = k / N, a rank's last death lies beyond s with probability
1 - (1 - q m(s, end])^n, so E[last - a] = sum over s in the period of B (1 - (1 - q m(s, end])^n). Exact: the edge at
the end of the job, repeated deaths and the rounding to boundaries are all in m. All ranks alike, N cancels. With
``pls_since: save`` deaths do not telescope, and E = n q sum m_s (s - a(s)) B / S_total.

Failures at one boundary are one: one happens at s with probability 1 - (1 - m_s)^n, and takes a given rank with it with
probability 1 - (1 - q m_s)^n.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harness.config.derived import job_costs
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES
from harness.core.faults import PlannedFault
from harness.core.overhead import load_price, save_price, steps_h
from harness.core.seeds import generator
from harness.core.strategies import Strategy, make_strategy, options_of
from harness.planning.simulate import Job, Outcome, due_saves, simulate
from harness.planning.spread import job_of, planned_kills_at
from tests.known_jobs import small_job

NUM_SCHEDULES = 300
BATCH = 128
NUM_STEPS = KAGGLE_TRAIN_SAMPLES // BATCH
TOTAL = NUM_STEPS * BATCH
JOB_H, MTBF_H, O_SAVE_H, NUM_PS = 56.0, 28.0, 5.6 / 60, 8
FULL_H = math.sqrt(2 * O_SAVE_H * MTBF_H)
PERIOD_H = {
    "never_save": math.inf,
    "partial": FULL_H,
    **dict.fromkeys(("cpr_vanilla", "cpr_mfu", "cpr_mirror"), 2 * 0.1 * NUM_PS * MTBF_H),
}


MEASURED = {"base": "cpr56_measured", "load": "by_bytes", "detect_death_h": 0.1, "num_trainers": 8}
BOUND = {**MEASURED, "io_bound": "link"}


def outcomes(
    strategy: dict[str, Any], profile: str | dict[str, Any] = "cpr56", **more: Any
) -> tuple[Job, list[Outcome]]:
    """A strategy over schedules of exactly ``job_h / mtbf_h`` failures at independent uniform hours."""
    config = Config.model_validate({"profile": profile, "strategy": strategy, "model": {"size": "kaggle"}, **more})
    job = job_of(config, job_costs(config, TOTAL), KAGGLE_CARDINALITIES)
    costs, rng, made = job.costs, generator(1, "schedules"), make_strategy(config.strategy, job.costs)
    num_failures, per_failure = round(costs.job_h / costs.mtbf_h), round(costs.ranks_per_failure)
    saves, found = due_saves(made, job), list[Outcome]()
    for _ in range(NUM_SCHEDULES):
        hours_E = np.repeat(np.sort(rng.uniform(0, costs.job_h, num_failures)), per_failure)
        ranks_E = np.concatenate([rng.permutation(costs.num_ps)[:per_failure] for _ in range(num_failures)])
        found.append(simulate(made, job, planned_kills_at(hours_E, ranks_E, job), saves))
    return job, found


def save_boundaries(period_h: float) -> list[int]:
    """Boundaries of the saves, 0 first and the end of the job last."""
    if math.isinf(period_h):
        return [0, NUM_STEPS]
    period = round(period_h / JOB_H * TOTAL)
    saves = (math.ceil(number * period / BATCH) for number in range(1, TOTAL // period + 1))
    return [0, *(step for step in saves if step < NUM_STEPS), NUM_STEPS]


def strike_mass() -> np.ndarray:
    """m_s: uniform samples rounded up to boundaries 1 ... n, the last moved to n - 1."""
    mass_S = np.full(NUM_STEPS, 1 / NUM_STEPS)
    mass_S[0] = 0
    mass_S[-1] = 2 / NUM_STEPS
    return mass_S


def expected_pls(period_h: float, *, num_failures: int, per_failure: int, num_ps: int) -> float:
    """E[PLS] with restores counted, as derived above."""
    mass_S, total = strike_mass(), 0.0
    bounds = save_boundaries(period_h)
    for start, end in pairwise(bounds):
        beyond_S = np.cumsum(mass_S[start:end][::-1])[::-1] - mass_S[start:end]  # m(s, end of the period)
        total += float(np.sum(1 - (1 - per_failure / num_ps * beyond_S) ** num_failures)) * BATCH
    return total / TOTAL


def since_save(period_h: float) -> np.ndarray:
    """Samples since the last save at each boundary, as a fraction of all."""
    bounds, steps_S = np.asarray(save_boundaries(period_h)), np.arange(NUM_STEPS)
    return (steps_S - bounds[np.searchsorted(bounds, steps_S, side="right") - 1]) / NUM_STEPS


def assert_mean(values: list[float], expected: float, slack: float = 0.0) -> None:
    """The mean is within 4 standard errors of ``expected``."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert abs(statistics.fmean(values) - expected) <= 4 * error + slack


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("full", 0.082, 0.085),
        ("partial", 0.042, 0.045),
        ("cpr_vanilla", 0.0045, 0.0055),
        ("cpr_mfu", 0.005, 0.006),
        *((name, 0.0, 1.0) for name in ("never_save", "cpr_mirror")),
    ],
)
def test_mean_pls_is_its_exact_expectation_at_the_published_overhead(name: str, low: float, high: float) -> None:
    """Within 4 standard errors; priority strategies lose by this measure what vanilla loses, full recovery nothing."""
    found = outcomes({"name": name})[1]
    assert low <= statistics.fmean(outcome.overhead_frac or 0.0 for outcome in found) <= high
    if name == "full":
        assert {outcome.pls for outcome in found} == {0.0}
    else:
        expected = expected_pls(PERIOD_H[name], num_failures=2, per_failure=1, num_ps=NUM_PS)
        assert_mean([outcome.pls for outcome in found], expected)


def test_since_save_has_its_own_expectation() -> None:
    """With ``pls_since: save`` both deaths count from the save; that is more than with restores counted."""
    _, found = outcomes({"name": "cpr_vanilla"}, metrics={"pls_since": "save"})
    expected = 2 * float(strike_mass() @ since_save(PERIOD_H["cpr_vanilla"])) / NUM_PS
    assert_mean([outcome.pls for outcome in found], expected)


@pytest.mark.parametrize(("counts_ranks", "period_h"), [(True, 9.0), (False, 36.0)])
def test_poster50_meets_its_expectation_with_and_without_k(counts_ranks: bool, period_h: float) -> None:
    """Five failures of 4 of 18 ranks: intervals of 9 h and 36 h, mean PLS as derived above."""
    _, found = outcomes({"name": "cpr_vanilla", "interval_counts_ranks": counts_ranks}, "poster50")
    # Hours enter only as a fraction of the job.
    expected = expected_pls(period_h * JOB_H / 50, num_failures=5, per_failure=4, num_ps=18)
    assert_mean([outcome.pls for outcome in found], expected)


@pytest.mark.parametrize(
    ("profile", "mode", "num_nodes"),
    [("cpr56_priced", "sync", 16), ("poster50_priced", "async", 38), (MEASURED, "sync", 16), (BOUND, "sync", 16)],
)
@pytest.mark.parametrize("name", ["never_save", "full", "partial", "cpr_mfu"])
def test_priced_hours_meet_their_exact_expectation(
    name: str, profile: str | dict[str, Any], mode: str, num_nodes: int
) -> None:
    """Within 4 standard errors; two failures at one boundary, which happen once in 150,000 schedules, give the rest."""
    job, found = outcomes({"name": name}, profile, save={"mode": mode})
    costs, config = job.costs, Config.model_validate({"strategy": {"name": name}})
    strategy, num_failures = make_strategy(config.strategy, costs), round(costs.job_h / costs.mtbf_h)
    fails_S = 1 - (1 - strike_mass()) ** num_failures
    takes_S = 1 - (1 - strike_mass() * round(costs.ranks_per_failure) / costs.num_ps) ** num_failures
    lost_h, loads = 0.0, {"never_save": 0.0, "full": fails_S.sum()}.get(name, takes_S.sum())
    read_frac = 1.0 if name == "full" else sum(job.sizes.shards.values()) / job.sizes.full.num
    if costs.io_bound == "link":  # each lost shard over its own; the shards are even
        read_frac, loads = 1.0, 0.0 if name == "never_save" else fails_S.sum()
    if name == "full":
        interval: Any = strategy.interval.samples
        lost_h = float(fails_S @ since_save(interval / TOTAL * JOB_H)) * costs.job_h
    due = due_saves(strategy, job)
    saves_h = sum(save_price(costs, size, job.sizes.full).stall_h for size in due.sizes)
    waits_h = fails_S.sum() * (costs.o_res_h + costs.detect_death_h)
    each_step_h = steps_h(costs, strategy.step_parts, lost_h) or 0.0
    assert (each_step_h > 0) == (name == "cpr_mfu" and costs.step_frac is not None)
    exact_h = saves_h + waits_h + load_price(costs, loads * read_frac) + lost_h + each_step_h
    hours = [outcome.total_h or 0.0 for outcome in found]
    assert_mean(hours, exact_h, slack=1e-4 * exact_h)
    assert found[0].node_h == pytest.approx(hours[0] * num_nodes)


# --- tiers, spares and returning nodes, which the closed forms of harness.core.overhead do not know -------------------

SMALL = replace(
    job_costs(Config(), 5_600_000),
    o_save_h=0.05,
    o_save_fixed_h=0.002,
    o_load_h=0.3,
    o_res_h=0.2,
    detect_death_h=0.03,
    tier_frac={"disk": 0.4, "memory": 0.1},
)


def values_over(
    job: Job,
    strategy: Strategy,
    draw: Callable[[np.random.Generator], tuple[PlannedFault, ...]],
    names: Sequence[str],
    num: int = NUM_SCHEDULES,
) -> dict[str, list[float]]:
    """The values ``names`` of the outcome under each of ``num`` schedules that ``draw`` gives."""
    saves, rng = due_saves(strategy, job), np.random.default_rng(3)
    found = [simulate(strategy, job, draw(rng), saves) for _ in range(num)]
    return {name: [getattr(outcome, name) for outcome in found] for name in names}


@pytest.mark.parametrize("kill_loses", ["process", "node"])
def test_saves_in_tiers_cost_what_is_expected(kill_loses: str) -> None:
    """Law: each failure reads the newest save that it leaves, at its tier's price, and the saves after it are repeated.

    Saves are every w, 5 w and 20 w steps, each in one tier, so that of 20 windows of w steps 16 begin with a save in
    memory, 3 on the disk and 1 on the shared one. A quarter of the failures takes a rank and its buddy, and with them
    all memory. A window is struck at steps 0 to w - 1 after its begin, (w - 1) / 2 in the mean.

    `process`: a single death leaves every tier. A pair leaves both disks: 0 to 4 whole windows are repeated, each with
    its save in memory. `node`: a single death in a window that began with a save on the disk goes back one window more,
    to one in memory, and repeats that save. A pair goes back to the shared disk.
    """
    window, job_windows, num_failures, pairs = 280, 200, 60, 0.25
    costs = SMALL
    job = replace(small_job(costs), num_steps=window * job_windows, batch_size=100)
    options = {"memory_samples": window * 100, "disk_samples": 5 * window * 100, "kill_loses": kill_loses}
    strategy = make_strategy(options_of("tiers", interval_samples=20 * window * 100, **options), costs)

    def draw(rng: np.random.Generator) -> tuple[PlannedFault, ...]:
        hours_E = np.sort(rng.uniform(0, costs.job_h, num_failures))
        num_ranks_E, first_E = 1 + (rng.random(num_failures) < pairs), rng.integers(0, costs.num_ps, num_failures)
        ranks_E = np.concatenate([(k + np.arange(n)) % costs.num_ps for k, n in zip(first_E, num_ranks_E, strict=True)])
        return planned_kills_at(np.repeat(hours_E, num_ranks_E), ranks_E, job)

    found = values_over(job, strategy, draw, ["save_h", "load_h", "lost_h", "reschedule_h"])
    window_h, step_h = costs.job_h / job_windows, costs.job_h / job.num_steps
    age_h = (window_h - step_h) / 2
    of_memory, of_disk, of_shared = (save_price(costs, tier=tier).stall_h for tier in ("memory", "disk", "shared"))
    load_h = {tier: load_price(costs, 1, tier) for tier in ("memory", "disk", "shared")}
    saves_h = 160 * of_memory + 30 * of_disk + 10 * of_shared - of_shared  # none at the end; the initial one is free
    if kill_loses == "process":
        single = (age_h, 0.0, 16 / 20 * load_h["memory"] + 3 / 20 * load_h["disk"] + 1 / 20 * load_h["shared"])
        pair = (2 * window_h + age_h, 2 * of_memory, 3 / 4 * load_h["disk"] + 1 / 4 * load_h["shared"])
    else:
        single = (
            3 / 20 * window_h + age_h,
            3 / 20 * of_disk,
            19 / 20 * load_h["memory"] + 1 / 20 * load_h["shared"],
        )
        pair = (9.5 * window_h + age_h, 8 * of_memory + 1.5 * of_disk, load_h["shared"])
    lost_h, again_h, loads_h = (
        num_failures * ((1 - pairs) * one + pairs * both) for one, both in zip(single, pair, strict=True)
    )
    for bucket, expected_h in {"lost_h": lost_h, "save_h": saves_h + again_h, "load_h": loads_h}.items():
        assert_mean(found[bucket], expected_h, slack=0.002 * expected_h)
    assert_mean(found["reschedule_h"], num_failures * (costs.o_res_h + costs.detect_death_h), slack=0.01)


def test_a_spare_is_there_as_often_as_is_expected() -> None:
    """Law: under Poisson failures one spare is missing for a share (1 - q) / (2 - q) of them, q = exp(-a / T_fail).

    A used spare is ready again after O_res, of which the job stands still for the load, the detection and the switch;
    in the other hours, a of them, the next failure strikes with probability 1 - q. It then waits O_res, and finds the
    spare ready afterwards.
    """
    costs = replace(SMALL, job_h=112.0, mtbf_h=0.5, o_res_h=0.9, spare_o_res_h=0.1, num_spares=1, o_load_h=0.15)
    costs = replace(costs, total_samples=20_000_000)
    job, strategy = small_job(costs), make_strategy(options_of("never_save"), costs)

    def draw(rng: np.random.Generator) -> tuple[PlannedFault, ...]:
        hours_E = np.cumsum(rng.exponential(costs.mtbf_h, 400))
        hours_E = hours_E[hours_E < costs.job_h]
        return planned_kills_at(hours_E, rng.integers(0, costs.num_ps, len(hours_E)), job)

    found = values_over(job, strategy, draw, ["reschedule_h", "num_failures"], num=100)
    trained_h = costs.o_res_h - 0.1 - costs.detect_death_h - 0.15
    q = math.exp(-trained_h / costs.mtbf_h)
    missing = (1 - q) / (2 - q)
    waits_h = missing * costs.o_res_h + (1 - missing) * 0.1 + costs.detect_death_h
    assert_mean(found["num_failures"], costs.job_h / costs.mtbf_h)
    assert_mean(found["reschedule_h"], costs.job_h / costs.mtbf_h * waits_h)


def test_nodes_that_return_cost_what_is_expected() -> None:
    """Law: a death costs a regroup and the load of a shard, and so does the return of its node within the job.

    For ``repair_h`` the shard is at one of the N - 1 other nodes. If that one dies, two shards are loaded.
    """
    costs, repair_h, num_failures = replace(SMALL, load="by_bytes", num_trainers=2), 2.0, 6
    job, strategy = replace(small_job(costs), shrinks=True), make_strategy(options_of("partial"), costs)

    def draw(rng: np.random.Generator) -> tuple[PlannedFault, ...]:
        hours_E = np.sort(rng.uniform(0, costs.job_h, num_failures))
        return planned_kills_at(hours_E, rng.permutation(costs.num_ps)[:num_failures], job, [repair_h] * num_failures)

    found = values_over(job, strategy, draw, ["reschedule_h", "load_h"])
    returns = num_failures * (1 - repair_h / costs.job_h)
    assert_mean(found["reschedule_h"], num_failures * (costs.o_res_h + costs.detect_death_h) + returns * costs.o_res_h)
    apart = repair_h / costs.job_h
    hosts_dead = num_failures * (num_failures - 1) / 2 * (2 * apart - apart**2) / (costs.num_ps - 1)
    assert_mean(found["load_h"], (num_failures + returns + hosts_dead) * costs.o_load_h / costs.num_ps)
