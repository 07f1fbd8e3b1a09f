"""The judges of a soak can fail, and its rounds are drawn as they promise. Rounds by the thousand are run by hand."""

import re
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from harness.config.combinations import refuse_combinations
from harness.config.derived import job_costs
from harness.config.model import Config
from harness.core.events import Event, Injected, Lost, Regrouped, Trained
from harness.core.plans import CHIEF
from harness.core.seeds import generator
from harness.core.strategies import STRATEGIES, make_strategy
from tests.forked import ran
from tests.soak import chaos
from tests.soak.chaos import (
    late_detections,
    too_rare,
)
from tests.soak.chaos_draws import CELLS, FAULT_TURNS, JOIN_TIMEOUT_S, RPC_TIMEOUT_S, drawn
from tests.soak.resume import judged_stop

AT: dict[str, Any] = {"step": 9, "samples": 72}


@pytest.mark.slow
def test_a_round_of_chaos_leaves_nothing_wrong() -> None:
    """A short version of the long run: failures of a trace, signals to processes, and processes that stand still."""
    done = ran(_chaos, "--rounds", "1", "--first", "216")
    assert done.returncode == 0, done.stdout
    counts = ("signals", "faults of traces", "pauses", "restarts of all ranks")
    assert re.search(", ".join(rf"[1-9]\d* {what}" for what in counts) + ", 0 wrong", done.stdout), done.stdout


def _chaos(*arguments: str) -> None:
    sys.argv = ["chaos.py", *arguments]
    chaos.main()


def test_a_thousand_rounds_of_chaos_draw_everything_and_no_run_that_cannot_be() -> None:
    """Each strategy, clock and view; each signal and each fault of a trace in each phase, with a margin over 20.

    Traces kill trainer0 between two steps, alone and with all others. No settings of a round exclude each other.
    """
    rounds = [drawn(generator(1, "chaos", number), number) for number in range(1000)]
    assert {each.settings["strategy"]["name"] for each in rounds} == STRATEGIES.keys()
    assert {each.settings["wandb"]["mode"] for each in rounds} == {"offline", "disabled"}
    traces = [each.settings.get("trace", {}) for each in rounds]
    assert {trace.get("clock") for trace in traces} == {None, "wall"}
    assert {trace.get("inject") for trace in traces} == {None, "wall"}
    signals = Counter((fault.name, fault.phase) for each in rounds for faults in each.faults for fault in faults)
    assert min(signals[cell] for cell in CELLS) >= 28
    lines = [line.split(",") for each in rounds for line in each.trace.splitlines() if line.count(",") == 5]
    faults = Counter((fault, phase or "boundary") for _, _, phase, fault, *_ in lines)
    assert min(faults[cell] for cell in (*FAULT_TURNS, ("bitflip", "boundary"))) >= 28
    assert {(fault, phase) for _, rank, phase, fault, *_ in lines if rank == CHIEF} == {("kill", "boundary")}
    several = [each for each in rounds if CHIEF in each.trace and each.settings["cluster"]["num_trainers"] > 1]
    last = [f"trainer{each.settings['cluster']['num_trainers'] - 1}" for each in several]
    num_alone = sum(rank not in each.trace for each, rank in zip(several, last, strict=True))
    assert min(num_alone, len(several) - num_alone) >= 20
    for each in rounds:
        config = Config.model_validate(each.settings)
        refuse_combinations(config, make_strategy(config.strategy, job_costs(config, 1000)))


def test_a_fault_that_came_too_rarely_is_named() -> None:
    """Law: the exit code of a long run says so if a signal, or a fault of a trace, hardly came in one of its phases."""
    counts = Counter({("signal", *cell): 20 for cell in CELLS} | {("trace", *cell): 20 for cell in FAULT_TURNS})
    counts["trace", "bitflip", "boundary"] = 20
    assert too_rare(counts, 20) == []
    counts["signal", "stop a PS rank", "start"] -= 1
    del counts["trace", "hang", "regroup"]
    expected = ["stop a PS rank in start: 19 times, expected 20", "hang in regroup: 0 times, expected 20"]
    assert too_rare(counts, 20) == expected
    assert too_rare(counts, 0) == []


@pytest.mark.parametrize(("frac", "paused_s", "is_late"), [(1.09, 0.0, False), (1.15, 0.0, True), (1.15, 0.2, False)])
def test_a_hang_that_is_found_late_is_named(frac: float, paused_s: float, is_late: bool) -> None:
    """Law: a rank that a trace stops is found within its deadline and a tenth, pauses by chaos aside."""
    hang = Injected(**AT, rank="ps1", hour=1.0, line=3, fault="hang", phase="apply", loss="mute")
    lost = Lost(**AT, ranks=["ps1"], planned=True, unplanned_ranks=[], machine={"seconds": frac * RPC_TIMEOUT_S})
    assert bool(late_detections([hang, lost], paused_s)) == is_late
    mute = {"ps1": {"pid": 1, "action": "killed", "seconds": frac * JOIN_TIMEOUT_S}}
    regrouped = Regrouped(**AT, generation=1, replaced=["ps1"], machine={"mute": mute})
    assert bool(late_detections([regrouped], paused_s)) == is_late
    assert not late_detections([lost], 0.0), "a rank that no trace stopped"
    both = [hang, replace(hang, rank="trainer1")]
    assert bool(late_detections([*both, replace(lost, ranks=["ps1", "trainer1"])], paused_s)) == is_late
    joins = replace(lost, machine={"seconds": JOIN_TIMEOUT_S})
    assert bool(late_detections([*both, replace(lost, ranks=["trainer1"]), joins], paused_s)) == is_late


def test_a_step_lost_by_sigterm_is_named() -> None:
    """Law: a command that is asked to stop names a step at most one below its last recorded one, rollbacks aside."""
    events: list[Event] = [
        Trained(step=step, samples=8 * step, first_step=step - 5, losses=[0.0] * 5, rerun=False) for step in (5, 10)
    ]
    assert judged_stop("terminated; run.py train c.yaml goes on from step 9", events) == []
    assert "more than one step is lost" in judged_stop("terminated; ... goes on from step 8", events)[0]
    assert "no step is named" in judged_stop("terminated", events)[0]
