"""`run.py grid --scheduler`: where the cells of a grid run, and the scripts that would be submitted."""

# ruff: noqa: PLC0415 - imports of one scheduler alone

import argparse
from collections.abc import Callable

from harness.cli import console
from harness.cli.arguments import GRACE_S
from harness.config.experiment import Experiment
from harness.core.errors import ConfigError
from harness.grid.process import is_done
from harness.grid.runner import CellPool, LocalPool
from harness.grid.worker import run_assembled


def pool_of(options: argparse.Namespace, experiment: Experiment) -> CellPool:
    """The pool that ``--scheduler`` names. Raises ConfigError, also for options of another scheduler."""
    scheduler = options.scheduler
    if options.print_script and scheduler != "submitit":
        raise ConfigError(f"--print-script: expected --scheduler submitit, got {scheduler}, which submits no script")
    return _POOLS[scheduler](options, experiment)


def print_scripts(experiment: Experiment) -> None:
    """Show the script for each array of jobs that cells which are not done would make."""
    from harness.jobs.arrays import arrays
    from harness.jobs.clusters import require_submitit, sbatch_text

    require_submitit()
    cells = [cell for cell in experiment.cells if not is_done(cell)]
    for array in arrays(experiment.name, cells):
        console.say(sbatch_text(array))
    console.note(f"{len(cells)} of {len(experiment.cells)} cells would be submitted")


def _none(options: argparse.Namespace, _experiment: Experiment) -> CellPool:
    return LocalPool(run_assembled, options.parallel)


def _submitit(options: argparse.Namespace, experiment: Experiment) -> CellPool:
    from harness.jobs.clusters import require_submitit
    from harness.jobs.pool import JobPool

    _refuse_parallel(options)
    if options.grace != GRACE_S:
        raise ConfigError(
            "--grace: expected --scheduler none or ray; the key jobs.signal_delay_s says how long jobs of submitit "
            "have for their resume points"
        )
    require_submitit()
    return JobPool(experiment.out, experiment.name)


def _ray(options: argparse.Namespace, experiment: Experiment) -> CellPool:
    from harness.hosts.ray_launcher import require_ray
    from harness.jobs.ray_pool import RayPool

    _refuse_parallel(options)
    require_ray("--scheduler ray")
    return RayPool(experiment.out, options.grace)


def _refuse_parallel(options: argparse.Namespace) -> None:
    if options.parallel is not None:
        raise ConfigError(
            f"--parallel: expected --scheduler none; the key jobs.max_parallel limits the jobs of {options.scheduler}"
        )


_POOLS: dict[str, Callable[[argparse.Namespace, Experiment], CellPool]] = {
    "none": _none,
    "submitit": _submitit,
    "ray": _ray,
}
