"""The advice of `run.py plan --advise`, held to cases whose answer is known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import run as command_line
from harness.config.laws import Law
from harness.core.events import BUCKETS
from harness.core.overhead import t_save_part_h
from harness.core.plans import Costs
from harness.core.strategies import StrategyOptions, options_of
from harness.planning.advice import Standing, advise, best_of, turns
from harness.planning.spread import Spread, simulate_all, spread
from harness.traces.spec import GeneratorSpec
from tests.known_jobs import CPR56, small_job

COSTS = replace(CPR56, total_samples=560_000, mtbf_h=5.6, o_load_h=0.05, o_res_h=0.04)
PRICED = ("never_save", "full", "partial", "cpr_vanilla")


def options(*names: str) -> list[StrategyOptions]:
    return [options_of(name) for name in names]


def simulated(costs: Costs, *names: str, num_traces: int = 60) -> list[Spread]:
    law = Law(mtbf_h=costs.mtbf_h, group_probability=0.0)
    spec = GeneratorSpec(law=law, ranks=costs.num_ps, job_h=costs.job_h)
    return simulate_all(options(*names), small_job(costs), spec, num_traces, 1, on_progress=lambda *_: None)


def advised(costs: Costs, *names: str, margin: float, num_traces: int = 60) -> list[Standing]:
    return advise(simulated(costs, *names, num_traces=num_traces), options(*names), costs, margin)


def made(name: str, hours_K: list[float], pls_K: list[float]) -> Spread:
    """A strategy under traces with these hours of saves and these PLS."""
    found = np.zeros((len(hours_K), len(BUCKETS) + 3))
    found[:, 1], found[:, 2], found[:, -1] = pls_K, hours_K, np.array(hours_K) * 16
    return spread(options(name)[0], COSTS, [found])


def names(advice: Sequence[Standing]) -> list[str]:
    return [each.name for each in best_of(advice)]


def test_the_best_is_the_cheapest_that_is_shown_below_the_margin() -> None:
    """The upper bound of PLS counts, not its mean. Hours that differ in pairs by chance are a tie, however far they
    scatter; a strategy with an unknown price is not the best.
    """
    found = [
        made("never_save", [1.0, 2.0, 3.0, 2.0], [0.0, 0.0, 0.1, 0.3]),  # 0.1 on average, up to 0.24
        made("partial", [3.1, 4.0, 4.9, 4.0], [0.01] * 4),
        made("cpr_vanilla", [3.0, 4.0, 5.0, 3.9], [0.02] * 4),
        made("full", [4.0, 5.0, 6.0, 5.0], [0.0] * 4),
        made("buddy", [2.5, 3.5, 4.5, 3.4], [0.0] * 4),
    ]
    given = options(*(each.name for each in found))
    advice = advise(found, given, COSTS, 0.2)
    assert [each.name for each in advice] == ["cpr_vanilla", "partial", "full", "buddy", "never_save"]
    assert names(advice) == ["cpr_vanilla", "partial"]
    assert advice[0].node_h is not None
    assert advice[0].node_h.mean == pytest.approx(16 * 3.975)
    assert (advice[3].unpriced, advice[3].more_h.mean) == (("replica",), pytest.approx(-0.5))
    assert names(advise(found, given, COSTS, 0.25)) == ["never_save"]
    assert names(advise(found[4:], given[4:], COSTS, 0.2)) == []


def test_saves_that_cost_nothing_make_full_recovery_cost_no_more_than_partial() -> None:
    """A save at every boundary loses nothing; a load and a reschedule are charged to all."""
    advice = advised(replace(COSTS, o_save_h=0.0), *PRICED, margin=1e-4)
    assert {*names(advice)} == {"full", "partial", "cpr_vanilla"}
    assert advice[0].hours.mean == pytest.approx(0.09 * COSTS.job_h / COSTS.mtbf_h, rel=0.1)
    assert (advice[0].pls.mean, advice[0].repeated_h.mean) == (0.0, 0.0)


def test_without_failures_the_fewest_saves_are_the_best() -> None:
    """Young's interval is shorter than the job, the one that meets a PLS target longer; at last all are."""
    rare = replace(COSTS, mtbf_h=1e5, o_save_h=0.005)
    advice = advised(rare, *PRICED, margin=0.0)
    assert {*names(advice)} == {"never_save", "cpr_vanilla"}
    hours = {each.name: each.hours.mean for each in advice}
    assert hours == {"never_save": 0, "cpr_vanilla": 0, "full": pytest.approx(0.005), "partial": pytest.approx(0.005)}
    assert {*names(advised(replace(rare, mtbf_h=1e9), *PRICED, margin=0.0))} == {*PRICED}


def test_a_margin_of_nothing_asks_for_full_recovery() -> None:
    assert names(advised(COSTS, *PRICED, margin=0.0)) == ["full"]


def test_the_price_of_a_save_at_which_youngs_interval_is_the_better_one_is_found() -> None:
    """``partial`` saves every sqrt(2 O T), ``cpr_vanilla`` every T_part; so the rarer saves are those of ``partial``
    from O = T_part² / 2T on. Known to 9 %, and to one save more or less of ten in the job. A margin below the PLS of
    ``cpr_vanilla`` leaves ``full``.
    """
    costs = replace(COSTS, pls_target=0.06, o_save_h=0.0)
    turn_h = t_save_part_h(costs) ** 2 / (2 * costs.mtbf_h)
    costs = replace(costs, o_save_h=turn_h / 5)

    def at(factor: float) -> list[Standing]:
        changed = replace(costs, o_save_h=factor * costs.o_save_h)
        return advised(changed, "partial", "cpr_vanilla", margin=1.0, num_traces=10)

    assert at(1)[0].name == "cpr_vanilla"
    assert turns("cpr_vanilla", at) == [(pytest.approx(5, rel=0.2), ["partial"])]
    found = simulated(costs, "full", "cpr_vanilla")
    factor = found[1].pls.mean / 0.1
    both = options("full", "cpr_vanilla")
    by_margin = turns("cpr_vanilla", lambda factor: advise(found, both, costs, factor * 0.1))
    assert by_margin == [(pytest.approx(factor, rel=0.2), ["full"])]


def test_plan_says_the_advice_and_what_would_change_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["plan", "cpr56_priced", "--simulate", "100", "--advise", "0.1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-7].startswith("advice: cpr_vanilla: 0.2")
    assert said[-7].endswith(", margin 0.1")
    assert said[-6].startswith("next: partial, ")
    assert said[-5].startswith("or buddy, if the replica, whose price is unknown, cost below ")
    assert said[-4].startswith("or parity, if the parity, whose price is unknown, cost below ")
    assert [line.split(":")[0] for line in said[-3:]] == ["MTBF 28 h", "O_save 5.6 min", "margin 0.1"]
    assert "node-hours unknown (profile.num_trainers)" not in said[-7]
