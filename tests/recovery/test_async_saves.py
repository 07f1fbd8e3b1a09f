"""Saves in the background: the same bits, files and charges as saves that are waited for, whoever dies meanwhile."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import analysis
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster, Exchange, Save
from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.errors import StoreError
from harness.core.events import Event, Recovered, Saved, Trained
from harness.core.faults import FaultTime
from harness.core.plans import Progress, SavePlan
from harness.record.rundir import read_config
from harness.recovery.checkpointer import Checkpointer
from harness.run import assemble, job, trainer
from harness.run.verify import compare_records
from harness.store import newest_checkpoint
from harness.store.format import HashingWriter
from tests.cluster.worlds import pids_of
from tests.recovery.test_unplanned import Finish, run_mortal
from tests.runs import changed, losses_of, run, saving_every


def in_background(config: Config, **dotted: object) -> Config:
    """``config`` with saves in the background."""
    return changed(config, save__mode="async", **dotted)


def facts(event: Event) -> dict:
    """What an event says, its machine part and the hash of its config aside."""
    return {key: value for key, value in event.to_json().items() if key not in ("machine", "config_hash")}


def content(run_dir: Path) -> dict[str, bytes]:
    """Every content file of a run's checkpoints."""
    root = run_dir / "checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*.bin")}


@pytest.mark.parametrize(("strategy", "cache"), [("full", "none"), ("cpr_mfu", "lookahead"), ("cpr_ssu", "none")])
def test_a_run_is_what_it_is_with_saves_that_are_waited_for(
    config: Config, tmp_path: Path, strategy: str, cache: str
) -> None:
    """Under ten kills: losses, parameters, PLS, charges and files are equal, and events but for the place of saves."""
    config = changed(config, strategy__name=strategy, data__max_train_samples=512, eval__every_steps=60)
    config = saving_every(config, 40)
    config = changed(config, cache__mode=cache, cache__lookahead=30)
    _, waited = run(config, tmp_path / "sync")
    _, begun = run(in_background(config), tmp_path / "async")
    is_saved = [[isinstance(event, Saved) for event in events] for events in (waited, begun)]
    assert is_saved[0] != is_saved[1], "saves are committed later"
    for kind in (True, False):
        waited_facts, begun_facts = (
            [facts(event) for event in events if isinstance(event, Saved) == kind] for events in (waited, begun)
        )
        assert begun_facts == waited_facts
    assert content(tmp_path / "async") == content(tmp_path / "sync")
    assert analysis.check(begun, read_config(tmp_path / "async")) == []


def test_the_smallest_buffer_changes_nothing_but_time(config: Config, tmp_path: Path) -> None:
    """With chunks of one row and room to set aside one more, steps wait for the writer, and the bits are the same."""
    config = changed(config, strategy__name="cpr_mfu", strategy__interval_samples=160, data__max_train_samples=160)
    _, waited = run(config, tmp_path / "sync")
    parts = assemble.Parts(make_server=lambda spec, rank: RankServer(replace(spec, save_buffer_bytes=1), rank))
    _, begun = run(in_background(config), tmp_path / "async", parts)
    assert losses_of(begun) == losses_of(waited)
    assert content(tmp_path / "async") == content(tmp_path / "sync")


def test_engines_agree_on_saves_in_the_background(config: Config, tmp_path: Path) -> None:
    """Event for event, Saved events and their waits included: where a save is committed hangs on no clock."""
    config = in_background(config, strategy__name="cpr_mfu", data__max_train_samples=256, eval__every_steps=25)
    config = changed(config, strategy__interval_samples=48, profile__load="by_bytes", profile__o_save_fixed_h=4)
    config = changed(config, profile__network_gbps=25, profile__snapshot_gbps=100, profile__num_trainers=3)
    run(config, tmp_path / "local")
    finished, events = run(changed(config, engine="rpc"), tmp_path / "rpc")
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    assert finished.save_h > 1, "saves wait for each other"
    assert analysis.check(events, read_config(tmp_path / "rpc")) == []


def test_a_save_is_committed_where_something_is_due_next(config: Config, tmp_path: Path) -> None:
    """With a save every 40 samples and nothing else, each is on record right before the next one's steps are."""
    config = in_background(config, strategy__name="partial", strategy__interval_samples=40, trace__path=None)
    _, events = run(changed(config, metrics__log_every_steps=1000, data__max_train_samples=200), tmp_path / "run")
    told = [(type(event), event.step) for event in events if isinstance(event, Saved | Trained)]
    assert told[:6] == [(Saved, 0), (Trained, 10), (Saved, 10), (Trained, 20), (Saved, 20), (Trained, 30)]


# --- deaths that no trace planned -------------------------------------------------------------------------------------

WHILE_IT_IS_WRITTEN = (
    {("ps1", 3, Save): "after"},
    {("ps1", 1, Save): "after"},
    {("ps1", 35, Exchange): "after"},
    {("ps2", 3, Finish): "after"},
    {("ps0", 3, Save): "after", ("ps2", 3, Finish): "after"},
)


@pytest.mark.parametrize(
    "doom", WHILE_IT_IS_WRITTEN, ids=lambda doom: "-".join(f"{r}{n}{k.__name__}" for r, n, k in doom)
)
def test_full_recovery_gives_up_the_save_and_loses_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict
) -> None:
    """The run goes on from the checkpoint before, and ends bit-equal to no failure."""
    config = changed(config, data__max_train_samples=400, strategy__interval_samples=40)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    finished = run_mortal(in_background(config, strategy__name="full"), tmp_path / "mortal", monkeypatch, doom)
    assert finished.digests == reference.digests
    assert finished.applied_updates == reference.applied_updates
    assert (finished.num_saves, finished.lost_updates) == (9, 0)


@pytest.mark.parametrize(
    "doom", WHILE_IT_IS_WRITTEN, ids=lambda doom: "-".join(f"{r}{n}{k.__name__}" for r, n, k in doom)
)
def test_partial_recovery_completes_the_save(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict
) -> None:
    """A replacement saves what it has when it is asked; the survivors' part stands, and every checkpoint is whole."""
    config = changed(config, data__max_train_samples=400, strategy__interval_samples=40)
    finished = run_mortal(in_background(config, strategy__name="partial"), tmp_path / "mortal", monkeypatch, doom)
    assert finished.num_saves == 9
    manifest, skipped = newest_checkpoint(tmp_path / "mortal" / "checkpoints")
    assert manifest is not None
    assert (manifest.step, skipped) == (90, [])


def test_a_rank_that_dies_in_a_save_loses_since_the_checkpoint_before(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save of step 20 was not committed when the rank died at step 25: PLS and updates count from step 10."""
    config = changed(config, data__max_train_samples=400, strategy__name="partial", strategy__interval_samples=40)
    doom = {("ps1", 28, Exchange): "after"}
    begun = run_mortal(in_background(config), tmp_path / "async", monkeypatch, dict(doom))
    waited = run_mortal(config, tmp_path / "sync", monkeypatch, dict(doom))
    assert begun.pls > waited.pls > 0
    assert begun.lost_updates is not None
    assert waited.lost_updates is not None
    assert begun.lost_updates > waited.lost_updates > 0


def train_and_kill_in_a_save(
    config: Config, checkpoints: Path, faults: tuple[FaultTime, ...], cluster: Cluster, effects: Effects
) -> None:
    """The trainer's job; when the third save has been begun, ps1 is killed."""
    pids, num_saves = pids_of(cluster), 0

    class Unlucky(Checkpointer):
        def save(self, *args, **kwargs) -> None:
            nonlocal num_saves
            super().save(*args, **kwargs)
            num_saves += 1
            if num_saves == 3:
                os.kill(pids["ps1"], 9)

    job.Checkpointer = Unlucky
    trainer.train(config, checkpoints, faults, cluster, effects)


@pytest.mark.parametrize("strategy", ["full", "partial"])
def test_a_rank_killed_in_a_save_is_mended(config: Config, tmp_path: Path, strategy: str) -> None:
    """SIGKILL between a save and its commit: the checkpoint before is recovered from, and later ones are whole."""
    config = changed(
        config,
        data__max_train_samples=240,
        strategy__name=strategy,
        strategy__interval_samples=48,
        trace__path=None,
        trace__allow_unplanned=True,
    )
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    unlucky = assemble.Parts(train=train_and_kill_in_a_save)
    finished, events = run(in_background(config, engine="rpc"), tmp_path / "run", unlucky)
    assert (finished.num_unplanned, finished.num_saves) == (1, 4)
    assert analysis.check(events, read_config(tmp_path / "run")) == []
    (recovered,) = (event for event in events if isinstance(event, Recovered))
    assert recovered.sequence == 1, "the save of step 24 was number 2, and not committed"
    assert (finished.digests == reference.digests) == (strategy == "full")
    manifest, skipped = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert manifest is not None
    assert (manifest.step, skipped) == (48, [])


# --- what goes wrong in the background --------------------------------------------------------------------------------


def test_a_disk_that_refuses_is_one_line(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that fails in the background is heard of where the save is waited for, as it is without background."""
    config = in_background(config, strategy__name="full", trace__path=None, data__max_train_samples=400)
    real = HashingWriter.write

    def write(writer: HashingWriter, view: memoryview) -> None:
        if threading.current_thread().name == "save" and b'"applied_step":0,' not in bytes(view[:4096]):
            raise OSError(28, "No space left on device")
        real(writer, view)

    monkeypatch.setattr(HashingWriter, "write", write)
    with pytest.raises(StoreError, match="cannot be written: No space left on device; earlier checkpoints are untou"):
        assemble.run(config, tmp_path / "run")
    assert not [thread for thread in threading.enumerate() if thread.name == "save"]


def test_an_ended_run_leaves_no_thread(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends a run while a save is being written, its threads end with it and its half-written files go."""
    config = in_background(config, strategy__name="full", trace__path=None, data__max_train_samples=400)

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
