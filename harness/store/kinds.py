"""Kinds of save: which rows of a shard a save writes, in what encoding, and which older files it builds on.

To add one, write one class and enter it in :data:`SAVE_KINDS`; a strategy's :class:`SavePlan` names it. Another
encoding of rows is one class in :mod:`harness.store.encoding`. Reading needs no kind: a shard's files are a base and
its deltas, oldest first, and the record of each names its encoding.

K rows chosen.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from harness.store.encoding import RAW
from harness.store.records import FileRecord

if TYPE_CHECKING:  # names in signatures; readers of checkpoints must not wait for compiled loops
    from harness.core.shard import Shard
    from harness.core.trackers import Tracker


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

    def builds_on(self, records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """The files in the shard's last checkpoint that a restore must read before this save's file.

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
        return {table: shard.span(table) for table in range(len(shard.placement.cardinalities))}

    def builds_on(self, records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """An empty tuple: a base builds on no older file."""
        return ()


class PrioritySave:
    """The tracker's choice of tracked tables, the other tables whole, as they are in memory, into a delta."""

    encoding = RAW

    def rows(self, shard: "Shard", tracker: "Tracker", tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """At most K rows of each tracked table."""
        whole = {table: shard.span(table) for table in range(len(shard.placement.cardinalities))}
        return whole | {table: tracker.choose(table, step) for table in tracked}

    def builds_on(self, records: Sequence[FileRecord]) -> Sequence[FileRecord]:
        """All files of the last checkpoint."""
        return records


SAVE_KINDS: dict[str, SaveKind] = {"full": FullSave(), "priority": PrioritySave()}
"""Kinds of save by the name in plans, manifests and save events."""
