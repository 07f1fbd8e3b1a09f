"""The rows of one PS rank: one flat array for all tables, a counter of unsaved updates, and the step last applied.

N rows of a request, D embedding dim, M rows of the shard.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement
from harness.core.seeds import derive, words
from harness.kernels.rows import NO_COUNTS, sgd_step

_LINE = 16  # values of a cache line
_INIT_CHUNK = 1 << 16  # values initialised at once: half a megabyte of words, which stays in cache


class Shard:
    """Embedding rows of one rank: ``rows_MD`` float32; ``pending_M`` int32, updates of each row since its last save."""

    def __init__(self, placement: Placement, rank_index: int, dim: int, *, seed: int, count_updates: bool) -> None:
        self.placement = placement
        self.rank_index = rank_index
        self.seed = seed
        num_rows = placement.num_rows(rank_index)
        # numpy's memory: it asks the system for huge pages, torch does not, and random rows cost a fifth less in them.
        # They begin on a cache line, so that a row of 16 values is one and not two: a tenth less.
        memory = np.empty(num_rows * dim + _LINE, np.float32)
        first = -memory.ctypes.data // memory.itemsize % _LINE
        self.rows_MD = torch.from_numpy(memory[first : first + num_rows * dim].reshape(num_rows, dim))
        self.pending_M = torch.from_numpy(np.zeros(num_rows, np.int32)) if count_updates else None
        self.applied_step = 0
        self._parts: set[int] = set()  # of the step after that
        self.before_change: Callable[[Tensor], None] = _nothing
        """Told which rows (N,) a step is about to change: somebody may still need them as they are."""

    def span(self, table: int) -> slice:
        """Where ``table`` lies in the flat array."""
        offsets_T = self.placement.offsets_RT[self.rank_index]
        return slice(int(offsets_T[table]), int(offsets_T[table + 1]))

    def initialise(self, *, applied_step: int) -> None:
        """Set every row to its initial value: U(-1/sqrt(n), 1/sqrt(n)) in a table of n rows (facebookresearch/dlrm).

        A value depends on (seed, table, row, column) only: not on the rank, the number of ranks or the engine.
        """
        flat = self.rows_MD.numpy().reshape(-1)
        dim = self.rows_MD.shape[1]
        columns_D = np.arange(dim, dtype=np.uint64)
        for table, cardinality in enumerate(self.placement.cardinalities):
            key = derive(self.seed, "embedding", table)
            first, stride = self.placement.table_rows(self.rank_index, table)
            span = self.span(table)
            chunk = max(1, _INIT_CHUNK // dim)
            for start in range(0, span.stop - span.start, chunk):
                stop = min(start + chunk, span.stop - span.start)
                rows_K = np.arange(start, stop, dtype=np.uint64) * np.uint64(stride) + np.uint64(first)
                counters = (rows_K[:, None] * np.uint64(dim) + columns_D).reshape(-1)
                unit = (words(key, counters) >> np.uint64(40)).astype(np.float32)  # 24 random bits: exact in float32
                unit *= np.float32(2.0**-23)
                unit -= np.float32(1.0)
                unit *= np.float32(1 / math.sqrt(cardinality))
                flat[(span.start + start) * dim : (span.start + stop) * dim] = unit
        self.reset_counts(applied_step=applied_step)

    def reset_counts(self, *, applied_step: int) -> None:
        """Nothing is unsaved; the next step to apply is ``applied_step + 1``."""
        if self.pending_M is not None:
            self.pending_M.zero_()
        self.applied_step = applied_step
        self._parts.clear()

    def gather(self, rows_N: Tensor) -> Tensor:
        """Rows ``rows_N`` (int64 local flat rows): float32 (N, D), a copy."""
        return self.rows_MD.index_select(0, rows_N)

    def apply(
        self,
        step: int,
        rows_N: Tensor,
        grads_ND: Tensor,
        counts_N: Tensor,
        learning_rate: float,
        *,
        part: int = 0,
        num_parts: int = 1,
    ) -> bool:
        """One SGD step on distinct rows. False, and nothing done, if ``step``, or this part of it, had been applied.

        ``counts_N`` are the updates each row's gradient sums up, one per sample that touched it. No two of the
        ``num_parts`` parts of a step have a row in common, so they may come in any order.
        """
        if step <= self.applied_step or part in self._parts:
            return False
        assert step == self.applied_step + 1, f"step {step} after {self.applied_step}"
        self.before_change(rows_N)
        pending_M = NO_COUNTS if self.pending_M is None else self.pending_M.numpy()
        sgd_step(
            self.rows_MD.numpy(), rows_N.numpy(), grads_ND.numpy(), learning_rate, pending_M, counts_N.numpy()
        )
        self._parts.add(part)
        if len(self._parts) == num_parts:
            self._parts.clear()
            self.applied_step = step
        return True

    def write(
        self, step: int, rows_N: Tensor, values_ND: Tensor, counts_N: Tensor, *, counts_all: bool = False
    ) -> bool:
        """Take in rows that were updated elsewhere, as of ``step``. False, and nothing done, if that was done before.

        ``counts_N`` (int32) is how often each was updated since the last time. With ``counts_all`` they are all unsaved
        updates and replace what was counted: doing it twice changes nothing, so it is done whatever the step.
        """
        if step <= self.applied_step and not counts_all:
            return False
        self.before_change(rows_N)
        self.rows_MD.index_put_((rows_N,), values_ND)
        if self.pending_M is not None and counts_all:
            self.pending_M.index_copy_(0, rows_N, counts_N)
        elif self.pending_M is not None:
            self.pending_M.index_add_(0, rows_N, counts_N)
        self.applied_step = max(step, self.applied_step)
        return True

    def unsaved(self, rows_N: Tensor) -> Tensor:
        """Updates of each of ``rows_N`` that no save has persisted, int32 (N,)."""
        assert self.pending_M is not None, "nobody counts updates here"
        return self.pending_M.index_select(0, rows_N)

    def take_pending(self, rows: Tensor | slice) -> int:
        """Updates of ``rows`` that were not saved; they now count as saved."""
        if self.pending_M is None:
            return 0
        # numpy adds int32 up in int64 through a small buffer, torch through an int64 copy of everything.
        total = int(self.pending_M[rows].numpy().sum(dtype=np.int64))
        self.pending_M[rows] = 0
        return total


def stepped(rows_ND: Tensor, grads_ND: Tensor, learning_rate: float) -> Tensor:
    """What :meth:`Shard.apply` makes of rows, (N, D), to the bit."""
    return rows_ND - grads_ND * learning_rate


def _nothing(rows_N: Tensor) -> None:
    """Nobody needs them."""
