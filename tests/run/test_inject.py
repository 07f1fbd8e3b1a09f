"""Kills at real seconds (trace.inject=wall)."""

import logging
from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.events import Started
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
    (said,) = (message for message in caplog.messages if "the run ended before kills" in message)
    assert said.endswith("5")
