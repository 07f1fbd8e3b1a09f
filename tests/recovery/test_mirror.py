"""The trainer's mirror: a replacement gets, row by row, the newer of mirror and checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.cluster.protocol import Request, Restore, Save
from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.events import Recovered, Saved
from harness.core.placement import MIRROR_INDEX_BYTES, Placement, budget_rows, num_mirrored
from harness.core.plans import Rank
from harness.core.seeds import generator
from harness.core.shard import Shard
from harness.core.trackers import MfuTracker, TrackerSpec
from harness.recovery.kinds.mirror import choose
from harness.run.assemble import Parts
from harness.run.spec import RunSpec
from harness.store import ShardStore
from tests.runs import PRIORITY_R, changed, run, saving_every

SHARE = 0.03


@pytest.fixture
def mirrored(config: Config) -> Config:
    """64 steps under ten failures; the mirror holds 3 % of the tracked tables."""
    config = changed(config, strategy__name="cpr_mirror", data__max_train_samples=256)
    return saving_every(changed(config, strategy__share=SHARE), 20)


class ShadowedServer(RankServer):
    """A rank that compares every restored shard, row by row, with the dead one's and with the checkpoint."""

    dead: dict[Rank, Shard] = {}  # noqa: RUF012 - the shards of the last run, by rank; each lives on after its rank
    mirrored: dict[Rank, Tensor] = {}  # noqa: RUF012 - rows that the trainer's mirror holds of each rank
    has_mirror = True
    num_compared = num_newer = 0

    def __init__(self, spec: RankSpec, rank: Rank) -> None:
        super().__init__(spec, rank)
        self._checkpoints = spec.checkpoints

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
        ShardStore(self._checkpoints, self.rank, fsync=False).read_into(request.records, saved_MX)
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


@pytest.fixture
def shadowed() -> Iterator[Parts]:
    """Ranks that compare, and did."""
    ShadowedServer.dead, ShadowedServer.num_compared, ShadowedServer.num_newer = {}, 0, 0
    yield Parts(make_server=ShadowedServer)
    assert ShadowedServer.num_compared == 11
    ShadowedServer.dead = {}


@pytest.mark.parametrize(
    "path", [{}, {"cache__mode": "lookahead", "cache__lookahead": 8, "save__mode": "async"}], ids=["plain", "ahead"]
)
def test_a_replacement_has_the_newer_of_mirror_and_checkpoint(
    mirrored: Config, tmp_path: Path, shadowed: Parts, path: dict
) -> None:
    """Mirrored rows with unsaved updates are the dead shard's, bit by bit and with their counts; others as saved."""
    finished, events = run(changed(mirrored, **path), tmp_path / "run", shadowed)
    recoveries = [event for event in events if isinstance(event, Recovered)]
    assert ShadowedServer.num_newer == sum(event.recovered_rows for event in recoveries) > 0
    assert finished.recovered_updates == sum(event.recovered_updates or 0 for event in recoveries) > 0
    row_bytes = 4 * RunSpec(mirrored).model.row_values + 4
    assert [event.upload_bytes for event in recoveries] == [event.recovered_rows * row_bytes for event in recoveries]


def test_a_mirror_that_dies_leaves_the_checkpoint(
    mirrored: Config, tmp_path: Path, shadowed: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its trainer a replacement has exactly the rows of the checkpoint, and more updates are lost."""
    kept, _ = run(mirrored, tmp_path / "kept")
    monkeypatch.setattr(ShadowedServer, "has_mirror", False)
    died, _ = run(changed(mirrored, trace__trainers_die=True), tmp_path / "died", shadowed)
    assert ShadowedServer.num_newer == died.recovered_updates == 0
    assert (died.lost_updates or 0) > (kept.lost_updates or 0)


def test_saves_keep_to_their_budgets(mirrored: Config, tmp_path: Path) -> None:
    """K rows of each tracked table and shard; mirrored rows, small tables among them, only where an interval closes."""
    finished, events = run(mirrored, tmp_path / "run")
    run_spec = RunSpec(mirrored)
    placement, tracked = run_spec.placement, run_spec.tracked
    shards = [placement.local_rows(k, table) for k in range(placement.num_ps) for table in tracked]
    num_chosen = sum(budget_rows(rows, PRIORITY_R) for rows in shards)
    num_hot = sum(budget_rows(rows, SHARE) for rows in shards)
    num_small = run_spec.num_rows - sum(shards)
    saves = [event for event in events if isinstance(event, Saved) and event.charged]
    assert {(event.save, event.closes_interval) for event in saves} == {("tracked", False), ("with_mirror", True)}
    for event in saves:
        if event.closes_interval:
            assert num_small < event.num_rows <= num_small + num_chosen + num_hot
        else:
            assert event.num_rows <= num_chosen
    rows = sum(
        num_mirrored(placement.local_rows(k, table), SHARE, is_tracked=table in tracked)
        for k in range(placement.num_ps)
        for table in range(len(placement.cardinalities))
    )
    assert finished.mirror is not None
    assert finished.mirror["rows"] == rows
    assert finished.mirror["bytes"] == rows * (4 * run_spec.model.row_values + MIRROR_INDEX_BYTES)


def test_a_fallback_keeps_no_mirror(mirrored: Config, tmp_path: Path) -> None:
    """Where full recovery is cheaper the strategy is ``full``, and bounded staleness is allowed."""
    fallen = changed(mirrored, strategy__pls_target=1e-4, strategy__interval_samples=None)
    finished, _ = run(fallen, tmp_path / "fallen")
    assert (finished.mirror, finished.lost_updates) == (None, 0)
    RunSpec(changed(fallen, cache__mode="stale")).validate()


# --- which rows it holds ----------------------------------------------------------------------------------------------

CARDINALITIES, TRACKED = (400, 9, 1000, 30), (0, 2)


def made_shard(rng: np.random.Generator) -> Shard:
    """One of three ranks, with random counts of unsaved updates."""
    shard = Shard(Placement("row", CARDINALITIES, 3), 1, dim=2, seed=0, count_updates=True)
    assert shard.pending_M is not None
    shard.pending_M[:] = torch.from_numpy(rng.integers(0, 4, len(shard.pending_M)).astype(np.int32))
    return shard


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_most_accessed_rows_are_chosen(share: float) -> None:
    """As a sort by accesses, mirrored first, row; whatever the mirror held. Untracked tables are held whole."""
    for seed in range(5):
        rng = generator(seed, "mirror")
        shard = made_shard(rng)
        assert shard.pending_M is not None
        held_N = np.sort(rng.choice(len(shard.pending_M), 100, replace=False))
        accesses_N = rng.integers(0, 4, 100).astype(np.int32)
        accesses = shard.pending_M.numpy().copy()
        accesses[held_N] = accesses_N
        expected: list[int] = []
        for table in range(len(CARDINALITIES)):
            span = shard.span(table)
            rows = sorted(range(span.start, span.stop), key=lambda row: (-accesses[row], row not in set(held_N), row))
            expected += sorted(rows[: num_mirrored(len(rows), share, is_tracked=table in TRACKED)])
        chosen_N, _ = choose(shard, TRACKED, share, torch.from_numpy(held_N), torch.from_numpy(accesses_N))
        assert chosen_N.tolist() == expected


def test_a_tracker_spends_its_budget_on_other_rows() -> None:
    """MFU chooses as if mirrored rows had not been touched, and changes no count."""
    rng = generator(7, "mirror")
    shard = made_shard(rng)
    assert shard.pending_M is not None
    before_M = shard.pending_M.clone()
    tracker = MfuTracker(shard, TrackerSpec("mfu", TRACKED, {"r": 0.2}))
    shard.mirrored_N = torch.from_numpy(np.sort(rng.choice(len(before_M), 100, replace=False)))
    chosen = [tracker.choose(table, 1) for table in TRACKED]
    assert torch.equal(shard.pending_M, before_M)
    shard.pending_M[shard.mirrored_N] = 0
    shard.mirrored_N = shard.mirrored_N[:0]
    for table, rows_K in zip(TRACKED, chosen, strict=True):
        assert len(rows_K) > 0
        assert torch.equal(tracker.choose(table, 1), rows_K)
