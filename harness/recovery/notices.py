"""What PS ranks do that are told of their death before it (``notice_s`` of a trace, ``cluster.on_notice``).

The notice came ``notice_s`` emulated seconds before the boundary at which the ranks die. There training waits while
they write, all at once, each with its own N-th of the bandwidth of a full save. These hours are charged as a save.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.cluster.protocol import Ask, LoadState, WriteState
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.plans import Progress, Rank, RecoveryPlan, rank_order
from harness.core.resumable import Resumable
from harness.core.strategies import Strategy
from harness.recovery.accounting import Accounting, Ledgers
from harness.recovery.checkpointer import Checkpointer
from harness.recovery.injections import Injections
from harness.recovery.kinds import RunFacts
from harness.recovery.recoveries import RECOVERIES, rolls_back
from harness.store import ROW_ID_BYTES, FileRecord

_FLOAT32_BYTES = 4


class NoticePlan(NamedTuple):
    """What a rank does on notice: it hands its whole shard over, or saves at most ``most_rows`` of its dirty rows."""

    hands_over: bool
    most_rows: int

    def kept_as(self, num_rows: int) -> str | None:
        """The kind of recovery without losses that it allows, once ``num_rows`` rows are saved; None if rows are left.

        A rank that has saved as many rows as it had time for counts as one with rows left.
        """
        return "handover" if self.hands_over else "notice" if num_rows < self.most_rows else None


def plan_notices(
    strategy: Strategy,
    on_notice: str,
    notices_h: Mapping[Rank, float],
    ledgers: Ledgers,
    *,
    width: int,
    has_checkpoint: bool,
) -> dict[Rank, NoticePlan]:
    """The plan of each rank with hours of notice; ranks that do nothing are left out. ``width``: columns of a row.

    Rows are saved where there is a checkpoint to add them to. With a mirror, replicas or parities they are not:
    these count unsaved updates, and would not hear of it.
    """
    has_replicas = any(RECOVERIES[kind].needs_replicas for kind in strategy.recoveries)
    saves = has_checkpoint and strategy.mirror is None and strategy.groups is None and not has_replicas
    plans: dict[Rank, NoticePlan] = {}
    for rank, notice_h in notices_h.items() if on_notice != "none" else ():
        num_bytes, shard_bytes = ledgers.overhead.notice_bytes(notice_h), ledgers.shard_bytes[rank]
        hands_over = on_notice == "handover" and num_bytes >= shard_bytes
        row_bytes = width * _FLOAT32_BYTES
        saved_bytes, more = row_bytes + ROW_ID_BYTES, shard_bytes // row_bytes + 1  # than all rows
        most_rows = int(min(num_bytes, more * saved_bytes) // saved_bytes)
        if hands_over or (saves and most_rows):
            plans[rank] = NoticePlan(hands_over, most_rows)
    return plans


@dataclass(kw_only=True, eq=False)
class Notices(Resumable):
    """Has ranks that are told of their death save rows or hand their shard over, and charges it.

    Attributes:
        kinds: the kinds of recovery of ranks that were told of their death and lose no update, until their recovery.
    """

    _state = ("kinds", "_handed_over")
    _state_types = (FileRecord,)

    run: RunFacts
    ask: Ask
    supervisor: SupervisorClient
    injections: Injections
    checkpointer: Checkpointer
    accounting: Accounting

    def __post_init__(self) -> None:
        self.kinds: dict[Rank, str] = {}
        self._handed_over: dict[Rank, FileRecord] = {}

    def recovered(self, plan: RecoveryPlan) -> None:
        """Forget the notices of the ranks that ``plan`` has restored: of all ranks after a rollback."""
        self.kinds = {} if rolls_back(plan) else {k: kind for k, kind in self.kinds.items() if k not in plan.kinds}

    def handed_over(self) -> dict[Rank, LoadState]:
        """By rank that handed its shard over, the request by which its replacement takes it."""
        return {rank: LoadState(root=self._root(), file=file) for rank, file in self._handed_over.items()}

    def _root(self) -> Path:
        return self.supervisor.resumption().root / "handover"

    async def serve(self, numbers: Sequence[int], progress: Progress) -> None:
        """Have the ranks act that the faults ``numbers`` are about to kill. Raises StoreError if the disk failed."""
        notices = [each for number in numbers for each in self.injections.faults[number].notices]
        told_h = dict(sorted(notices, key=lambda each: (rank_order(each[0]), each[1])))  # the longest of each rank
        run, has_checkpoint = self.run, self.checkpointer.newest is not None
        constants = {"width": run.width, "has_checkpoint": has_checkpoint}
        plans = plan_notices(run.strategy, run.on_notice, told_h, self.accounting, **constants)
        if not plans:
            return
        self.injections.before_fault()
        began_s = self.supervisor.clock()
        most_rows = {rank: plan.most_rows for rank, plan in plans.items() if not plan.hands_over}
        written = await self.checkpointer.save_noticed(most_rows, progress) if most_rows else {}
        if to_copy := plans.keys() - most_rows:
            root = self._root()
            shutil.rmtree(root, ignore_errors=True)  # what was handed over before is taken
            copy = WriteState(root=root, number=progress.step)
            self._handed_over = await self.ask(dict.fromkeys(sorted(to_copy, key=rank_order), copy), progress)
        num_rows = {rank: reply.num_rows for rank, reply in written.items()}
        kinds = {rank: plan.kept_as(num_rows.get(rank, 0)) for rank, plan in plans.items()}
        self.kinds = {rank: kind for rank, kind in kinds.items() if kind is not None}
        newest = self.checkpointer.newest
        event = self.accounting.charge_notice(
            {rank: told_h[rank] for rank in plans},
            written,
            kinds=self.kinds,
            progress=progress,
            sequence=newest.sequence if newest and written else None,
            stall_s=self.supervisor.clock() - began_s,
        )
        self.supervisor.record(event)
