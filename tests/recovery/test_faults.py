"""Faults of a trace besides kills: ranks that hang, and ranks that are slow."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

import analysis
from harness.config.model import Config
from harness.core.events import Event, Killed, Recovered, Regrouped
from harness.record.rundir import read_config
from harness.run.verify import compare_records
from tests.runs import changed, run

HANGS = """hour,rank,phase,fault
5,ps1,,hang
12,ps2,lookup,hang
19,ps3,save,hang
29,ps2,restore,hang
29,ps3,regroup,hang
30,ps1,,kill
"""


def under(config: Config, tmp_path: Path, trace: str, **dotted: object) -> Config:
    """64 steps under a trace of 56 h, with a save every 9 steps, and deadlines that a hanging rank misses soon."""
    (tmp_path / "trace.csv").write_text(trace)
    return changed(
        config,
        data__max_train_samples=256,
        trace__path=str(tmp_path / "trace.csv"),
        strategy__interval_samples=36,
        cluster__rpc_timeout_s=3,
        cluster__join_timeout_s=3,
        **dotted,
    )


def faults_of(events: list[Event]) -> list[tuple[int, str, str]]:
    """Line, phase and fault of each kill, in order of lines."""
    return sorted((event.line, event.phase, event.fault) for event in events if isinstance(event, Killed))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("strategy", ["full", "partial", "buddy"])
def test_a_rank_that_hangs_is_a_rank_that_is_lost(config: Config, tmp_path: Path, strategy: str) -> None:
    """A stopped process is given up at its deadline, also one that another rank reads from; the events are as local."""
    config = under(config, tmp_path, HANGS, strategy__name=strategy)
    finished, events = run(config, tmp_path / "local")
    real, real_events = run(changed(config, engine="rpc"), tmp_path / "rpc")
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    assert len(faults_of(events)) == 6
    assert (finished.num_unplanned, real.num_unplanned) == (0, 0)
    for name, each in (("local", events), ("rpc", real_events)):
        assert analysis.check(each, read_config(tmp_path / name)) == []
    signals = {event.line: event.machine["signal"] for event in real_events if isinstance(event, Killed)}
    assert signals == {**dict.fromkeys(range(2, 7), signal.SIGSTOP), 7: signal.SIGKILL}
    muted = [rank for event in real_events if isinstance(event, Regrouped) for rank in event.machine["mute"]]
    assert sorted(muted) == ["ps1", "ps2", "ps2", "ps3", "ps3"], "none but these was killed at a deadline"


def test_giving_a_rank_up_takes_its_hours(config: Config, tmp_path: Path) -> None:
    """A failure with a rank that hangs costs detect_h more, once; the audit finds it where it is missing."""
    trace = "hour,rank,fault,repair_h\n5,ps1,hang,\n5,ps2,hang,\n20,ps1,kill,\n30,ps3,hang,4\n"
    config = under(config, tmp_path, trace, strategy__name="partial", profile__detect_h=0.5, trace__repair="reschedule")
    _, events = run(config, tmp_path / "run")
    o_res_h = config.emulated.o_res_h
    hours = [event.reschedule_h for event in events if isinstance(event, Recovered)]
    assert hours == [o_res_h + 0.5, o_res_h, 4.5]
    assert analysis.check(events, read_config(tmp_path / "run")) == []
    forged = [replace(event, fault="kill") if isinstance(event, Killed) else event for event in events]
    assert any("reschedule_h is" in problem for problem in analysis.check(forged, read_config(tmp_path / "run")))
