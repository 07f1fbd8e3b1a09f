"""What decides which rows of a tracked table a priority save writes (CPR section 5, DESIGN section 5).

A tracker lives beside its shard and dies with it; a replacement starts empty. Rows are local flat rows of the shard.
N rows of a request, K rows chosen, M rows of the shard.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from harness.core import compiled
from harness.core.placement import budget_rows
from harness.core.seeds import generator
from harness.core.shard import Shard


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

    Newcomers that find the list full take the places of random members, drawn by (seed, rank, table, step) (R). Rows
    are taken in by blocks of steps, and before a choice: step by step, drawing alone takes a tenth of a training step
    at Kaggle's size. A hot row that loses its place is back after the next block, so a block must be short against the
    time in which a list turns over: one step for every 32 places of the smallest list, at most 64.

    Memory: 4 bytes per list entry (r of MFU's counter), one byte per row for membership, so that a block costs O(rows
    met), and the rows of one block.
    """

    def __init__(self, shard: Shard, r: float, tables: Sequence[int]) -> None:
        self.shard = shard
        self.tables = tuple(tables)
        spans = {table: shard.span(table) for table in self.tables}
        self._bounds = np.array([[span.start, span.stop] for span in spans.values()], np.int64).reshape(-1)
        self._slots = {t: np.zeros(budget_rows(s.stop - s.start, r), np.int32) for t, s in spans.items()}
        self._num_members = dict.fromkeys(self.tables, 0)
        self._is_settled_M = np.ones(len(shard.rows_MD), bool)  # a member, or of a table that is not tracked
        for span in spans.values():
            self._is_settled_M[span] = False
        self._met: list[tuple[Tensor, Tensor]] = []
        smallest = min((len(slots) for slots in self._slots.values() if len(slots)), default=0)
        self._block_steps = min(max(1, smallest // 32), 64)
        self._block = 0

    def touched(self, step: int, rows_N: Tensor, sampled_N: Tensor) -> None:
        """Remember the rows that a sampled input touched, until their block is complete."""
        block = step // self._block_steps
        if block != self._block:
            self._take_in(step)
            self._block = block
        self._met.append((rows_N, sampled_N))

    def _take_in(self, step: int) -> None:
        """Add the rows that were met, by the end of their block or by ``step``, whichever is sooner; it keys draws."""
        if not self._met:
            return
        step = min(step, (self._block + 1) * self._block_steps - 1)
        rows_N, sampled_N = (torch.cat(parts).numpy() for parts in zip(*self._met, strict=True))
        self._met = []
        new = _distinct(compiled.unsettled(rows_N, sampled_N, self._is_settled_M))
        cuts = np.searchsorted(new, self._bounds).tolist()
        for table, first, last in zip(self.tables, cuts[::2], cuts[1::2], strict=True):
            if last > first:
                self._add(step, table, new[first:last])

    def _add(self, step: int, table: int, new: np.ndarray) -> None:
        slots, count = self._slots[table], self._num_members[table]
        num_free = min(len(new), len(slots) - count)
        if num_free:
            slots[count : count + num_free] = new[:num_free]
            self._num_members[table] = count + num_free
            self._is_settled_M[new[:num_free]] = True
        homeless = new[num_free:]
        if len(homeless):
            rng = generator(self.shard.seed, "evict", self.shard.rank_index, table, step)
            if len(homeless) > len(slots):
                homeless = rng.choice(homeless, len(slots), replace=False)
            places = rng.choice(len(slots), len(homeless), replace=False)
            compiled.take_places(slots, places, homeless, self._is_settled_M)

    def choose(self, table: int, step: int) -> Tensor:
        """The list of ``table``."""
        self._take_in(step)
        return torch.from_numpy(np.sort(self._slots[table][: self._num_members[table]]).astype(np.int64))

    def saved(self, table: int) -> None:
        """Empty the list of ``table``."""
        self._is_settled_M[self._slots[table][: self._num_members[table]]] = False
        self._num_members[table] = 0

    def reset(self) -> None:
        """Empty every list."""
        self._met = []
        for table in self.tables:
            self.saved(table)


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Ascending; what ``np.unique`` does by hashing, in a tenth of its time."""
    ordered = np.sort(rows)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered.compress(is_first)


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
