"""Kinds of recovery: means of the survivors, the trainer's mirror of some rows, and replicas of whole shards."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.cluster.local import LocalCluster
from harness.cluster.protocol import Request, Restore, Save
from harness.cluster.server import RankServer, RankSpec, num_copied_bytes
from harness.config.model import Config
from harness.core.events import Event, Finished, Recovered, Saved
from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import MIRROR_INDEX_BYTES, Placement, budget_rows, num_mirrored
from harness.core.plans import Rank
from harness.core.seeds import generator
from harness.core.shard import Shard
from harness.core.trackers import MfuTracker, TrackerSpec
from harness.recovery.means import fill_tables, sums_of_tables
from harness.recovery.mirror import choose
from harness.run.assemble import Parts
from harness.run.spec import RunSpec
from tests.recovery.mortal_ranks import (
    MortalRanks,
    assert_parities_are_whole,
    assert_replicas_are_whole,
    outstanding,
    unsaved,
)
from tests.runs import PRIORITY_R, changed, losses_of, run, saving_every

SHARE = 0.03


class ShadowedServer(RankServer):
    """A rank that compares every restored shard, row by row, with the dead one's and with the checkpoint."""

    dead: dict[Rank, Shard] = {}  # noqa: RUF012 - the shards of the last run, by rank; each lives on after its rank
    mirrored: dict[Rank, Tensor] = {}  # noqa: RUF012 - rows that the trainer's mirror holds of each rank
    has_mirror = True
    num_compared = num_newer = 0

    def __init__(self, spec: RankSpec, rank: Rank) -> None:
        super().__init__(spec, rank)
        self._saved = spec.store

    def handle(self, request: Request) -> object:
        """Serve; compare what a replacement has then."""
        reply = super().handle(request)
        if isinstance(request, Save):
            self.mirrored[self.rank] = request.mirrored_N
        elif isinstance(request, Restore):
            self._compare(request, self.dead[self.rank])
        self.dead[self.rank] = self.shard
        return reply

    def _compare(self, request: Restore, dead: Shard) -> None:
        saved_MX = torch.empty_like(dead.rows_MD)
        self._saved.read_rows(request.records, saved_MX)
        assert dead.pending_M is not None
        assert self.shard.pending_M is not None
        is_newer_M = torch.zeros(len(saved_MX), dtype=torch.bool)
        if self.has_mirror:
            mirrored_N = self.mirrored[self.rank]
            is_newer_M[mirrored_N] = dead.pending_M[mirrored_N] > 0
        expected_MX = torch.where(is_newer_M[:, None], dead.rows_MD, saved_MX)
        assert torch.equal(self.shard.rows_MD, expected_MX)
        assert torch.equal(self.shard.pending_M, torch.where(is_newer_M, dead.pending_M, 0))
        type(self).num_compared += 1
        type(self).num_newer += int(is_newer_M.sum())


def run_shadowed(config: Config, folder: Path, *, has_mirror: bool = True) -> tuple[Finished, list[Event]]:
    """64 steps under ten failures, of which each replacement is compared; the mirror holds 3 % of tracked tables."""
    server = ShadowedServer
    server.dead, server.num_compared, server.num_newer, server.has_mirror = {}, 0, 0, has_mirror
    finished, events = run(config, folder, Parts(make_server=server))
    assert server.num_compared == 11
    return finished, events


def test_a_replacement_has_the_newer_of_mirror_and_checkpoint(config: Config, tmp_path: Path) -> None:
    """Mirrored rows with unsaved updates are the dead shard's, bit by bit and with their counts; others as saved.

    A save has at most K rows of each tracked table and shard, and mirrored rows, small tables among them, only where an
    interval closes. With its trainer a mirror dies: a replacement then has exactly the rows of the checkpoint.
    """
    config = changed(config, strategy__name="cpr_mirror", data__max_train_samples=256)
    config = saving_every(changed(config, strategy__share=SHARE), 20)
    run_spec = RunSpec(config)
    row_bytes = 4 * run_spec.model.row_values + 4
    for name, path in (("ahead", {"cache__mode": "lookahead", "cache__lookahead": 8, "save__mode": "async"}), ("", {})):
        kept, events = run_shadowed(changed(config, **path), tmp_path / f"run-{name}")
        recoveries = [event for event in events if isinstance(event, Recovered)]
        assert ShadowedServer.num_newer == sum(event.recovered_rows for event in recoveries) > 0
        assert kept.recovered_updates == sum(event.recovered_updates or 0 for event in recoveries) > 0
        assert [event.upload_bytes for event in recoveries] == [e.recovered_rows * row_bytes for e in recoveries]

    placement, tracked = run_spec.placement, run_spec.tracked
    sizes = [(placement.num_local_rows(k, t), t in tracked) for k in range(4) for t in range(26)]
    num_chosen, num_hot = (sum(budget_rows(n, r) for n, is_tracked in sizes if is_tracked) for r in (PRIORITY_R, SHARE))
    num_small = sum(num_rows for num_rows, is_tracked in sizes if not is_tracked)
    saves = [event for event in events if isinstance(event, Saved) and event.charged]
    assert {(event.save, event.closes_interval) for event in saves} == {("tracked", False), ("with_mirror", True)}
    for event in saves:
        most = num_chosen + (num_small + num_hot) * event.closes_interval
        assert num_small * event.closes_interval < event.num_rows <= most
    rows = sum(num_mirrored(num_rows, SHARE, is_tracked=is_tracked) for num_rows, is_tracked in sizes)
    assert kept.mirror is not None
    assert kept.mirror["rows"] == rows == num_small + num_hot
    assert kept.mirror["bytes"] == rows * (4 * run_spec.model.row_values + MIRROR_INDEX_BYTES)

    died, _ = run_shadowed(changed(config, trace__trainers_die=True), tmp_path / "died", has_mirror=False)
    assert ShadowedServer.num_newer == died.recovered_updates == 0
    assert (died.lost_updates or 0) > (kept.lost_updates or 0)


CARDINALITIES, TRACKED = (400, 9, 1000, 30), (0, 2)


def made_shard(rng: np.random.Generator) -> tuple[Shard, Tensor]:
    """One of three ranks, with random counts of unsaved updates; the counts."""
    shard = Shard(Placement("row", CARDINALITIES, 3), 1, dim=2, seed=0, counts_updates=True)
    assert shard.pending_M is not None
    shard.pending_M[:] = torch.from_numpy(rng.integers(0, 4, len(shard.pending_M)).astype(np.int32))
    return shard, shard.pending_M


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_mirror_holds_the_most_accessed_rows(share: float) -> None:
    """As a sort by accesses, mirrored first, row; whatever the mirror held. Untracked tables are held whole."""
    for seed in range(5):
        rng = generator(seed, "mirror")
        shard, pending_M = made_shard(rng)
        held_N = np.sort(rng.choice(len(pending_M), 100, replace=False))
        accesses_N = rng.integers(0, 4, 100).astype(np.int32)
        accesses = pending_M.numpy().copy()
        accesses[held_N] = accesses_N
        expected: list[int] = []
        for table in range(len(CARDINALITIES)):
            span = shard.span(table)
            rows = sorted(range(span.start, span.stop), key=lambda row: (-accesses[row], row not in set(held_N), row))
            expected += sorted(rows[: num_mirrored(len(rows), share, is_tracked=table in TRACKED)])
        chosen_N, _ = choose(shard, TRACKED, share, torch.from_numpy(held_N), torch.from_numpy(accesses_N))
        assert chosen_N.tolist() == expected


def test_a_tracker_spends_its_budget_on_rows_that_are_not_mirrored() -> None:
    """MFU chooses as if mirrored rows had not been touched, and changes no count."""
    rng = generator(7, "mirror")
    shard, pending_M = made_shard(rng)
    before_M = pending_M.clone()
    tracker = MfuTracker(shard, TrackerSpec("mfu", TRACKED, {"r": 0.2}))
    shard.mirrored_N = torch.from_numpy(np.sort(rng.choice(len(before_M), 100, replace=False)))
    chosen = [tracker.choose(table, 1) for table in TRACKED]
    assert torch.equal(pending_M, before_M)
    pending_M[shard.mirrored_N] = 0
    shard.mirrored_N = shard.mirrored_N[:0]
    for table, rows_K in zip(TRACKED, chosen, strict=True):
        assert len(rows_K) > 0
        assert torch.equal(tracker.choose(table, 1), rows_K)


# --- means ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["row", "table"])
def test_lost_rows_start_from_the_mean_of_the_survivors(placement: Literal["row", "table"]) -> None:
    """Of each table, with the optimizer's initial state; from initial values where no survivor has a row of it."""
    shards = [
        Shard(Placement(placement, (30, 2, 9), 3), k, dim=4, seed=1, counts_updates=True, optimizer=OPTIMIZERS["adam"])
        for k in range(3)
    ]
    for shard in shards:
        shard.initialise(applied_step=0)
        shard.rows_MD[:, 4:] = 7.0
    lost, *survivors = shards
    lost.initialise(applied_step=7)
    initial_MD = lost.values_MD.clone()
    fill_tables(lost, sum((sums_of_tables(shard) for shard in survivors), torch.zeros(3, 5)))
    assert lost.applied_step == 7
    assert not (lost.rows_MD[:, 4:] == 7.0).any()
    for table in range(3):
        span, rows_ND = lost.span(table), torch.cat([shard.values_MD[shard.span(table)] for shard in survivors])
        expected_MD = rows_ND.mean(0).expand_as(lost.values_MD[span]) if len(rows_ND) else initial_MD[span]
        assert torch.allclose(lost.values_MD[span], expected_MD)


# --- replicas ---------------------------------------------------------------------------------------------------------


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
    partial = changed(buddy, strategy__name="partial", trace__path=str(alone))
    reference, others = run(changed(partial, strategy__interval_samples=interval or 400), tmp_path / "partial")
    assert finished.digests == reference.digests
    assert losses_of(events) == losses_of(others)
    assert finished.pls == reference.pls > 0
    assert finished.lost_updates == reference.lost_updates != 0
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
    assert quiet.replica_bytes is not None
    assert failed.replica_bytes is not None
    assert failed.replica_bytes - quiet.replica_bytes == num_copied_bytes(*shards["ps0"], has_counts=True)
    loaded = 4 * shards["ps1"].numel()
    assert failed.wire_bytes == failed.payload_bytes + loaded + failed.replica_bytes
    assert quiet.memory_bytes == max(num_copied_bytes(*shape, has_counts=True) for shape in shards.values())


def test_bytes_of_a_parity_are_changes_and_the_shards_that_it_is_built_from(config: Config, tmp_path: Path) -> None:
    """A restored shard counts as loaded as often as its group has ranks. A holder that died is built from its group."""
    config = changed(small(config, tmp_path, "hour,rank\n"), strategy__name="parity", strategy__interval_samples=None)
    quiet, _ = run(config, tmp_path / "quiet", Parts(make_ranks=MortalRanks))
    sizes = {rank: 4 * server.shard.rows_MD.numel() for rank, server in MortalRanks.last.items()}
    assert quiet.memory_bytes == max(sizes.values())
    assert quiet.replica_bytes is not None
    for dead, built in (("ps1", []), ("ps0", ["ps2", "ps3"])):  # groups ps0 and ps1, ps2 and ps3
        (tmp_path / "trace.csv").write_text(f"hour,rank\n20,{dead}\n")
        failed, events = run(config, tmp_path / dead, Parts(make_ranks=MortalRanks))
        assert failed.replica_bytes == quiet.replica_bytes + sum(sizes[rank] for rank in built)
        assert [event.load_bytes for event in events if isinstance(event, Recovered)] == [2 * sizes[dead]]
        assert failed.digests == quiet.digests
        assert outstanding(events) == unsaved()
        assert_parities_are_whole()


def test_changes_that_were_not_sent_reach_the_parity_before_it_is_read(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On engine ``rpc`` no request of a step is sent if its world cannot be formed, as a rank has died."""
    real = LocalCluster.start
    has_lost = lambda cluster: bool(cluster._ranks.members.lost)  # noqa: E731 - of the cluster that is changed
    monkeypatch.setattr(LocalCluster, "start", lambda self, asked: (asked, {}) if has_lost(self) else real(self, asked))
    trace = "hour,rank,phase\n20,ps1,forward\n30,ps3,forward\n40,ps0,forward\n"
    config = changed(small(config, tmp_path, trace), strategy__name="parity", strategy__interval_samples=None)
    failed, events = run(config, tmp_path / "failed", Parts(make_ranks=MortalRanks))
    assert [event.kinds for event in events if isinstance(event, Recovered)] == [
        {"ps1": "parity"},
        {"ps3": "parity"},
        {"ps0": "parity"},
    ]
    assert_parities_are_whole()
    assert failed.digests == run(changed(config, trace__path=None), tmp_path / "quiet")[0].digests
