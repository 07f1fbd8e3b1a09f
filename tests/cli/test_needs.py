"""What is said before a grid's first cell, and when the grid is refused."""

import json
import re
from pathlib import Path

import pytest

from harness.cli.needs import Machine, say_needs
from harness.config.experiment import Cell, load_experiment
from harness.core.errors import ConfigError
from harness.run import needs
from harness.run.needs import needs_of
from harness.run.spec import RunSpec, cell_hash
from tests.cli.conftest import Cli

ROOM = Machine(memory_bytes=1e12, disk_bytes=10**12)


def cells_of(data: Path, *overrides: str) -> tuple[Cell, ...]:
    """Cells of experiments/kaggle.yaml, the first seed's, on small data."""
    own = (f"data.path={data}", "seed=0", "trainer.batch_size=8", f"out={data.parent / 'grid'}", *overrides)
    return tuple(load_experiment(Path("experiments/kaggle.yaml"), own, cell_hash=cell_hash).cells)


def test_cells_that_cannot_run_are_refused(click_data: Path) -> None:
    """Law: before the first cell, in one line with both numbers; what is only likely not to do is a note."""
    (cell,) = cells_of(click_data, "strategy.name=full")
    least = needs_of(RunSpec(cell.config))
    with pytest.raises(ConfigError, match=r"^local-full-seed0.*: expected .* of memory for its model, got"):
        say_needs([cell], None, Machine(memory_bytes=least.least_memory_bytes - 1, disk_bytes=10**12))
    with pytest.raises(ConfigError, match=r"^local-full-seed0.*: expected .* of free disk .*, got"):
        say_needs([cell], None, Machine(memory_bytes=1e12, disk_bytes=least.least_disk_bytes - 1))


def test_the_line_names_what_does_not_do(
    click_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: cells, time, memory and disk in one line; and a note if the disk holds one cell but not all that is kept."""
    cells = cells_of(click_data, "store.keep_finished=true")
    assert say_needs(cells, 2, ROOM) == 2
    (line,) = capsys.readouterr().err.splitlines()
    time = r"roughly \d s on idle cores \(half to twice that; longer beside other work\)"
    assert re.match(rf"needs: 5 cells, 2 at once, {time}; at most ", line)
    assert say_needs(cells[:1], 1, ROOM) == 1
    assert capsys.readouterr().err.startswith("needs: 1 cell, 1 at once, less than a second on idle cores; at most ")
    least = max(needs_of(RunSpec(cell.config)).least_disk_bytes for cell in cells)
    assert say_needs(cells, 2, Machine(memory_bytes=1e12, disk_bytes=least)) == 2
    assert "store.keep_finished=false" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setattr(needs, "STEP_S", 10.0)
    assert say_needs(cells[:1], 1, ROOM) == 1
    assert re.match(r"needs: 1 cell, 1 at once, roughly \d+ min on idle cores \(half to", capsys.readouterr().err)


def test_the_memory_limits_the_cells_at_once(click_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Law: as many as fit, at least one; a number that is given stays, with a note."""
    cells = cells_of(click_data)
    most = max(needs_of(RunSpec(cell.config)).memory_bytes for cell in cells)
    machine = Machine(memory_bytes=most, disk_bytes=10**12)
    assert say_needs(cells, 8, machine) == 8
    assert "note: --parallel 8: the memory may not do; 1 at once fit" in capsys.readouterr().err
    assert say_needs(cells, None, machine) in {1, None}  # None on one core


@pytest.mark.slow
def test_the_experiment_at_kaggles_size_runs_on_small_data(cli: Cli) -> None:
    """Law: its cells meet their two failures, and leave no checkpoint."""
    root = Path(__file__).parents[2]
    trace = f'trace.path=["{root}/failure_traces/cpr56-{{seed}}.csv"]'
    words = ("data.path=data", "seed=0", "trainer.batch_size=8", "model.size=tiny", trace)
    result = cli("grid", str(root / "experiments/kaggle.yaml"), "strategy.name=[none,cpr_mfu]", *words)
    assert result.code == 0
    assert result.errors[-1] == "2 cells: 2 run, 0 done before, 0 failed"
    (events,) = Path("runs/kaggle").glob("*cpr_mfu*/events.jsonl")
    assert json.loads(events.read_text().splitlines()[-1])["num_failures"] == 2
    assert not [*Path("runs").rglob("*.bin")]
