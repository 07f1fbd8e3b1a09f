"""Runs that are asked to stop, or changed, at a step; commands that get a signal. Processes import this file.

``arguments`` of the trainer's job: config, store, faults, cluster, supervisor.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import run as command_line
from harness.cli import interrupts
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import RunStopped
from harness.core.events import Event, Finished, Regrouped, Started
from harness.record.recorder import Recorder
from harness.run import assemble, trainer
from tests.forked import ran


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


def signalled(config: Config, folder: Path, number: signal.Signals, step: int) -> tuple[int, str]:
    """Exit code and words of `run.py train`, which gets a signal when it has trained so many steps.

    With SIGKILL it has a resume point by then. SIGTERM goes to its ranks too, as from a scheduler.
    """
    file = folder / "run.yaml"
    file.write_text(to_yaml(config.model_dump(mode="json")))
    done = ran(_command, file, Path(config.out), number, step, is_merged=True)
    return done.returncode, done.stdout


def _command(file: Path, run_dir: Path, number: signal.Signals, step: int) -> None:
    real, sent, ranks = Recorder.record, list[int](), dict[str, int]()

    def record(self: Recorder, event: Event) -> None:
        real(self, event)
        if isinstance(event, Started | Regrouped):
            ranks.update(event.machine.get("pids", {}))
        is_due = event.step >= step and (number != signal.SIGKILL or any((run_dir / "resume").glob("point-*")))
        if is_due and not sent:
            sent.extend([*(ranks.values() if number == signal.SIGTERM else ()), os.getpid()])
            for pid in sent:
                os.kill(pid, number)

    Recorder.record = record
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.install()
    sys.exit(command_line.main(["train", str(file)]))
