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
from harness.store.manifest import FileRecord
from harness.store.rows import ENCODINGS, RAW
from harness.store.shard_files import ROW_ID_BYTES

if TYPE_CHECKING:  # names in signatures; readers of checkpoints must not wait for compiled loops
    from harness.core.shard import Shard
    from harness.core.trackers import ChangedTracker, Tracker


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Numbers of rows of the whole model, from which the size of a save follows.

    ``tracked``: rows of the tracked tables. ``chosen``: how many of these the ranks' trackers choose for one save, at
    most. ``mirrored``: how many of these the trainer's mirror holds.
    """

    all: int
    tracked: int
    chosen: int
    mirrored: int = 0


class SaveKind(ABC):
    """The rows that one save of a shard writes, and their encoding. It is stateless; state belongs in the tracker."""

    encoding: str = RAW
    """Encoding of row values in the file: a key of ``encoding.ENCODINGS``."""

    @abstractmethod
    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """The rows that this save writes, by table: row ids (int64 local flat rows, distinct), or the table's span.

        Tables that are left out are not written. The choice and the values are as of the save's step, also if they are
        written later. The rows' updates count as persisted, and the tracker's ``saved`` is called.
        """

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """The files in the shard's last checkpoint, ``records``, that a restore must read before this save's file.

        Asked after :meth:`rows`, before the tracker's ``saved`` is called.

        If there are none, the file is a base, and :meth:`rows` must give every table's span. Otherwise they are a base
        and deltas after it, and the file is a delta. A save of the rows that changed since the last save builds on all
        of ``records``, which is the default. A save of all rows that changed since the base builds on the base alone. A
        kind that leaves out a delta must write all rows of that delta again. After a reset of its tracker it must build
        on all of ``records`` until the next base.
        """
        return records

    @abstractmethod
    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        """The most rows that a save of all ranks writes: in whole tables, and by id. The simulator's prices."""


class FullSave(SaveKind):
    """Every row, in the raw encoding, into a new base."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        return _whole(shard)

    def builds_on(self, shard: "Shard", tracker: "Tracker", records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        return ()

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return of.all, 0


class TrackedSave(SaveKind):
    """The tracker's choice of rows of tracked tables, unencoded, into a delta; other tables are left out."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        return {table: tracker.choose(table, step) for table in tracked}

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return 0, of.chosen


class PrioritySave(TrackedSave):
    """The tracker's choice of rows of tracked tables and all rows of the other tables, unencoded, into a delta."""

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        return _whole(shard) | super().rows(shard, tracker, tracked, step)

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        return of.all - of.tracked, of.chosen


class WithMirrorSave(PrioritySave):
    """The rows of ``PrioritySave``, and rows of tracked tables with unsaved updates that the trainer's mirror holds."""

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
    the rows of every delta before it, so it grows. It is written while it is smaller than the average of all files
    since the base, that base included; then a new base costs less. This choice is best if all bases are followed by
    deltas of the same sizes. Needs tracker ``changed``.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding

    def rows(self, shard: "Shard", tracker: Any, tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        whole = _whole(shard)
        return whole if self._is_base_due(shard, tracker) else {table: tracker.choose(table, step) for table in whole}

    def builds_on(self, shard: "Shard", tracker: Any, records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """All files except the delta that this one replaces; none for a base.

        The first delta after a restore replaces none: it holds the rows that changed since the restore.
        """
        if self._is_base_due(shard, tracker):
            return ()
        return records[:-1] if tracker.num_deltas else records

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        """All rows, as in a base; no delta is much larger."""
        return of.all, 0

    def _is_base_due(self, shard: "Shard", changed: "ChangedTracker") -> bool:
        row_bytes = ENCODINGS[self.encoding].row_bytes(shard.rows_MD)
        base_bytes = len(shard.rows_MD) * row_bytes
        written_bytes = base_bytes + changed.num_delta_rows * (row_bytes + ROW_ID_BYTES)
        return changed.num_changed * (row_bytes + ROW_ID_BYTES) * (changed.num_deltas + 1) >= written_bytes


def _whole(shard: "Shard") -> dict[int, Tensor | slice]:
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
"""Kinds of save by the name in plans, manifests and save events."""


def save_kind(name: str) -> SaveKind:
    """The kind of save that a plan names. Raises ConfigError for a name that is not in :data:`SAVE_KINDS`."""
    if name not in SAVE_KINDS:
        raise ConfigError(f"strategy: its kind of save: expected one of {', '.join(SAVE_KINDS)}, got {name!r}")
    return SAVE_KINDS[name]
