"""Cells as tasks of a Ray that runs on this machine. Needs ray (requirements-ray.txt), and is skipped without."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config.experiment import Cell
from harness.config.model import Config
from harness.core.errors import ConfigError, RunStopped
from harness.grid.runner import run_cells
from harness.jobs.arrays import JobFiles
from harness.jobs.ray_pool import RayPool
from harness.processes.stop import StopRequest
from tests.grid.cells import Journal
from tests.jobs.cells import (
    GATE,
    PATIENCE_S,
    Acting,
    assert_undisturbed,
    cells_of,
    kill_command,
    reached,
    wait_until,
)
from tests.jobs.ray_head import Head, ray_head
from tests.runs import changed

pytest.importorskip("ray", reason="needs pip install -r requirements-ray.txt")
OURS = (b"ray_tasks.py", b"run.py", b"ray::cell")
"""Parts of the command lines of all that runs for cells."""


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A Ray for the tests of this file."""
    with ray_head() as made:
        yield made


@pytest.fixture
def gate(tmp_path: Path, head: Head) -> Iterator[Path]:
    """A gate of this test's own: cells on Ray do not get variables of this process. No cell is left at the end."""
    folder = tmp_path / "gate"
    folder.mkdir()
    shutil.copy(GATE, folder)
    yield folder
    wait_until(lambda: not head.processes(*OURS))


def cells_on(head: Head, config: Config, gate: Path, seeds: int, **jobs: object) -> list[Cell]:
    """Cells that wait at ``gate``, and have a resume point at each step."""
    often = changed(config, resume__every_s=1e-6)
    plugin = str(gate / Path(GATE).name)
    return cells_of(often, gate.parent / "grid", seeds, gate=plugin, ray_address=head.address, **jobs)


def run(cells: list[Cell], view: Journal | None = None, stop: StopRequest | None = None) -> list[str]:
    """The outcomes of the cells on Ray."""
    pool = RayPool(PATIENCE_S)
    return [outcome.error or outcome.status for outcome in run_cells(cells, pool, view or Journal(), stop=stop)]


def num_times(cell: Cell, step: int = 20) -> int:
    """How often the cell went on from a resume point at ``step``."""
    return JobFiles(cell.run_dir).log.read_text().count(f"goes on from step {step} of 60")


def test_a_command_or_worker_that_is_killed_ends_its_cells_and_they_go_on(
    head: Head, config: Config, tmp_path: Path, gate: Path
) -> None:
    """Law: after SIGKILL of the command nothing runs; started again each cell goes on, and is done once, to the bit.

    So it is with a cell whose worker is killed meanwhile: Ray starts it again.
    """
    cells = cells_on(head, config, gate, 2)
    kill_command(cells, RayPool(PATIENCE_S), gate)
    wait_until(lambda: not head.processes(*OURS))
    for cell in cells:
        reached(gate, cell).unlink()

    def kill() -> None:
        wait_until(lambda: all(reached(gate, cell).exists() for cell in cells))
        assert [num_times(cell) for cell in cells] == [1, 1]
        worker, _ = head.processes(b"ray::cell")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: sum(map(num_times, cells)) == 3)
        (gate / "open").touch()

    assert run(cells, Acting(kill, at="status")) == ["done", "done"]
    for cell in cells:
        assert_undisturbed(cell, tmp_path)
    assert run(cells) == ["skipped", "skipped"]


def test_a_command_that_stops_stops_its_cells(head: Head, config: Config, tmp_path: Path, gate: Path) -> None:
    """Law: a cell that runs leaves a resume point, one that waits does not begin; the same command goes on with both.

    To the bit.
    """
    running, waiting = cells_on(head, config, gate, 2, processors=3)
    stop = StopRequest()

    def stop_at_the_gate() -> None:
        wait_until(reached(gate, running).exists)
        stop.set()

    view = Acting(stop_at_the_gate, at="status")
    with pytest.raises(RunStopped):
        run([running, waiting], view, stop)
    log = JobFiles(running.run_dir).log.read_text()
    assert [what for what, cell in view.lines if cell == running.slug][-1] == "stopped", log
    assert [*(running.run_dir / "resume").glob("point-*.json")]
    assert not waiting.run_dir.exists()
    (gate / "open").touch()
    assert run([running, waiting]) == ["done", "done"]
    assert num_times(running, 21) == 1
    assert_undisturbed(running, tmp_path)


def test_a_cell_that_fits_no_node_is_one_line(head: Head, config: Config, gate: Path) -> None:
    """Law: the line says what the largest node has, and nothing is started."""
    cells = cells_on(head, config, gate, 1, processors=5)
    with pytest.raises(ConfigError, match=r"^jobs\.processors: expected at most 4, what the largest node .* got 5$"):
        run(cells)
    assert not cells[0].run_dir.exists()


def test_without_a_ray_it_says_so(config: Config, tmp_path: Path) -> None:
    """Law: an address where nothing listens is one line."""
    with pytest.raises(ConfigError, match=r"^jobs\.ray_address: no Ray at 127\.0\.0\.1:1: .*Connection refused$"):
        run(cells_of(config, tmp_path / "grid", 1, ray_address="127.0.0.1:1"))
