"""Parity on PS ranks: one rank holds the XOR of the rows of a group of other ranks, state columns included.

A lost shard is the XOR of the parity and the other shards of its group, to the bit, where a sum of floats would round.
After ECRec (PVLDB 2023), whose shards are erasure-coded, with a parity that each gradient updates.

Row i of a parity is the XOR of the rows i of all shards of the group; a shard without a row i counts as zeros. M rows
of the longest shard, N rows of a call, X columns of a row.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from harness.cluster.protocol import Failure, Push, ReadShard, Reply, Request, RestoreFromParity, ShardRows
from harness.core.plans import Rank, ps_index
from harness.core.resumable import Resumable
from harness.core.shard import SavedCounts, Shard
from harness.kernels.row_loops import xor_rows

COPY_BYTES = 32 << 20
"""A shard is copied in messages with rows of at most this size."""

Reach = Callable[[Rank, Request], Reply]
"""Sends a request to another rank and waits for the reply. Raises RankLost if that rank is dead."""


def bits_of(rows_NX: Tensor) -> Tensor:
    """The bits of float32 rows as int32, in the same memory."""
    return rows_NX.view(torch.int32)


def read_parts(source: Rank, num_rows: int, width: int, reach: Reach, *, is_replica: bool) -> Iterator[ShardRows]:
    """Read the first ``num_rows`` rows of a shard of ``source``, or of the replica or parity that it holds, in parts.

    There is one part at least, since an empty shard has an applied step too. Raises RankLost, or the HarnessError with
    which ``source`` replied.
    """
    rows_per_message = max(1, COPY_BYTES // (width * torch.float32.itemsize))
    for first in range(0, max(1, num_rows), rows_per_message):
        stop = min(first + rows_per_message, num_rows)
        read = reach(source, ReadShard(is_replica=is_replica, first=first, stop=stop))
        if isinstance(read, Failure):
            raise read.error
        assert isinstance(read, ShardRows)
        yield read


def read_xor(sources: Mapping[Rank, bool], bits_MX: Tensor, reach: Reach) -> None:
    """Set ``bits_MX`` to the XOR of the rows of several ranks' shards or, where the value is True, parities."""
    num_rows, width = bits_MX.zero_().shape
    for source, is_parity in sources.items():
        first = 0
        for part in read_parts(source, num_rows, width, reach, is_replica=is_parity):
            bits_MX[first : (first := first + len(part.rows_NX))] ^= bits_of(part.rows_NX)


class Parity(Resumable):
    """The parity of the shards of ``members``: int32 ``bits_MX``.

    ``number``: of the newest message of changes that it has. A message that is sent again is not applied again.
    """

    _state = ("number",)
    _state_in_place = ("bits_MX",)

    def __init__(self, members: tuple[Rank, ...], width: int, make_shard: Callable[[int], Shard]) -> None:
        self._make_shard, self._members = make_shard, members
        num_rows = max(len(make_shard(ps_index(member)).rows_MD) for member in members)
        self.bits_MX = torch.zeros((num_rows, width), dtype=torch.int32)
        self.number = 0

    def initialise(self, fill: Callable[[Shard], None]) -> None:
        """Set the parity to the XOR of the members' initial shards; ``fill`` writes the values that no seed gives."""
        self.bits_MX.zero_()
        for member in self._members:
            shard = self._make_shard(ps_index(member))
            shard.initialise(applied_step=0)
            fill(shard)
            self.bits_MX[: len(shard.rows_MD)] ^= bits_of(shard.rows_MD)
        self.number = 0

    def build(self, number: int, reach: Reach) -> None:
        """Read the members' shards and set the parity to their XOR; messages up to ``number`` count as applied."""
        read_xor(dict.fromkeys(self._members, False), self.bits_MX, reach)
        self.number = number

    def read(self, request: ReadShard) -> ShardRows:
        """The rows that another rank asks for, as float32 of the same bits."""
        rows_NX = self.bits_MX[request.first : request.stop].clone().view(torch.float32)
        return ShardRows(rows_NX=rows_NX, pending_N=None, applied_step=self.number, saved_counts=SavedCounts())

    def add(self, changes: Push) -> None:
        """Apply changes, whose ``grads_ND`` are the XOR of rows before and after; ``step`` is the message's number.

        A row may be there several times: of several shards, and of several steps.
        """
        if changes.step <= self.number:
            return
        self.number = changes.step
        xor_rows(self.bits_MX.numpy(), changes.rows_N.numpy(), bits_of(changes.grads_ND).numpy())


def restore_from_parity(shard: Shard, request: RestoreFromParity, reach: Reach) -> None:
    """Set every row of ``shard`` to the XOR of its group's parity and other shards, and its counts as asked.

    The sum of the counts of unsaved updates is right for tracked and for other tables, not that of each row: all saves
    are full, so they report no more.
    """
    read_xor({request.holder: True, **dict.fromkeys(request.others, False)}, bits_of(shard.rows_MD), reach)
    shard.reset_counts(applied_step=request.step)
    shard.saved_counts = request.saved_counts
    if shard.pending_M is not None:
        for table, count in request.unsaved.items():
            shard.pending_M[shard.span(table).start] = count
