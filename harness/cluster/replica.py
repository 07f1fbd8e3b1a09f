"""The replica of another rank's shard, in memory, and copies of shards from rank to rank.

A replica gets the same pushes in the same order as its owner, so it has the same rows, state columns, counts of unsaved
updates and applied step. A save takes counts from both. A tracker is not part of a replica.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.cluster.protocol import Failure, Push, ReadShard, Reply, Request, Save, ShardRows, WriteBack
from harness.core.plans import Rank, owner_of, ps_index
from harness.core.resumable import Resumable
from harness.core.shard import Shard
from harness.core.trackers import Tracker, TrackerSpec
from harness.store import save_kind

COPY_BYTES = 32 << 20
"""Rows of a shard travel in messages of at most about this size."""

Reach = Callable[[Rank, Request], Reply]
"""Sends a request to another rank and waits for the reply. Raises RankLost if that rank is dead."""


def apply(shard: Shard, push: Push | WriteBack, norms_N: Tensor | None = None) -> bool:
    """Apply what the trainer sent to a shard or its replica; False, and no change, if it was applied before.

    ``norms_N``: receives the L2 norm of each row's change by gradients.
    """
    if isinstance(push, WriteBack):
        return shard.write(push.step, push.rows_N, push.values_ND, push.counts_N)
    return shard.apply(push.step, push.rows_N, push.grads_ND, push.counts_N, push.learning_rate, norms_N=norms_N)


class Replica(Resumable):
    """The replica that ``rank`` holds of the shard of its owner, the rank before it."""

    _state = ("shard",)

    def __init__(self, rank: Rank, make_shard: Callable[[int], Shard], tracked: tuple[int, ...], num_ps: int) -> None:
        self.owner = owner_of(rank, num_ps)
        self.shard = make_shard(ps_index(self.owner))
        self._tracked = tracked

    def take(self, save: Save) -> None:
        """Count the rows that the owner's part of ``save`` writes as saved."""
        kind = save.plan.kind
        assert kind == "full", f"a strategy with replicas makes full saves only, got {kind}"
        rows = save_kind(kind).rows(self.shard, Tracker(self.shard, TrackerSpec(None, ())), (), save.step)
        self.shard.take_saved(save.sequence, rows, self._tracked)


def copy_shard(shard: Shard, source: Rank, reach: Reach, *, is_replica: bool) -> None:
    """Fill ``shard`` from rank ``source``: from the shard that it owns or, with ``is_replica``, from its replica."""
    num_rows, width = shard.rows_MD.shape
    step = max(1, COPY_BYTES // (width * shard.rows_MD.itemsize))
    for first in range(0, max(1, num_rows), step):  # once at least
        part = slice(first, min(first + step, num_rows))
        read = reach(source, ReadShard(is_replica=is_replica, first=part.start, stop=part.stop))
        if isinstance(read, Failure):
            raise read.error
        assert isinstance(read, ShardRows)
        shard.rows_MD[part] = read.rows_NX
        if shard.pending_M is not None:
            assert read.pending_N is not None, "all ranks count updates, or none"
            shard.pending_M[part] = read.pending_N
        shard.taken, shard.applied_step = read.taken, read.applied_step


def read_shard(request: ReadShard, shard: Shard) -> ShardRows:
    """The rows of ``shard`` that another rank asks for; the shard is only read, so it may serve other requests."""
    part = slice(request.first, request.stop)
    return ShardRows(
        rows_NX=shard.rows_MD[part].clone(),  # of a slice, torch's rpc might send the whole shard
        pending_N=None if shard.pending_M is None else shard.pending_M[part].clone(),
        applied_step=shard.applied_step,
        taken=shard.taken,
    )


def num_copied_bytes(num_rows: int, width: int, *, has_counts: bool) -> int:
    """Bytes of rows and counts that travel when a shard of ``num_rows`` rows of ``width`` values is copied."""
    return num_rows * torch.float32.itemsize * (width + has_counts)
