"""Whole runs of saves that leave rows out: differential ones, and priority saves without untracked tables.

That they hold on the rpc engine too follows from ``test_equivalence``: both engines agree to the bit.
"""

from pathlib import Path
from typing import Any

import pytest

from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.events import Event, Recovered, Saved, Started, Trained
from harness.core.placement import budget_rows
from harness.core.plans import Rank
from harness.run import trainer
from harness.run.assemble import Parts
from harness.run.spec import RunSpec
from tests.runs import changed, losses_of, run, saving_every


def charged(events: list[Event]) -> list[Saved]:
    """The saves after the initial one."""
    return [event for event in events if isinstance(event, Saved) and event.charged]


def total_bytes(events: list[Event]) -> int:
    """What all of them wrote."""
    return sum(event.payload_bytes for event in charged(events))


def test_differential_saves_write_fewer_bytes(config: Config, tmp_path: Path) -> None:
    """At the steps of whole ones, for the same losses of samples."""
    plain = saving_every(changed(config, strategy__name="partial", data__max_train_samples=256), 24)
    whole, saves = run(plain, tmp_path / "whole")
    differential = changed(plain, strategy__name="differential", strategy__recovery="partial")
    finished, events = run(differential, tmp_path / "differential")
    assert finished.digests == whole.digests
    assert (finished.pls, finished.lost_updates) == (whole.pls, whole.lost_updates)
    assert [event.step for event in charged(events)] == [event.step for event in charged(saves)]
    assert total_bytes(events) < total_bytes(saves) * 0.8


def save_bytes(event: Saved, events: list[Event], bits: int) -> set[int]:
    """What a save may have been charged beside the dense network: with ids for deltas, without for bases, by rank."""
    started = events[0]
    assert isinstance(started, Started)
    row = 8 + 2 * bits  # scale and offset, 16 values
    sums = {0}  # of rows in bases
    for rows in started.rank_rows:
        sums |= {so_far + rows for so_far in sums}
    return {row * event.num_rows + 4 * (event.num_rows - whole) for whole in sums}


@pytest.mark.parametrize(("bits", "recovery"), [(8, "full"), (2, "partial")])
def test_rounded_saves_are_charged_as_written(config: Config, tmp_path: Path, bits: int, recovery: str) -> None:
    """Ids, scales and offsets are in the bytes. The audit finds no problem, though rounded reruns have other losses."""
    keys: dict[str, Any] = {"strategy__bits": bits, "strategy__recovery": recovery, "data__max_train_samples": 256}
    config = saving_every(changed(config, strategy__name="differential", **keys), 16)
    finished, events = run(config, tmp_path / "plain")
    dense_bytes = RunSpec(config).footprint.dense_bytes
    for event in charged(events):
        assert event.payload_bytes - dense_bytes in save_bytes(event, events, bits)
    first = losses_of(events)
    reruns = [event for event in events if isinstance(event, Trained) and event.rerun]
    assert bool(reruns) == (recovery == "full")
    same = all(event.losses == first[event.first_step : event.step] for event in reruns)
    assert same == (recovery == "partial")
    assert finished.pls == 0 or recovery == "partial"
    assert any(isinstance(event, Recovered) for event in events)


def test_every_update_is_saved_lost_or_in_memory(config: Config, tmp_path: Path) -> None:
    """With untracked tables at the end of intervals only, fewer bytes are written and more is lost: the ledger knows it
    all.
    """
    config = changed(config, strategy__name="cpr_mfu", strategy__interval_samples=160, data__max_train_samples=512)
    usual, _ = run(config, tmp_path / "usual")
    servers: dict[Rank, RankServer] = {}

    def keep(spec: RankSpec, rank: Rank) -> RankServer:
        servers[rank] = RankServer(spec, rank)
        return servers[rank]

    config = changed(config, strategy__untracked="interval")
    finished, events = run(config, tmp_path / "sparse", Parts(make_server=keep))
    in_memory = sum(
        int(pending.sum()) for server in servers.values() if (pending := server.shard.pending_M) is not None
    )
    saves = [event for event in events if isinstance(event, Saved)]
    assert {event.save for event in saves} == {"full", "tracked", "priority"}
    assert all(event.closes_interval == (event.save != "tracked") for event in saves)
    persisted = sum(event.persisted_updates or 0 for event in saves)
    assert finished.applied_updates == persisted + (finished.lost_updates or 0) + in_memory
    assert all(event.persisted_updates == event.persisted_tracked for event in saves if event.save == "tracked")
    assert finished.payload_bytes < usual.payload_bytes / 2
    assert (finished.lost_updates or 0) > (usual.lost_updates or 0)
    assert finished.pls == usual.pls


def test_a_budget_that_binds_is_used_up_and_never_exceeded(config: Config, tmp_path: Path) -> None:
    """K of each tracked table, and the untracked rows at the end of an interval: equal bytes for all."""
    keys = {"strategy__r": 0.05, "strategy__interval_samples": 400, "strategy__untracked": "interval"}
    keys |= {"data__max_train_samples": 440, "trace__path": None, "cluster__num_ps": 1}
    for name in ("cpr_mfu", "cpr_scar"):
        config = changed(config, strategy__name=name, **keys)
        run_spec = RunSpec(config)
        num_chosen = sum(budget_rows(run_spec.dataset.cardinalities[table], 0.05) for table in run_spec.tracked)
        num_whole = sum(run_spec.dataset.cardinalities[table] for table in range(26) if table not in run_spec.tracked)
        _, events = run(config, tmp_path / name)
        written = {(event.save, event.num_rows) for event in charged(events)}
        assert written == {("tracked", num_chosen), ("priority", num_chosen + num_whole)}


def test_a_finished_run_leaves_no_file_of_a_killed_writer(config: Config, tmp_path: Path) -> None:
    """Law: what a rank had begun to write when it was killed is not kept with the checkpoints of its run."""
    left = tmp_path / "run" / "checkpoints" / "ps0" / ".base-000001.bin.0a1b2c3d.tmp"

    def train(*arguments: Any) -> None:
        left.parent.mkdir()
        left.write_bytes(b"half")
        trainer.train(*arguments)

    config = changed(config, trace__path=None, data__max_train_samples=64, strategy__interval_samples=32)
    run(config, tmp_path / "run", Parts(train=train))
    assert {path.suffix for path in left.parent.iterdir()} == {".bin"}
