"""What a PS rank holds for other ranks: the replica of one shard, or the parity of the shards of a group.

A replica gets the same pushes in the same order as the owner's shard, so it has the same rows, state columns, counts of
unsaved updates and applied step. A save sets the counts of the saved rows to 0 in both. A replica has no tracker.

A parity is the XOR of the bits of its members' rows, state columns included, where a sum of floats would round. So a
lost shard is the XOR of the parity and the other shards of its group. After ECRec (PVLDB 2023), whose shards are
erasure-coded, with a parity that each gradient updates. Row i of a parity is the XOR of the rows i of all members; a
shard without a row i counts as zeros. M rows of the longest shard, N rows of a call, X columns of a row.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor

from harness.cluster.protocol import (
    Failure,
    Push,
    ReadShard,
    Reply,
    Request,
    RestoreFromParity,
    Save,
    ShardRows,
    WriteBack,
)
from harness.core.plans import Rank, owner_of, ps_index
from harness.core.resumable import Resumable
from harness.core.shard import Shard
from harness.kernels.row_loops import xor_rows
from harness.store.kinds import whole

COPY_BYTES = 32 << 20
"""A shard is copied in messages with rows of at most this size."""

Reach = Callable[[Rank, Request], Reply]
"""Sends a request to another rank and waits for the reply. Raises RankLost if that rank is dead."""
MakeShard = Callable[[int], Shard]


def apply(shard: Shard, push: Push | WriteBack) -> bool:
    """Apply what the trainer sent to a shard or its replica; False, and no change, if it was applied before."""
    if isinstance(push, WriteBack):
        return shard.write(push.step, push.rows_N, push.values_ND, push.counts_N)
    return shard.apply(push.step, push.rows_N, push.grads_ND, push.counts_N, push.learning_rate)


def bits_of(rows_NX: Tensor) -> Tensor:
    """The bits of float32 rows as int32, in the same memory."""
    return rows_NX.view(torch.int32)


def read_parts(source: Rank, rows_MX: Tensor, reach: Reach, *, is_replica: bool) -> Iterator[tuple[slice, ShardRows]]:
    """Read the shard of ``source``, or what it holds, up to the length of ``rows_MX``: parts, and their places in it.

    There is one part at least, since an empty shard has an applied step too; a shorter shard has shorter parts.
    Raises RankLost, or the HarnessError with which ``source`` replied.
    """
    num_rows, width = rows_MX.shape
    rows_per_message = max(1, COPY_BYTES // (width * torch.float32.itemsize))
    for first in range(0, max(1, num_rows), rows_per_message):
        stop = min(first + rows_per_message, num_rows)
        read = reach(source, ReadShard(is_replica=is_replica, first=first, stop=stop))
        if isinstance(read, Failure):
            raise read.error
        assert isinstance(read, ShardRows)
        yield slice(first, first + len(read.rows_NX)), read


def read_shard(request: ReadShard, shard: Shard) -> ShardRows:
    """The rows of ``shard`` that another rank asks for, as copies. Changes nothing."""
    part = slice(request.first, request.stop)
    return ShardRows(
        rows_NX=shard.rows_MD[part].clone(),  # of a slice, torch's rpc might send the whole shard
        pending_N=None if shard.pending_M is None else shard.pending_M[part].clone(),
        applied_step=shard.applied_step,
        saved_counts=shard.saved_counts,
    )


def copy_shard(shard: Shard, source: Rank, reach: Reach, *, is_replica: bool) -> None:
    """Overwrite ``shard`` with the rows, the counts of unsaved updates and the applied step that ``source`` has.

    ``source`` sends its own shard or, with ``is_replica``, its replica of this shard; the totals of the last save
    (``Shard.saved_counts``) come along. Raises RankLost, or the HarnessError with which ``source`` replied.
    """
    for part, read in read_parts(source, shard.rows_MD, reach, is_replica=is_replica):
        shard.rows_MD[part] = read.rows_NX
        if shard.pending_M is not None:
            assert read.pending_N is not None, "all ranks count updates, or none"
            shard.pending_M[part] = read.pending_N
        shard.saved_counts, shard.applied_step = read.saved_counts, read.applied_step


def read_xor(sources: Mapping[Rank, bool], bits_MX: Tensor, reach: Reach) -> None:
    """Set ``bits_MX`` to the XOR of the rows of several ranks' shards or, where the value is True, parities."""
    bits_MX.zero_()
    for source, is_parity in sources.items():
        for part, read in read_parts(source, bits_MX, reach, is_replica=is_parity):
            bits_MX[part] ^= bits_of(read.rows_NX)


def count_unsaved(shard: Shard, request: RestoreFromParity, tracked: Collection[int]) -> None:
    """Count the unsaved updates of ``tracked`` tables at the first of their rows, the others at the first of theirs.

    All saves are full, so they report no more than the two sums.
    """
    num_tracked = request.unsaved_tracked
    for is_tracked, count in ((True, num_tracked), (False, request.unsaved_updates - num_tracked)):
        if count:
            assert shard.pending_M is not None, "all ranks count updates, or none"
            spans = (shard.span(t) for t in range(len(shard.placement.cardinalities)) if (t in tracked) == is_tracked)
            shard.pending_M[next(span.start for span in spans if span.stop > span.start)] = count


class Replica(Resumable):
    """The replica that ``rank`` holds of the shard of its owner, the rank before it."""

    _state = ("shard",)

    def __init__(self, rank: Rank, make_shard: MakeShard, tracked: tuple[int, ...], num_ps: int) -> None:
        self.owner = owner_of(rank, num_ps)
        self.shard = make_shard(ps_index(self.owner))
        self._tracked = tracked

    def initialise(self, fill: Callable[[Shard], object]) -> None:
        """Set the rows to the owner's initial ones; ``fill`` writes the values that no seed gives."""
        self.shard.initialise(applied_step=0)
        fill(self.shard)

    def build(self, number: int, reach: Reach) -> None:
        """Copy the owner's shard."""
        copy_shard(self.shard, self.owner, reach, is_replica=False)

    def apply(self, push: Push | WriteBack) -> None:
        apply(self.shard, push)

    def count_saved(self, save: Save) -> None:
        """Count all updates in the replica as saved, as the owner does for its part of ``save``."""
        kind = save.plan.kind
        assert kind == "full", f"a strategy with replicas makes full saves only, got {kind}"
        self.shard.mark_saved(save.sequence, whole(self.shard), tracked=self._tracked)


class Parity(Resumable):
    """The parity of the shards of ``members``, in a shard as long as the longest of them.

    It counts no updates. Its applied step is the number of the newest message of changes that it has.
    """

    _state = ("shard",)

    def __init__(self, members: tuple[Rank, ...], make_shard: MakeShard) -> None:
        self._make_shard, self._members = make_shard, members
        self.shard = max((make_shard(ps_index(member)) for member in members), key=lambda shard: len(shard.rows_MD))
        self.shard.pending_M = None

    @property
    def bits_MX(self) -> Tensor:
        return bits_of(self.shard.rows_MD)

    def initialise(self, fill: Callable[[Shard], object]) -> None:
        """Set the parity to the XOR of the members' initial shards; ``fill`` writes the values that no seed gives."""
        self.bits_MX.zero_()
        for member in self._members:
            shard = self._make_shard(ps_index(member))
            shard.initialise(applied_step=0)
            fill(shard)
            self.bits_MX[: len(shard.rows_MD)] ^= bits_of(shard.rows_MD)
        self.shard.applied_step = 0

    def build(self, number: int, reach: Reach) -> None:
        """Read the members' shards and set the parity to their XOR; messages up to ``number`` count as applied."""
        read_xor(dict.fromkeys(self._members, False), self.bits_MX, reach)
        self.shard.applied_step = number

    def apply(self, push: Push | WriteBack) -> None:
        """Apply changes, whose ``grads_ND`` are the XOR of rows before and after; ``step`` is the message's number.

        A row may be there several times: of several shards, and of several steps. A message that is sent again is not
        applied again.
        """
        assert isinstance(push, Push), "changes have the form of gradients"
        if push.step > self.shard.applied_step:
            self.shard.applied_step = push.step
            xor_rows(self.bits_MX.numpy(), push.rows_N.numpy(), bits_of(push.grads_ND).numpy())

    def count_saved(self, save: Save) -> None:
        """There is nothing to count."""
