"""What each command of run.py does: load, run, show. Every function returns an exit code.

torch, pandas and matplotlib are imported where they are used: a wrong key must not wait for them.
"""

# ruff: noqa: PLC0415

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.cli import console
from harness.cluster.spawn import own_fork_server
from harness.config.experiment import Cell, Experiment, load_config, load_each, load_experiment
from harness.config.keys import schema
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import HarnessError, UserError
from harness.core.strategies import STRATEGIES
from harness.grid.runner import default_jobs, run_grid
from harness.grid.worker import RunCell, is_done, one_line, run_assembled
from harness.record.folder import State, claim_grid, claim_run, inspect, take_back
from harness.record.rundir import write_reason, write_view

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_AGAIN = {
    "grid": "the same command goes on with the cells that are not done",
    "train": "the same command starts this run afresh",
    "replay": "the same command starts this run afresh",
}


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out the command that ``options`` describe; errors become lines on stderr. Returns the exit code."""
    console.mend_streams()
    options.command_line = f"run.py {shlex.join(arguments)}"
    try:
        return COMMANDS[options.command](options)
    except UserError as error:
        console.complain("error", str(error))
        return BAD_INPUT
    except HarnessError as error:
        console.complain("failed", one_line(error))
        return FAILED
    except KeyboardInterrupt:
        hint = _AGAIN.get(options.command)
        again = f"; {hint}: run.py {shlex.join(arguments)}" if hint else ""
        console.note(f"interrupted{again}")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, e.g. `head`, has gone
        console.drop_stdout()
        return FAILED
    except OSError as error:  # a folder that may not be written, a full disk
        if error.filename is None:
            raise
        console.complain("error", f"{error.filename}: {error.strerror}")
        return BAD_INPUT


def train(options: argparse.Namespace) -> int:
    """Run one configuration in the folder that its ``out`` names."""
    return _train(load_config(options.config, options.overrides))


def replay(options: argparse.Namespace) -> int:
    """Train under the trace named first on the command line, in a folder named after both."""
    config = load_config(options.config, [*options.overrides, f"trace.path={json.dumps(str(options.trace))}"])
    if not any(word.startswith("out=") for word in options.overrides):
        config = config.model_copy(update={"out": f"{config.out}-{options.trace.stem}"})
    return _train(config)


def grid(options: argparse.Namespace) -> int:
    """Run what is not done of an experiment, then its table and its report."""
    from harness.run.spec import cell_hash, cells_of_other_backend, check

    experiment = load_experiment(options.config, options.overrides, cell_hash=cell_hash)
    _check_cells(experiment.cells, check)
    if line := cells_of_other_backend(experiment.cells):
        console.note(line)
    if options.dry_run:
        for cell in experiment.cells:
            console.say(f"{'done ' if is_done(cell) else 'to do'}  {cell.hash}  {cell.slug}")
        return OK
    return run_experiment(experiment, run_assembled, options.jobs)


def run_experiment(experiment: Experiment, run_cell: RunCell, jobs: int | None) -> int:
    """Run the cells into the experiment's folder, write grid.yaml and the report there, print the table."""
    are_done = [is_done(cell) for cell in experiment.cells]  # a folder that is not ours is refused before any write
    if not all(are_done):
        _fork_from_here()
    with claim_grid(experiment.out):
        heading = "# The experiment with everything of the command line worked in; `run.py grid` takes this file.\n"
        write_view(experiment.out / "grid.yaml", heading + to_yaml(experiment.resolved))
        with console.grid_progress(experiment.cells) as view:
            outcomes = run_grid(experiment.cells, run_cell, view, jobs=jobs or default_jobs(experiment.cells))
        failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        if len(failed) < len(outcomes):
            _show_grid(experiment.out)
    kept = sum(outcome.status == "kept" for outcome in outcomes)
    console.note(f"{len(outcomes)} cells: {len(outcomes) - kept - len(failed)} run, {kept} kept, {len(failed)} failed")
    for outcome in failed:
        console.complain("failed", f"{outcome.cell.run_dir}: {outcome.error}")
    return FAILED if failed else OK


def show(options: argparse.Namespace) -> int:
    """The story of one run."""
    return _show_run(options.dir)


def compare(options: argparse.Namespace) -> int:
    """Paired differences."""
    import analysis

    if options.to is None:
        console.show(analysis.compare(options.dirs))
    elif len(options.dirs) == 1:
        console.show(analysis.compare_to(options.dirs[0], options.to))
    else:
        raise UserError(f"--to compares the strategies of one folder; {len(options.dirs)} were given")
    return OK


def report(options: argparse.Namespace) -> int:
    """The HTML file."""
    import analysis

    console.say(f"report: {analysis.report(options.dir)}")
    return OK


def verify(options: argparse.Namespace) -> int:
    """Both engines against each other, for every strategy or the one that the command line names."""
    from harness.run import verify as verification

    if any(word.startswith("strategy.name=") for word in options.overrides):
        configs = [load_config(options.config, options.overrides)]
    else:
        configs = [*load_each(options.config, options.overrides, STRATEGIES).values()]
    is_identical = True
    _fork_from_here()
    for config in configs:
        name = config.strategy.name
        with console.run_progress(f"verify {name}") as on_status:
            verdict = verification.verify(config, Path(f"{config.out}-verify"), on_status=on_status)
        console.say(f"{name:<12} {'identical' if verdict.identical else 'DIFFERENT'}")
        for difference in verdict.differences:
            console.say(f"  {difference}")
        is_identical &= verdict.identical
    return OK if is_identical else FAILED


def data(options: argparse.Namespace) -> int:
    """Make, prepare or describe click logs."""
    return DATA_COMMANDS[options.data_command](options)


def prepare(options: argparse.Namespace) -> int:
    """Criteo's text to packed records."""
    from harness.data.prepare import prepare as prepare_data

    with console.amount_progress("prepare") as progress:
        meta = prepare_data(
            options.sources,
            options.out,
            categories=options.categories,
            max_ind_range=options.max_ind_range,
            progress=progress,
        )
    rows = sum(meta.cardinalities)
    console.say(f"{options.out}: {meta.num_rows:,} samples, {meta.num_positives:,} positive, {rows:,} embedding rows")
    return OK


def synth(options: argparse.Namespace) -> int:
    """A synthetic Criteo."""
    from harness.data.synth import synth as synth_data

    scale = {} if options.scale is None else {"scale": options.scale}
    with console.amount_progress("synth") as progress:
        made = synth_data(options.rows, options.out, seed=options.seed, progress=progress, **scale)
    console.show_values(made)
    return OK


def info(options: argparse.Namespace) -> int:
    """What prepared data holds."""
    from harness.data.info import info as data_info

    with console.amount_progress("info") as progress:
        found = data_info(options.dir, progress=progress)
    console.show_values(found)
    return OK


def trace(options: argparse.Namespace) -> int:
    """Import, describe or generate failure traces."""
    from harness.cli import trace_commands

    return trace_commands.TRACE_COMMANDS[options.trace_command](options)


def plan(options: argparse.Namespace) -> int:
    """What the closed forms advise."""
    from harness.cli.plan import plan as advise

    return advise(options)


def print_schema(_options: argparse.Namespace) -> int:
    """The JSON schema of a configuration."""
    console.say(json.dumps(schema(), indent=2))
    return OK


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
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
}
DATA_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {"prepare": prepare, "synth": synth, "info": info}


def _train(config: Config) -> int:
    from harness.run import assemble
    from harness.run.spec import cell_hash, check

    check(config)
    run_dir, digest = Path(config.out), cell_hash(config)
    if inspect(run_dir, digest) is State.DONE:
        console.note(f"{run_dir}: this run is finished already; here it is")
        return _show_run(run_dir)
    if assemble.starts_processes(config):
        _fork_from_here()
    with claim_run(run_dir, digest) as found:
        if found is State.UNFINISHED:
            console.note(f"{run_dir}: this run was cut short; it starts afresh")
        try:
            with console.run_progress(run_dir.name) as on_status:
                assemble.run(config, run_dir, on_status=on_status)
        except HarnessError as error:
            write_reason(run_dir, f"{type(error).__name__}: {error}")
            if isinstance(error, UserError):
                take_back(run_dir)
            raise
    return _show_run(run_dir)


def _fork_from_here() -> None:
    """Have processes forked from this one, once it has imported all they need and before anything starts a thread."""
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
