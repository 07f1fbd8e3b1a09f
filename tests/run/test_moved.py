"""Law: a run whose folder is moved while it trains leaves the run that has taken its place alone."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from harness.cluster.protocol import Cluster
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.model import Config
from harness.core.errors import Moved, RunStopped
from harness.core.faults import FaultTime
from harness.run import assemble, job
from harness.run.verify import compare_records
from tests.run.test_resume import NUM_STEPS, resumed, train_until
from tests.runs import changed, saving_every


class Moving:
    """A supervisor's client that calls ``move`` at the boundary after the ``at``-th step."""

    def __init__(self, supervisor: SupervisorClient, at: int, move: Any) -> None:
        self._supervisor, self._left, self._move = supervisor, at, move

    def __getattr__(self, name: str) -> Any:
        return getattr(self._supervisor, name)

    def is_stopping(self) -> bool:
        self._left -= 1
        if self._left == 0:
            self._move()
        return False


@pytest.mark.parametrize("every_s", [None, 1e-9], ids=["save", "resume point"])
def test_a_run_that_was_moved_leaves_the_next_one_alone(config: Config, tmp_path: Path, every_s: float | None) -> None:
    """The other one was interrupted, and goes on to its own record, whichever write of the first came first."""
    run_dir = tmp_path / "run"
    base = changed(config, data__max_train_samples=4 * NUM_STEPS, trace__path=None, resume__every_s=every_s)
    first, other = saving_every(base, 36), changed(saving_every(base, 36), seed=7)
    assemble.run(other, tmp_path / "whole")

    def move() -> None:
        run_dir.rename(tmp_path / "moved")
        with pytest.raises(RunStopped):
            assemble.run(other, run_dir, parts=assemble.Parts(train=partial(train_until, 12)))

    def train(
        config: Config, checkpoints: Path, faults: tuple[FaultTime, ...], cluster: Cluster, supervisor: SupervisorClient
    ) -> None:
        job.train(config, checkpoints, faults, cluster, cast(SupervisorClient, Moving(supervisor, 31, move)))

    with pytest.raises(Moved, match=r"run/events\.jsonl: moved or removed during the run; another one is there"):
        assemble.run(first, run_dir, parts=assemble.Parts(train=train))
    resumed(other, run_dir)
    assert compare_records(tmp_path / "whole", run_dir) == []
