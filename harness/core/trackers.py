"""What decides which rows of a tracked table a priority save writes (CPR section 5, docs/CPR.md).

A tracker lives beside its shard and dies with it; a replacement starts empty. Rows are local flat rows of the shard.
N rows of a request, K rows chosen, M rows of the shard.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import budget_rows
from harness.core.seeds import derive, generator
from harness.core.shard import Shard
from harness.kernels.samples import LIST, LISTS, forget_members, keep_sampled


class Tracker(Protocol):
    """Sees what is touched between saves and chooses what to save."""

    def touched(self, step: int, rows_N: Tensor, sampled_N: Tensor) -> None:
        """Step ``step`` updated ``rows_N`` (int64, ascending, distinct); ``sampled_N``: by a sub-sampled input."""
        ...

    def choose(self, table: int, step: int) -> Tensor:
        """Rows of ``table`` to save now: int64, ascending, at most K; none that is untouched since its last save."""
        ...

    def saved(self, table: int) -> None:
        """What :meth:`choose` returned for ``table`` has been written."""
        ...

    def reset(self) -> None:
        """Forget everything: the shard was restored, or saved whole."""
        ...


class NullTracker:
    """For strategies that save everything, or nothing."""

    def touched(self, step: int, rows_N: Tensor, sampled_N: Tensor) -> None:
        """Ignore it."""

    def choose(self, table: int, step: int) -> Tensor:
        """A priority save needs a tracker."""
        raise AssertionError("a priority save without a tracker")

    def saved(self, table: int) -> None:
        """Ignore it."""

    def reset(self) -> None:
        """Nothing to forget."""


@dataclass
class MfuTracker:
    """CPR-MFU: the K rows with the most accesses since their last save; ties to the lower row.

    The 4-byte access counter is the shard's counter of unsaved updates itself, since both count one per (sample, row)
    and are cleared when the row is saved.
    """

    shard: Shard
    r: float

    def touched(self, step: int, rows_N: Tensor, sampled_N: Tensor) -> None:
        """The shard has counted already."""

    def choose(self, table: int, step: int) -> Tensor:
        """Top-K by counter."""
        span = self.shard.span(table)
        assert self.shard.pending_M is not None
        return top_rows(self.shard.pending_M[span], budget_rows(span.stop - span.start, self.r)) + span.start

    def saved(self, table: int) -> None:
        """The shard has cleared the counters already."""

    def reset(self) -> None:
        """The shard has cleared the counters already."""


def top_rows(counts_M: Tensor, num_rows: int) -> Tensor:
    """Indices (int64, ascending) of the ``num_rows`` largest positive counts; ties go to the lower index.

    Beyond its result it takes 4 bytes a row and 8 a tie: ``topk`` over the touched rows takes 16 to 30 and is slower.
    """
    counts = counts_M.numpy()
    if np.count_nonzero(counts) <= num_rows:
        return torch.from_numpy(np.flatnonzero(counts))
    rank = len(counts) - num_rows
    threshold = np.partition(counts, rank)[rank]
    is_chosen = counts > threshold
    num_tied = num_rows - np.count_nonzero(is_chosen)
    is_chosen[np.flatnonzero(counts == threshold)[:num_tied]] = True
    return torch.from_numpy(np.flatnonzero(is_chosen))


@dataclass
class RandomTracker:
    """Control: K rows drawn at random, among those touched since their last save (``touched``) or among all (R)."""

    shard: Shard
    r: float
    pool: str

    def touched(self, step: int, rows_N: Tensor, sampled_N: Tensor) -> None:
        """The shard's counter tells what is unsaved."""

    def choose(self, table: int, step: int) -> Tensor:
        """Draw, keyed by (seed, rank, table, step)."""
        span = self.shard.span(table)
        num_local = span.stop - span.start
        budget = budget_rows(num_local, self.r)
        assert self.shard.pending_M is not None
        pending = self.shard.pending_M[span].numpy()
        rng = generator(self.shard.seed, "random", self.shard.rank_index, table, step)
        if self.pool == "all":
            drawn = np.sort(rng.choice(num_local, budget, replace=False))
            rows = drawn[pending[drawn] > 0]
        else:
            rows = np.flatnonzero(pending)
            if len(rows) > budget:
                rows = np.sort(rng.choice(rows, budget, replace=False))
        return torch.from_numpy(rows.astype(np.int64)) + span.start

    def saved(self, table: int) -> None:
        """The shard has cleared the counters already."""

    def reset(self) -> None:
        """The shard has cleared the counters already."""


class SsuTracker:
    """CPR-SSU: rows met by a sub-sample of the inputs, in a list of at most K per table, emptied at a save.

    A newcomer that finds the list full takes the place of a random member, drawn by (seed, rank, row, step) (R).
    Memory: 4 bytes per list entry (r of MFU's counter), and a bit per row for membership.
    """

    def __init__(self, shard: Shard, r: float, tables: Sequence[int]) -> None:
        self._index = {table: t for t, table in enumerate(sorted(tables))}
        self._tables_T = np.zeros(len(tables), LIST)
        num_slots = 0
        for table, t in self._index.items():
            span = shard.span(table)
            budget = budget_rows(span.stop - span.start, r)
            self._tables_T[t] = (span.start, span.stop, num_slots, budget, 0)
            num_slots += budget
        self._slots_S = np.zeros(num_slots, np.int32)
        self._is_member_W = np.zeros(-(-len(shard.rows_MD) // 64), np.uint64)
        self._lists_1 = np.zeros(1, LISTS)
        self._lists_1[0] = (
            *(self._tables_T.ctypes.data, len(tables), self._slots_S.ctypes.data),
            *(self._is_member_W.ctypes.data, len(self._is_member_W)),
            np.uint64(derive(shard.seed, "evict", shard.rank_index)).astype(np.int64),
        )
        self._lists = self._lists_1.ctypes.data

    def touched(self, step: int, rows_N: Tensor, sampled_N: Tensor) -> None:
        """Put the rows that a sampled input touched in their lists."""
        num_rows = rows_N.numel()
        assert sampled_N.numel() == num_rows
        assert rows_N.is_contiguous()
        assert sampled_N.is_contiguous()
        keep_sampled(rows_N.data_ptr(), sampled_N.data_ptr(), num_rows, self._lists, step)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tracker cannot be copied: its record holds addresses of its own arrays")

    def choose(self, table: int, step: int) -> Tensor:
        """The list of ``table``."""
        return torch.from_numpy(np.sort(self._members(table)).astype(np.int64))

    def saved(self, table: int) -> None:
        """Empty the list of ``table``."""
        forget_members(self._members(table), self._is_member_W)
        self._tables_T["num_members"][self._index[table]] = 0

    def reset(self) -> None:
        """Empty every list."""
        for table in self._index:
            self.saved(table)

    def _members(self, table: int) -> np.ndarray:
        """Rows in the list of ``table``, in no order; a view."""
        own = self._tables_T[self._index[table]]
        return self._slots_S[own["first_slot"] :][: own["num_members"]]


@dataclass(frozen=True)
class TrackerSpec:
    """What a rank needs to know to build its tracker."""

    kind: str | None  # a key of TRACKERS
    r: float
    tables: tuple[int, ...]
    random_pool: str = "touched"


TRACKERS: dict[str | None, Callable[[Shard, TrackerSpec], Tracker]] = {
    None: lambda shard, spec: NullTracker(),
    "mfu": lambda shard, spec: MfuTracker(shard, spec.r),
    "random": lambda shard, spec: RandomTracker(shard, spec.r, spec.random_pool),
    "ssu": lambda shard, spec: SsuTracker(shard, spec.r, spec.tables),
}

NEEDS_SAMPLES = frozenset({"ssu"})
"""Trackers that want to know which rows sub-sampled inputs touched, step by step."""

NEEDS_COUNTS = frozenset({"mfu", "random"})
"""Trackers that read the shard's counter of unsaved updates."""
