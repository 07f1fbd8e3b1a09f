"""The commands that train: one run, a grid, and the check that both engines agree."""

# ruff: noqa: PLC0415 - torch is imported where it is needed, so that a wrong key is reported at once

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from harness.cli import console, interrupts, progress, wandb_commands
from harness.cli.arguments import GRACE_S
from harness.cli.needs import say_needs
from harness.cli.record_commands import FAILED, OK, show_run
from harness.config.experiment import Experiment, load_config, load_each, load_experiment, load_variant
from harness.config.model import Config
from harness.core.errors import ConfigError, HarnessError, PointKept, RunStopped
from harness.core.strategies import STRATEGIES
from harness.grid.experiments import check_grid, opened_grid, opened_run
from harness.grid.process import Outcome, is_done
from harness.grid.runner import CellPool, LocalPool, run_cells
from harness.grid.worker import run_assembled
from harness.record.folder import has_resume_point, refuse_no_grid


def train(options: argparse.Namespace) -> int:
    """Run one configuration in the folder ``out``, whose name gets the values of the overrides; show its results.

    Where its trace does not match the job, a note says so first.
    """
    config = load_variant(options.config, options.overrides)
    _find_inputs(config)
    _say_if_compiling()
    with opened_run(config, afresh=options.afresh) as one:
        if one.is_done:
            console.note(f"{one.run_dir}: this run is finished already; its results follow")
            return show_run(one.run_dir)
        _say_mismatches(config)
        try:
            with progress.runs_progress(Path(config.out).name) as follow, interrupts.stoppable(options.grace) as stop:
                one.carry_out(partial(follow, 1, 1), stop)
        except HarnessError as error:
            if not isinstance(error, RunStopped | PointKept) and has_resume_point(one.run_dir):
                console.note(f"{Path(config.out)}: a resume point is kept; the same command goes on from it")
            raise
        return show_run(one.run_dir)


def _say_mismatches(config: Config) -> None:
    from harness.run.spec import RunSpec
    from harness.traces.mismatch import mismatches

    run_spec = RunSpec(config)
    for line in mismatches(run_spec.config, run_spec.costs):
        console.note(f"note: {line}")


def plan(options: argparse.Namespace) -> None:
    """Show what each strategy costs under a profile or a trace."""
    if options.subject.endswith(".csv"):
        from harness.traces.trace import read_trace

        read_trace(Path(options.subject))  # reports a file that cannot be read before slow imports
    from harness.cli.plan import plan as show_plan

    show_plan(options)


def grid(options: argparse.Namespace) -> int:
    """Run the cells of an experiment that are not done, then show its table and write its report.

    ``--dry-run`` lists the cells instead, and ``--print-script`` prints the scripts of their jobs.
    """
    experiment = load_experiment(options.config, options.overrides, cell_hash=_cell_hash)
    check_grid(experiment)
    if not (options.dry_run or options.print_script):
        refuse_no_grid(experiment.out)
    pool = _pool_of(options, experiment)
    if options.print_script:
        _print_scripts(experiment)
        return OK
    if not options.dry_run:
        show = partial(_show_grid, experiment.out, options.margin, options.measure, explain=options.explain)
        return run_experiments([experiment], pool, show=show, afresh=options.afresh, grace_s=options.grace)
    for cell in experiment.cells:
        console.say(f"{'done ' if is_done(cell) else 'to do'}  {cell.hash}  {cell.slug}")
    return OK


def _pool_of(options: argparse.Namespace, experiment: Experiment) -> CellPool:
    """The pool that ``--scheduler`` names. For this machine it prints what the cells will need.

    Raises UserError, also for options of another scheduler.
    """
    scheduler = options.scheduler
    if options.print_script and scheduler != "slurm":
        raise ConfigError(f"--print-script: expected --scheduler slurm, got {scheduler}, which submits no script")
    if scheduler == "none":
        return LocalPool(run_assembled, say_needs(experiment.cells, options.parallel))
    if options.parallel is not None:
        raise ConfigError(
            f"--parallel: expected --scheduler none; the key jobs.max_parallel limits the jobs of {scheduler}"
        )
    if scheduler == "ray":
        from harness.hosts.ray_launcher import require_ray
        from harness.jobs.ray_pool import RayPool

        require_ray("--scheduler ray")
        return RayPool(options.grace)
    if options.grace != GRACE_S:
        raise ConfigError(
            "--grace: expected --scheduler none or ray; the key jobs.signal_delay_s says how long jobs of SLURM "
            "have for their resume points"
        )
    from harness.jobs.pool import JobPool

    return JobPool(experiment.out, experiment.name)


def _print_scripts(experiment: Experiment) -> None:
    """Print the sbatch script of each job array that the unfinished cells would need."""
    from harness.jobs.arrays import arrays
    from harness.jobs.slurm import most_in_an_array, script_of

    cells = [cell for cell in experiment.cells if not is_done(cell)]
    for array in arrays(experiment.name, cells, most_in_an_array()):
        console.say(script_of(array))
    console.note(f"{len(cells)} of {len(experiment.cells)} cells would be submitted")


def run_experiments(
    experiments: Sequence[Experiment],
    pool: CellPool,
    *,
    show: Callable[[], None] | None = None,
    afresh: bool = False,
    grace_s: float = GRACE_S,
) -> int:
    """Run the cells of all experiments as one grid, each in its experiment's folder, and write grid.yaml there.

    ``show`` is called while the folders are locked, unless all cells failed. ``afresh``: as :func:`opened_grid`.
    ``grace_s``: seconds that running cells have to stop after a signal. Online grids are then sent to wandb again.
    Returns an exit code. Raises UserError; RunStopped if a signal left cells unfinished.
    """
    with opened_grid(experiments, pool, afresh=afresh) as cells:
        with progress.grid_progress(cells) as view, interrupts.stoppable(grace_s) as stop:
            outcomes = run_cells(cells, pool, view, stop=stop)
        counts = Counter(outcome.status for outcome in outcomes)
        number = f"{len(outcomes)} cell{'s' * (len(outcomes) != 1)}"
        words = f"{number}: {counts['done']} run, {counts['skipped']} done before, {counts['failed']} failed"
        words += f", {counts['damaged']} damaged" if counts["damaged"] else ""
        console.note(words)
        if show is not None and counts["failed"] < len(outcomes):
            show()
    for outcome in outcomes:
        if outcome.status == "damaged":
            console.print_error("damaged", str(outcome.error))
    for line in _failures(outcomes):
        console.print_error("failed", line)
    for experiment in experiments:
        wandb_commands.sync_if_online(experiment)
    return FAILED if counts["failed"] or counts["damaged"] else OK


def _failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line on each error of a cell; of cells with equal errors, which name files of their own, on the first one."""
    alike: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status == "failed":
            alike.setdefault(str(outcome.error).partition(" (see ")[0], []).append(outcome)
    for first, *others in alike.values():
        more = f"; the same in {len(others)} more cell{'s' * (len(others) > 1)}" if others else ""
        yield f"{first.cell.run_dir}: {first.error}{more}"


def verify(options: argparse.Namespace) -> int:
    """Compare the results of both engines, for every strategy or the one named on the command line.

    The runs of a strategy are removed if they are identical.
    """
    if any(word.startswith("strategy.name=") for word in options.overrides):
        configs = [load_config(options.config, options.overrides)]
    else:
        configs = [*load_each(options.config, options.overrides, STRATEGIES).values()]
    _find_inputs(configs[0])
    _say_if_compiling()
    from harness.config.combinations import fitting
    from harness.run import assemble
    from harness.run import verify as verification
    from harness.run.spec import check

    configs, remarks = fitting(configs, check, configs[0].strategy.name if len(configs) == 1 else None)
    for remark in remarks:
        console.note(f"note: {remark}")
    work_dir = Path(f"{configs[0].out}-verify")
    is_identical = True
    assemble.prepare_fork_server()
    for number, config in enumerate(configs, start=1):
        name = config.strategy.name
        with progress.runs_progress(f"verify {name} ({number} of {len(configs)})") as on_status:
            differences = verification.verify(config, work_dir / name, on_status=on_status)
        console.say(f"{name:<12} {'DIFFERENT' if differences else 'identical'}")
        for difference in differences:
            console.say(f"  {difference}")
        if differences:
            console.say(f"  the runs stay: {work_dir}/{name}")
        else:
            shutil.rmtree(work_dir / name)
        is_identical &= not differences
    with suppress(OSError):  # not empty
        work_dir.rmdir()
    return OK if is_identical else FAILED


def _find_inputs(config: Config) -> None:
    """Raise DataError or TraceError if data or trace is missing, before torch is imported, which takes seconds."""
    from harness.data.records import read_meta
    from harness.traces.trace import read_trace

    read_meta(Path(config.data.path), "data.path: ")
    if config.trace.path is not None and not Path(config.trace.path).exists():
        read_trace(Path(config.trace.path))


def _cell_hash(config: Config) -> str:
    """``harness.run.spec.cell_hash``, imported at the first call, after a check that data and trace exist.

    Raises UserError.
    """
    if "harness.run.spec" not in sys.modules:
        _find_inputs(config)
        _say_if_compiling()
    from harness.run.spec import cell_hash

    return cell_hash(config)


def _say_if_compiling() -> None:
    from harness.kernels.compiler import is_cold

    if is_cold():
        console.note("compiling the loops of a training step, once after each change of them (20 s)")


def _show_grid(out: Path, margin: float | None, name: str, *, explain: bool) -> None:
    import analysis

    frame, measure = analysis.load(out, copies=True), analysis.MEASURES[name]
    console.show(analysis.show_table(frame, measure=measure, explain=explain))
    console.say(f"report: {analysis.report(out, frame=frame, margin=margin, measure=measure)}")
    if (advice := analysis.advice(frame, margin, measure=measure, explain=explain)) is not None:
        console.show(advice)
