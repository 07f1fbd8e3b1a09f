"""Strategy ``buddy``: shards come back from replicas in memory, and only an owner that dies with its buddy loses."""

from pathlib import Path

import pytest

from harness.cluster.server import num_copied_bytes
from harness.config.model import Config
from harness.core.events import Recovered
from harness.run.assemble import Parts
from tests.recovery.mortal_ranks import MortalRanks, assert_replicas_are_whole, outstanding, unsaved
from tests.runs import changed, losses_of, run


def small(config: Config, folder: Path, trace: str, **dotted: object) -> Config:
    """100 steps of ``buddy`` under ``trace``."""
    (folder / "trace.csv").write_text(trace)
    buddy = changed(config, strategy__name="buddy", strategy__interval_samples=None)
    return changed(buddy, data__max_train_samples=400, trace__path=str(folder / "trace.csv"), **dotted)


@pytest.mark.parametrize(("num_ps", "lost", "interval"), [(4, ["ps1"], None), (2, ["ps0", "ps1"], 52)])
def test_an_owner_that_dies_with_its_buddy_loses_what_its_last_save_lacks(
    config: Config, tmp_path: Path, num_ps: int, lost: list[str], interval: int | None
) -> None:
    """As in a run of ``partial``, with the same saves, in which only the ranks die that lost their replicas."""
    pair = "hour,rank\n20,ps0\n40,ps1\n40,ps2\n" if num_ps == 4 else "hour,rank\n20,ps0\n40,ps0\n40,ps1\n"
    buddy = small(config, tmp_path, pair, cluster__num_ps=num_ps, strategy__interval_samples=interval)
    finished, events = run(buddy, tmp_path / "buddy", Parts(make_ranks=MortalRanks))
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
    assert_replicas_are_whole()
    assert outstanding(events) == unsaved()


def test_bytes_of_replicas_are_pushes_and_copies(config: Config, tmp_path: Path) -> None:
    """A push to a buddy is as large as that to the owner; a recovery copies a replica to the dead. The shard that comes
    from its own replica counts as loaded, and all as sent.
    """
    config = small(config, tmp_path, "hour,rank\n")
    quiet, _ = run(config, tmp_path / "quiet", Parts(make_ranks=MortalRanks))
    shards = {rank: server.shard.rows_MD.shape for rank, server in MortalRanks.last.items()}
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
