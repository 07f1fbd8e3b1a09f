"""Kinds of recovery that set every row of a shard: to initial values, to the newest checkpoint, or all ranks back."""

from collections.abc import Sequence

from harness.cluster.protocol import CountedRows, Initialise, Request, Restore
from harness.core.plans import Rank, ps_rank
from harness.recovery.kinds.base import LostRanks, Recovery, Serve


class Initial(Recovery):
    """``initial``: a lost shard is reset to its initial values."""

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Requests that give ``ranks`` their initial values."""
        return {rank: Initialise(step=loss.progress.step) for rank in ranks}


class Checkpoint(Recovery):
    """``checkpoint``: a lost shard gets the newest saved version of each of its rows."""

    reads_rows = True
    needs_checkpoint = True

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Requests by which ``ranks`` read their rows from the newest checkpoint."""
        assert loss.checkpoint is not None
        return {
            rank: Restore(
                records=loss.checkpoint.shards[rank],
                step=loss.progress.step,
                resets_states=self.run.strategy.resets_states,
                newer=self.newer_rows(rank, loss.progress.step),
            )
            for rank in ranks
        }

    def newer_rows(self, rank: Rank, step: int) -> CountedRows | None:
        """Rows of ``rank`` as of ``step`` that are newer than in the checkpoint; None if there are none."""
        return None


class Rollback(Recovery):
    """``rollback``: every rank and the trainer return to the newest checkpoint, and lost steps are repeated."""

    rolls_back = True
    loses_updates = False
    reads_rows = True
    needs_checkpoint = True

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Requests by which all ranks, survivors included, read their rows from the newest checkpoint."""
        assert loss.checkpoint is not None
        all_ranks = [ps_rank(index) for index in range(self.run.placement.num_ps)]
        return {rank: Restore(records=loss.checkpoint.shards[rank], step=loss.checkpoint.step) for rank in all_ranks}
