"""The story of a run: a line for each fault of its trace."""

from pathlib import Path

import pytest

import analysis
from analysis.tables import UNKNOWN
from harness.config.model import Config
from harness.core.errors import StoreError
from harness.core.events import Evaluated
from tests.analysis.shown import shown
from tests.injected import is_fault
from tests.recovery.test_faults import under
from tests.runs import changed, run

TRACE = """hour,rank,phase,fault
9,ps2,,disk_full
13,ps3,,hang
19,ps0,lookup,hang
21,ps1,,disk_error
24,ps1,manifest,kill
54,ps2,,bitflip
"""


def rows(text: str, kind: str) -> list[list[str]]:
    """The cells of the rows of a kind of event: step, samples, what, hours, seconds."""
    lines = [line.split(maxsplit=3) for line in text.splitlines()]
    found = [line for line in lines if line[:1] == [kind]]
    return [[step, samples, *rest.rsplit(maxsplit=2)] for _, step, samples, rest in found]


def test_a_folder_of_runs_is_answered_with_the_commands_that_show_it(grid: Path) -> None:
    """Law: `show` of a grid names the command for the grid, and a run in it; a folder without runs has none."""
    with pytest.raises(StoreError, match=rf"`run.py table {grid}` shows all, `run.py show {grid}/\S+` one$"):
        analysis.show(grid)
    with pytest.raises(StoreError, match="no such folder"):
        analysis.show(grid / "absent")


def test_every_fault_of_a_trace_is_a_line(config: Config, tmp_path: Path) -> None:
    """Rank, hour and line of the trace, the phase and what happened; hours where the fault itself is charged.

    Two evaluations at the last step tell which one is of the curve and which one is final, and on how many samples.
    """
    config = under(config, tmp_path, TRACE, strategy__name="full", profile__detect_h=0.5)
    config = changed(config, eval__every_steps=64, eval__curve_samples=8)
    _, events = run(config, tmp_path / "run")
    story = shown(analysis.show(tmp_path / "run"))
    assert "disagrees" not in story
    assert rows(story, "kill") == [
        ["15", "60", "ps3: hour 13 of the trace, line 3 (hang)", UNKNOWN, UNKNOWN],
        ["22", "88", "ps0: hour 19 of the trace, line 4, in phase lookup (hang)", UNKNOWN, UNKNOWN],
        ["36", "144", "ps1: hour 24 of the trace, line 6, in phase manifest", UNKNOWN, UNKNOWN],
    ]
    failed = [row[:3] for row in rows(story, "write_failed")]
    assert failed == [
        ["18", "72", "ps2: disk_full, its part was written again; hour 9 of the trace, line 2"],
        ["27", "108", "ps1: disk_error, its part was written again; hour 21 of the trace, line 5"],
    ]
    (flipped,) = (event for event in events if is_fault(event, "bitflip"))
    what = f"ps2: bit {flipped.details['bit']} of {flipped.details['path']} flipped; hour 54 of the trace, line 7"
    assert rows(story, "bitflip") == [["62", "248", what, UNKNOWN, UNKNOWN]]
    evaluated = [event for event in events if isinstance(event, Evaluated)][-2:]
    words = ["curve, on 8 samples", f"final, on {evaluated[1].num_samples:,} samples"]
    assert [row[2].partition("; ")[2] for row in rows(story, "eval")[-2:]] == words
    assert evaluated[0].step == evaluated[1].step
