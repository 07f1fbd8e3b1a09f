"""Saves in the background: the same bits, files and charges as saves that are waited for, whoever dies meanwhile."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.events import Saved, Trained
from harness.core.plans import Progress, SavePlan
from harness.recovery.checkpointer import Checkpointer
from harness.run import assemble
from tests.runs import changed, losses_of, run, saving_every


def content(run_dir: Path) -> dict[str, bytes]:
    """Every content file of a run's checkpoints."""
    root = run_dir / "checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*.bin")}


@pytest.mark.parametrize("buffer_bytes", [None, 1])
def test_the_files_are_those_of_saves_that_are_waited_for(
    config: Config, tmp_path: Path, buffer_bytes: int | None
) -> None:
    """Under ten kills, and saves are committed later; also with chunks of one row and room to set aside one more."""
    config = changed(config, strategy__name="cpr_mfu", data__max_train_samples=512, cache__mode="lookahead")
    config = changed(saving_every(config, 40), cache__lookahead=30, eval__every_steps=60)
    _, waited = run(config, tmp_path / "sync")

    def make_server(spec: RankSpec, rank: str) -> RankServer:
        return RankServer(replace(spec, save_buffer_bytes=buffer_bytes or spec.save_buffer_bytes), rank)

    _, begun = run(changed(config, save__mode="async"), tmp_path / "async", assemble.Parts(make_server=make_server))
    is_saved = [[isinstance(event, Saved) for event in events] for events in (waited, begun)]
    assert is_saved[0] != is_saved[1]
    assert losses_of(begun) == losses_of(waited)
    assert content(tmp_path / "async") == content(tmp_path / "sync")


def test_a_save_is_committed_where_something_is_due_next(config: Config, tmp_path: Path) -> None:
    """With a save every 40 samples and nothing else, each is on record right before the next one's steps are."""
    config = changed(
        config, save__mode="async", strategy__name="partial", strategy__interval_samples=40, trace__path=None
    )
    _, events = run(changed(config, metrics__log_every_steps=1000, data__max_train_samples=200), tmp_path / "run")
    told = [(type(event), event.step) for event in events if isinstance(event, Saved | Trained)]
    assert told[:6] == [(Saved, 0), (Trained, 10), (Saved, 10), (Trained, 20), (Saved, 20), (Trained, 30)]


def test_an_ended_run_leaves_no_thread(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends a run while a save is being written, its threads end with it and its half-written files go."""
    config = changed(config, save__mode="async", strategy__name="full", trace__path=None, data__max_train_samples=400)

    class Stop(Exception):
        pass

    real = Checkpointer.save

    def save(checkpointer: Checkpointer, plan: SavePlan, progress: Progress) -> None:
        real(checkpointer, plan, progress)
        if progress.step > 0:
            raise Stop

    monkeypatch.setattr(Checkpointer, "save", save)
    with pytest.raises(Stop):
        assemble.run(config, tmp_path / "run")
    for thread in threading.enumerate():
        if thread.name == "save":  # its work is done: give it the moment that it needs to end
            thread.join(5)
    assert not [thread for thread in threading.enumerate() if thread.name == "save"]
    assert {name[-10:] for name in content(tmp_path / "run")} == {"000000.bin"}
