"""Faults of a trace besides kills: ranks that hang, and ranks that are slow."""

import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.cluster.launcher import ForkLauncher, Main, RankContext
from harness.config.model import Config
from harness.core.events import Event, Finished, Lost, Recovered, Regrouped
from harness.core.faults import PHASES
from harness.record.rundir import read_config
from harness.run.assemble import Parts
from harness.run.verify import compare_records
from tests.cluster.noted import Noted
from tests.injected import is_fault, is_loss
from tests.runs import changed, run

DEADLINE_S, JOIN_S = 3.0, 4.0
LATE = 1.1  # of a deadline
HEAD = "hour,rank,phase,fault\n"
HANGS = {
    "full": "5,ps1,,hang\n19,ps3,save,hang\n26,ps0,manifest,hang\n",
    "partial": """12,ps2,lookup,hang
16,ps0,apply,hang
29,ps1,restore,hang
29,ps2,restore,hang
30,ps1,,kill
35,ps3,forward,hang
41,ps0,eval,hang
""",
    "buddy": "29,ps2,restore,hang\n29,ps3,regroup,hang\n30,ps1,,kill\n",
}
CUTS = {
    "partial": """5,ps1,,partition
14,ps0,apply,partition
19,ps3,save,partition
35,ps3,forward,partition
41,ps0,eval,partition
""",
    "buddy": """10,ps2,lookup,partition
23,ps1,manifest,partition
29,ps2,restore,partition
29,ps3,regroup,partition
30,ps1,,kill
""",
}
"""In each phase; in the last recovery the rank that has just been replaced. A deadline takes seconds: one for each."""


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


def faults_of(events: list[Event]) -> list[tuple[int, str, str]]:
    """Line, phase and fault of each kill, in order of lines."""
    return sorted((event.line, event.phase, event.fault) for event in events if is_loss(event))


@pytest.mark.parametrize(("traces", "fault"), [(HANGS, "hang"), (CUTS, "partition")])
def test_ranks_hang_and_are_cut_off_in_every_phase(traces: dict[str, str], fault: str) -> None:
    """The traces of the tests below leave none out."""
    rows = [line.split(",") for trace in traces.values() for line in trace.splitlines()]
    assert {phase or "boundary" for _, _, phase, each in rows if each == fault} == set(PHASES) | {"boundary"}


@pytest.mark.parametrize("strategy", ["full", "partial", "buddy"])
def test_a_rank_that_hangs_is_a_rank_that_is_lost(config: Config, tmp_path: Path, strategy: str) -> None:
    """A stopped process is given up at its deadline, also one that another rank reads from; the events are as local.

    The deadlines of a run are late by less than a tenth: the quickest detection shows that, as a busy machine can only
    delay the others.
    """
    lines = HANGS[strategy].splitlines()
    config = under(config, tmp_path, HEAD + HANGS[strategy], strategy__name=strategy)
    finished, events = run(config, tmp_path / "local")
    real, real_events = run(changed(config, engine="rpc"), tmp_path / "rpc")
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    assert len(faults_of(events)) == len(lines)
    assert (finished.num_unplanned, real.num_unplanned) == (0, 0)
    for name, each in (("local", events), ("rpc", real_events)):
        assert analysis.check(each, read_config(tmp_path / name)) == []
    signals = {event.line: event.machine["signal"] for event in real_events if is_loss(event)}
    assert signals == {
        line: signal.SIGSTOP if words.endswith("hang") else signal.SIGKILL for line, words in enumerate(lines, start=2)
    }
    muted = [rank for event in real_events if isinstance(event, Regrouped) for rank in event.machine["mute"]]
    hanging = [words.split(",")[1] for words in lines if words.endswith("hang")]
    assert sorted(muted) == sorted(hanging), "none but these was killed at a deadline"
    seconds = [event.machine["seconds"] for event in real_events if isinstance(event, Lost)]
    deadline_s = JOIN_S if strategy == "buddy" else DEADLINE_S  # of a rank that joins, which nobody has asked anything
    assert min(each for each in seconds if each > DEADLINE_S / 2) <= LATE * deadline_s
    together = [event.machine["seconds"] for event in real_events if isinstance(event, Lost) and len(event.ranks) > 1]
    assert len(together) == (strategy == "partial")
    assert all(each < 2 * DEADLINE_S for each in together), "ranks that hang together cost one deadline"


class Continued(Noted):
    """A process that something else continues: at once when it is told to stop first, and as soon as it has stopped."""

    _was_told = False
    _has_stopped = False

    def pause(self) -> None:
        """Stop it; the first time in vain."""
        self.inner.pause()
        if not self._was_told:
            self._was_told = True
            self.inner.resume()

    @property
    def is_paused(self) -> bool:
        """Whether it has ever stopped."""
        if not self._has_stopped and self.inner.is_paused:
            self._has_stopped = True
            self.inner.resume()
        return self._has_stopped


class Continuing(ForkLauncher):
    """Forks processes that do not stay stopped."""

    def spawn(self, context: RankContext, main: Main) -> Any:
        """Fork one."""
        return Continued(super().spawn(context, main))

    def watched(self, processes: Iterable[Any]) -> list[Any]:
        """Of the inner ones."""
        return super().watched([process.inner for process in processes])


@pytest.mark.parametrize("strategy", ["full", "partial", "buddy"])
def test_a_rank_that_hangs_stays_lost_if_something_else_continues_it(
    config: Config, tmp_path: Path, strategy: str
) -> None:
    """A shell's `fg` continues every process of a run: who was stopped by the trace is lost, whatever it answers."""
    config = under(config, tmp_path, HEAD + HANGS[strategy], strategy__name=strategy)
    run(config, tmp_path / "local")
    real, events = run(changed(config, engine="rpc"), tmp_path / "rpc", Parts(launcher=Continuing()))
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    assert real.num_unplanned == 0
    why = [detail for event in events if isinstance(event, Lost) for detail in event.machine["detail"].values()]
    assert sum("something else continued it" in detail for detail in why) >= 1


@pytest.mark.parametrize(("strategy", "spares"), [("partial", 1), ("buddy", 0)])
def test_a_rank_that_is_cut_off_is_a_rank_that_is_lost(
    config: Config, tmp_path: Path, strategy: str, spares: int
) -> None:
    """No packet reaches it, in any phase: it is given up at its deadline; the events are as local."""
    lines = CUTS[strategy].splitlines()
    config = under(config, tmp_path, HEAD + CUTS[strategy], strategy__name=strategy)
    config = changed(config, cluster__spares=spares)
    finished, events = run(config, tmp_path / "local")
    real, real_events = run(changed(config, engine="rpc"), tmp_path / "rpc")
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    assert len(faults_of(events)) == len(lines)
    assert (finished.num_unplanned, real.num_unplanned) == (0, 0)
    for name, each in (("local", events), ("rpc", real_events)):
        assert analysis.check(each, read_config(tmp_path / name)) == []
    cut = [event for event in real_events if is_loss(event) and event.fault == "partition"]
    assert all(event.machine.keys() == {"pid"} for event in cut)
    mute = [event.machine["mute"] for event in real_events if isinstance(event, Regrouped)]
    pids = {machine["pid"] for machines in mute for machine in machines.values()}
    assert pids == {event.machine["pid"] for event in cut}, "none but these was killed at a deadline"


def test_giving_a_rank_up_takes_its_hours(config: Config, tmp_path: Path) -> None:
    """A failure with a rank that hangs costs detect_h more, once; the audit finds it where it is missing."""
    trace = "hour,rank,fault,repair_h\n5,ps1,hang,\n5,ps2,hang,\n20,ps1,kill,\n30,ps3,hang,4\n"
    config = under(config, tmp_path, trace, strategy__name="partial", profile__detect_h=0.5, trace__repair="reschedule")
    _, events = run(config, tmp_path / "run")
    o_res_h = config.emulated.o_res_h
    hours = [event.reschedule_h for event in events if isinstance(event, Recovered)]
    assert hours == [o_res_h + 0.5, o_res_h, 4.5]
    assert analysis.check(events, read_config(tmp_path / "run")) == []
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


class Paused(Noted):
    """A process that counts how often it is paused and resumed."""

    def __init__(self, inner: Any, name: str, counts: dict[str, list[int]]) -> None:
        super().__init__(inner)
        self._count = counts.setdefault(name, [0, 0])

    def pause(self) -> None:
        """Count, and do it."""
        self._count[0] += 1
        super().pause()

    def resume(self) -> None:
        """Count, and do it."""
        self._count[1] += 1
        super().resume()


class Pausing(ForkLauncher):
    """Forks processes of which ``counts`` has the pauses and resumptions, by the name of the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, list[int]] = {}

    def spawn(self, context: RankContext, main: Main) -> Any:
        """Fork a process that counts."""
        return Paused(super().spawn(context, main), context.rank, self.counts)

    def watched(self, processes: Iterable[Any]) -> list[Any]:
        """Of the inner ones."""
        return super().watched([process.inner for process in processes])


def model_of(finished: Finished) -> tuple:
    """Parameters and quality."""
    return finished.digests, finished.auc, finished.train_loss


def test_a_slow_rank_costs_hours_and_changes_nothing(config: Config, tmp_path: Path) -> None:
    """Processes are really stopped and continued, a hang stays one, and both engines give the same events."""
    config = under(config, tmp_path, SLOW, strategy__name="full")
    finished, events = run(config, tmp_path / "local")
    launcher = Pausing()
    _, real_events = run(changed(config, engine="rpc"), tmp_path / "rpc", Parts(launcher=launcher))
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    for name, each in (("local", events), ("rpc", real_events)):
        assert analysis.check(each, read_config(tmp_path / name)) == []
    slow = [event for event in events if is_fault(event, "slow")]
    assert [(event.rank, event.step, event.details["last_step"]) for event in slow[:2]] == [
        ("ps1", 8, 24),
        ("ps2", 16, 32),
    ]
    assert [event.reschedule_h for event in slow] == [28, 7, 64, 0], "where two are slow at once, the slowest counts"
    assert all(launcher.counts[rank][0] >= 1 for rank in {event.rank for event in slow})
    assert launcher.counts["trainer0"] == [0, 0]
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    assert model_of(finished) == model_of(reference)


def test_a_charge_for_a_slow_rank_that_does_not_follow_is_found(config: Config, tmp_path: Path) -> None:
    """The audit computes the hours again from the spans of all slow ranks."""
    config = under(config, tmp_path, SLOW, strategy__name="partial")
    _, events = run(config, tmp_path / "run")
    forged = [
        replace(event, details={**event.details, "factor": 4.0})
        if is_fault(event, "slow") and event.line == 2
        else event
        for event in events
    ]
    problems = analysis.check(forged, read_config(tmp_path / "run"))
    assert any("reschedule_h is 28" in problem for problem in problems)
