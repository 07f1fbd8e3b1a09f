"""benchmarks/cpr56.py against exact expectations, derived here without the ledgers or strategies.

Let failures be n independent draws, each striking boundary s with probability m_s and taking k of N ranks at random.
Between two saves, a rank's deaths at boundaries s1 <= s2 <= ... add (s1 - a) + (s2 - s1) + ... samples, a being the
save before them: together just (last - a). So

    E[PLS] = 1 / (S_total N)  sum over ranks, periods  E[last death of the rank in the period - start of the period]

and, a failure taking a given rank with probability q = k / N, a rank's last death lies beyond s with probability
1 - (1 - q m(s, end])^n, so E[last - a] = sum over s in the period of B (1 - (1 - q m(s, end])^n). Exact: the edge at
the end of the job, repeated deaths and the rounding to boundaries are all in m. All ranks alike, N cancels. With
``pls_since: save`` deaths do not telescope, and E = n q sum m_s (s - a(s)) B / S_total.
"""

import math
import statistics
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest

from benchmarks.cpr56 import STRATEGIES, draw_schedules, expected_h, kaggle_job, run_all
from harness.config.model import MetricsConfig
from harness.core.strategies import make_strategy, options_of
from harness.planning.simulate import Outcome, due_saves
from tests.forked import said_by
from tests.started import benchmark

NUM_SCHEDULES = 600
NUM_STEPS, BATCH = 39_291_958 // 128, 128
TOTAL = NUM_STEPS * BATCH
JOB_H, MTBF_H, O_SAVE_H, NUM_PS = 56.0, 28.0, 5.6 / 60, 8
FULL_H = math.sqrt(2 * O_SAVE_H * MTBF_H)
PERIOD_H = {
    "never_save": math.inf,
    "partial": FULL_H,
    "full": FULL_H,
    **dict.fromkeys(("cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu", "cpr_mirror"), 2 * 0.1 * NUM_PS * MTBF_H),
}


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


def expected_since_save(period_h: float) -> float:
    """Mean samples since the last save at a failure, as a fraction of all."""
    bounds = np.asarray(save_boundaries(period_h))
    steps_S = np.arange(NUM_STEPS)
    since_S = steps_S - bounds[np.searchsorted(bounds, steps_S, side="right") - 1]
    return float(strike_mass() @ since_S) / NUM_STEPS


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Outcome]]:
    """All strategies over the same schedules."""
    schedules = draw_schedules(kaggle_job("cpr56", options_of("full")), NUM_SCHEDULES, seed=1)
    every = {name: options_of(name) for name in STRATEGIES}
    return {name: run_all(options, kaggle_job("cpr56", options), schedules) for name, options in every.items()}


def assert_mean(values: list[float], expected: float) -> None:
    """The mean is within 4 standard errors of ``expected``."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert abs(statistics.fmean(values) - expected) <= 4 * error


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("full", 0.082, 0.085), ("partial", 0.042, 0.045), ("cpr_vanilla", 0.0045, 0.0055), ("cpr_mfu", 0.005, 0.006)],
)
def test_emulated_overhead_is_at_the_published_level(
    outcomes: dict[str, list[Outcome]], name: str, low: float, high: float
) -> None:
    """Mean overhead of two failures, as a fraction of the job. SSU's list is no longer than MFU's choice."""
    assert low <= statistics.fmean(outcome.overhead_frac for outcome in outcomes[name]) <= high
    for mfu, ssu in zip(outcomes["cpr_mfu"], outcomes["cpr_ssu"], strict=True):
        assert ssu.overhead_frac <= mfu.overhead_frac


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "full"])
def test_mean_pls_is_its_exact_expectation(outcomes: dict[str, list[Outcome]], name: str) -> None:
    """Within 4 standard errors; priority strategies lose by this measure what vanilla loses."""
    expected = expected_pls(PERIOD_H[name], num_failures=2, per_failure=1, num_ps=NUM_PS)
    assert_mean([outcome.pls for outcome in outcomes[name]], expected)


def test_full_recovery_has_no_pls_and_loses_the_expected_hours(outcomes: dict[str, list[Outcome]]) -> None:
    """PLS exactly 0; lost computation two failures' time since the last save."""
    assert {outcome.pls for outcome in outcomes["full"]} == {0.0}
    lost_h = [outcome.lost_h for outcome in outcomes["full"]]
    assert_mean(lost_h, 2 * expected_since_save(FULL_H) * JOB_H)


def test_since_save_has_its_own_expectation() -> None:
    """With ``pls_since: save`` both deaths count from the save; that is more than with restores counted."""
    options = options_of("cpr_vanilla")
    job = kaggle_job("cpr56", options, MetricsConfig(pls_since="save"))
    schedules = draw_schedules(job, NUM_SCHEDULES, seed=2)
    pls = [outcome.pls for outcome in run_all(options, job, schedules)]
    assert_mean(pls, 2 * expected_since_save(PERIOD_H["cpr_vanilla"]) / NUM_PS)


@pytest.mark.parametrize(("counts_ranks", "period_h"), [(True, 9.0), (False, 36.0)])
def test_poster50_meets_its_expectation_with_and_without_k(counts_ranks: bool, period_h: float) -> None:
    """Five failures of 4 of 18 ranks: intervals of 9 h and 36 h, mean PLS as derived above."""
    options = options_of("cpr_vanilla", interval_counts_ranks=counts_ranks)
    job = kaggle_job("poster50", options)
    schedules = draw_schedules(job, 400, seed=3)
    pls = [outcome.pls for outcome in run_all(options, job, schedules)]
    # Hours enter only as a fraction of the job.
    expected = expected_pls(period_h * JOB_H / 50, num_failures=5, per_failure=4, num_ps=18)
    assert_mean(pls, expected)


@pytest.mark.parametrize(("profile", "mode"), [("cpr56_priced", "sync"), ("poster50_priced", "async")])
@pytest.mark.parametrize("name", ["never_save", "full", "partial", "cpr_mfu"])
def test_priced_hours_meet_their_exact_expectation(name: str, profile: str, mode: Literal["sync", "async"]) -> None:
    """Within 4 standard errors; two failures at one boundary, which happen once in 150,000 schedules, give the rest."""
    options = options_of(name)
    job = kaggle_job(profile, options, mode=mode)
    outcomes = run_all(options, job, draw_schedules(job, 250, seed=4))
    strategy = make_strategy(options, job.costs)
    exact_h = expected_h(strategy, job, due_saves(strategy, job))
    assert exact_h is not None
    hours = [outcome.overhead_frac * job.costs.job_h for outcome in outcomes]
    error_h = statistics.stdev(hours) / math.sqrt(len(hours))
    assert abs(statistics.fmean(hours) - exact_h) <= 4 * error_h + 1e-4 * exact_h
    assert outcomes[0].node_h == pytest.approx(hours[0] * {"cpr56_priced": 16, "poster50_priced": 38}[profile])


def test_the_benchmark_prints_its_table() -> None:
    """One row per strategy."""
    table = said_by(benchmark, "cpr56.py", ("--schedules", "4"))
    assert [line.split()[1] for line in table.splitlines() if line.startswith("| ")] == ["strategy", *STRATEGIES]
