"""Kinds of save: which rows of a shard a save writes, in what encoding, and which older files it builds on.

K rows chosen.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harness.core.errors import ConfigError
from harness.store.manifest import RAW, FileRecord
from harness.store.rows import ENCODINGS, ROW_ID_BYTES

if TYPE_CHECKING:  # names in signatures; readers of checkpoints must not wait for compiled loops
    from harness.core.shard import Shard
    from harness.core.trackers import ChangedTracker, Tracker


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Numbers of rows of the whole model, from which the largest size of a save follows.

    ``all``: rows of all tables. ``tracked``: rows of the tracked tables. ``chosen``: the most rows of tracked tables
    that the ranks' trackers choose for one save. ``mirrored``: rows of tracked tables that the trainer's mirror holds.
    """

    all: int
    tracked: int
    chosen: int
    mirrored: int = 0


class SaveKind(ABC):
    """A kind of save: which rows of a shard it writes, and in what encoding.

    An object is stateless. What must be remembered between saves belongs in the tracker.
    """

    encoding: str = RAW
    """Encoding of row values in the file: a key of ``harness.store.rows.ENCODINGS``."""

    @abstractmethod
    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """The rows that this save writes, by table: row ids (int64 local flat rows, distinct), or the table's span.

        Tables that are left out are not written. The caller takes the rows' values as of ``step``, even if it writes
        them later. It counts the rows' updates as persisted, and calls the tracker's ``saved`` for each table.
        """

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """The files that a restore must read before this save's file, chosen from ``records``.

        ``records`` are the shard's files in the last checkpoint, in restore order. Called after :meth:`rows` and before
        the tracker's ``saved``.

        If the result is empty, the file is a base, and :meth:`rows` must give every table's span. Otherwise the result
        is a base and deltas after it, and the file is a delta. By default it is all of ``records``, as for a save of
        the rows that changed since the last save. A save of all rows that changed since the base builds on the base
        alone.

        A kind that leaves out a delta must write all rows of that delta again. The first save after a reset of its
        tracker must leave out none.
        """
        return records

    @abstractmethod
    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        """The most rows that a save of all ranks writes, for the simulator: in whole tables, and by row id."""


class FullSave(SaveKind):
    """Every row, in the raw encoding, into a new base."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        return whole(shard)

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        return ()

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return of.all, 0


class TrackedSave(SaveKind):
    """The tracker's choice of rows of tracked tables, in the raw encoding, into a delta. Other tables are left out."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        return {table: tracker.choose(table, step) for table in tracked}

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return 0, of.chosen


class PrioritySave(TrackedSave):
    """The tracker's choice of rows of tracked tables and all rows of other tables, in raw encoding, into a delta."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        return whole(shard) | super().rows(shard, tracker, tracked, step)

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return of.all - of.tracked, of.chosen


class WithMirrorSave(PrioritySave):
    """The rows of ``PrioritySave``, and the mirrored rows of tracked tables that have unsaved updates.

    Mirrored rows are those that the trainer's mirror holds. The tracker must choose none of them.
    """

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        assert shard.pending_M is not None, "a mirror needs the counts of unsaved updates"
        rows = super().rows(shard, tracker, tracked, step)
        for table in tracked:
            chosen_K, mirrored_N = rows[table], shard.mirrored(table)
            assert isinstance(chosen_K, Tensor), "a tracker's choice"
            dirty_N = mirrored_N[shard.pending_M[mirrored_N] > 0]
            rows[table] = torch.cat([chosen_K, dirty_N]).sort().values
        return rows

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return of.all - of.tracked, of.chosen + of.mirrored


class DifferentialSave(SaveKind):
    """The rows of all tables that changed since the base, into a delta that replaces the one before; or a new base.

    After Check-N-Run (Eisenman et al., NSDI 2022), whose intermittent baselines decide alike (recalled). A delta holds
    the rows of every delta before it, so it grows. A delta is written while it is smaller than the average file since
    the base, that base included. Otherwise a new base is written, which then costs less on average. This choice is best
    if all bases are followed by deltas of the same sizes. Needs tracker ``changed``.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding

    def rows(self, shard: "Shard", tracker: Any, tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        spans = whole(shard)
        return spans if self._is_base_due(shard, tracker) else {table: tracker.choose(table, step) for table in spans}

    def builds_on(self, shard: "Shard", tracker: Any, records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """All files except the delta that the new one replaces; none for a base.

        The first delta after a base or a restore replaces none.
        """
        if self._is_base_due(shard, tracker):
            return ()
        return records[:-1] if tracker.num_deltas else records

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        """All rows, as in a base; no delta is much larger than that."""
        return of.all, 0

    def _is_base_due(self, shard: "Shard", changed: "ChangedTracker") -> bool:
        """Whether a delta of all changed rows would be no smaller than the average file since the base."""
        row_bytes = ENCODINGS[self.encoding].row_bytes(shard.rows_MD)
        base_bytes = len(shard.rows_MD) * row_bytes
        written_bytes = base_bytes + changed.num_delta_rows * (row_bytes + ROW_ID_BYTES)
        return changed.num_changed * (row_bytes + ROW_ID_BYTES) * (changed.num_deltas + 1) >= written_bytes


class NoticeSave(SaveKind):
    """At most ``most_rows`` rows with unsaved updates, of any table, in raw encoding, into a delta; no plan names it.

    The rows that the tracker would save now come first, if it chooses any (``has_choice``), then lower row ids.
    """

    def __init__(self, most_rows: int, *, has_choice: bool) -> None:
        self._most_rows, self._has_choice = most_rows, has_choice

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        assert shard.pending_M is not None, "a save on notice needs the counts of unsaved updates"
        dirty_K = shard.pending_M.nonzero().flatten()
        if len(dirty_K) > self._most_rows:
            is_first_M = torch.zeros(len(shard.pending_M), dtype=torch.bool)
            for table in tracked if self._has_choice else ():
                is_first_M[tracker.choose(table, step)] = True
            is_first_K = is_first_M[dirty_K]
            dirty_K = torch.cat([dirty_K[is_first_K], dirty_K[~is_first_K]])[: self._most_rows].sort().values
        edges_T = torch.tensor([span.stop for span in whole(shard).values() if isinstance(span, slice)])
        sizes = torch.searchsorted(dirty_K, edges_T).diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist()
        return dict(enumerate(dirty_K.split(sizes)))

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return 0, self._most_rows


def whole(shard: "Shard") -> dict[int, Tensor | slice]:
    """All rows of ``shard``: the span of each table."""
    return {table: shard.span(table) for table in range(len(shard.placement.cardinalities))}


SAVE_KINDS: dict[str, SaveKind] = {
    "full": FullSave(),
    "priority": PrioritySave(),
    "tracked": TrackedSave(),
    "with_mirror": WithMirrorSave(),
    "differential": DifferentialSave(RAW),
    "differential_8": DifferentialSave("uint8"),
    "differential_4": DifferentialSave("uint4"),
    "differential_2": DifferentialSave("uint2"),
}
"""Kinds of save, by their name in plans, manifests and events."""


def save_kind(name: str) -> SaveKind:
    """The kind of save that a plan names. Raises ConfigError for a name that is not in :data:`SAVE_KINDS`."""
    if name not in SAVE_KINDS:
        raise ConfigError(f"strategy: its kind of save: expected one of {', '.join(SAVE_KINDS)}, got {name!r}")
    return SAVE_KINDS[name]
