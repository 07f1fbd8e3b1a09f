"""Effects of a trainer: one method through which all of them pass."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from harness.cluster.effects import Channel, Effects
from harness.cluster.protocol import Cluster
from harness.config.model import Config
from harness.core.faults import FaultTime
from harness.core.trainers import TrainerGroup
from harness.run import resume_points, trainer
from harness.run.assemble import Parts
from harness.store import FileRecord
from tests.runs import changed, run, saving_every

T = TypeVar("T")


class Watching(TrainerGroup):
    """A group that knows whether one trainer acts, or answers, for all."""

    is_acting = False

    def once(self, action: Callable[[], T]) -> T:
        self.is_acting = True
        try:
            return action()
        finally:
            self.is_acting = False

    def noticed(self, what: str, question: Callable[[], bool]) -> bool:
        return self.once(question)


class Watched(Effects):
    """Effects that know whether one of them takes place, and count what then happens."""

    def __init__(self, channel: Channel) -> None:
        self.watching = Watching()
        super().__init__(WatchedChannel(channel, self.happens), group=self.watching)
        self.counts = Counter[str]()

    def begin_write(self, write: Callable[[], FileRecord]) -> Future[FileRecord]:
        self.counts["begin_write"] += 1
        return super().begin_write(write)

    def happens(self, name: str, act: Callable[..., T], *args: Any, **values: Any) -> T:
        """Something has an effect outside the trainer, or says what only one trainer hears."""
        assert self.watching.is_acting, name
        self.counts[name] += 1
        return act(*args, **values)


class WatchedChannel:
    """A channel all of whose messages are looked at."""

    def __init__(self, channel: Channel, happens: Callable[..., Any]) -> None:
        self._channel, self._happens = channel, happens
        self.advanced = channel.advanced  # of this trainer

    def call(self, name: str, *args: Any) -> Any:
        return self._happens(name, self._channel.call, name, *args)

    def tell(self, name: str, **values: Any) -> None:
        self._happens(name, partial(self._channel.tell, name), **values)

    def is_stopping(self) -> bool:
        return self._happens("is_stopping", self._channel.is_stopping)

    def take_spares(self) -> bool:
        return self._happens("take_spares", self._channel.take_spares)


def train(  # noqa: PLR0917
    names: Path,
    config: Config,
    checkpoints: Path,
    faults: tuple[FaultTime, ...],
    cluster: Cluster,
    effects: Effects,
) -> None:
    """The trainer's job, which writes the names of its effects."""
    watched = Watched(effects.channel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume_points, "write_state", partial(watched.happens, "write_state", resume_points.write_state))
        trainer.train(config, checkpoints, faults, cluster, watched)
    names.write_text(" ".join(sorted(watched.counts)))


@pytest.mark.parametrize("engine", ["local", "rpc"])
def test_every_effect_passes_through_one_method(config: Config, tmp_path: Path, engine: str) -> None:
    """Law: calls of the supervisor, the trainer's files, and the notices that it takes."""
    names, trace = tmp_path / "names", tmp_path / "trace.csv"
    trace.write_text("hour,rank,fault\n20,ps1,kill\n30,ps0,disk_full\n35,ps1,bitflip\n")
    config = changed(saving_every(config, 36), trace__path=str(trace), resume__every_s=0.0, strategy__name="partial")
    run(changed(config, engine=engine), tmp_path / "run", Parts(train=partial(train, names)))
    assert names.read_text().split() == [
        *(
            "begin_write",
            "commit",
            "commit_point",
            "inject",
            "is_stopping",
            "record",
            "replace",
            "resumption",
            "status",
        ),
        "write_state",
    ]
