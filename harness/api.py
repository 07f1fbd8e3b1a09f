"""The harness from Python: one run or a grid, checked and recorded as by the command line.

    import analysis
    from harness import api

    api.grid("experiments/quickstart.yaml", ["seed=[0,1]"])
    frame = analysis.load("demo/quickstart")

Importing this imports little, so that a notebook can add strategies first: entries of ``harness.core.strategies``, or
the files that ``plugins`` of a configuration names. ``harness.run`` and ``harness.grid`` are packages, so the functions
are here.
"""

# ruff: noqa: PLC0415 - configurations are imported after the strategies of plugins

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.core.events import Finished
    from harness.grid.process import Outcome
    from harness.grid.runner import GridView


def run(config: Mapping[str, Any], *, afresh: bool = False) -> "Finished":
    """Carry out one run in the folder ``out``; returns its last event. A finished run is not run again.

    ``config``: the keys of a configuration as nested mappings (`run.py schema`). An interrupted run goes on from its
    resume point. ``afresh``: the files of this run in the folder are removed first, and the run starts at step 0.

    Raises:
        UserError: a key (one line a mistake), the data, the trace or the folder cannot be used.
        RunFailed: the run has no result, or an invalid one.
    """
    names = config.get("plugins", ())
    load_plugins([name for name in names if isinstance(name, str)] if isinstance(names, list | tuple) else [])
    from harness.config.build import config_of
    from harness.core.events import Finished
    from harness.grid.experiments import opened_run
    from harness.record.event_log import read_events
    from harness.record.rundir import RunDir

    with opened_run(config_of(config), afresh=afresh) as one:
        if not one.is_done:
            return one.carry_out()
    finished = read_events(RunDir(one.run_dir).events)[-1]
    assert isinstance(finished, Finished)
    return finished


def grid(
    experiment: Path | str,
    overrides: Sequence[str] = (),
    *,
    jobs: int | None = None,
    afresh: bool = False,
    view: "GridView | None" = None,
) -> "list[Outcome]":
    """Run the cells of an experiment file that are not done; one outcome per cell, in the file's order.

    ``overrides``: ``key=value``; a list is a sweep axis. ``jobs``: cells at once, as for ``LocalPool``.
    ``afresh``: results of these cells are removed first. ``view``: a receiver of progress. A cell that fails raises
    nothing; its outcome has the error. Remarks on the settings are logged as warnings.

    Raises UserError, before any cell starts, if the file, the data, a trace or a folder cannot be used.
    """
    from harness.config.plugins import requested
    from harness.files import expanded

    path = Path(expanded(experiment))
    load_plugins(requested([path], overrides))
    from harness.config.experiment import load_experiment
    from harness.grid.experiments import check_grid, opened_grid
    from harness.grid.runner import LocalPool, SilentView, run_cells
    from harness.grid.worker import run_assembled
    from harness.run.spec import cell_hash

    found = load_experiment(path, overrides, cell_hash=cell_hash)
    check_grid(found)
    pool = LocalPool(run_assembled, jobs)
    with opened_grid([found], pool, afresh=afresh) as cells:
        return run_cells(cells, pool, view or SilentView())


def load_plugins(names: Sequence[str]) -> None:
    """Load plugins, then check the kinds of recovery that each strategy declares. Raises ConfigError."""
    from harness.config.plugins import load
    from harness.core.strategies import STRATEGIES

    load(names)
    from harness.recovery.recoveries import check_declared

    check_declared(STRATEGIES)
