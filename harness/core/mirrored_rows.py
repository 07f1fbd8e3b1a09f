"""Which rows the trainer's mirror holds (``harness.recovery.kinds.mirror``, docs/MIRROR.md)."""

from collections.abc import Sequence

import numpy as np
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
        num_rows = num_mirrored(span.stop - span.start, share, is_tracked=table in tracked)
        if num_rows == span.stop - span.start:
            chosen.append(torch.arange(span.start, span.stop))
            continue
        first, last = torch.searchsorted(mirrored_N, torch.tensor([span.start, span.stop])).tolist()
        score_M = shard.pending_M[span].numpy().astype(np.uint32)  # 4 bytes a row; twice a count does not wrap
        score_M += 1  # rows without accesses have a score too: they fill the mirror
        score_M *= 2
        score_M[mirrored_N[first:last].numpy() - span.start] = 2 * accesses_N[first:last].numpy().astype(np.uint32) + 3
        chosen.append(top_rows(torch.from_numpy(score_M), num_rows) + span.start)
    return torch.cat(chosen)
