"""Which rows the trainer's mirror holds."""

import numpy as np
import pytest
import torch

from harness.core.placement import Placement, num_mirrored
from harness.core.seeds import generator
from harness.core.shard import Shard
from harness.core.trackers import MfuTracker, TrackerSpec
from harness.recovery.kinds.mirror import choose

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
