"""`run.py sync`, `run.py dashboard`, and the upload of an online grid after its last cell."""

# ruff: noqa: PLC0415 - analysis and wandb are imported when they are needed

import argparse
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.cli import console
from harness.config.experiment import Experiment
from harness.core.errors import HarnessError, StoreError
from harness.grid.experiments import is_online
from harness.wandb.exporter import Uploader
from harness.wandb.facts import RunFacts, read_facts


def sync_if_online(experiment: Experiment) -> None:
    """Send the runs of an online grid again, with AUC differences to ``none``, which were unknown while cells ran.

    A no-op for a grid that is not online. An error becomes a note.
    """
    if is_online(experiment):
        try:
            _sync(experiment.out, {})
        except HarnessError as error:
            console.note(f"{error}; `run.py sync {experiment.out}` sends it")


def sync(options: argparse.Namespace) -> None:
    """Send the finished runs of a folder to wandb, except runs that were sent before.

    Raises UserError, RunFailed; for runs that cannot be read, StoreError after the others were sent.
    """
    _sync(options.dir, _target(options))


def _sync(folder: Path, target: Mapping[str, Any]) -> None:
    from harness.record.rundir import find_runs

    paths = find_runs(folder)
    differences = _auc_differences(folder)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    with closing(Uploader(target)) as uploader:
        for path in paths:
            difference = differences.get(path)
            try:
                counts[uploader.send(path, {} if difference is None else {"delta_auc": difference})] += 1
            except StoreError as error:
                problems.append(str(error))
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    console.say(" ".join(["wandb:", outcomes, *([uploader.project_url] if uploader.project_url else [])]))
    if problems:
        raise StoreError("\n".join(problems))


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

    made = workspace.workspace_of(_facts(options.dir, _target(options)))
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
