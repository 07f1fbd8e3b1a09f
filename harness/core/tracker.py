"""The interface of trackers, which choose the rows of a tracked table that a priority save writes, and base classes.

A tracker belongs to one shard, and its state is lost with the rank; a replacement's tracker starts empty. Rows are
local flat rows of the shard. M rows of the shard, N rows of a call, K rows chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement, budget_rows
from harness.core.resumable import Resumable
from harness.core.shard import Shard


@dataclass(frozen=True)
class TrackerSpec:
    """The parameters from which a rank builds its tracker.

    Attributes:
        kind: a key of :data:`TRACKERS`.
        tables: tracked tables, ascending: the valid arguments of :meth:`Tracker.choose`.
        options: the strategy's options, by name. A tracker ignores options of other trackers.
    """

    kind: str | None
    tables: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Resumable):
    """Records what happens to rows between saves, and chooses rows to save.

    To add one: one class and one entry in :data:`TRACKERS`. The class attributes declare which calls the tracker needs;
    other calls may be left out. By default every call is a no-op, which serves strategies without priority saves. All
    calls come from the thread that serves the rank's requests.
    """

    needs_counts: ClassVar[bool] = False
    """Whether the shard must keep ``Shard.pending_M``, the number of updates of each row since its last save."""
    needs_samples: ClassVar[bool] = False
    """Whether :meth:`sampled` must be called."""
    needs_touches: ClassVar[bool] = False
    """Whether :meth:`touched` must be called."""
    needs_norms: ClassVar[bool] = False
    """Whether :meth:`moved` must be called."""

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        pass

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """Record that step ``step`` updated ``rows_N`` (int64, ascending, distinct), by ``counts_N`` samples (int32).

        Called in the order of steps, once for each step that updated a row of this shard, before :meth:`sampled` of
        that step. The calls before each :meth:`choose` are the same with and without a client cache; with bounded
        staleness an update belongs to the step whose message brings it. A cache reports several steps at once, when
        ``Shard.rows_MD`` has the values of the last of them. So a tracker that compares values does so in
        :meth:`choose`, and a tracker that needs the change of each step implements :meth:`moved`. Rows that the
        trainer's mirror restores to a replacement are not reported again; ``Shard.pending_M`` counts their updates.
        """

    def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
        """Record that step ``step`` changed ``rows_N`` by ``norms_N``: the L2 norm of each row's change (float32).

        Called after :meth:`touched`, for the same steps and rows. The rank or client cache that makes the update
        measures the norm by ``RowOptimizer.step``: the same bits in both.
        """

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """Record that sub-sampled inputs touched ``rows_N[is_sampled_N]`` (int64, ascending, distinct; bool).

        Called in the order of steps, once for each step with such rows, which are the same with and without a client
        cache. Read ``rows_N[is_sampled_N]`` only: without a cache ``rows_N`` has the step's other rows too, and a call
        may name no row.
        """

    def choose(self, table: int, step: int) -> Tensor:
        """Rows of tracked table ``table`` to save at ``step``: int64, ascending, distinct.

        At most K = ``budget_rows`` of them for a priority save. Changes nothing: the save may be abandoned.
        """
        raise AssertionError("a priority save needs a tracker, and this strategy has none")

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Record that a save holds the present ``rows`` of ``table``: row ids (int64, ascending) or a range.

        Called for every table of every kind of save, tracked or not, before it is on disk and before the next step. A
        range is the whole table. ``Shard.pending_M`` of the rows is 0 by then.
        """

    def reset(self) -> None:
        """Forget all that was recorded: the shard was initialised or restored from a checkpoint."""

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int | None:
        """Memory of the tracker in PS rank ``rank_index``, bytes, for rows of ``dim`` values; None: not known."""
        return None


class TopTracker(Tracker):
    """The base of trackers that choose the K rows of a table with the highest scores; ties to the lower row.

    K follows from the option ``r``.
    """

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._r: float = spec.options["r"]

    def choose(self, table: int, step: int) -> Tensor:
        """The rows with the highest scores; none of score 0."""
        scores_T, first, budget = self._scored(table)
        return top_rows(scores_T, budget) + first

    def _scores(self, table: int) -> Tensor:
        """The score of each row of ``table`` (T,), of any dtype."""
        raise NotImplementedError

    def _scored(self, table: int) -> tuple[Tensor, int, int]:
        """The scores of the rows of ``table``, the index of the first of these rows, and K."""
        span = self._shard.span(table)
        return self._scores(table), span.start, budget_rows(span.stop - span.start, self._r)


def top_rows(counts_M: Tensor, num_rows: int) -> Tensor:
    """Indices (int64, ascending) of the ``num_rows`` largest positive counts, of any dtype; ties go to the lower index.

    Beyond its result it takes 4 bytes a row and 8 a tie: ``topk`` over the touched rows takes 16 to 30 and is slower.
    """
    counts = counts_M.numpy()
    if np.count_nonzero(counts) <= num_rows:
        return torch.from_numpy(np.flatnonzero(counts != 0))  # 2 to 15 times as fast as of the counts
    rank = len(counts) - num_rows
    threshold = np.partition(counts, rank)[rank]
    is_chosen = counts > threshold
    num_tied = num_rows - np.count_nonzero(is_chosen)
    is_chosen[np.flatnonzero(counts == threshold)[:num_tied]] = True
    return torch.from_numpy(np.flatnonzero(is_chosen))
