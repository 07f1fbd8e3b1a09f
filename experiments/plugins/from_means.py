"""A kind of recovery, and its strategy ``from_means``: lost rows start from the mean of the survivors' rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.cluster.protocol import OnShard, Request, Restored
from harness.core.plans import Rank, ps_rank
from harness.core.shard import Shard
from harness.core.strategies import STRATEGIES, Partial
from harness.recovery.kinds import LostRanks, Recovery, Serve
from harness.recovery.recoveries import RECOVERIES


class FromMeans(Recovery):
    """``means``: lost rows start from the mean of the survivors' rows of their table."""

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Ask the survivors for the sums of their tables, and have ``ranks`` fill theirs."""
        survivors = [rank for rank in map(ps_rank, range(self.run.placement.num_ps)) if rank not in loss.ranks]
        replies = serve(dict.fromkeys(survivors, OnShard(sums_of_tables, (self.run.dim,))))
        sums_TS = sum(replies[rank] for rank in survivors)
        return dict.fromkeys(ranks, OnShard(fill_tables, (sums_TS, loss.progress.step), restores=True))


def sums_of_tables(shard: Shard, dim: int) -> Tensor:
    """Of each table the sum of its rows and, in the last column, their number; float64, (T, D + 1)."""
    spans = [shard.span(table) for table in range(len(shard.placement.cardinalities))]
    sums = [[*shard.rows_MD[span, :dim].numpy().sum(axis=0, dtype="float64"), span.stop - span.start] for span in spans]
    return torch.tensor(sums, dtype=torch.float64)


def fill_tables(shard: Shard, sums_TS: Tensor | int, step: int) -> Restored:
    """Set the rows of each table to its mean; to initial values where no survivor has a row of it."""
    shard.initialise(applied_step=step)
    for table, sums_S in enumerate(sums_TS if isinstance(sums_TS, Tensor) else ()):
        if sums_S[-1] > 0:
            shard.rows_MD[shard.span(table), : len(sums_S) - 1] = (sums_S[:-1] / sums_S[-1]).float()
    return Restored(num_rows=len(shard.rows_MD))


RECOVERIES["means"] = FromMeans


class PartialFromMeans(Partial):
    """``from_means``: as ``partial``, but lost rows start from means."""

    recoveries = ("means",)
    _recovery = "means"


STRATEGIES["from_means"] = PartialFromMeans
