"""Runs that are asked to stop, or changed, at a step.

``arguments`` of the trainer's job: config, store, faults, cluster, supervisor.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from harness.config.model import Config
from harness.core.errors import RunStopped
from harness.core.events import Finished
from harness.run import assemble, trainer


def train_with(at_boundary: Callable[[int], bool], *arguments: Any) -> None:
    """The trainer's job, which is asked to stop where ``at_boundary`` says so of the number of steps that were run."""
    numbers = count(1)
    arguments[-1].is_stopping = lambda: at_boundary(next(numbers))
    trainer.train(*arguments)


def train_until(at: int, *arguments: Any) -> None:
    """The trainer's job, which is asked to stop at the boundary after the ``at``-th step that is run."""
    train_with(lambda number: number >= at, *arguments)


def stopped(config: Config, run_dir: Path, at: int, *, resumes: bool = False) -> int | None:
    """Run until the ``at``-th step, and leave a resume point; its step. None if the run ended before."""
    step: int | None = None
    try:
        assemble.run(config, run_dir, parts=assemble.Parts(train=partial(train_until, at)), resumes=resumes)
    except RunStopped as error:
        step = error.step
    assert (step is None) == (run_dir / "DONE").exists()
    assert (step is not None) == (run_dir / "resume").exists()
    return step


def resumed(config: Config, run_dir: Path) -> Finished:
    """Go on to the end, which leaves no resume point."""
    finished = assemble.run(config, run_dir, resumes=True)
    assert not (run_dir / "resume").exists()
    assert not (run_dir / "error.txt").exists()
    return finished
