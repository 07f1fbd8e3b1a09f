"""The commands of run.py. Each takes the parsed options and returns an exit code, or None for success.

torch, pandas and matplotlib are imported by the commands that need them, so that a wrong key is reported at once.
"""

# ruff: noqa: PLC0415

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.cli import console, progress, wandb_commands
from harness.cluster.spawn import own_fork_server
from harness.config.experiment import Cell, Experiment, load_config, load_each, load_experiment
from harness.config.keys import schema
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import HarnessError, UserError
from harness.core.strategies import STRATEGIES
from harness.grid.process import is_done
from harness.grid.runner import default_jobs, run_grid
from harness.grid.worker import RunCell, one_line, run_assembled
from harness.record.files import write_text
from harness.record.folder import State, claim_grid, claim_run, discard_unstarted, inspect
from harness.record.rundir import write_reason

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_RERUN_HINTS = {
    "grid": "the same command continues with the cells that are not done",
    **dict.fromkeys(("train", "replay"), "the same command starts this run afresh"),
}


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out the command in ``options`` and return its exit code; errors become lines on stderr."""
    console.open_streams()
    console.show_log()
    options.command_line = f"run.py {shlex.join(arguments)}"
    try:
        return COMMANDS[options.command](options) or OK
    except UserError as error:
        console.print_error("error", str(error))
        return BAD_INPUT
    except HarnessError as error:
        console.print_error("failed", one_line(error))
        return FAILED
    except KeyboardInterrupt:
        hint = _RERUN_HINTS.get(options.command)
        console.note(f"interrupted; {hint}: run.py {shlex.join(arguments)}" if hint else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout, e.g. `head`, has ended
        console.discard_stdout()
        return FAILED
    except OSError as error:  # a folder without write permission, a full disk
        if error.filename is None:
            raise
        console.print_error("error", f"{error.filename}: {error.strerror}")
        return BAD_INPUT


def train(options: argparse.Namespace) -> int:
    """Run one configuration in the folder that its key ``out`` names."""
    return _train(load_config(options.config, options.overrides))


def replay(options: argparse.Namespace) -> int:
    """Train under the given trace, in a folder named after ``out`` and the trace."""
    config = load_config(options.config, [*options.overrides, f"trace.path={json.dumps(str(options.trace))}"])
    if not any(word.startswith("out=") for word in options.overrides):
        config = config.model_copy(update={"out": f"{config.out}-{options.trace.stem}"})
    return _train(config)


def grid(options: argparse.Namespace) -> int:
    """Run the cells of an experiment that are not done, then show its table and write its report."""
    from harness.run.spec import cell_hash, cells_of_other_backend, check

    experiment = load_experiment(options.config, options.overrides, cell_hash=cell_hash)
    _check_cells(experiment.cells, check)
    if line := cells_of_other_backend(experiment.cells):
        console.note(line)
    if not options.dry_run:
        return run_experiment(experiment, run_assembled, options.jobs)
    for cell in experiment.cells:
        console.say(f"{'done ' if is_done(cell) else 'to do'}  {cell.hash}  {cell.slug}")
    return OK


def run_experiment(experiment: Experiment, run_cell: RunCell, jobs: int | None) -> int:
    """Run the cells in the experiment's folder, write grid.yaml and the report there, show the table."""
    are_done = [is_done(cell) for cell in experiment.cells]  # raises before anything is written
    if not all(are_done):
        _prepare_fork_server()  # before wandb starts a thread
        experiment = wandb_commands.prepared(experiment)
    with claim_grid(experiment.out):
        heading = "# The experiment with the overrides of the command line applied; `run.py grid` reads this file.\n"
        write_text(experiment.out / "grid.yaml", heading + to_yaml(experiment.resolved))
        with progress.grid_progress(experiment.cells) as view:
            outcomes = run_grid(experiment.cells, run_cell, view, jobs=jobs or default_jobs(experiment.cells))
        failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        if len(failed) < len(outcomes):
            _show_grid(experiment.out)
    skipped = sum(outcome.status == "skipped" for outcome in outcomes)
    ran = len(outcomes) - skipped - len(failed)
    console.note(f"{len(outcomes)} cells: {ran} run, {skipped} done before, {len(failed)} failed")
    for outcome in failed:
        console.print_error("failed", f"{outcome.cell.run_dir}: {outcome.error}")
    wandb_commands.sync_if_online(experiment)
    return FAILED if failed else OK


def show(options: argparse.Namespace) -> int:
    """Show the timeline and the results of one run."""
    return _show_run(options.dir)


def compare(options: argparse.Namespace) -> None:
    """Show paired differences between folders, or between the strategies of one folder."""
    import analysis

    if options.to is None:
        console.show(analysis.compare(options.dirs))
    elif len(options.dirs) == 1:
        console.show(analysis.compare_to(options.dirs[0], options.to))
    else:
        raise UserError(f"--to: expected one folder, whose strategies are compared; got {len(options.dirs)}")


def report(options: argparse.Namespace) -> None:
    """Write the HTML report."""
    import analysis

    console.say(f"report: {analysis.report(options.dir)}")


def verify(options: argparse.Namespace) -> int:
    """Compare both engines, for every strategy or the one named on the command line."""
    from harness.run import verify as verification

    if any(word.startswith("strategy.name=") for word in options.overrides):
        configs = [load_config(options.config, options.overrides)]
    else:
        configs = [*load_each(options.config, options.overrides, STRATEGIES).values()]
    is_identical = True
    _prepare_fork_server()
    for config in configs:
        name = config.strategy.name
        with progress.run_progress(f"verify {name}") as on_status:
            verdict = verification.verify(config, Path(f"{config.out}-verify"), on_status=on_status)
        console.say(f"{name:<12} {'identical' if verdict.identical else 'DIFFERENT'}")
        for difference in verdict.differences:
            console.say(f"  {difference}")
        is_identical &= verdict.identical
    return OK if is_identical else FAILED


def data(options: argparse.Namespace) -> None:
    """Write, pack or describe click logs."""
    from harness.cli.data_commands import DATA_COMMANDS

    DATA_COMMANDS[options.data_command](options)


def trace(options: argparse.Namespace) -> int:
    """Import, describe or generate failure traces."""
    from harness.cli.trace_commands import TRACE_COMMANDS

    return TRACE_COMMANDS[options.trace_command](options)


def plan(options: argparse.Namespace) -> None:
    """Show the save interval and the recovery that CPR's closed forms recommend."""
    from harness.cli.plan import plan as show_plan

    show_plan(options)


def print_schema(_options: argparse.Namespace) -> None:
    """Print the JSON schema of a configuration."""
    console.say(json.dumps(schema(), indent=2))


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "train": train,
    "grid": grid,
    "replay": replay,
    "show": show,
    "compare": compare,
    "report": report,
    "verify": verify,
    "data": data,
    "plan": plan,
    "trace": trace,
    "schema": print_schema,
    **wandb_commands.WANDB_COMMANDS,
}


def _train(config: Config) -> int:
    from harness.run import assemble
    from harness.run.spec import cell_hash, check

    check(config)
    run_dir, digest = Path(config.out), cell_hash(config)
    if inspect(run_dir, digest) is State.DONE:
        console.note(f"{run_dir}: this run is finished already; its results follow")
        return _show_run(run_dir)
    if assemble.starts_processes(config):
        _prepare_fork_server()
    with claim_run(run_dir, digest) as found:
        if found is State.UNFINISHED:
            console.note(f"{run_dir}: this run was interrupted; it starts afresh")
        try:
            with progress.run_progress(run_dir.name) as on_status:
                assemble.run(config, run_dir, on_status=on_status)
        except HarnessError as error:
            write_reason(run_dir, f"{type(error).__name__}: {error}")
            if isinstance(error, UserError):
                discard_unstarted(run_dir)
            raise
    return _show_run(run_dir)


def _prepare_fork_server() -> None:
    """Fork later processes from this one, which has imported all that they need and has not started a thread yet."""
    from harness.run import assemble  # noqa: F401

    own_fork_server()


def _check_cells(cells: Sequence[Cell], check: Callable[[Config], None]) -> None:
    """Check all cells before any runs. Raises UserError with every distinct mistake, one line each."""
    mistakes: dict[str, None] = {}
    for cell in cells:
        try:
            check(cell.config)
        except UserError as error:
            mistakes[str(error)] = None
    if mistakes:
        raise UserError("\n".join(mistakes))


def _show_run(run_dir: Path) -> int:
    import analysis

    console.show(analysis.show(run_dir))
    return FAILED if analysis.is_damaged(run_dir) else OK


def _show_grid(out: Path) -> None:
    import analysis

    frame = analysis.load(out)
    console.show(analysis.table(frame))
    if (regimes := analysis.regime_table(analysis.blocks_of(frame))) is not None:
        console.show(regimes)
    console.say(f"report: {analysis.report(out)}")
