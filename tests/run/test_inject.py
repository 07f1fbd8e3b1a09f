"""Kills at real seconds (trace.inject=wall)."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

import analysis
from harness.config.model import Config
from harness.core.errors import ConfigError, TraceError
from harness.core.events import Started
from harness.record.rundir import read_config
from harness.run.spec import check
from tests.injected import is_loss
from tests.runs import changed, run


@pytest.fixture
def wall(config: Config, tmp_path: Path) -> Config:
    """A run of 256 steps whose trace kills within its first half second, and a day later."""
    (tmp_path / "trace.csv").write_text("hour,rank\n1,ps1\n20,ps2\n40,2\n1e6,ps3\n")
    return changed(
        config,
        trace__path=str(tmp_path / "trace.csv"),
        trace__inject="wall",
        trace__seconds_per_hour=0.01,
        strategy__name="full",
        strategy__interval_samples=160,
    )


def test_kills_at_real_seconds_are_planned(wall: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the run does when they strike, full recovery ends bit-equal to no failure; later kills are said."""
    reference, _ = run(
        changed(wall, strategy__name="none", trace__inject="boundary", trace__path=None), tmp_path / "none"
    )
    with caplog.at_level(logging.INFO):
        finished, events = run(changed(wall, engine="rpc"), tmp_path / "run")
    started, kills = events[0], [event for event in events if is_loss(event)]
    assert isinstance(started, Started)
    assert started.trace_inject == "wall"
    assert {(event.line, event.phase) for event in kills} >= {(2, "wall")}
    assert 5 not in {event.line for event in kills}
    assert finished.num_unplanned == 0
    assert finished.digests == reference.digests
    assert analysis.check(events, read_config(tmp_path / "run")) == []
    (said,) = (message for message in caplog.messages if "the run ended before kills" in message)
    assert said.endswith("5")


def test_what_real_seconds_cannot_do_is_refused(wall: Config, tmp_path: Path) -> None:
    """One line for each: the engine, the clock, repair times, phases, faults, a trainer that dies too."""
    with pytest.raises(ConfigError, match=r"^trace.inject: expected boundary on engine local, got wall"):
        run(wall, tmp_path / "local")
    with pytest.raises(ValidationError, match=r"inject: expected boundary with trace.clock=wall"):
        changed(wall, trace__clock="wall")
    with pytest.raises(ValidationError, match=r"inject: expected boundary with trace.repair=reschedule"):
        changed(wall, trace__repair="reschedule")
    with pytest.raises(ConfigError, match=r"^trace.trainers_die: expected false with trace.inject=wall, got true"):
        check(changed(wall, trace__trainers_die=True))
    (tmp_path / "trace.csv").write_text("hour,rank\n1,ps1\n2,trainer0\n")
    with pytest.raises(TraceError, match=r"trace.csv:3: rank: expected a trainer that lives with trace.inject=wall"):
        check(wall)
    for column, word in (("phase", "save"), ("fault", "hang")):
        (tmp_path / "trace.csv").write_text(f"hour,rank,{column}\n1,ps1,{word}\n")
        with pytest.raises(
            TraceError, match=r"trace.csv:2: phase, fault: expected nothing with trace.inject=wall, got "
        ):
            check(wall)
