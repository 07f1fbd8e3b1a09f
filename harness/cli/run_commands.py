"""The commands that train: one run, a replay, a grid, and the check that both engines agree."""

# ruff: noqa: PLC0415 - torch is imported where it is needed, so that a wrong key is reported at once

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness.cli import console, interrupts, progress, wandb_commands
from harness.cli.arguments import GRACE_S
from harness.cli.job_commands import pool_of, print_scripts
from harness.cli.parsing import mapping_overrides
from harness.cli.record_commands import FAILED, OK, show_run
from harness.cli.stale import Stale, stale_runs, to_run_anew
from harness.config.experiment import Cell, Experiment, load_config, load_each, load_experiment, load_variant
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import HarnessError, Moved, PointKept, RunStopped, StoreError, UserError
from harness.core.strategies import STRATEGIES
from harness.grid.process import is_done
from harness.grid.runner import CellPool, run_cells
from harness.record import seal
from harness.record.files import write_text
from harness.record.folder import (
    OtherRun,
    State,
    claim_grid,
    claim_run,
    drop_resume_points,
    has_resume_point,
    reason_kept,
)
from harness.record.place import Place
from harness.record.replacement import current_state, prepare_replacement, replace_run
from harness.record.rundir import RunDir, differing_keys, read_config


def train(options: argparse.Namespace) -> int:
    """Run one configuration in the folder that its key ``out`` names; a variant has a folder of its own."""
    config = load_variant(options.config, options.overrides)
    _find_inputs(config)
    return _train(config, options)


def replay(options: argparse.Namespace) -> int:
    """Train under the given trace, in a folder named after it and the overrides; first say what does not fit."""
    path = f"trace.path={json.dumps(str(options.trace))}"
    config = load_variant(options.config, [*options.overrides, "trace.law=", path, *mapping_overrides(options)])
    _find_inputs(config)
    _say_if_compiling()
    from harness.run.spec import RunSpec
    from harness.traces.mismatch import mismatches

    run_spec = RunSpec(config)
    run_spec.validate()
    for line in mismatches(run_spec.config, run_spec.costs):
        console.note(f"note: {line}")
    return _train(config, options)


def grid(options: argparse.Namespace) -> int:
    """Run the cells of an experiment that are not done, then show its table and write its report."""
    experiment = load_experiment(options.config, options.overrides, cell_hash=_cell_hash)
    from harness.run.spec import cells_of_other_backend, check

    for line in _check_cells(experiment.cells, check):
        console.note(f"note: {line}")
    if line := cells_of_other_backend(experiment.cells):
        console.note(line)
    pool = pool_of(options, experiment)
    if options.print_script:
        print_scripts(experiment)
        return OK
    if not options.dry_run:
        return run_experiment(experiment, pool, options.stale, options.margin, grace_s=options.grace)
    stale = stale_runs(cell.run_dir for cell in experiment.cells if is_done(cell))
    for cell in experiment.cells:
        state = "stale" if cell.run_dir in stale else "done " if is_done(cell) else "to do"
        console.say(f"{state}  {cell.hash}  {cell.slug}")
    return OK


def run_experiment(
    experiment: Experiment,
    pool: CellPool,
    stale: Stale = "fail",
    margin: float | None = None,
    *,
    grace_s: float = GRACE_S,
) -> int:
    """Run the cells in the experiment's folder, write grid.yaml and the report there, show the table and verdicts."""
    show = partial(_show_grid, experiment.out, margin)
    return run_experiments([experiment], pool, stale, show=show, grace_s=grace_s)


def run_experiments(
    experiments: Sequence[Experiment],
    pool: CellPool,
    stale: Stale = "fail",
    *,
    show: Callable[[], None] | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Run the cells of experiments as those of one grid, each in its experiment's folder, and write grid.yaml there.

    ``show`` is called while the folders are locked, unless all cells failed. ``grace_s``: seconds for running cells to
    stop in when the command is asked to. Raises RunStopped if cells were then left.
    """
    done = [cell for experiment in experiments for cell in experiment.cells if is_done(cell)]  # raises first
    anew = to_run_anew([cell.run_dir for cell in done], stale)
    if anew or len(done) < sum(len(experiment.cells) for experiment in experiments):
        pool.prepare()  # before wandb starts a thread
        experiments = [wandb_commands.prepared(experiment) for experiment in experiments]
    cells = [cell for experiment in experiments for cell in experiment.cells]
    with ExitStack() as locks:
        places: list[Place] = []
        for experiment in experiments:
            places.append(locks.enter_context(claim_grid(experiment.out)))
            heading = (
                "# The experiment with the overrides of the command line applied; `run.py grid` reads this file.\n"
            )
            write_text(experiment.out / "grid.yaml", heading + to_yaml(experiment.resolved))
        if resumable := sum(has_resume_point(cell.run_dir) for cell in cells if not is_done(cell)):
            console.note(f"{resumable} unfinished cell{'s' * (resumable > 1)} with a resume point: to be resumed")
        with progress.grid_progress(cells) as view, interrupts.stoppable(grace_s) as stop:
            outcomes = run_cells(cells, pool, view, stale=anew, stop=stop)
        for place in places:
            place.check()
        failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        if show is not None and len(failed) < len(outcomes):
            show()
    finished = [outcome for outcome in outcomes if outcome.status != "failed"]
    damages = {outcome.cell.run_dir: seal.damage_of(RunDir(outcome.cell.run_dir)) for outcome in finished}
    damaged = [damage for damage in damages.values() if damage]
    whole = Counter(outcome.status for outcome in finished if not damages[outcome.cell.run_dir])
    words = f"{len(outcomes)} cells: {whole['done']} run, {whole['skipped']} done before, {len(failed)} failed"
    console.note(words + (f", {len(damaged)} damaged" if damaged else ""))
    for damage in damaged:
        console.print_error("damaged", damage)
    for outcome in failed:
        console.print_error("failed", f"{outcome.cell.run_dir}: {outcome.error}")
    for experiment in experiments:
        wandb_commands.sync_if_online(experiment)
    return FAILED if failed or damaged else OK


def verify(options: argparse.Namespace) -> int:
    """Compare both engines, for every strategy or the one named on the command line."""
    if any(word.startswith("strategy.name=") for word in options.overrides):
        configs = [load_config(options.config, options.overrides)]
    else:
        configs = [*load_each(options.config, options.overrides, STRATEGIES).values()]
    _find_inputs(configs[0])
    _say_if_compiling()
    from harness.run import assemble
    from harness.run import verify as verification
    from harness.run.spec import check

    for config in configs:
        check(config)
    is_identical = True
    assemble.prepare_fork_server()
    for number, config in enumerate(configs, start=1):
        name = config.strategy.name
        with progress.runs_progress(f"verify {name} ({number} of {len(configs)})") as on_status:
            differences = verification.verify(config, Path(f"{config.out}-verify"), on_status=on_status)
        console.say(f"{name:<12} {'DIFFERENT' if differences else 'identical'}")
        for difference in differences:
            console.say(f"  {difference}")
        is_identical &= not differences
    return OK if is_identical else FAILED


def _find_inputs(config: Config) -> None:
    """Raise DataError or TraceError if the data or the trace is not there: before the seconds that imports take."""
    from harness.data.records import find_data
    from harness.traces.trace import read_trace

    find_data(Path(config.data.path))
    if config.trace.path is not None and not Path(config.trace.path).exists():
        read_trace(Path(config.trace.path))


def _cell_hash(config: Config) -> str:
    """As ``harness.run.spec.cell_hash``, which is imported once there are data and trace of the first cell."""
    if "harness.run.spec" not in sys.modules:
        _find_inputs(config)
        _say_if_compiling()
    from harness.run.spec import cell_hash

    return cell_hash(config)


def _say_if_compiling() -> None:
    from harness.kernels.compiler import is_cold

    if is_cold():
        console.note("compiling the loops of a training step, once after each change of them (20 s)")


def _train(config: Config, options: argparse.Namespace) -> int:
    _say_if_compiling()
    from harness.run import assemble
    from harness.run.spec import cell_hash, check

    for line in check(config):
        console.note(f"note: {line}")
    run_dir, digest = Path(config.out), cell_hash(config)
    is_done = _state(run_dir, config, digest) is State.DONE
    is_replaced = is_done and bool(to_run_anew([run_dir], options.stale))
    if is_done and not is_replaced:
        drop_resume_points(run_dir)
        seal.verify(RunDir(run_dir))  # or no results follow
        console.note(f"{run_dir}: this run is finished already; its results follow")
        return show_run(run_dir)
    if assemble.starts_processes(config):
        assemble.prepare_fork_server()
    target = prepare_replacement(run_dir, digest) if is_replaced else run_dir
    goes_on, failure = options.resume and has_resume_point(target), RunDir(target).failure()
    with claim_run(target, digest, "resume" if goes_on else "afresh" if options.afresh else "refuse") as found:
        if found is State.UNFINISHED and not has_resume_point(target):
            what = f"failed ({failure})" if failure else "was interrupted"
            console.note(f"{target}: this run {what}; it starts afresh")
        try:
            with (
                reason_kept(target, discards=True),
                progress.run_progress(run_dir.name) as on_status,
                interrupts.stoppable(options.grace) as stop,
            ):
                assemble.run(config, target, on_status=on_status, resumes=options.resume, stop=stop)
        except HarnessError as error:
            if not isinstance(error, RunStopped | Moved | PointKept) and has_resume_point(target):
                console.note(f"{target}: a resume point is kept; --resume goes on from it")
            raise
    if is_replaced:
        replace_run(run_dir)
    return show_run(run_dir)


def _state(run_dir: Path, config: Config, digest: str) -> State:
    """As :func:`current_state`; where the folder holds another run, the error names the keys that differ."""
    from harness.run.spec import RunSpec

    try:
        return current_state(run_dir, digest)
    except OtherRun as error:
        keys = differing_keys(read_config(run_dir), RunSpec(config).config.model_dump(mode="json"))
        what = ", ".join(keys) if keys else "the content of data or trace"
        raise StoreError(f"{error}; what differs: {what}") from error


def _check_cells(cells: Sequence[Cell], check: Callable[[Config], Iterable[str]]) -> list[str]:
    """Check all cells before any runs; distinct remarks. Raises UserError with every distinct mistake, a line each."""
    mistakes: dict[str, None] = {}
    remarks: dict[str, None] = {}
    for cell in cells:
        try:
            remarks |= dict.fromkeys(check(cell.config))
        except UserError as error:
            mistakes[str(error)] = None
    if mistakes:
        raise UserError("\n".join(mistakes))
    return [*remarks]


def _show_grid(out: Path, margin: float | None) -> None:
    import analysis

    margin = margin or analysis.DEFAULT_MARGIN
    frame = analysis.load(out)
    console.show(analysis.show_table(frame))
    if (advice := analysis.advice(frame, margin)) is not None:
        console.show(advice)
    console.say(f"report: {analysis.report(out, frame=frame, margin=margin)}")
