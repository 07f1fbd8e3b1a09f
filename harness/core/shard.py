"""The rows of one PS rank: one flat array for all tables, a counter of unsaved updates, and the last applied step.

M rows of the shard, N rows of a request, D embedding dim, X = D + the optimizer's state columns (0 for SGD).
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from harness.core.optimizers import OPTIMIZERS, RowOptimizer, row_width
from harness.core.placement import Placement
from harness.core.resumable import Resumable
from harness.core.seeds import derive
from harness.kernels.compiler import FLOATS_PER_LINE
from harness.kernels.row_loops import draw_rows


@dataclass(frozen=True)
class SavedCounts:
    """The updates that save number ``sequence`` counted as saved on a shard: of all tables, and of tracked tables."""

    sequence: int = -1
    updates: int = 0
    tracked: int = 0


@dataclass(eq=False)
class Shard(Resumable):
    """Embedding rows of one rank.

    Attributes:
        placement: which rows of which tables the rank owns.
        seed: of the initial values.
        counts_updates: whether ``pending_M`` is kept.
        optimizer: the update rule of the rows.
        rows_MD: float32 (M, X), table after table, each table's rows in order.
        pending_M: int32 (M,), updates of each row since it was last saved, one per sample that touched it; None if
            they are not counted.
        saved_counts: how many updates the last save counted as saved.
        applied_step: number of the last step whose gradients the rows hold, counted from 1; 0 before the first.
        mirrored_N: int64, ascending: rows whose newest values the trainer's mirror holds, by the last save request.
        before_change: a callback. The shard calls it with row numbers (int64, distinct) just before it changes these
        rows. While a save runs in the background, the callback copies their present values; otherwise it does nothing.
    """

    _state = ("applied_step", "mirrored_N", "saved_counts")
    _state_types = (SavedCounts,)
    _state_in_place = ("rows_MD", "pending_M")

    placement: Placement
    rank_index: int
    dim: int
    _: KW_ONLY
    seed: int
    counts_updates: bool
    optimizer: RowOptimizer = OPTIMIZERS["sgd"]

    def __post_init__(self) -> None:
        num_rows, width = self.placement.num_rows(self.rank_index), row_width(self.optimizer, self.dim)
        # numpy's memory: it asks the system for huge pages, torch does not, and random rows cost a fifth less in them.
        # They begin on a cache line, so that a row of 16 values is one and not two: a tenth less.
        memory = np.empty(num_rows * width + FLOATS_PER_LINE, np.float32)
        first = -memory.ctypes.data // memory.itemsize % FLOATS_PER_LINE
        self.rows_MD = torch.from_numpy(memory[first : first + num_rows * width].reshape(num_rows, width))
        self.pending_M = torch.from_numpy(np.zeros(num_rows, np.int32)) if self.counts_updates else None
        self.saved_counts = SavedCounts()
        self.applied_step = 0
        self.mirrored_N = torch.empty(0, dtype=torch.int64)
        self.before_change: Callable[[Tensor], None] = lambda rows_N: None

    def span(self, table: int) -> slice:
        """The slice of the shard's rows that holds ``table``."""
        offsets_T = self.placement.offsets_RT[self.rank_index]
        return slice(int(offsets_T[table]), int(offsets_T[table + 1]))

    @property
    def values_MD(self) -> Tensor:
        """The rows without the optimizer's state columns: a view, float32 (M, D)."""
        return self.rows_MD[:, : self.dim]

    def mirrored(self, table: int) -> Tensor:
        """The rows of ``table`` among ``mirrored_N``: int64 local flat rows, ascending."""
        if not len(self.mirrored_N):
            return self.mirrored_N
        span = self.span(table)
        first, last = torch.searchsorted(self.mirrored_N, torch.tensor([span.start, span.stop])).tolist()
        return self.mirrored_N[first:last]

    def initialise(self, *, applied_step: int) -> None:
        """Set every row to its initial value: U(-1/sqrt(n), 1/sqrt(n)) in a table of n rows (facebookresearch/dlrm).

        A value depends on (seed, table, row, column) only: not on the rank, the number of ranks or the engine. State
        columns take the optimizer's initial value. Counts and ``applied_step`` are set as by :meth:`reset_counts`.
        """
        rows_MX = self.rows_MD.numpy()
        self.reset_states()
        for table, cardinality in enumerate(self.placement.cardinalities):
            first, stride = self.placement.table_rows(self.rank_index, table)
            key, bound = derive(self.seed, "embedding", table), 1 / math.sqrt(cardinality)
            draw_rows(key, first, stride, bound, self.dim, rows_MX[self.span(table)])
        self.reset_counts(applied_step=applied_step)

    def reset_states(self) -> None:
        self.rows_MD[:, self.dim :] = self.optimizer.initial_state

    def reset_counts(self, *, applied_step: int) -> None:
        """Set all counts of unsaved updates to 0, and forget the last save; step ``applied_step`` counts as applied."""
        if self.pending_M is not None:
            self.pending_M.zero_()
        self.saved_counts = SavedCounts()
        self.applied_step = applied_step

    def gather(self, rows_N: Tensor) -> Tensor:
        """Rows ``rows_N`` (int64 local flat rows) with their state columns: a copy, float32 (N, X)."""
        return self.rows_MD.index_select(0, rows_N)

    def apply(
        self,
        step: int,
        rows_N: Tensor,
        grads_ND: Tensor,
        counts_N: Tensor,
        learning_rate: float,
        *,
        norms_N: Tensor | None = None,
        mass_M: Tensor | None = None,
        changes_NX: Tensor | None = None,
    ) -> bool:
        """Make one optimizer step on distinct rows, unless ``step`` was applied before; returns whether it was made.

        ``counts_N`` (int32) are the updates that each row's gradient sums up, one per sample that touched it.
        ``norms_N``, ``mass_M`` and ``changes_NX``: as of ``RowOptimizer.step``. A step may not be left out.
        """
        if step <= self.applied_step:
            return False
        assert step == self.applied_step + 1, f"step {step} after {self.applied_step}"
        self.before_change(rows_N)
        self.optimizer.step(
            *(self.rows_MD, rows_N, grads_ND, learning_rate),
            pending_M=self.pending_M,
            counts_N=counts_N,
            norms_N=norms_N,
            mass_M=mass_M,
            changes_NX=changes_NX,
        )
        self.applied_step = step
        return True

    def write(self, step: int, rows_N: Tensor, values_ND: Tensor, counts_N: Tensor) -> bool:
        """Overwrite rows that a client has updated with ``values_ND`` (N, X), which are as of ``step``.

        ``counts_N`` (int32) are the updates of each row since its last write. Returns False, and changes nothing, if
        ``step`` was applied before. Steps may be left out.
        """
        if step <= self.applied_step:
            return False
        self.put(rows_N, values_ND, counts_N)
        self.applied_step = step
        return True

    def put(self, rows_N: Tensor, values_ND: Tensor, counts_N: Tensor) -> None:
        """Overwrite rows with ``values_ND`` (N, X), and add ``counts_N`` (int32) to their counts of unsaved updates."""
        self.before_change(rows_N)
        self.rows_MD.index_put_((rows_N,), values_ND)
        if self.pending_M is not None:
            self.pending_M.index_add_(0, rows_N, counts_N)

    def unsaved(self, rows_N: Tensor) -> Tensor:
        """The number of unsaved updates of each row, int32 (N,)."""
        assert self.pending_M is not None, "this shard was built without counts_updates"
        return self.pending_M.index_select(0, rows_N)

    def reset_pending(self, rows: Tensor | slice) -> int:
        """Set the counts of unsaved updates of ``rows`` to 0 and return their sum; 0 if updates are not counted."""
        if self.pending_M is None:
            return 0
        # numpy adds int32 up in int64 through a small buffer, torch through an int64 copy of everything.
        pending_M, chosen = self.pending_M.numpy(), rows if isinstance(rows, slice) else rows.numpy()
        if total := int(np.add.reduce(pending_M[chosen], dtype=np.int64)):  # most tables of a small batch have none
            pending_M[chosen] = 0
        return total

    def mark_saved(self, sequence: int, rows: Mapping[int, Tensor | slice], tracked: Collection[int]) -> None:
        """Count ``rows`` (by table) as saved by save ``sequence``, and note their updates in ``saved_counts``.

        A second call for the same save, after a death in the middle of it, adds to what the first call has noted.
        """
        before = self.saved_counts if self.saved_counts.sequence == sequence else SavedCounts()
        updates = {table: self.reset_pending(chosen) for table, chosen in rows.items()}
        num_tracked = sum(updates.get(table, 0) for table in tracked)
        self.saved_counts = SavedCounts(sequence, before.updates + sum(updates.values()), before.tracked + num_tracked)
