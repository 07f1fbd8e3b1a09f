"""Cells for tests of jobs, and the command that is killed."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import sources
from harness.config.experiment import Cell
from harness.config.model import Config
from harness.grid.runner import CellPool, run_cells
from harness.processes.spawn import fork_server
from harness.record.code import current_code
from harness.run import assemble
from harness.run.spec import cell_hash
from harness.run.verify import compare_records
from tests.grid.cells import Journal
from tests.runs import changed

GATE = str(Path(__file__).with_name("gate.py"))
NUM_STEPS = 60
PATIENCE_S = 100.0


def cells_of(config: Config, out: Path, seeds: int, *, gate: str = GATE, **jobs: object) -> list[Cell]:
    """Short cells of strategy full, which wait at the gate."""
    settings = {f"jobs__{name}": value for name, value in jobs.items()}
    cells: list[Cell] = []
    for seed in range(seeds):
        each = changed(
            config,
            seed=seed,
            out=str(out),
            plugins=(gate,),
            strategy__name="full",
            strategy__interval_samples=80,
            trace__path=None,
            data__max_train_samples=4 * NUM_STEPS,
            **settings,
        )
        digest = hash_in_a_job(each, gate)
        cells.append(Cell(each, f"seed{seed}", digest, out / f"seed{seed}-{digest}"))
    return cells


def hash_in_a_job(config: Config, plugin: str) -> str:
    """The hash of the cell where the plugin is loaded, as it is in a job, and by a command, but not here."""
    code = current_code()
    loaded = replace(code, sources={**code.sources, plugin: sources.digest_of(plugin)})
    return f"{cell_hash(config).partition('-')[0]}-{loaded.fingerprint[:8]}"


def run_command(cells: list[Cell], pool: CellPool, **environment: str) -> None:
    """What the command does. ``environment``: its variables, which a fork server of earlier tests has not."""
    os.setsid()
    os.environ.update(environment)
    run_cells(cells, pool, Journal())


def kill_command(cells: list[Cell], pool: CellPool, gate: Path) -> None:
    """Run the cells by a command that is killed when all have reached the gate."""
    command = fork_server().fork(partial(run_command, GATE=str(gate), PATH=os.environ["PATH"]), cells, pool)
    wait_until(lambda: all(reached(gate, cell).exists() for cell in cells))
    command.kill()
    command.join()


def reached(gate: Path, cell: Cell) -> Path:
    """The file that is there when the cell is at the gate."""
    return gate / f"reached-{cell.run_dir.name}"


class Acting(Journal):
    """A view that calls a function once, when it first hears of a cell: that it was ``started``, or its status."""

    def __init__(self, act: Callable[[], object], at: str = "started") -> None:
        super().__init__()
        self._act, self._at, self._is_to_come = act, at, True

    def started(self, cell: Cell) -> None:
        super().started(cell)
        self._hear("started")

    def status(self, cell: Cell, status: assemble.RunStatus) -> None:
        super().status(cell, status)
        self._hear("status")

    def _hear(self, what: str) -> None:
        if what == self._at and self._is_to_come:
            self._is_to_come = False
            self._act()


def assert_undisturbed(cell: Cell, folder: Path) -> None:
    """The cell's record is that of a run in this process."""
    assemble.run(changed(cell.config, plugins=()), folder / f"whole-{cell.slug}")
    assert compare_records(folder / f"whole-{cell.slug}", cell.run_dir) == []


def wait_until(is_so: Callable[[], object]) -> None:
    """Return when ``is_so()``; with patience for a busy machine."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
