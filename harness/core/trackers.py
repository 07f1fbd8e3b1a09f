"""Trackers, which choose the rows of a tracked table that a priority save writes (CPR section 4, docs/CPR.md).

A tracker belongs to one shard. Its state is lost with the rank, and a replacement's tracker starts empty. Rows are
local flat rows of the shard. M rows of the shard, N rows of a call, K rows chosen, T rows of a table, D embedding dim.
Of SSU: L lists, one a tracked table; S slots of all lists; W words of 64 bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.placement import Placement, budget_rows
from harness.core.resumable import Resumable
from harness.core.seeds import derive, generator
from harness.core.shard import Shard
from harness.kernels.row_loops import add_at, mark, row_distances, state_norms
from harness.kernels.samples import LIST, LISTS, forget, keep_sampled
from harness.kernels.selection import largest


@dataclass(frozen=True)
class TrackerSpec:
    """The parameters from which a rank builds its tracker.

    Attributes:
        kind: a key of :data:`TRACKERS`.
        tables: tracked tables, ascending.
        options: options by name (``Strategy.tracker_options``).
    """

    kind: str | None
    tables: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Resumable):
    """Records what happens to rows between saves, and chooses rows to save.

    To add one: one class and one entry in :data:`TRACKERS`. The class attributes declare which of the calls
    :meth:`touched`, :meth:`moved` and :meth:`sampled` the tracker needs; the others may be left out. By default every
    call but :meth:`choose` is a no-op. All calls come from the thread that serves the rank's requests; but
    :meth:`num_bytes` is called without a tracker, to estimate memory.
    """

    needs_counts: ClassVar[bool] = False
    """Whether the shard must keep ``Shard.pending_M``, the number of updates of each row since its last save."""
    needs_samples: ClassVar[bool] = False
    """Whether :meth:`sampled` must be called."""
    needs_touches: ClassVar[bool] = False
    """Whether :meth:`touched` must be called."""
    needs_norms: ClassVar[bool] = False
    """Whether :meth:`moved` must be called."""
    needs_growth: ClassVar[bool] = False
    """Whether the optimizer must have a state of each row that only grows."""
    mass_M: Any = None
    """With ``needs_norms``: a tensor, to which the rank's optimizer adds the norms (float32) in place of :meth:`moved`.

    Of updates that were made in the client cache :meth:`moved` is called all the same. None: of all updates.
    """

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        pass

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """Record that step ``step`` updated ``rows_N`` (int64, ascending, distinct), by ``counts_N`` samples (int32).

        Called in the order of steps, once for each step that updated a row of this shard, before :meth:`moved` and
        :meth:`sampled` of that step. The calls before each :meth:`choose` are the same with and without the lookahead
        cache. With bounded staleness an update belongs to the step whose message brings it to the rank.

        A cache reports several steps at once, when ``Shard.rows_MD`` already has the values of the last of them. So a
        tracker that compares values does so in :meth:`choose`, and a tracker that needs the change of each step
        implements :meth:`moved`. Updates in rows that a replacement gets from the trainer's mirror are not reported
        again; ``Shard.pending_M`` counts them.
        """

    def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
        """Record that step ``step`` changed ``rows_N``; ``norms_N`` is the L2 norm of each row's change (float32).

        Called for the same steps and rows as :meth:`touched`. The norm comes from ``RowOptimizer.step``, in the rank or
        in the client cache, with the same bits.
        """

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """Record that inputs of the sub-sample touched ``rows_N[is_sampled_N]`` (int64, ascending, distinct; bool).

        Called in the order of steps, at least for each step with such rows. These rows are the same with and without
        the lookahead cache. The other rows of ``rows_N`` must be ignored: without a cache they are all other rows of
        the step, with the cache there are none. A call may have no row of the sub-sample.
        """

    def choose(self, table: int, step: int) -> Tensor:
        """Rows of ``table`` to save at ``step``: int64, ascending, distinct. Changes nothing: a save may be abandoned.

        For a priority save ``table`` is tracked, and the rows are at most K = ``budget_rows``.
        """
        raise AssertionError("a priority save needs a tracker, and this strategy has none")

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Record that a save holds the present ``rows`` of ``table``: row ids (int64, ascending) or the table's range.

        Called for each table in the result of ``SaveKind.rows``, tracked or not, even if it has no row of it. That is
        when the save's contents are fixed: before they are on disk, and before the next step. ``Shard.pending_M`` of
        the rows is 0 by then.
        """

    def reset(self) -> None:
        """Forget all that was recorded: every row of the shard was set anew (initialised, restored or copied)."""

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int | None:
        """Memory of the tracker in PS rank ``rank_index``, bytes, for rows of ``dim`` values; None if unknown."""
        return None


class TopTracker(Tracker):
    """The base of trackers that choose the K rows of a table with the highest scores; ties to the lower row.

    K follows from the option ``r``.
    """

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._r: float = spec.options["r"]

    def choose(self, table: int, step: int) -> Tensor:
        """The at most K rows with the highest scores above 0."""
        scores_T, first, budget = self._scores_and_budget(table)
        return top_rows(scores_T, budget) + first

    def _scores(self, table: int) -> Tensor:
        """The score of each row of ``table``: (T,), of a dtype of 4 or 8 bytes, none below 0."""
        raise NotImplementedError

    def _scores_and_budget(self, table: int) -> tuple[Tensor, int, int]:
        """The scores of the rows of ``table``, its first row in the shard, and K, the most rows that a save writes."""
        span = self._shard.span(table)
        return self._scores(table), span.start, budget_rows(span.stop - span.start, self._r)


def top_rows(counts_M: Tensor, num_rows: int) -> Tensor:
    """Indices (int64, ascending) of the at most ``num_rows`` largest counts above 0; ties go to the lower index.

    ``counts_M``: of a dtype of 4 or 8 bytes, none below 0. The bits of such numbers, NaN aside, are in their order as
    integers.
    """
    counts = np.ascontiguousarray(counts_M.numpy())
    return torch.from_numpy(largest(counts.view(np.uint32 if counts.itemsize == 4 else np.int64), num_rows))


class MfuTracker(TopTracker):
    """CPR-MFU chooses the K rows with the most accesses since their last save; ties go to the lower row.

    The 4-byte access counter is the shard's counter of unsaved updates itself, since both count one per (sample, row)
    and are cleared when the row is saved. Rows that the trainer's mirror holds (``Shard.mirrored_N``) are never chosen.
    """

    needs_counts = True

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        return 4 * sum(placement.num_local_rows(rank_index, table) for table in spec.tables)

    def _scores(self, table: int) -> Tensor:
        span, mirrored_N = self._shard.span(table), self._shard.mirrored(table)
        assert self._shard.pending_M is not None, "the tracker declares needs_counts"
        pending_T = self._shard.pending_M[span]
        return pending_T.index_fill(0, mirrored_N - span.start, 0) if len(mirrored_N) else pending_T


class RandomTracker(MfuTracker):
    """A control for the other trackers: it chooses up to K rows at random.

    With option ``pool: touched`` it draws K of the rows that were touched since their last save, or takes all of them
    if they are fewer. With ``pool: all`` it draws K of all rows, then leaves out rows that were not touched.
    """

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        super().__init__(shard, spec)
        self._pool: str = spec.options["pool"]

    def choose(self, table: int, step: int) -> Tensor:
        """Up to K rows, drawn by a generator derived from (seed, rank, table, step), so that repeated calls agree."""
        pending_T, first, budget = self._scores_and_budget(table)
        pending = pending_T.numpy()
        rng = generator(self._shard.seed, "random", self._shard.rank_index, table, step)
        rows = np.arange(len(pending)) if self._pool == "all" else np.flatnonzero(pending)
        if len(rows) > budget:
            rows = np.sort(rng.choice(rows, budget, replace=False))
        return torch.from_numpy(rows[pending[rows] > 0]) + first


class SsuTracker(Tracker):
    """CPR-SSU chooses rows that a sub-sample of the inputs touched. It lists at most K of them for each table.

    K follows from the option ``r``. A saved row leaves its list. A new row that finds the list full replaces a member,
    chosen by the option ``eviction`` (reconstructed: docs/CPR.md): ``random``, drawn by (seed, rank, row, step), or the
    ``oldest``. Memory: 4 bytes per list entry, which is r of MFU's counter, and a bit per row for membership.
    """

    needs_samples = True
    _state_in_place = ("_lists_LX", "_slots_S", "_is_member_W")  # the compiled loop has their addresses

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._index = {table: t for t, table in enumerate(sorted(spec.tables))}
        self._lists_L = np.zeros(len(spec.tables), LIST)
        num_slots = 0
        for table, t in self._index.items():
            span = shard.span(table)
            budget = budget_rows(span.stop - span.start, spec.options["r"])
            self._lists_L[t] = (span.start, span.stop, num_slots, budget, 0, 0)
            num_slots += budget
        self._slots_S = np.zeros(num_slots, np.int32)
        self._is_member_W = np.zeros(-(-len(shard.rows_MD) // 64), np.uint64)
        self._lists_1 = np.zeros(1, LISTS)
        self._lists_1[0] = (
            *(self._lists_L.ctypes.data, len(self._lists_L), self._slots_S.ctypes.data),
            *(self._is_member_W.ctypes.data, len(self._is_member_W)),
            np.uint64(derive(shard.seed, "evict", shard.rank_index)).astype(np.int64),
            spec.options.get("eviction") == "oldest",
        )
        self._lists_address = self._lists_1.ctypes.data

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        num_rows = rows_N.numel()
        assert is_sampled_N.numel() == num_rows
        assert rows_N.is_contiguous()
        assert is_sampled_N.is_contiguous()
        keep_sampled(rows_N.data_ptr(), is_sampled_N.data_ptr(), num_rows, self._lists_address, step)

    def choose(self, table: int, step: int) -> Tensor:
        return torch.from_numpy(np.sort(self._members(table)).astype(np.int64))

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Remove ``rows`` from the list of ``table``: a tensor of row ids, or any slice, which stands for all its rows.

        The other rows keep their order, the oldest first. A no-op for untracked tables.
        """
        if table not in self._index:
            return
        members, own = self._members(table), self._lists_L[self._index[table]]
        if own["oldest"]:
            members[:] = np.roll(members, -own["oldest"])  # the oldest to the front
        saved = members if isinstance(rows, slice) else rows.numpy()
        own["num_members"], own["oldest"] = forget(saved, members, self._is_member_W), 0

    def reset(self) -> None:
        for table in self._index:
            self.saved(table, slice(None))

    @property
    def _lists_LX(self) -> NDArray[np.int64]:
        return self._lists_L.view(np.int64).reshape(len(self._lists_L), -1)

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        sizes = (placement.num_local_rows(rank_index, table) for table in spec.tables)
        num_slots = sum(budget_rows(num_rows, spec.options["r"]) for num_rows in sizes)
        return 4 * num_slots + 8 * -(-placement.num_rows(rank_index) // 64)

    def _members(self, table: int) -> np.ndarray:
        """The rows in the list of ``table``, int32: a view, in an order that the compiled loop defines."""
        own = self._lists_L[self._index[table]]
        return self._slots_S[own["first_slot"] :][: own["num_members"]]


def distances(left_ND: Tensor, right_ND: Tensor) -> Tensor:
    """The L2 distance between each row of ``left_ND`` and the same row of ``right_ND``: float32 (N,).

    A distance that would be NaN is infinite. Squares are summed in a fixed order, so that every machine computes the
    same bits.
    """
    return torch.from_numpy(row_distances(left_ND.numpy(), right_ND.numpy()))


class ScarTracker(TopTracker):
    """CPR-SCAR chooses the K rows whose values lie farthest from their saved copy; ties go to the lower row.

    After SCAR (Qiao et al. 2019), as CPR uses it (section 4, reconstructed). A row that has not moved since its last
    save is never chosen. Memory: a second copy of the tracked tables.
    """

    _state_in_place = ("_saved",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        super().__init__(shard, spec)
        self._saved = {table: torch.empty_like(shard.values_MD[shard.span(table)]) for table in spec.tables}

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        return 4 * dim * sum(placement.num_local_rows(rank_index, table) for table in spec.tables)

    def _scores(self, table: int) -> Tensor:
        return distances(self._shard.values_MD[self._shard.span(table)], self._saved[table])

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Copy the present values of the rows. The save holds these values, even if it is written later."""
        if table in self._saved:
            own = slice(None) if isinstance(rows, slice) else rows - self._shard.span(table).start
            self._saved[table][own] = self._shard.values_MD[rows]

    def reset(self) -> None:
        """Copy all tracked rows: each was just set to its initial value, or to a saved or copied one."""
        for table in self._saved:
            self.saved(table, self._shard.span(table))


class MassTracker(TopTracker):
    """Chooses the K rows with the largest mass since their last save; ties go to the lower row.

    A row's mass is the sum of the L2 norms of its changes in each step, float32, added in the order of steps. By the
    triangle inequality it is at least the distance that :class:`ScarTracker` measures. It takes 4 bytes a row instead
    of a copy of the row. A row that moves to and fro has mass and no distance.
    """

    needs_norms = True
    _state_in_place = ("mass_M",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        super().__init__(shard, spec)
        # numpy's memory: in huge pages, as the shard is
        self.mass_M = torch.from_numpy(np.zeros(len(shard.rows_MD), np.float32))

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        return 4 * placement.num_rows(rank_index)

    def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
        add_at(self.mass_M.numpy(), rows_N.numpy(), norms_N.numpy())

    def _scores(self, table: int) -> Tensor:
        return self.mass_M[self._shard.span(table)]

    def saved(self, table: int, rows: Tensor | slice) -> None:
        self.mass_M.numpy()[rows if isinstance(rows, slice) else rows.numpy()] = 0

    def reset(self) -> None:
        self.mass_M.zero_()


class OldestTracker(Tracker):
    """Chooses the K dirty rows of a table that are longest unsaved, in the order of the table, in turn.

    A row is dirty if it was touched since its last save. A cursor goes round each table: a choice begins at the cursor,
    leaves out clean rows, and the cursor then stands behind the last saved row. So a dirty row of a table of T rows is
    saved by one of the next ceil(T / K) saves, which are 1/r where r T is whole. After the sequential selection of
    MoC-System (arXiv 2408.04307). Memory: a byte a row and a cursor a table; nothing is counted.
    """

    needs_touches = True
    _state = ("_cursors",)
    _state_in_place = ("_is_dirty_M",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._r: float = spec.options["r"]
        self._tables = spec.tables
        self._is_dirty_M = np.zeros(len(shard.rows_MD), np.bool_)
        self.reset()

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        mark(self._is_dirty_M, rows_N.numpy())

    def choose(self, table: int, step: int) -> Tensor:
        span = self._shard.span(table)
        rows = np.flatnonzero(self._is_dirty_M[span]) + span.start
        first = int(np.searchsorted(rows, self._cursors[table]))
        return torch.from_numpy(np.sort(np.roll(rows, -first)[: budget_rows(span.stop - span.start, self._r)]))

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Mark the rows as clean, and move the cursor of a tracked table behind the last of them in its order."""
        self._is_dirty_M[rows if isinstance(rows, slice) else rows.numpy()] = False
        if table in self._cursors and isinstance(rows, Tensor) and len(rows):
            before = rows[rows < self._cursors[table]]
            self._cursors[table] = int((before if len(before) else rows)[-1]) + 1

    def reset(self) -> None:
        self._is_dirty_M[:] = False
        self._cursors = {table: self._shard.span(table).start for table in self._tables}

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        return placement.num_rows(rank_index) + 8 * len(spec.tables)


class StateTracker(TopTracker):
    """Chooses the K rows whose optimizer state has grown most since their last save; ties go to the lower row.

    A row's state is its sums of squared gradients. It has grown by the difference of their L2 norms, so no update needs
    to be counted. After TorchRec's ModelDeltaTracker, which ranks rows by their momentum or its change
    (pytorch/torchrec, distributed/model_tracker). Memory: 4 bytes a row, for the norm at its last save.
    """

    needs_growth = True
    _state_in_place = ("_saved",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        super().__init__(shard, spec)
        self._saved = {table: torch.zeros(len(shard.rows_MD[shard.span(table)])) for table in spec.tables}

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        return 4 * sum(placement.num_local_rows(rank_index, table) for table in spec.tables)

    def _norms(self, rows_N: NDArray[np.int64]) -> NDArray[np.float32]:
        return state_norms(self._shard.rows_MD.numpy(), self._shard.dim, rows_N)

    def _scores(self, table: int) -> Tensor:
        """Where updates are counted, a row without unsaved ones has not grown: its state is not read."""
        span, pending_M = self._shard.span(table), self._shard.pending_M
        num_rows = span.stop - span.start
        own_N = np.arange(num_rows) if pending_M is None else np.flatnonzero(pending_M[span].numpy() != 0)
        growth_T = np.zeros(num_rows, np.float32)
        growth_T[own_N] = self._norms(own_N + span.start) - self._saved[table].numpy()[own_N]
        return torch.from_numpy(growth_T)

    def saved(self, table: int, rows: Tensor | slice) -> None:
        if table in self._saved:
            span = self._shard.span(table)
            rows_N = np.arange(span.start, span.stop) if isinstance(rows, slice) else rows.numpy()
            self._saved[table].numpy()[rows_N - span.start] = self._norms(rows_N)

    def reset(self) -> None:
        for table in self._saved:
            self.saved(table, self._shard.span(table))


class ChangedTracker(Tracker):
    """Chooses all rows, of any table, that changed since the last base or since the shard was restored (Check-N-Run).

    One bit a row says whether a delta since then holds the row. A row that changed after the last delta has unsaved
    updates. Memory: the bit, and the shard's counter of unsaved updates, 4 bytes a row, which ``metrics.update_pls``
    keeps in any case.

    Attributes:
        num_deltas: number of deltas since the base or the restore. A delta holds all rows of the deltas before it.
        num_delta_rows: rows in all these deltas together.
    """

    needs_counts = True
    _state = ("_held", "num_deltas", "num_delta_rows")

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._spans = [shard.span(table) for table in range(len(shard.placement.cardinalities))]
        self.reset()

    def choose(self, table: int, step: int) -> Tensor:
        """All changed rows of ``table``, which need not be tracked; no budget limits them."""
        return torch.from_numpy(np.flatnonzero(self._is_changed(table))) + self._spans[table].start

    @property
    def num_changed(self) -> int:
        """Number of changed rows of all tables together."""
        return sum(int(np.count_nonzero(self._is_changed(table))) for table in range(len(self._spans)))

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        num_rows = placement.num_rows(rank_index)
        return 4 * num_rows - (-num_rows // 8)

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Clear the bits of a table that a base holds (``rows`` is a range), or set the bits of rows in a delta."""
        if isinstance(rows, slice):
            self._held[table] = np.zeros_like(self._held[table])
            self.num_deltas = self.num_delta_rows = 0
            return
        is_held = self._is_held(table)
        is_held[rows.numpy() - self._spans[table].start] = True
        self._held[table] = np.packbits(is_held)
        self.num_deltas += table == 0  # once a delta: its kind of save names every table
        self.num_delta_rows += len(rows)

    def reset(self) -> None:
        """Forget all changes: no row differs from the files that the shard was restored from."""
        self._held = [np.zeros(-(-(span.stop - span.start) // 8), np.uint8) for span in self._spans]
        self.num_deltas = self.num_delta_rows = 0

    def _is_changed(self, table: int) -> NDArray[np.bool_]:
        assert self._shard.pending_M is not None, "the tracker declares needs_counts"
        return self._is_held(table) | (self._shard.pending_M[self._spans[table]].numpy() > 0)

    def _is_held(self, table: int) -> NDArray[np.bool_]:
        span = self._spans[table]
        return np.unpackbits(self._held[table], count=span.stop - span.start).view(np.bool_)


TRACKERS: dict[str | None, type[Tracker]] = {
    None: Tracker,
    "mfu": MfuTracker,
    "random": RandomTracker,
    "ssu": SsuTracker,
    "mass": MassTracker,
    "scar": ScarTracker,
    "oldest": OldestTracker,
    "state": StateTracker,
    "changed": ChangedTracker,
}
"""Tracker classes by name; None for strategies whose saves need none."""


def tracker_bytes(spec: TrackerSpec, placement: Placement, dim: int) -> int | None:
    """Memory of the tracker in the PS rank that needs most, bytes; 0 without a tracker, None if it is unknown."""
    if spec.kind is None:
        return 0
    found = [TRACKERS[spec.kind].num_bytes(spec, placement, k, dim) for k in range(placement.num_ps)]
    return max((num_bytes for num_bytes in found if num_bytes is not None), default=None)
