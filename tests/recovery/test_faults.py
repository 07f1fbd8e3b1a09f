"""Planned faults of a trace besides those of disks: ranks that hang, repair times, phases of a run."""

import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Finished, Lost, Recovered, Regrouped, Saved
from harness.core.faults import PHASES
from harness.processes import forked
from harness.processes.forked import ForkedProcess
from harness.record.rundir import read_config
from tests import runs
from tests.injected import is_loss
from tests.runs import changed, run, run_on_both

DEADLINE_S, JOIN_S = 1.6, 2.6
LATE = 1.1  # of a deadline
HEAD = "hour,rank,phase,fault\n"
HANGS = {
    "partial": "5,ps1,,hang\n12,ps2,lookup,hang\n16,ps0,apply,hang\n19,ps3,save,hang\n26,ps0,manifest,hang\n"
    "29,ps1,restore,hang\n29,ps2,restore,hang\n30,ps1,,kill\n35,ps3,forward,hang\n41,ps0,eval,hang\n",
    "buddy": "29,ps2,restore,hang\n29,ps3,regroup,hang\n30,ps1,,kill\n",
}
"""Lines of a trace, by strategy. In a recovery it is the rank that has just been replaced."""


def under(config: Config, tmp_path: Path, trace: str, **dotted: object) -> Config:
    """64 steps under a trace of 56 h, with a save every 9 steps, and deadlines that a hanging rank misses soon."""
    short: dict[str, Any] = {"data__max_train_samples": 256, "strategy__interval_samples": 36, "eval__every_steps": 25}
    short |= {"cluster__rpc_timeout_s": DEADLINE_S, "cluster__join_timeout_s": JOIN_S}
    return runs.under(config, tmp_path, trace, **short, **dotted)


def model_of(finished: Finished) -> tuple:
    """Parameters and quality."""
    return finished.digests, finished.auc, finished.train_loss


@pytest.mark.parametrize("strategy", [pytest.param("partial", marks=pytest.mark.slow), "buddy"])
def test_a_rank_that_hangs_is_a_rank_that_is_lost(config: Config, tmp_path: Path, strategy: str) -> None:
    """It is given up at its deadline, in every phase, also one that another rank reads from; the events are as local.

    The deadlines of a run are late by less than a tenth: the quickest detection shows that, as a busy machine can only
    delay the others. With ``buddy`` there is one detection, which may be late by half.
    """
    rows = [line.split(",") for each in HANGS.values() for line in each.splitlines()]
    assert {phase or "boundary" for _, _, phase, now in rows if now == "hang"} == {*PHASES}
    trace = HEAD + HANGS[strategy]
    lines = trace.splitlines()[1:]
    config = under(config, tmp_path, trace, strategy__name=strategy)
    finished, events = run_on_both(config, tmp_path)
    assert finished.num_unplanned == 0
    kills = {event.line: event for event in events if is_loss(event)}
    assert [*sorted(kills)] == [*range(2, 2 + len(lines))]
    mute = [event.machine["mute"] for event in events if isinstance(event, Regrouped)]
    expected = sorted(words.split(",")[1] for words in lines if words.endswith("hang"))
    assert sorted(rank for by_rank in mute for rank in by_rank) == expected, "none but these was killed at a deadline"
    assert {line: event.machine["signal"] for line, event in kills.items()} == {
        line: signal.SIGSTOP if words.endswith("hang") else signal.SIGKILL for line, words in enumerate(lines, start=2)
    }
    lost = [event for event in events if isinstance(event, Lost)]
    seconds = [event.machine["seconds"] for event in lost]
    # With `buddy` a rank that joins, which nobody has asked anything.
    most_s = 1.5 * JOIN_S if strategy == "buddy" else LATE * DEADLINE_S
    late = [each for each in seconds if each > DEADLINE_S / 2]
    assert min(late, default=0.0 if strategy == "buddy" else math.inf) <= most_s, (
        "none: it was stopped as it had joined"
    )
    together = [event.machine["seconds"] for event in lost if len(event.ranks) > 1]
    assert len(together) == (strategy == "partial")
    assert all(each < 2 * DEADLINE_S for each in together), "ranks that hang together cost one deadline"


class Continued(ForkedProcess):
    """A process that something else continues: at once when it is told to stop first, and as soon as it has stopped."""

    _was_told = False
    _has_stopped = False

    def pause(self) -> None:
        """Stop it; the first time in vain."""
        super().pause()
        if not self._was_told:
            self._was_told = True
            self.send(signal.SIGCONT)

    @property
    def is_paused(self) -> bool:
        """Whether it has ever stopped."""
        if not self._has_stopped and super().is_paused:
            self._has_stopped = True
            self.send(signal.SIGCONT)
        return self._has_stopped


def test_a_rank_that_hangs_stays_lost_if_something_else_continues_it(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell's `fg` continues every process of a run: who was stopped by the trace is lost, whatever it answers."""
    lines = HEAD + "5,ps1,,hang\n12,ps2,lookup,hang\n" + HANGS["buddy"]
    monkeypatch.setattr(forked, "ForkedProcess", Continued)
    _, events = run_on_both(under(config, tmp_path, lines, strategy__name="buddy"), tmp_path)
    why = [detail for event in events if isinstance(event, Lost) for detail in event.machine["detail"].values()]
    assert sum("something else continued it" in detail for detail in why) >= 1


# --- repair times and phases ------------------------------------------------------------------------------------------


def test_a_failure_takes_its_longest_repair_and_the_hours_of_giving_a_rank_up(config: Config, tmp_path: Path) -> None:
    """If asked to: no length costs nothing, an unknown one O_res; a rank that hangs costs detect_h more, once."""
    trace = "hour,rank,fault,repair_h\n5,ps1,hang,\n5,ps2,hang,\n10,ps0,kill,1.5\n10,ps2,kill,0.25\n20,ps1,kill,\n"
    trace += "25,ps3,kill,0\n30,ps3,hang,4\n"
    config = under(config, tmp_path, trace, strategy__name="partial", profile__detect_h=0.5)
    _, events = run(changed(config, trace__repair="reschedule"), tmp_path / "run")
    o_res_h = config.profile.o_res_h
    hours = [event.reschedule_h for event in events if isinstance(event, Recovered)]
    assert hours == [o_res_h + 0.5, 1.5, o_res_h, 0, 4.5]
    for forgery in ({"loss": "dead"}, {"repair_h": 9.0}):
        forged = [replace(event, **forgery) if is_loss(event) else event for event in events]
        problems = analysis.check(forged, read_config(tmp_path / "run"))
        assert any("reschedule_h is" in problem for problem in problems), "the audit computes the hours again"
    finished, _ = run(config, tmp_path / "default")
    assert finished.reschedule_h == pytest.approx(5 * o_res_h + 2 * 0.5), "a job seldom waits for a repair"


def test_kills_strike_in_their_phases(config: Config, tmp_path: Path) -> None:
    """Kills of one phase strike together, at the first one after they are armed; those in a recovery are its failure.

    A rank that dies before the commit is restored from that very save and loses nothing, since all files were on disk.
    """
    trace = "hour,rank,phase,repair_h\n15.75,ps2,manifest,\n15.75,ps2,,\n16.5,ps0,save,\n18,ps1,save,\n20,ps3,save,\n"
    trace += "40,ps0,restore,3\n40,ps3,regroup,7\n41,ps1,,5\n"
    config = under(config, tmp_path, trace, strategy__name="partial", engine="rpc", trace__repair="reschedule")
    finished, events = run(config, tmp_path / "run")
    kills = [(event.line, event.phase, event.step) for event in events if is_loss(event)]
    assert kills[:2] == [(2, "manifest", 18), (3, "boundary", 18)], "a rank may be killed that is dead already"
    assert kills[2:5] == [(4, "save", 27), (5, "save", 27), (6, "save", 27)]
    first, second, third = (event for event in events if isinstance(event, Recovered))
    (saved,) = (event for event in events if isinstance(event, Saved) and event.step == 18)
    assert (first.sequence, first.lost_updates, first.pls) == (saved.sequence, 0, {"ps2": 0.0})
    assert second.ranks == ["ps0", "ps1", "ps3"]
    assert (third.ranks, third.reschedule_h) == (["ps0", "ps1", "ps3"], 7.0)
    assert (finished.num_failures, finished.num_lost_ranks, finished.num_unplanned) == (3, 7, 0)


@pytest.mark.parametrize(
    ("strategy", "line", "words"),
    [
        ("never_save", "20,ps3,manifest,", r"manifest after step 23, in which to kill ps3, got none; .* earlier hour"),
        ("partial", "20,ps3,regroup,", "regroup after step 23, in which to kill ps3, got none"),
        ("full", "54,ps1,,disk_full", "save after step 62, in which a write fails of"),
    ],
)
def test_a_phase_that_never_comes_fails_the_run(
    config: Config, tmp_path: Path, strategy: str, line: str, words: str
) -> None:
    """A trace of which something did not happen gives no result: its line and the phase are named."""
    config = changed(under(config, tmp_path, HEAD + line, strategy__name=strategy), strategy__interval_samples=120)
    with pytest.raises(RunFailed, match="trace.csv:2: expected a phase " + words):
        run(config, tmp_path / "run")
