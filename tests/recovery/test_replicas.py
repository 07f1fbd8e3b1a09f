"""Strategy ``buddy``: shards come back from replicas in memory, and only an owner that dies with its buddy loses."""

from pathlib import Path

import pytest
import torch

import analysis
from harness.cluster.local import LocalRanks
from harness.cluster.protocol import CopyShard, Exchange, ReadShard, Save
from harness.cluster.replica import num_copied_bytes
from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.events import Event, Finished, Recovered, Saved
from harness.record.recorder import read_events
from harness.record.rundir import read_config
from harness.run.assemble import Parts
from tests.recovery.test_unplanned import FillReplica, Finish, MortalRanks, named, run_mortal
from tests.runs import changed, losses_of, run

SINGLES = "hour,rank\n3.1,ps1\n23.3,ps0\n24.6,ps0\n37.2,ps2\n37.2,ps0\n52,ps3\n"


class Kept(LocalRanks):
    """Ranks whose servers can be looked at after the run."""

    last: dict[str, RankServer] = {}  # noqa: RUF012

    def close(self) -> None:
        """Keep the servers of the run's end."""
        type(self).last = dict(self.servers)
        super().close()


class MortalKept(MortalRanks, Kept):
    """Ranks that die as told, and can be looked at."""


def small(config: Config, folder: Path, trace: str, **dotted: object) -> Config:
    """100 steps of ``buddy`` under ``trace``."""
    (folder / "trace.csv").write_text(trace)
    buddy = changed(config, strategy__name="buddy", strategy__interval_samples=None)
    return changed(buddy, data__max_train_samples=400, trace__path=str(folder / "trace.csv"), **dotted)


def assert_whole(servers: dict[str, RankServer]) -> None:
    """Every replica has the rows, counts, step and saved updates of its owner."""
    for server in servers.values():
        assert server.replica is not None
        replica, owner = server.replica.shard, servers[server.replica.owner]
        assert torch.equal(replica.rows_MD, owner.shard.rows_MD)
        assert replica.pending_M is not None
        assert owner.shard.pending_M is not None
        assert torch.equal(replica.pending_M, owner.shard.pending_M)
        assert replica.applied_step == owner.shard.applied_step
        assert replica.taken == owner.shard.taken


def assert_conserved(finished: Finished, events: list[Event], servers: dict[str, RankServer]) -> None:
    """Every update that was sent is in a checkpoint, lost, or counted as unsaved by its shard."""
    saved = sum(event.persisted_updates or 0 for event in events if isinstance(event, Saved))
    pending = [server.shard.pending_M for server in servers.values()]
    unsaved = sum(int(pending_M.sum()) for pending_M in pending if pending_M is not None)
    assert finished.lost_updates is not None
    assert finished.applied_updates == saved + unsaved + finished.lost_updates


@pytest.mark.parametrize(("cache", "mode"), [("none", "sync"), ("lookahead", "async")])
@pytest.mark.parametrize("interval", [None, 48])
def test_single_failures_lose_nothing(
    config: Config, tmp_path: Path, cache: str, mode: str, interval: int | None
) -> None:
    """Failures that spare the buddies of the dead end bit-equal to no failure, with or without saves."""
    config = small(config, tmp_path, SINGLES, cache__mode=cache, cache__lookahead=30, save__mode=mode)
    reference, without = run(changed(config, strategy__name="none"), tmp_path / "none")
    buddy = changed(config, strategy__interval_samples=interval)
    finished, events = run(buddy, tmp_path / "buddy", Parts(make_ranks=Kept))
    assert finished.num_lost_ranks == 6
    assert finished.digests == reference.digests
    assert losses_of(events) == losses_of(without)
    assert (finished.pls, finished.lost_updates) == (0, 0)
    assert finished.num_saves == (0 if interval is None else 8)
    recovered = [event for event in events if isinstance(event, Recovered)]
    assert all({*event.kinds.values()} == {"replica"} for event in recovered)
    assert all(event.sequence is None for event in recovered)
    assert_whole(Kept.last)
    assert_conserved(finished, events, Kept.last)
    assert analysis.check(events, read_config(tmp_path / "buddy")) == []


@pytest.mark.parametrize(("num_ps", "lost"), [(4, ["ps1"]), (2, ["ps0", "ps1"])])
@pytest.mark.parametrize("interval", [None, 52])
def test_an_owner_that_dies_with_its_buddy_loses_what_its_last_save_lacks(
    config: Config, tmp_path: Path, num_ps: int, lost: list[str], interval: int | None
) -> None:
    """As in a run of ``partial``, with the same saves, in which only the ranks die that lost their replicas."""
    pair = "hour,rank\n20,ps0\n40,ps1\n40,ps2\n" if num_ps == 4 else "hour,rank\n20,ps0\n40,ps0\n40,ps1\n"
    buddy = small(config, tmp_path, pair, cluster__num_ps=num_ps, strategy__interval_samples=interval)
    finished, events = run(buddy, tmp_path / "buddy", Parts(make_ranks=Kept))
    alone = tmp_path / "alone.csv"
    alone.write_text("hour,rank\n" + "".join(f"40,{rank}\n" for rank in lost))
    partial = changed(
        buddy, strategy__name="partial", strategy__interval_samples=interval or 400, trace__path=str(alone)
    )
    reference, others = run(partial, tmp_path / "partial")
    assert finished.digests == reference.digests
    assert losses_of(events) == losses_of(others)
    assert finished.pls == reference.pls > 0
    assert finished.lost_updates == reference.lost_updates
    assert (finished.lost_updates or 0) > 0
    last = [event for event in events if isinstance(event, Recovered)][-1]
    assert last.kinds == {rank: "checkpoint" if rank in lost else "replica" for rank in last.ranks}
    assert last.sequence is not None
    assert_whole(Kept.last)
    assert_conserved(finished, events, Kept.last)
    assert analysis.check(events, read_config(tmp_path / "buddy")) == []


LOSE_NOTHING = (
    {("ps1", 50, Exchange): "after"},
    {("ps1", 50, Exchange): "before", ("ps3", 50, Exchange): "before"},
    {("ps1", 50, Exchange): "before", ("ps1", 1, CopyShard): "after"},
    {("ps1", 50, Exchange): "before", ("ps1", 1, FillReplica): "after"},
    {("ps1", 50, Exchange): "before", ("ps3", 51, Exchange): "before"},
    {("ps0", 3, Save): "before"},
    {("ps0", 3, Save): "after"},
    {("ps1", 3, Save): "before", ("ps3", 3, Save): "after"},
)
LOSE_ONE = (
    {("ps1", 50, Exchange): "before", ("ps2", 1, ReadShard): "before"},  # the buddy dies while it is read
    {("ps2", 50, Exchange): "before", ("ps1", 1, ReadShard): "before"},  # the owner, while its replica is made again
)
IN_THE_BACKGROUND = ({("ps1", 35, Exchange): "after"}, {("ps2", 3, Finish): "after"}, {("ps2", 3, Finish): "before"})


def run_until_the_end(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch, doom: dict
) -> tuple[Finished, list[Event]]:
    """A run in which ranks die at given requests; afterwards all replicas are whole and all updates accounted for."""
    finished = run_mortal(config, folder, monkeypatch, doom, MortalKept)
    events = read_events(folder / "events.jsonl")
    assert_whole(MortalKept.last)
    assert_conserved(finished, events, MortalKept.last)
    return finished, events


@pytest.mark.parametrize(
    ("mode", "doom"),
    [*(("sync", doom) for doom in LOSE_NOTHING), *(("async", doom) for doom in (*LOSE_NOTHING, *IN_THE_BACKGROUND))],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_a_death_at_any_moment_loses_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, doom: dict
) -> None:
    """In a step, in a save, in a recovery: rows and counts come back, and the run ends bit-equal to no failure."""
    config = small(config, tmp_path, SINGLES, save__mode=mode, strategy__interval_samples=40)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    finished, _ = run_until_the_end(config, tmp_path / "mortal", monkeypatch, doom)
    assert finished.digests == reference.digests
    assert (finished.pls, finished.lost_updates, finished.num_saves) == (0, 0, 9)


@pytest.mark.parametrize("doom", LOSE_ONE, ids=named)
def test_a_buddy_that_dies_during_a_recovery_belongs_to_the_failure(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict
) -> None:
    """The owner is restored from the checkpoint, the buddy from its own buddy."""
    config = small(config, tmp_path, SINGLES, strategy__interval_samples=52)
    finished, events = run_until_the_end(config, tmp_path / "mortal", monkeypatch, doom)
    (recovered,) = (event for event in events if isinstance(event, Recovered))
    assert recovered.kinds == {"ps1": "checkpoint", "ps2": "replica"}
    assert finished.pls > 0


def test_bytes_of_replicas_are_pushes_and_copies(config: Config, tmp_path: Path) -> None:
    """A push to a buddy is as large as that to the owner; a recovery copies a replica to the dead. The shard that comes
    from its own replica counts as loaded, and all as sent.
    """
    config = small(config, tmp_path, "hour,rank\n")
    quiet, _ = run(config, tmp_path / "quiet", Parts(make_ranks=Kept))
    shards = {rank: server.shard.rows_MD.shape for rank, server in Kept.last.items()}
    (tmp_path / "trace.csv").write_text("hour,rank\n20,ps1\n")
    failed, _ = run(config, tmp_path / "failed")
    without, _ = run(changed(config, strategy__name="partial"), tmp_path / "partial")
    assert quiet.replica_bytes is not None
    assert failed.replica_bytes is not None
    assert failed.replica_bytes - quiet.replica_bytes == num_copied_bytes(*shards["ps0"], has_counts=True)
    loaded = 4 * shards["ps1"].numel()
    assert failed.wire_bytes == failed.payload_bytes + loaded + failed.replica_bytes
    assert quiet.memory_bytes == max(num_copied_bytes(*shape, has_counts=True) for shape in shards.values())
    assert without.replica_bytes is None


def test_a_single_rank_has_no_buddy(config: Config, tmp_path: Path) -> None:
    """One line, before anything runs."""
    with pytest.raises(ConfigError, match=r"^strategy.name: buddy needs cluster.num_ps >= 2, got 1$"):
        run(changed(config, strategy__name="buddy", cluster__num_ps=1, trace__path=None), tmp_path / "run")
