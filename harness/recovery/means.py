"""The kind of recovery ``mean``: lost rows start from the mean of the surviving rows of their table.

After CheckFree (arXiv 2506.15461), which fills a lost stage of a pipeline from the stages beside it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.cluster.protocol import Initialise, OnShard, Request, Restored
from harness.core.plans import Rank, ps_rank
from harness.core.shard import Shard
from harness.recovery.kinds import LostRanks, Recovery, Serve


class Mean(Recovery):
    """``mean``: a lost row gets the mean of its table's rows at the survivors, and its initial optimizer state.

    A table of which no survivor has a row gets its initial values. The sums that the ranks exchange (D + 1 float64 for
    each table) are not charged.
    """

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Ask the survivors for the sums of their tables, and have ``ranks`` fill theirs; the sum is in rank order."""
        serve(dict.fromkeys(ranks, Initialise(step=loss.progress.step)))
        survivors = [rank for rank in map(ps_rank, range(self.run.placement.num_ps)) if rank not in loss.ranks]
        replies = serve(dict.fromkeys(survivors, OnShard(sums_of_tables)))
        num_tables = len(self.run.placement.cardinalities)
        sums_TS = torch.zeros(num_tables, self.run.dim + 1, dtype=torch.float64)
        for rank in survivors:
            sums_TS += replies[rank]
        return dict.fromkeys(ranks, OnShard(fill_tables, (sums_TS,), restores=True))


def sums_of_tables(shard: Shard) -> Tensor:
    """On a PS rank: of each table the sum of its rows, and in the last column their number; float64, (T, D + 1)."""
    spans = [shard.span(table) for table in range(len(shard.placement.cardinalities))]
    sums = [[*shard.values_MD[span].numpy().sum(axis=0, dtype="float64"), span.stop - span.start] for span in spans]
    return torch.tensor(sums, dtype=torch.float64)


def fill_tables(shard: Shard, sums_TS: Tensor) -> Restored:
    """On a PS rank: set the rows of each table to its mean, and leave them as they are where the sums are of no row."""
    for table, sums_S in enumerate(sums_TS):
        if sums_S[-1] > 0:
            shard.values_MD[shard.span(table)] = (sums_S[:-1] / sums_S[-1]).float()
    return Restored(num_rows=len(shard.rows_MD))
