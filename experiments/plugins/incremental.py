"""A kind of save, and its strategy ``incremental``: only rows with updates that no save holds are written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from harness.core.plans import Progress, SavePlan
from harness.core.shard import Shard
from harness.core.strategies import STRATEGIES, Partial
from harness.core.trackers import Tracker
from harness.store.kinds import SAVE_KINDS, RowCounts, SaveKind


class TouchedSave(SaveKind):
    """Every row with updates that no save holds, of all tables, into a delta on all files of the last checkpoint."""

    def rows(self, shard: Shard, tracker: Tracker, tracked: Sequence[int], step: int) -> dict[int, Tensor | slice]:
        """Rows whose counter of unsaved updates is not 0."""
        assert shard.pending_M is not None
        spans = {table: shard.span(table) for table in range(len(shard.placement.cardinalities))}
        return {table: shard.pending_M[span].nonzero().flatten() + span.start for table, span in spans.items()}

    def most_rows(self, of: RowCounts) -> tuple[int, int]:
        """All rows, each with its id; the simulator charges so many."""
        return 0, of.all


SAVE_KINDS["touched"] = TouchedSave()


class Incremental(Partial):
    """``incremental``: as ``partial``, but a save writes only rows that changed since the last one."""

    tracker = "mfu"  # a tracker that needs the counters of unsaved updates
    tracker_options: Mapping[str, Any] = {"r": 1.0}

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """As ``partial``, of kind ``touched``."""
        plan = super().plan_save(progress)
        return plan and replace(plan, kind="touched")


STRATEGIES["incremental"] = Incremental
