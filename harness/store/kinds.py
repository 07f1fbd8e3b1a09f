"""Kinds of save: which rows of a shard a save writes, in what encoding, and which older files it builds on.

To add one, write one class and enter it in :data:`SAVE_KINDS`; a strategy's :class:`SavePlan` names it. Another
encoding of rows is one class in :mod:`harness.store.encoding`. Reading needs no kind: a shard's files are a base and
its deltas, oldest first, and the record of each names its encoding.

K rows chosen.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from harness.store.delta import ROW_ID_BYTES
from harness.store.encoding import ENCODINGS, RAW
from harness.store.records import FileRecord

if TYPE_CHECKING:  # names in signatures; readers of checkpoints must not wait for compiled loops
    from harness.core.shard import Shard
    from harness.core.trackers import ChangedTracker, Tracker


class SaveKind(Protocol):
    """The rows that one save of a shard writes, and their encoding. It is stateless; state belongs in the tracker."""

    encoding: str
    """Encoding of row values in the file: a key of ``encoding.ENCODINGS``."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """The rows that this save writes, by table: row ids (int64 local flat rows, distinct), or the table's span.

        Tables that are left out are not written. Decided at the step of the save; the values are those of this step
        also if they are written later. The rows' updates count as persisted, and the tracker's ``saved`` is called.
        """
        ...

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """The files in the shard's last checkpoint, ``records``, that a restore must read before this save's file.

        Asked after :meth:`rows`, before the tracker's ``saved`` is called.

        If there are none, the file is a base, and :meth:`rows` must give every table's span. Otherwise they are a base
        and deltas after it, and the file is a delta. A save of the rows that changed since the last save builds on all
        of ``records``. A save of all rows that changed since the base builds on the base alone. A kind that leaves out
        a delta must write all rows of that delta again. After a reset of its tracker it must build on all
        of ``records`` until the next base.
        """
        ...


class FullSave:
    """Every row, in the raw encoding, into a new base."""

    encoding = RAW

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """Every table's span."""
        return _whole(shard)

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """An empty tuple: a base builds on no older file."""
        return ()


class PrioritySave:
    """The tracker's choice of tracked tables, the other tables whole, as they are in memory, into a delta."""

    encoding = RAW

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """At most K rows of each tracked table."""
        return _whole(shard) | {table: tracker.choose(table, step) for table in tracked}

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """All files of the last checkpoint."""
        return records


class TrackedSave:
    """The tracker's choice of tracked tables, as they are in memory, into a delta; other tables are left out."""

    encoding = RAW

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """At most K rows of each tracked table."""
        return {table: tracker.choose(table, step) for table in tracked}

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """All files of the last checkpoint."""
        return records


class WithMirrorSave(PrioritySave):
    """As ``PrioritySave``, and the rows that only the trainer's mirror has as new as this shard, into a delta."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """At most K rows of each tracked table, besides its mirrored rows that were updated since their last save."""
        assert shard.pending_M is not None, "a mirror needs the counts of unsaved updates"
        rows = super().rows(shard, tracker, tracked, step)
        for table in tracked:
            chosen_K, mirrored_N = rows[table], shard.mirrored(table)
            assert isinstance(chosen_K, Tensor), "a tracker's choice"
            dirty_N = mirrored_N[shard.pending_M[mirrored_N] > 0]
            rows[table] = torch.cat([chosen_K, dirty_N]).sort().values
        return rows


class DifferentialSave:
    """The rows of all tables that changed since the base, into a delta that replaces the one before; or a new base.

    After Check-N-Run (Eisenman et al., NSDI 2022), whose intermittent baselines decide alike (recalled). A delta holds
    the rows of every delta before it, so it grows. It is written while it is smaller than what the saves since the
    base, that base included, have written on average; else a new base is less than to go on. Such a choice is best if
    all bases are followed by deltas of the same sizes. Needs tracker ``changed``.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """The changed rows, or every table's span."""
        whole = _whole(shard)
        return whole if self._is_base_due(shard, tracker) else {table: tracker.choose(table, step) for table in whole}

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """All files except the delta that this one replaces; none for a base.

        The first delta after a restore replaces none: its rows are those that changed since then.
        """
        if self._is_base_due(shard, tracker):
            return ()
        return records[:-1] if _changed(tracker).num_deltas else records

    def _is_base_due(self, shard: "Shard", tracker: "Tracker") -> bool:
        changed = _changed(tracker)
        row_bytes = ENCODINGS[self.encoding].row_bytes(shard.rows_MD)
        base_bytes = len(shard.rows_MD) * row_bytes
        written_bytes = base_bytes + changed.num_delta_rows * (row_bytes + ROW_ID_BYTES)
        return changed.num_changed * (row_bytes + ROW_ID_BYTES) * (changed.num_deltas + 1) >= written_bytes


def _whole(shard: "Shard") -> dict[int, Tensor | slice]:
    return {table: shard.span(table) for table in range(len(shard.placement.cardinalities))}


def _changed(tracker: Any) -> "ChangedTracker":
    """``tracker``, which a strategy with differential saves has chosen."""
    return tracker


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
"""Kinds of save by the name in plans, manifests and save events."""
