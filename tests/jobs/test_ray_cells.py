"""Cells as actors of a Ray that runs on this machine. Needs ray (requirements-ray.txt), and is skipped without."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config.experiment import Cell
from harness.config.jobs import JobsConfig
from harness.config.model import Config
from harness.core.errors import ConfigError, RunStopped, UserError
from harness.grid.runner import run_cells
from harness.jobs.clusters import CLUSTERS
from harness.jobs.files import JobFiles, JobRecord, read_record
from harness.jobs.pool import JobPool
from harness.processes.spawn import fork_server
from harness.processes.stop import StopRequest
from harness.run import assemble
from tests.grid.cells import Journal
from tests.jobs.cells import GATE, assert_undisturbed, cells_of, run_jobs, wait_until
from tests.jobs.ray_head import Head, ray_head
from tests.runs import changed

pytest.importorskip("ray", reason="needs pip install -r requirements-ray.txt")
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A Ray for the tests of this file."""
    with ray_head() as made:
        yield made


@pytest.fixture
def gate(tmp_path: Path, head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A gate of this test's own: cells on Ray do not get variables of this process. No cell is left at the end."""
    monkeypatch.setattr(CLUSTERS["ray"], "settle_s", 0.0)
    monkeypatch.setattr(CLUSTERS["ray"], "longest_poll_s", 0.25)
    folder = tmp_path / "gate"
    folder.mkdir()
    shutil.copy(GATE, folder)
    yield folder
    (folder / "open").touch()
    CLUSTERS["ray"].close()
    wait_until(lambda: not head.processes(b"harness.jobs", b"run.py", b"ray::Cell"))


def cells_on(head: Head, config: Config, gate: Path, seeds: int, **jobs: object) -> list[Cell]:
    """Cells that wait at ``gate``, and have a resume point at each step."""
    often = changed(config, resume__every_s=1e-6)
    plugin = str(gate / Path(GATE).name)
    return cells_of(often, gate.parent / "grid", seeds, gate=plugin, ray_address=head.address, **jobs)


def run(cells: list[Cell], view: Journal | None = None, stop: StopRequest | None = None) -> list[str]:
    """The outcomes of the cells on Ray."""
    pool = JobPool(cells[0].run_dir.parent, "grid", "ray")
    return [outcome.error or outcome.status for outcome in run_cells(cells, pool, view or Journal(), stop=stop)]


def jobs_of(cells: list[Cell]) -> list[JobRecord]:
    """Their records, as far as there are any."""
    return [job for cell in cells if (job := read_record(JobFiles(cell.run_dir).record)) is not None]


def reached(gate: Path, cell: Cell) -> Path:
    """The file that is there when the cell is at the gate."""
    return gate / f"reached-{cell.run_dir.name}"


class Watching(Journal):
    """A view that calls a function when it hears of a cell."""

    def __init__(self, act) -> None:
        super().__init__()
        self._act = act

    def started(self, cell: Cell) -> None:
        super().started(cell)
        self._act()


class Killing(Journal):
    """A view that calls a function when it first hears of a cell's progress."""

    def __init__(self, act) -> None:
        super().__init__()
        self._todo = [act]

    def status(self, cell: Cell, status: assemble.RunStatus) -> None:
        super().status(cell, status)
        for act in self._todo[:]:
            self._todo.clear()
            act()


def test_a_killed_command_finds_its_cells_again(head: Head, config: Config, tmp_path: Path, gate: Path) -> None:
    """Law: SIGKILL of the command ends no cell; started again it starts none, and each is done once, to the bit."""
    cells = cells_on(head, config, gate, 2)
    command = fork_server().Process(target=run_jobs, args=(cells, os.getpid(), "ray"))
    command.start()
    wait_until(lambda: all(reached(gate, cell).exists() for cell in cells))
    command.kill()
    command.join()
    before, view = jobs_of(cells), Watching((gate / "open").touch)
    assert len(before) == 2
    assert run(cells, view) == ["done", "done"]
    assert jobs_of(cells) == before
    for cell in cells:
        assert "goes on" not in JobFiles(cell.run_dir).log.read_text()
        assert_undisturbed(cell, tmp_path)
    assert run(cells) == ["skipped", "skipped"]


def test_a_cell_whose_worker_is_killed_goes_on(head: Head, config: Config, tmp_path: Path, gate: Path) -> None:
    """Law: Ray starts it again; it goes on from its last periodic resume point, to the bit."""
    (cell,) = cells_on(head, config, gate, 1)

    def kill() -> None:
        wait_until(lambda: reached(gate, cell).exists())
        reached(gate, cell).unlink()
        (worker,) = head.processes(b"ray::Cell")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: reached(gate, cell).exists())
        (gate / "open").touch()

    assert run([cell], Killing(kill)) == ["done"]
    assert "goes on from step 20 of 60" in JobFiles(cell.run_dir).log.read_text()
    assert_undisturbed(cell, tmp_path)


def test_a_command_that_stops_says_how_to_end_its_cells(
    head: Head, config: Config, tmp_path: Path, gate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: the line names the command that ends them: a cell that runs leaves a resume point, one that waits is gone.

    The same command goes on with it, to the bit.
    """
    running, waiting = cells_on(head, config, gate, 2, processors=3)
    stop = StopRequest()
    caplog.set_level("INFO", logger="harness")
    with pytest.raises(RunStopped):
        run([running, waiting], Watching(stop.set), stop)
    words, _, line = caplog.messages[-1].partition("; to end: ")
    assert words == "2 jobs go on without this command"
    wait_until(lambda: reached(gate, running).exists())
    subprocess.run(line, shell=True, check=True, timeout=PATIENCE_S)
    assert CLUSTERS["ray"].alive(jobs_of([running, waiting])) == []
    assert [*(running.run_dir / "resume").glob("point-*.json")]
    assert not waiting.run_dir.exists()
    (gate / "open").touch()
    assert run([running]) == ["done"]
    assert_undisturbed(running, tmp_path)


def test_a_cell_that_fits_no_node_is_one_line(head: Head, config: Config, gate: Path) -> None:
    """Law: the line says what the largest node has, and nothing is started."""
    words = r"were not submitted: jobs\.processors: expected at most 4, what the largest node of Ray has, got 5 \(see"
    with pytest.raises(UserError, match=words):
        run(cells_on(head, config, gate, 1, processors=5))


def test_without_a_ray_it_says_so() -> None:
    """Law: an address where nothing listens is one line."""
    with pytest.raises(ConfigError, match=r"^jobs\.ray_address: no Ray at 127\.0\.0\.1:1: .*Connection refused$"):
        CLUSTERS["ray"].check(JobsConfig(ray_address="127.0.0.1:1"))
