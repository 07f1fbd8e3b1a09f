"""Which rows the trainer's mirror holds (``harness.recovery.mirror``, docs/MIRROR.md)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.core.placement import num_mirrored
from harness.core.shard import Shard
from harness.core.trackers import top_rows


def choose_mirrored(
    shard: Shard, tracked: Sequence[int], share: float, mirrored_N: Tensor, accesses_N: Tensor
) -> Tensor:
    """The local rows that the mirror is to hold from now on: int64, ascending.

    Of a tracked table these are the rows with the most accesses since the last save. Ties go to the rows that the
    mirror holds already, then to the lower row. ``mirrored_N`` (int64, ascending) are the rows that it holds,
    ``accesses_N`` (int32) their accesses; those of other rows are the shard's counts of unsaved updates.
    """
    assert shard.pending_M is not None, "a mirror needs the counts of unsaved updates"
    chosen: list[Tensor] = []
    for table in range(len(shard.placement.cardinalities)):
        span = shard.span(table)
        first, last = torch.searchsorted(mirrored_N, torch.tensor([span.start, span.stop])).tolist()
        score_M = 2 * shard.pending_M[span].long() + 2  # rows without accesses have one too: they fill the mirror
        score_M[mirrored_N[first:last] - span.start] = 2 * accesses_N[first:last].long() + 3
        num_rows = num_mirrored(len(score_M), share, is_tracked=table in tracked)
        chosen.append(top_rows(score_M, num_rows) + span.start)
    return torch.cat(chosen)
