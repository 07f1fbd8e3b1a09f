"""Trackers choose which rows of a tracked table a priority save writes (CPR section 4, docs/CPR.md).

A tracker belongs to one shard, and its state is lost with the rank; a replacement's tracker starts empty. Rows are
local flat rows of the shard.

M rows of the shard, N rows of a call, K rows chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement, budget_rows
from harness.core.seeds import derive, generator
from harness.core.shard import Shard
from harness.kernels.samples import LIST, LISTS, forget_members, keep_sampled


@dataclass(frozen=True)
class TrackerSpec:
    """The parameters from which a rank builds its tracker.

    Attributes:
        kind: a key of :data:`TRACKERS`.
        tables: tracked tables, ascending: the valid arguments of :meth:`Tracker.choose`.
        options: the strategy's options, by name. A tracker ignores those of other trackers.
    """

    kind: str | None
    tables: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """Records what happens to rows between saves, and chooses rows to save.

    To add one: one class and one entry in :data:`TRACKERS`. The class attributes declare which calls the tracker needs;
    other calls may be left out. All calls come from the thread that serves the rank's requests.
    """

    needs_counts: ClassVar[bool]
    """Whether the shard must keep ``Shard.pending_M``, the number of updates of each row since its last save."""
    needs_samples: ClassVar[bool]
    """Whether :meth:`sampled` must be called."""
    needs_touches: ClassVar[bool]
    """Whether :meth:`touched` must be called."""

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None: ...

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """Record that step ``step`` updated ``rows_N`` (int64, ascending, distinct), by ``counts_N`` samples (int32).

        Called in the order of steps, once for each step that updated a row of this shard, before :meth:`sampled` of
        that step. The calls before each :meth:`choose` are the same with and without a client cache; with bounded
        staleness an update belongs to the step whose message brings it. A cache reports several steps at once, when
        ``Shard.rows_MD`` has the values of the last of them: a tracker that compares values does so in
        :meth:`choose`. Rows that a cache restores to a replacement (``cache.recover_from_cache``) are not reported
        again; ``Shard.pending_M`` counts their updates.
        """
        ...

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """Record that sub-sampled inputs touched ``rows_N[is_sampled_N]`` (int64, ascending, distinct; bool).

        Called in the order of steps, once for each step with such rows, which are the same with and without a client
        cache. Read ``rows_N[is_sampled_N]`` only: without a cache ``rows_N`` has the step's other rows too, and a call
        may name no row.
        """
        ...

    def choose(self, table: int, step: int) -> Tensor:
        """Rows of tracked table ``table`` to save at ``step``: int64, ascending, distinct.

        At most K = ``budget_rows`` of them for a priority save. Changes nothing: the save may be abandoned.
        """
        ...

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """A save holds ``rows`` of tracked table ``table`` as they are now: row ids (int64, ascending) or a range.

        Called for every kind of save, before it is on disk and before the next step. A range is the whole
        table. ``Shard.pending_M`` of the rows is 0 by then.
        """
        ...

    def reset(self) -> None:
        """Forget all that was recorded: the shard was initialised or restored from a checkpoint."""
        ...


class SizedTracker(Protocol):
    """What a tracker may offer besides, so that a run's record states its memory."""

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int) -> int:
        """Memory in the PS rank of this number, bytes, as CPR counts it: what is kept for the tracked rows."""
        ...


class NullTracker:
    """The tracker of strategies without priority saves: every call is a no-op."""

    needs_counts: ClassVar[bool] = False
    needs_samples: ClassVar[bool] = False
    needs_touches: ClassVar[bool] = False

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        pass

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """A no-op: this tracker records nothing."""

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """A no-op: this tracker records nothing."""

    def choose(self, table: int, step: int) -> Tensor:
        """Raise AssertionError: a priority save needs a tracker."""
        raise AssertionError("NullTracker.choose: a priority save needs a tracker, and this strategy has none")

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """A no-op: this tracker records nothing."""

    def reset(self) -> None:
        """A no-op: this tracker records nothing."""

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int) -> int:
        """None at all."""
        return 0


class _CountingTracker:
    """The base of trackers that read the shard's counter of unsaved updates, which the shard itself maintains."""

    needs_counts: ClassVar[bool] = True
    needs_samples: ClassVar[bool] = False
    needs_touches: ClassVar[bool] = False

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._r: float = spec.options["r"]

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """A no-op: the shard itself counts updates."""

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """A no-op: this tracker does not use sub-sampled inputs."""

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """A no-op: the shard itself counts updates."""

    def reset(self) -> None:
        """A no-op: the shard itself counts updates."""

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int) -> int:
        """A counter for each tracked row."""
        return 4 * sum(placement.local_rows(rank_index, table) for table in spec.tables)

    def _pending(self, table: int) -> tuple[Tensor, int, int]:
        """Counters of the rows of ``table``, the first of these rows, and K."""
        span = self._shard.span(table)
        assert self._shard.pending_M is not None, "needs_counts"
        return self._shard.pending_M[span], span.start, budget_rows(span.stop - span.start, self._r)


class MfuTracker(_CountingTracker):
    """CPR-MFU: the K rows with the most accesses since their last save; ties to the lower row.

    Option ``r``. The 4-byte access counter is the shard's counter of unsaved updates itself, since both count one per
    (sample, row) and are cleared when the row is saved.
    """

    def choose(self, table: int, step: int) -> Tensor:
        """The K rows with the highest counters; only rows touched since their last save."""
        pending, first, budget = self._pending(table)
        return top_rows(pending, budget) + first


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


class RandomTracker(_CountingTracker):
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


class SsuTracker:
    """CPR-SSU: rows that a sub-sample of the inputs touched, in a list of at most K per table.

    Option ``r``. A saved row leaves its list. A new row that finds the list full replaces a random member, drawn by
    (seed, rank, row, step); that choice is reconstructed (docs/CPR.md). Memory: 4 bytes per list entry, which is r of
    MFU's counter, and a bit per row for membership.
    """

    needs_counts: ClassVar[bool] = False
    needs_samples: ClassVar[bool] = True
    needs_touches: ClassVar[bool] = False

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._index = {table: t for t, table in enumerate(sorted(spec.tables))}
        self._tables_T = np.zeros(len(spec.tables), LIST)
        num_slots = 0
        for table, t in self._index.items():
            span = shard.span(table)
            budget = budget_rows(span.stop - span.start, spec.options["r"])
            self._tables_T[t] = (span.start, span.stop, num_slots, budget, 0)
            num_slots += budget
        self._slots_S = np.zeros(num_slots, np.int32)
        self._is_member_W = np.zeros(-(-len(shard.rows_MD) // 64), np.uint64)
        self._lists_1 = np.zeros(1, LISTS)
        self._lists_1[0] = (
            *(self._tables_T.ctypes.data, len(self._tables_T), self._slots_S.ctypes.data),
            *(self._is_member_W.ctypes.data, len(self._is_member_W)),
            np.uint64(derive(shard.seed, "evict", shard.rank_index)).astype(np.int64),
        )
        self._lists = self._lists_1.ctypes.data

    def __reduce__(self) -> NoReturn:
        raise TypeError("SsuTracker: cannot be pickled or copied, since it holds addresses of its own arrays")

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """A no-op: this tracker uses sub-sampled inputs only."""

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
        """Remove ``rows`` from the list of ``table``; the others keep their order."""
        members = self._members(table)
        is_saved = np.ones(len(members), bool) if isinstance(rows, slice) else np.isin(members, rows.numpy())
        forget_members(members[is_saved], self._is_member_W)
        left = members[~is_saved]
        members[: len(left)] = left
        self._tables_T["num_members"][self._index[table]] = len(left)

    def reset(self) -> None:
        """Empty every list."""
        for table in self._index:
            self.saved(table, slice(None))

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int) -> int:
        """The lists, and a bit for each row of the shard."""
        local_rows = (placement.local_rows(rank_index, table) for table in spec.tables)
        num_slots = sum(budget_rows(num_rows, spec.options["r"]) for num_rows in local_rows)
        return 4 * num_slots + 8 * -(-placement.num_rows(rank_index) // 64)

    def _members(self, table: int) -> np.ndarray:
        """Rows in the list of ``table``, in no order; a view."""
        own = self._tables_T[self._index[table]]
        return self._slots_S[own["first_slot"] :][: own["num_members"]]


TRACKERS: dict[str | None, type[Tracker]] = {
    None: NullTracker,
    "mfu": MfuTracker,
    "random": RandomTracker,
    "ssu": SsuTracker,
}
"""Tracker classes by name; None for strategies without priority saves."""


def tracker_bytes(spec: TrackerSpec, placement: Placement) -> int | None:
    """Memory of the tracker in the PS rank that needs most, bytes; None if the tracker is no ``SizedTracker``."""
    num_bytes = getattr(TRACKERS[spec.kind], "num_bytes", None)
    return None if num_bytes is None else max(num_bytes(spec, placement, k) for k in range(placement.num_ps))
