"""The trackers of the harness, and their table (CPR section 4, docs/CPR.md). The contract: ``core.tracker``.

M rows of the shard, N rows of a call, K rows chosen.
"""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.movement import MassTracker, ScarTracker
from harness.core.placement import Placement, budget_rows
from harness.core.seeds import derive, generator
from harness.core.shard import Shard
from harness.core.tracker import CountingTracker, NullTracker, Tracker, TrackerSpec, top_rows
from harness.kernels.samples import LIST, LISTS, forget_members, keep_sampled

__all__ = ["TRACKERS", "NullTracker", "Tracker", "TrackerSpec", "top_rows"]


class MfuTracker(CountingTracker):
    """CPR-MFU: the K rows with the most accesses since their last save; ties to the lower row.

    Option ``r``. The 4-byte access counter is the shard's counter of unsaved updates itself, since both count one per
    (sample, row) and are cleared when the row is saved.
    """

    def choose(self, table: int, step: int) -> Tensor:
        """The K rows with the highest counters; only rows touched since their last save."""
        pending, first, budget = self._pending(table)
        return top_rows(pending, budget) + first


class RandomTracker(CountingTracker):
    """A control for the other trackers: it chooses up to K rows at random.

    Option ``pool``: ``touched`` draws K of the rows that were touched since their last save. ``all`` draws K of all
    rows and leaves out those that were not touched, so fewer than K may remain.
    """

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        super().__init__(shard, spec)
        self._pool: str = spec.options["pool"]

    def choose(self, table: int, step: int) -> Tensor:
        """K rows drawn by a generator keyed by (seed, rank, table, step): repeated calls return the same rows."""
        pending_M, first, budget = self._pending(table)
        pending = pending_M.numpy()
        rng = generator(self._shard.seed, "random", self._shard.rank_index, table, step)
        if self._pool == "all":
            drawn = np.sort(rng.choice(len(pending), budget, replace=False))
            rows = drawn[pending[drawn] > 0]
        else:
            rows = np.flatnonzero(pending)
            if len(rows) > budget:
                rows = np.sort(rng.choice(rows, budget, replace=False))
        return torch.from_numpy(rows.astype(np.int64)) + first


class SsuTracker(Tracker):
    """CPR-SSU: rows that a sub-sample of the inputs touched, in a list of at most K per table.

    Option ``r``. A saved row leaves its list. A new row that finds the list full replaces a member. Which one is
    reconstructed (docs/CPR.md); option ``eviction``: ``random``, drawn by (seed, rank, row, step), or the ``oldest``.
    Memory: 4 bytes per list entry, which is r of MFU's counter, and a bit per row for membership.
    """

    needs_samples: ClassVar[bool] = True
    _state_in_place = ("_tables_TX", "_slots_S", "_is_member_W")  # the compiled loop has their addresses

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._index = {table: t for t, table in enumerate(sorted(spec.tables))}
        self._tables_T = np.zeros(len(spec.tables), LIST)
        num_slots = 0
        for table, t in self._index.items():
            span = shard.span(table)
            budget = budget_rows(span.stop - span.start, spec.options["r"])
            self._tables_T[t] = (span.start, span.stop, num_slots, budget, 0, 0)
            num_slots += budget
        self._slots_S = np.zeros(num_slots, np.int32)
        self._is_member_W = np.zeros(-(-len(shard.rows_MD) // 64), np.uint64)
        self._lists_1 = np.zeros(1, LISTS)
        self._lists_1[0] = (
            *(self._tables_T.ctypes.data, len(self._tables_T), self._slots_S.ctypes.data),
            *(self._is_member_W.ctypes.data, len(self._is_member_W)),
            np.uint64(derive(shard.seed, "evict", shard.rank_index)).astype(np.int64),
            spec.options.get("eviction") == "oldest",
        )
        self._lists = self._lists_1.ctypes.data

    def __reduce__(self) -> NoReturn:
        raise TypeError("SsuTracker: cannot be pickled or copied, since it holds addresses of its own arrays")

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """Put the rows in the lists of their tables."""
        num_rows = rows_N.numel()
        assert is_sampled_N.numel() == num_rows
        assert rows_N.is_contiguous()
        assert is_sampled_N.is_contiguous()
        keep_sampled(rows_N.data_ptr(), is_sampled_N.data_ptr(), num_rows, self._lists, step)

    def choose(self, table: int, step: int) -> Tensor:
        """The rows in the list of ``table``, ascending."""
        return torch.from_numpy(np.sort(self._members(table)).astype(np.int64))

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Remove ``rows`` from the list of ``table``; the others keep their order. Other tables have no list."""
        if table not in self._index:
            return
        members, own = self._members(table), self._tables_T[self._index[table]]
        members[:] = np.roll(members, -own["oldest"])
        is_saved = np.ones(len(members), bool) if isinstance(rows, slice) else np.isin(members, rows.numpy())
        forget_members(members[is_saved], self._is_member_W)
        left = members[~is_saved]
        members[: len(left)] = left
        own["num_members"], own["oldest"] = len(left), 0

    def reset(self) -> None:
        """Empty every list."""
        for table in self._index:
            self.saved(table, slice(None))

    @property
    def _tables_TX(self) -> NDArray[np.int64]:
        """The fields of the lists, as columns; a view."""
        return self._tables_T.view(np.int64).reshape(len(self._tables_T), -1)

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        """The lists, and a bit for each row of the shard."""
        local_rows = (placement.local_rows(rank_index, table) for table in spec.tables)
        num_slots = sum(budget_rows(num_rows, spec.options["r"]) for num_rows in local_rows)
        return 4 * num_slots + 8 * -(-placement.num_rows(rank_index) // 64)

    def _members(self, table: int) -> np.ndarray:
        """Rows in the list of ``table``, in no order; a view."""
        own = self._tables_T[self._index[table]]
        return self._slots_S[own["first_slot"] :][: own["num_members"]]


@dataclass
class _SinceBase:
    """Rows of one table that deltas hold: a bit a row, and how many deltas, and rows in them, there have been."""

    bits: NDArray[np.uint8]
    num_deltas: int = 0
    num_rows: int = 0


class ChangedTracker(Tracker):
    """The rows of all tables that changed since the last base, or since the shard was restored (Check-N-Run).

    A bit a row says which of them a delta has held; those changed since then have unsaved updates, which the shard
    counts. Memory: the bit, and the shard's counter of 4 bytes a row, which ``metrics.update_pls`` keeps in any case.
    """

    needs_counts: ClassVar[bool] = True
    _state = ("_since",)
    _state_types = (_SinceBase,)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._spans = [shard.span(table) for table in range(len(shard.placement.cardinalities))]
        self.reset()

    def choose(self, table: int, step: int) -> Tensor:
        """All rows of ``table``, tracked or not, that changed since the base: no budget limits them."""
        return torch.from_numpy(np.flatnonzero(self._is_changed(table))) + self._spans[table].start

    @property
    def num_changed(self) -> int:
        """Rows that :meth:`choose` would give of all tables together."""
        return sum(int(np.count_nonzero(self._is_changed(table))) for table in range(len(self._spans)))

    @property
    def num_deltas(self) -> int:
        """Deltas since the base or the restore; each holds all rows of those before it."""
        return max(since.num_deltas for since in self._since)

    @property
    def num_delta_rows(self) -> int:
        """Rows in all these deltas together."""
        return sum(since.num_rows for since in self._since)

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        """The counter of unsaved updates of each row of the shard, and a bit."""
        num_rows = placement.num_rows(rank_index)
        return 4 * num_rows - (-num_rows // 8)

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """A base holds the whole table; a delta holds these rows until the next base."""
        span, since = self._spans[table], self._since[table]
        if isinstance(rows, slice):
            self._since[table] = self._nothing(span)
            return
        is_held = self._unpacked(table)
        is_held[rows.numpy() - span.start] = True
        since.bits = np.packbits(is_held)
        since.num_deltas += 1
        since.num_rows += len(rows)

    def reset(self) -> None:
        """Begin anew: no row differs from the files that the shard was restored from."""
        self._since = [self._nothing(span) for span in self._spans]

    def _is_changed(self, table: int) -> NDArray[np.bool_]:
        assert self._shard.pending_M is not None, "needs_counts"
        return self._unpacked(table) | (self._shard.pending_M[self._spans[table]].numpy() > 0)

    def _unpacked(self, table: int) -> NDArray[np.bool_]:
        span = self._spans[table]
        return np.unpackbits(self._since[table].bits, count=span.stop - span.start).view(np.bool_)

    @staticmethod
    def _nothing(span: slice) -> _SinceBase:
        return _SinceBase(np.zeros(-(-(span.stop - span.start) // 8), np.uint8))


TRACKERS: dict[str | None, type[Tracker]] = {
    None: NullTracker,
    "mfu": MfuTracker,
    "random": RandomTracker,
    "ssu": SsuTracker,
    "mass": MassTracker,
    "scar": ScarTracker,
    "changed": ChangedTracker,
}
"""Tracker classes by name; None for strategies whose saves need none."""


def tracker_bytes(spec: TrackerSpec, placement: Placement, dim: int) -> int | None:
    """Memory of the tracker in the PS rank that needs most, bytes; None if the tracker does not know it."""
    found = [TRACKERS[spec.kind].num_bytes(spec, placement, k, dim) for k in range(placement.num_ps)]
    return max((num_bytes for num_bytes in found if num_bytes is not None), default=None)
