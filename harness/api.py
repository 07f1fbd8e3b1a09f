"""The harness from Python: one run, or a grid, with the checks, locks and records of the command line.

    from harness import api
    api.grid("experiments/quickstart.yaml", ["seed=[0,1]"])
    frame = analysis.load("demo/quickstart")

Modules with strategies of your own are loaded first: ``from harness.config import plugins; plugins.load(["mine.py"])``.
``harness.run`` and ``harness.grid`` are packages, so the functions are here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.config.build import mistakes_of
from harness.config.experiment import Cell, load_experiment
from harness.config.model import Config
from harness.config.plugins import LOADED
from harness.core.errors import ConfigError, UserError
from harness.core.events import Finished
from harness.grid.process import Outcome, is_done
from harness.grid.runner import GridView, run_grid
from harness.grid.worker import run_assembled
from harness.record.code import difference_of
from harness.record.folder import State, Unfinished, claim_grid, claim_run, drop_resume_points
from harness.record.recorder import read_events
from harness.record.replacement import current_state
from harness.record.rundir import RunDir
from harness.record.seal import verify
from harness.run import assemble
from harness.run.spec import cell_hash, check


def run(config: Config | Mapping[str, Any], *, unfinished: Unfinished = "refuse") -> Finished:
    """Carry out one run in the folder ``config.out``; returns its last event. A finished run is not run again.

    ``config``: a configuration, or its keys as nested mappings (`run.py schema`). ``unfinished``: an interrupted run
    that left a resume point is refused, goes on from there, or starts afresh; without one it starts afresh.

    Raises:
        UserError: the config, the data, the trace or the folder cannot be used.
        RunFailed: the run has no result, or an invalid one.
    """
    try:
        config = config if isinstance(config, Config) else Config.model_validate(config)
    except ValidationError as error:
        raise ConfigError(mistakes_of(error)) from error
    _check_plugins(config)
    check(config)
    if assemble.starts_processes(config):
        assemble.prepare_fork_server()
    run_dir, digest = Path(config.out), cell_hash(config)
    if current_state(run_dir, digest) is State.DONE:
        drop_resume_points(run_dir)
        verify(RunDir(run_dir))
        finished = read_events(RunDir(run_dir).events)[-1]
        assert isinstance(finished, Finished)
        return finished
    with claim_run(run_dir, digest, unfinished):
        return assemble.run(config, run_dir, resumes=unfinished == "resume")


def grid(
    experiment: Path | str,
    overrides: Sequence[str] = (),
    *,
    jobs: int | None = None,
    stale: Literal["fail", "rerun", "keep"] = "fail",
    view: GridView | None = None,
) -> list[Outcome]:
    """Run the cells of an experiment file that are not done; one outcome per cell, in the file's order.

    ``overrides``: ``key=value``; a list is a sweep axis. ``jobs``: cells at once, by default one per core. ``stale``:
    what to do about finished cells that other code computed. ``view``: a receiver of progress.

    Raises UserError as :func:`run` does, before any cell starts.
    """
    found = load_experiment(Path(experiment), overrides, cell_hash=cell_hash)
    for cell in found.cells:
        _check_plugins(cell.config)
        check(cell.config)
    assemble.prepare_fork_server()
    old = [cell for cell in found.cells if is_done(cell) and difference_of(cell.run_dir) is not None]
    if old and stale == "fail":
        raise UserError(
            f"{len(old)} cells were computed by other code ({old[0].run_dir}: {difference_of(old[0].run_dir)}); "
            "stale='rerun' runs them anew, stale='keep' takes them as they are"
        )
    anew = {cell.run_dir for cell in old} if stale == "rerun" else set[Path]()
    with claim_grid(found.out):
        return run_grid(found.cells, run_assembled, view or Silent(), jobs=jobs, stale=anew)


def _check_plugins(config: Config) -> None:
    if missing := [name for name in config.plugins if name not in LOADED]:
        raise ConfigError(
            f"plugins: {missing[0]}: expected to be loaded by harness.config.plugins.load, before harness.api"
        )


class Silent:
    """A view of a grid that shows nothing."""

    def started(self, cell: Cell) -> None:
        """A no-op."""

    def status(self, cell: Cell, status: assemble.RunStatus) -> None:
        """A no-op."""

    def ended(self, outcome: Outcome) -> None:
        """A no-op."""
