"""Cells for tests of jobs, and the command that is killed."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.config.experiment import Cell
from harness.config.jobs import ClusterName
from harness.config.model import Config
from harness.grid.runner import run_cells
from harness.jobs.pool import JobPool
from harness.processes.leash import hold_leash
from harness.record.code import _digest as digest_of_source
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
    settings = {f"jobs__{name}": value for name, value in {"cluster": "local", **jobs}.items()}
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
    loaded = replace(code, sources={**code.sources, plugin: digest_of_source(Path(plugin))})
    return f"{cell_hash(config).partition('-')[0]}-{loaded.fingerprint[:8]}"


def run_jobs(cells: list[Cell], owner: int, cluster: ClusterName | None = None, **environment: str) -> None:
    """What the command does. ``environment``: its variables, which a fork server of earlier tests has not."""
    hold_leash(owner)
    os.setsid()
    os.environ.update(environment)
    run_cells(cells, JobPool(cells[0].run_dir.parent, "grid", cluster), Journal())


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
