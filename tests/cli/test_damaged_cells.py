"""What a grid says of a cell that it has run, and whose record was changed meanwhile."""

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from harness.cli.run_commands import run_experiments
from harness.config.experiment import Cell, Experiment
from harness.grid.process import Outcome
from harness.grid.runner import GridView
from harness.processes.stop import StopRequest
from harness.record.folder import claim_run
from tests.made_runs import made_config, write_run


class DamagedPool:
    """Runs cells, and changes the configuration of each finished one."""

    def prepare(self) -> None:
        """See CellPool.prepare."""

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        """See CellPool.run."""
        for cell in cells:
            with claim_run(cell.run_dir, cell.hash):
                write_run(cell.run_dir, cell.config)
            with (cell.run_dir / "config.yaml").open("a") as file:
                file.write("\n")
            yield Outcome(cell=cell, status="done")


def test_a_cell_that_was_damaged_while_it_ran_is_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not among the cells that were run, its file is named, and the grid fails."""
    cell = Cell(made_config(), "one", "0123456789", tmp_path / "grid" / "one")
    assert run_experiments([Experiment("made", tmp_path / "grid", (cell,), {})], DamagedPool()) == 1
    counts, damage = capsys.readouterr().err.splitlines()[-2:]
    assert counts == "1 cells: 0 run, 0 done before, 0 failed, 1 damaged"
    assert damage.startswith(f"damaged: {cell.run_dir / 'config.yaml'}: expected what the run wrote")
