"""`run.py sync`, `run.py dashboard`, and the upload of an online grid after its last cell."""

# ruff: noqa: PLC0415 - analysis and wandb are imported when they are needed

import argparse
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.cli import console
from harness.cli.record_commands import BAD_INPUT, FAILED, OK
from harness.config.experiment import Experiment
from harness.core.errors import HarnessError, StoreError
from harness.grid.experiments import is_online
from harness.wandb.exporter import Refused, Uploader
from harness.wandb.facts import RunFacts, read_facts


def sync_if_online(experiment: Experiment) -> None:
    """Send the runs of an online grid again, with AUC differences to ``none``, which were unknown while cells ran.

    A no-op for a grid that is not online. An error becomes a note.
    """
    if is_online(experiment):
        try:
            problems = _sync(experiment.out, {})
        except HarnessError as error:
            problems = [error]
        for problem in problems:
            console.note(f"{problem}; `run.py sync {experiment.out}` sends it")


def sync(options: argparse.Namespace) -> int:
    """Send the finished runs of a folder to wandb, except runs that were sent before.

    Runs that cannot be read, or that the server refuses, are named after the others were sent. Returns an exit code.
    Raises UserError, RunFailed.
    """
    problems = _sync(options.dir, _target(options))
    for problem in problems:
        console.print_error("failed" if isinstance(problem, Refused) else "error", str(problem))
    return BAD_INPUT if any(isinstance(each, StoreError) for each in problems) else FAILED if problems else OK


def _sync(folder: Path, target: Mapping[str, Any]) -> list[StoreError | Refused]:
    """Send what can be sent; returns why a run could not be, for each that was not."""
    from harness.record.rundir import find_runs

    paths = find_runs(folder)
    differences = _auc_differences(folder)
    counts: Counter[str] = Counter()
    problems: list[StoreError | Refused] = []
    with closing(Uploader(target)) as uploader:
        for path in paths:
            difference = differences.get(path)
            try:
                counts[uploader.send(path, {} if difference is None else {"delta_auc": difference})] += 1
            except (StoreError, Refused) as error:
                problems.append(error)
                counts["refused"] += isinstance(error, Refused)
    counts = +counts
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    console.say(" ".join(["wandb:", outcomes, *([uploader.project_url] if uploader.project_url else [])]))
    return problems


def _auc_differences(folder: Path) -> dict[Path, float]:
    """AUC of each run minus AUC of the ``none`` run of its seed, by run directory; runs without one are left out."""
    import analysis
    from analysis.stats import paired

    frame = paired(analysis.load(folder))
    differences = frame[frame["status"] == "done"].set_index("path")["auc_difference"].dropna()
    return {Path(path): difference for path, difference in differences.items()}


def _target(options: argparse.Namespace) -> dict[str, str]:
    named = {"project": options.project, "entity": options.entity}
    return {key: value for key, value in named.items() if value is not None}


def dashboard(options: argparse.Namespace) -> None:
    """Save a wandb workspace for the runs of a folder, on the server or in a file."""
    from analysis import workspace

    facts = _facts(options.dir, _target(options))
    made = workspace.workspace_of(facts)
    if line := workspace.left_out(facts):
        console.note(f"note: {line}")
    if options.offline is not None:
        workspace.write(made, options.offline)
        console.say(f"workspace: {options.offline}")
    else:
        console.say(f"workspace: {workspace.save(made, options.dir)}")


def _facts(folder: Path, target: Mapping[str, Any]) -> list[RunFacts]:
    from harness.record.rundir import RunDir, find_runs

    facts: list[RunFacts] = []
    for path in find_runs(folder):
        try:
            found = read_facts(RunDir(path), target)
        except StoreError as error:
            console.note(f"note: {error}; left out")
        else:
            facts += [found] if found is not None else []
    return facts
