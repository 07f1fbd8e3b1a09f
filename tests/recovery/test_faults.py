"""Faults of a trace besides kills: ranks that hang, and ranks that are slow."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import analysis
from harness.cluster import launcher
from harness.config.model import Config
from harness.core.events import Event, Finished, Lost, Recovered, Regrouped
from harness.core.faults import PHASES
from harness.processes.forked import ForkedProcess
from harness.record.rundir import read_config
from harness.run.verify import compare_records
from tests.injected import is_fault, is_loss
from tests.runs import changed, run

DEADLINE_S, JOIN_S = 1.6, 2.6
LATE = 1.1  # of a deadline
HEAD = "hour,rank,phase,fault\n"
HANGS = {
    "in steps": ("partial", "5,ps1,,{}\n12,ps2,lookup,{}\n16,ps0,apply,{}\n35,ps3,forward,{}\n41,ps0,eval,{}\n"),
    "in saves": (
        "partial",
        "19,ps3,save,{}\n26,ps0,manifest,{}\n29,ps1,restore,{}\n29,ps2,restore,{}\n30,ps1,,kill\n",
    ),
    "in recoveries": ("buddy", "29,ps2,restore,{}\n29,ps3,regroup,{}\n30,ps1,,kill\n"),
}
"""Strategy and lines of a trace; ``{}`` is the fault. In a recovery it is the rank that has just been replaced."""


def under(config: Config, tmp_path: Path, trace: str, **dotted: object) -> Config:
    """64 steps under a trace of 56 h, with a save every 9 steps, and deadlines that a hanging rank misses soon."""
    (tmp_path / "trace.csv").write_text(trace)
    return changed(
        config,
        data__max_train_samples=256,
        trace__path=str(tmp_path / "trace.csv"),
        strategy__interval_samples=36,
        eval__every_steps=25,
        cluster__rpc_timeout_s=DEADLINE_S,
        cluster__join_timeout_s=JOIN_S,
        **dotted,
    )


def run_on_both(config: Config, folder: Path) -> list[Event]:
    """Runs on both engines whose events are equal, add up, and name all deaths; those of processes."""
    finished, _ = run(config, folder / "local")
    real, real_events = run(changed(config, engine="rpc"), folder / "rpc")
    assert compare_records(folder / "local", folder / "rpc") == []
    assert (finished.num_unplanned, real.num_unplanned) == (0, 0)
    return real_events


def test_ranks_hang_and_are_cut_off_in_every_phase() -> None:
    """The traces of the tests below leave none out."""
    rows = [line.split(",") for _, lines in HANGS.values() for line in lines.splitlines()]
    assert {phase or "boundary" for _, _, phase, fault in rows if fault == "{}"} == set(PHASES) | {"boundary"}


@pytest.mark.parametrize("where", HANGS)
@pytest.mark.parametrize("fault", ["hang", "partition"])
def test_a_rank_that_hangs_or_is_cut_off_is_a_rank_that_is_lost(
    config: Config, tmp_path: Path, where: str, fault: str
) -> None:
    """It is given up at its deadline, also one that another rank reads from; the events are as local.

    The deadlines of a run are late by less than a tenth: the quickest detection shows that, as a busy machine can only
    delay the others.
    """
    strategy, trace = HANGS[where][0], HEAD + HANGS[where][1].replace("{}", fault)
    lines = trace.splitlines()[1:]
    spares = int((where, fault) == ("in steps", "partition"))
    config = under(config, tmp_path, trace, strategy__name=strategy, cluster__spares=spares)
    events = run_on_both(config, tmp_path)
    kills = {event.line: event for event in events if is_loss(event)}
    assert [*sorted(kills)] == [*range(2, 2 + len(lines))]
    mute = [event.machine["mute"] for event in events if isinstance(event, Regrouped)]
    expected = sorted(words.split(",")[1] for words in lines if words.endswith(fault))
    assert sorted(rank for by_rank in mute for rank in by_rank) == expected, "none but these was killed at a deadline"
    if fault == "partition":
        cut = [event for event in kills.values() if event.fault == "partition"]
        assert all(event.machine.keys() == {"pid"} for event in cut)
        assert {each["pid"] for by_rank in mute for each in by_rank.values()} == {event.machine["pid"] for event in cut}
        return
    assert {line: event.machine["signal"] for line, event in kills.items()} == {
        line: signal.SIGSTOP if words.endswith("hang") else signal.SIGKILL for line, words in enumerate(lines, start=2)
    }
    lost = [event for event in events if isinstance(event, Lost)]
    seconds = [event.machine["seconds"] for event in lost]
    deadline_s = JOIN_S if strategy == "buddy" else DEADLINE_S  # of a rank that joins, which nobody has asked anything
    assert min(each for each in seconds if each > DEADLINE_S / 2) <= LATE * deadline_s
    together = [event.machine["seconds"] for event in lost if len(event.ranks) > 1]
    assert len(together) == (where == "in saves")
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
            self.resume()

    @property
    def is_paused(self) -> bool:
        """Whether it has ever stopped."""
        if not self._has_stopped and super().is_paused:
            self._has_stopped = True
            self.resume()
        return self._has_stopped


@pytest.mark.parametrize("where", ["in steps", "in recoveries"])
def test_a_rank_that_hangs_stays_lost_if_something_else_continues_it(
    config: Config, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell's `fg` continues every process of a run: who was stopped by the trace is lost, whatever it answers."""
    strategy, lines = HANGS[where]
    config = under(config, tmp_path, HEAD + lines.replace("{}", "hang"), strategy__name=strategy)
    monkeypatch.setattr(launcher, "ForkedProcess", Continued)
    events = run_on_both(config, tmp_path)
    why = [detail for event in events if isinstance(event, Lost) for detail in event.machine["detail"].values()]
    assert sum("something else continued it" in detail for detail in why) >= 1


def test_giving_a_rank_up_takes_its_hours(config: Config, tmp_path: Path) -> None:
    """A failure with a rank that hangs costs detect_h more, once; the audit finds it where it is missing."""
    trace = "hour,rank,fault,repair_h\n5,ps1,hang,\n5,ps2,hang,\n20,ps1,kill,\n30,ps3,hang,4\n"
    config = under(config, tmp_path, trace, strategy__name="partial", profile__detect_h=0.5, trace__repair="reschedule")
    _, events = run(config, tmp_path / "run")
    o_res_h = config.emulated.o_res_h
    hours = [event.reschedule_h for event in events if isinstance(event, Recovered)]
    assert hours == [o_res_h + 0.5, o_res_h, 4.5]
    forged = [replace(event, loss="dead") if is_loss(event) else event for event in events]
    assert any("reschedule_h is" in problem for problem in analysis.check(forged, read_config(tmp_path / "run")))


# --- slow ranks -------------------------------------------------------------------------------------------------------

SLOW = """hour,rank,fault,factor,repair_h
7,ps1,slow,3,14
14,ps2,slow,2,14
14,ps2,hang,,
20,ps3,kill,,
40,2,slow,5,100
"""


class Paused(ForkedProcess):
    """A process that notes its rank when it is paused and resumed."""

    paused: ClassVar[set[str]] = set()
    resumed: ClassVar[set[str]] = set()

    def pause(self) -> None:
        self.paused.add(self._process.name)
        super().pause()

    def resume(self) -> None:
        self.resumed.add(self._process.name)
        super().resume()


def model_of(finished: Finished) -> tuple:
    """Parameters and quality."""
    return finished.digests, finished.auc, finished.train_loss


def test_a_slow_rank_costs_hours_and_changes_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes are really stopped and continued, a hang stays one, and both engines give the same events."""
    config = under(config, tmp_path, SLOW, strategy__name="full")
    monkeypatch.setattr(launcher, "ForkedProcess", Paused)
    events = run_on_both(config, tmp_path)
    finished = events[-1]
    assert isinstance(finished, Finished)
    slow = [event for event in events if is_fault(event, "slow")]
    assert [(event.rank, event.step, event.details["last_step"]) for event in slow[:2]] == [
        ("ps1", 8, 24),
        ("ps2", 16, 32),
    ]
    assert [event.reschedule_h for event in slow] == [28, 7, 64, 0], "where two are slow at once, the slowest counts"
    assert Paused.paused & Paused.resumed >= {event.rank for event in slow}
    assert "trainer0" not in Paused.paused
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    digests, *judged = model_of(finished)
    assert [{rank: digests[rank] for rank in reference.digests}, *judged] == [*model_of(reference)]
    forged = [
        replace(event, details={**event.details, "factor": 4.0})
        if is_fault(event, "slow") and event.line == 2
        else event
        for event in events
    ]
    problems = analysis.check(forged, read_config(tmp_path / "rpc"))
    assert any("reschedule_h is 28" in problem for problem in problems), "the audit computes the hours again"
