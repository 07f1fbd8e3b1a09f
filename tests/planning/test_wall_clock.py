"""Failures on the wall clock, without training: their number and their cost against exact expectations."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.core.placement import Placement
from harness.core.plans import Costs
from harness.core.pls import rank_weights
from harness.core.strategies import make_strategy, options_of
from harness.planning.advisor import planned_kills_at
from harness.planning.simulate import Job, Outcome, due_saves, save_sizes, simulate
from harness.traces.generate import generate_many
from harness.traces.regime import WALL_LENGTH
from harness.traces.spec import GeneratorSpec
from tests.known_jobs import CPR56

COSTS = replace(CPR56, mtbf_h=3.09, total_samples=2_000_000)
"""`cpr56` with a failure every 3.09 h, as in `preset-llama3`: full recovery costs more than a quarter of the job."""

PLACEMENT = Placement("row", (1000,) * 26, COSTS.num_ps)
JOB = Job(
    costs=COSTS,
    batch_size=100,
    num_steps=20_000,
    weights=rank_weights(PLACEMENT),
    sizes=save_sizes(PLACEMENT, width=16, dense_bytes=0, tracked=range(7), r=0.125),
)


def outcomes_of(job: Job, name: str, num_traces: int) -> list[Outcome]:
    """The outcomes of one strategy under Poisson failures, which go on after the job's end."""
    strategy = make_strategy(options_of(name), job.costs)
    saves = due_saves(strategy, job)
    length_h = job.costs.job_h * (WALL_LENGTH if job.clock == "wall" else 1)
    deaths = generate_many(GeneratorSpec(mtbf_h=job.costs.mtbf_h, ranks=8, length_h=length_h), 7, num_traces)
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
    """The mean over traces equals the exact expectation, which the clock of samples stays below."""
    found = {clock: outcomes_of(replace(JOB, clock=clock), "full", 400) for clock in ("samples", "wall")}
    interval = make_strategy(options_of("full"), COSTS).interval.samples
    assert interval is not None
    expected = full_overhead_h(COSTS, interval / COSTS.total_samples * COSTS.job_h) / COSTS.job_h
    wall = np.array([outcome.overhead_frac for outcome in found["wall"]])
    samples = np.array([outcome.overhead_frac for outcome in found["samples"]])
    assert 0.2 < samples.mean() < wall.mean() < 0.3
    error = float(np.std(wall, ddof=1)) / len(wall) ** 0.5
    assert abs(wall.mean() - expected) < 3 * error + 1e-3, "a step of 0.003 h for each of two dozen failures"
    assert samples.mean() < expected - 4 * error


@pytest.mark.parametrize("name", ["full", "partial", "cpr_mfu"])
def test_a_job_meets_the_failures_of_all_its_hours(name: str) -> None:
    """On the wall clock T_fail is the mean of hours per failure, overhead included; on that of samples it is not."""
    wall = outcomes_of(replace(JOB, clock="wall"), name, 150)
    samples = outcomes_of(JOB, name, 150)
    hours = sum(COSTS.job_h * (1 + outcome.overhead_frac) for outcome in wall)
    num_failures = sum(outcome.num_failures for outcome in wall)
    assert hours / num_failures == pytest.approx(COSTS.mtbf_h, rel=3 / num_failures**0.5 + 0.01)
    assert num_failures > sum(outcome.num_failures for outcome in samples)
