"""The judges of a soak can fail, and its rounds are drawn as they promise. Rounds by the thousand are run by hand."""

import os
import re
import socket
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness.config.combinations import refuse_combinations
from harness.config.derived import job_costs
from harness.config.model import Config
from harness.core.events import Event, Injected, Lost, Recovered, Regrouped, Trained
from harness.core.plans import CHIEF
from harness.core.seeds import generator
from harness.core.strategies import STRATEGIES, make_strategy
from tests.forked import ran, said_by
from tests.soak import chaos
from tests.soak.attempt import listening_sockets, sockets_of
from tests.soak.chaos import (
    HAS_NO_POINT,
    judged_failure,
    late_detections,
    loses_nothing,
    too_rare,
    unfinished_files,
)
from tests.soak.chaos_draws import CELLS, FAULT_TURNS, JOIN_TIMEOUT_S, RPC_TIMEOUT_S, Round, drawn
from tests.soak.resume import judged_stop
from tests.started import left_by_a_stray

AT: dict[str, Any] = {"step": 9, "samples": 72}


def test_a_round_of_chaos_leaves_nothing_wrong() -> None:
    """A short version of the long run: failures of a trace, signals to processes, and processes that stand still."""
    done = ran(_chaos, "--rounds", "1", "--first", "2177")
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
    lines = [line.split(",") for each in rounds for line in each.trace.splitlines() if line.count(",") == 4]
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


@pytest.mark.parametrize(
    ("struck", "line", "has_point", "is_wrong"),
    [
        ("kill the trainer", f"trainer0 ended; {HAS_NO_POINT}", False, False),
        ("kill the trainer", f"trainer0 ended; {HAS_NO_POINT}", True, True),
        ("kill the trainer", "disk full", False, True),
        ("pause the run", f"trainer0 ended; {HAS_NO_POINT}", False, True),
        ("kill the fork server", "no process can be started", True, False),
    ],
)
def test_a_failure_that_no_signal_explains_is_named(
    tmp_path: Path, struck: str, line: str, has_point: bool, is_wrong: bool
) -> None:
    """Law: the death of the trainer ends a run only if there is no resume point, and a pause ends none."""
    (tmp_path / "resume").mkdir()
    if has_point:
        (tmp_path / "resume" / "point-1.json").write_text("")
    attempt = Mock(out=tmp_path, text=Mock(return_value=line), last_line=Mock(return_value=line))
    assert bool(judged_failure(attempt, {struck})) == is_wrong


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


@pytest.mark.parametrize(
    ("unplanned", "together", "is_pair"),
    [
        (["ps1"], [["ps0", "ps1"]], True),
        (["ps0"], [["ps0", "ps1"]], True),
        (["ps2"], [["ps0", "ps2"]], True),  # the first is the next of the last
        (["ps1"], [["ps0"], ["ps1"]], False),  # one after the other
        (["ps1"], [["ps0", "ps2"], ["ps1"]], False),  # a pair by the trace, as in the calm run
        ([], [["ps0", "ps1"]], False),
    ],
)
def test_chaos_knows_what_a_strategy_loses(unplanned: list[str], together: list[list[str]], is_pair: bool) -> None:
    """Law: full loses no update with a rank, partial does, and buddy if a rank is lost together with its replica."""
    charges: dict[str, Any] = {"load_h": 0.1, "lost_h": 0.0, "reschedule_h": 0.1, "load_bytes": 0}
    charges |= {"lost_updates": 0, "lost_tracked": 0}
    plan: dict[str, Any] = {"kinds": {}, "rollback": False, "resume_step": 9, "resume_samples": 72}
    events: list[Event] = [Lost(**AT, ranks=unplanned, planned=False, unplanned_ranks=unplanned)] if unplanned else []
    events += [Recovered(**AT, **plan, **charges, ranks=ranks, sequence=0, num_rows=0, pls={}) for ranks in together]
    for name, loses in (("buddy", is_pair), ("full", False), ("partial", True)):
        settings = {"strategy": {"name": name}, "cluster": {"num_ps": 3}}
        assert loses_nothing(Round(settings, "", (), pauses=False), events) != loses


def test_what_a_finished_run_must_not_leave_is_found(tmp_path: Path) -> None:
    """Temporary files and resume points; not the temporary files of wandb."""
    out = tmp_path / "out"
    for name in ("checkpoints/ps0/.base-1.bin.0a.tmp", "resume/point-1.json", "wandb/run.tmp"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("")
    assert unfinished_files(out) == ["out/checkpoints/ps0/.base-1.bin.0a.tmp", "out/resume"]


def test_what_an_attempt_leaves_is_found() -> None:
    """A process of another session whose parent has ended, and a socket that listens."""
    stray, *others = said_by(left_by_a_stray).split()
    assert others == [f"process:{stray}"], "nothing but that process is left, and then nothing"
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = os.fstat(server.fileno()).st_ino
        assert number in sockets_of([os.getpid()]) & listening_sockets().keys()
    assert number not in listening_sockets()


def test_a_step_lost_by_sigterm_is_named() -> None:
    """Law: a command that is asked to stop names a step at most one below its last recorded one, rollbacks aside."""
    events: list[Event] = [
        Trained(step=step, samples=8 * step, first_step=step - 5, losses=[0.0] * 5, rerun=False) for step in (5, 10)
    ]
    assert judged_stop("terminated; run.py train c.yaml goes on from step 9", events) == []
    assert "more than one step is lost" in judged_stop("terminated; ... goes on from step 8", events)[0]
    assert "no step is named" in judged_stop("terminated", events)[0]
