"""A kind of recovery, and its strategy ``from_zero``: lost rows start from zero."""

from collections.abc import Sequence

from harness.cluster.protocol import OnShard, Request, Restored
from harness.core.plans import Rank
from harness.core.shard import Shard
from harness.core.strategies import STRATEGIES, Partial
from harness.recovery.kinds import LostRanks, Recovery, Serve
from harness.recovery.recoveries import RECOVERIES


class FromZero(Recovery):
    """``zero``: lost rows start from zero, with the optimizer's initial state."""

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        return dict.fromkeys(ranks, OnShard(clear, (loss.progress.step,), restores=True))


def clear(shard: Shard, step: int) -> Restored:
    """On a PS rank: set all rows to zero, as after ``step`` steps."""
    shard.values_MD[:] = 0
    shard.reset_states()
    shard.reset_counts(applied_step=step)
    return Restored(num_rows=len(shard.rows_MD))


RECOVERIES["zero"] = FromZero


class PartialFromZero(Partial):
    """``from_zero``: as ``partial``, but lost rows start from zero."""

    recoveries = ("zero",)
    _recovery = "zero"


STRATEGIES["from_zero"] = PartialFromZero
