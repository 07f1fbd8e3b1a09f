"""Repair times of a trace drive the emulated cost of rescheduling."""

from dataclasses import replace
from pathlib import Path

import pytest

import analysis
from harness.config.model import Config
from harness.record.rundir import read_config
from tests.injected import is_loss
from tests.runs import changed, run

TRACE = """\
# title: one failure of two ranks, one of one, one whose repair nobody knows
hour,rank,repair_h,node
10,ps0,1.5,a
10,ps2,0.25,b
30,ps1,0,c
40,ps3,,d
"""


@pytest.fixture
def repairs(config: Config, tmp_path: Path) -> Config:
    """A run under that trace."""
    path = tmp_path / "repairs.csv"
    path.write_text(TRACE)
    return changed(config, trace__path=str(path))


@pytest.mark.parametrize("strategy", ["full", "partial"])
def test_a_failure_takes_its_longest_repair(repairs: Config, tmp_path: Path, strategy: str) -> None:
    """If asked to: ranks at one boundary are one failure; no length costs nothing, an unknown one O_res."""
    asked = changed(repairs, strategy__name=strategy, trace__repair="reschedule")
    finished, events = run(asked, tmp_path / "run")
    assert finished.reschedule_h == 1.5 + 0 + repairs.emulated.o_res_h
    assert [event.repair_h for event in events if is_loss(event)] == [1.5, 1.5, 0, None]
    forged = [replace(event, repair_h=9.0) if is_loss(event) else event for event in events]
    assert any("reschedule_h" in problem for problem in analysis.check(forged, read_config(tmp_path / "run")))


def test_repairs_are_not_charged_by_default(repairs: Config, tmp_path: Path) -> None:
    """Every failure takes the profile's O_res: a job seldom waits for the repair of a node."""
    finished, _ = run(changed(repairs, strategy__name="partial"), tmp_path / "run")
    assert finished.reschedule_h == pytest.approx(3 * repairs.emulated.o_res_h)
