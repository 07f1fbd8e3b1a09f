"""Runs that are asked to stop at a step."""

from functools import partial
from pathlib import Path
from typing import Any, cast

from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster
from harness.config.model import Config
from harness.core.errors import RunStopped
from harness.core.events import Finished
from harness.core.faults import FaultTime
from harness.run import assemble, trainer


class Stopping:
    """Effects, which ask to stop at the boundary after the ``at``-th step that is run."""

    def __init__(self, effects: Effects, at: int) -> None:
        self._effects, self._left = effects, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._effects, name)

    def is_stopping(self) -> bool:
        self._left -= 1
        return self._left <= 0


def train_until(  # noqa: PLR0917
    at: int,
    config: Config,
    checkpoints: Path,
    faults: tuple[FaultTime, ...],
    cluster: Cluster,
    effects: Effects,
) -> None:
    """The trainer's job, which is asked to stop."""
    trainer.train(config, checkpoints, faults, cluster, cast(Effects, Stopping(effects, at)))


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
