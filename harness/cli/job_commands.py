"""`run.py grid --launcher`: where the cells of a grid run, and the scripts that would be submitted."""

# ruff: noqa: PLC0415 - what only one launcher needs

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
    """The pool that ``--launcher`` names. Raises ConfigError, also for options of another launcher."""
    return _POOLS[options.launcher](options, experiment)


def print_scripts(experiment: Experiment) -> None:
    """Show the script for each array of jobs that cells which are not done would make."""
    from harness.jobs.files import folder_of
    from harness.jobs.plan import submissions
    from harness.jobs.submission import require_submitit, sbatch_text

    require_submitit()
    cells = [cell for cell in experiment.cells if not is_done(cell)]
    folder = folder_of(experiment.out).absolute() / "submitit"
    for submission in submissions(experiment.name, cells):
        console.say(sbatch_text(folder, submission))
    console.note(f"{len(cells)} of {len(experiment.cells)} cells would be submitted")


def _local(options: argparse.Namespace, _experiment: Experiment) -> CellPool:
    _refuse_script(options)
    return LocalPool(run_assembled, options.jobs)


def _submitit(options: argparse.Namespace, experiment: Experiment) -> CellPool:
    from harness.jobs.pool import JobPool
    from harness.jobs.submission import require_submitit

    _refuse_local_options(options)
    require_submitit()
    return JobPool(experiment.out, experiment.name)


def _ray(options: argparse.Namespace, experiment: Experiment) -> CellPool:
    from harness.jobs.pool import JobPool
    from harness.jobs.ray_link import require_ray

    _refuse_local_options(options)
    _refuse_script(options)
    require_ray()
    return JobPool(experiment.out, experiment.name, "ray")


def _refuse_local_options(options: argparse.Namespace) -> None:
    if options.jobs is not None:
        raise ConfigError(
            f"--jobs: expected --launcher local; the key jobs.max_parallel limits the jobs of {options.launcher}"
        )
    if options.grace != GRACE_S:
        raise ConfigError(
            f"--grace: expected --launcher local; the key jobs.signal_delay_s says how long jobs of {options.launcher} "
            "have for their resume points"
        )


def _refuse_script(options: argparse.Namespace) -> None:
    if options.print_script:
        raise ConfigError(
            f"--print-script: expected --launcher submitit, got {options.launcher}, which submits no script"
        )


_POOLS: dict[str, Callable[[argparse.Namespace, Experiment], CellPool]] = {
    "local": _local,
    "submitit": _submitit,
    "ray": _ray,
}
