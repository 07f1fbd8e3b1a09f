"""Carries out save and recovery plans on a cluster and a store, and keeps the one ledger.

Strategies decide, this executes: nothing here depends on a strategy's name or on the engine's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.cluster.protocol import (
    Cluster,
    Collect,
    Initialise,
    Reply,
    Request,
    Restore,
    Save,
    SupervisorClient,
    Written,
    in_rank_order,
)
from harness.core.errors import RankLost, RunFailed
from harness.core.events import Recovered, Saved
from harness.core.overhead import OverheadLedger
from harness.core.plans import Progress, Rank, RecoveryPlan, SavePlan, ps_index
from harness.core.pls import PlsLedger, UpdateLedger
from harness.core.strategies import Strategy
from harness.store import Background, FileRecord, Manifest, discard_dense, read_dense, write_dense

CHIEF: Rank = "trainer0"


class RolledBack(Exception):
    """Full recovery took place: every rank is back at ``step``, and the trainer must follow with ``dense``."""

    def __init__(self, step: int, dense: Mapping[str, Tensor]) -> None:
        self.step = step
        self.dense = dict(dense)
        super().__init__(f"back to step {step}")


@dataclass(frozen=True)
class Underway:
    """Requests on their way, and what the cluster knows them by."""

    requests: dict[Rank, Request]
    token: Any


@dataclass(kw_only=True)
class _Begun:
    """A save that is not committed yet. ``stall_s``: how long training stood still for it so far."""

    plan: SavePlan
    progress: Progress
    charged: bool
    requests: dict[Rank, Save]
    dense: Background[FileRecord] | None = None
    stall_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """Where and how checkpoints are written."""

    root: Path
    fsync: bool
    config_hash: str
    bytes_full: int  # payload of a full save, dense network included
    in_background: bool = False  # save while training goes on


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Rows of a dead rank that are newer at the trainer than in the checkpoint.

    ``updates``: those of these rows that no save has persisted, of all tables and of the tracked ones.
    """

    num_rows: int = 0
    updates: tuple[int, int] = (0, 0)


Holder = Callable[[frozenset[Rank]], Mapping[Rank, Kept] | None]
"""Somebody with rows of PS ranks: forgets those of ranks whose shards were restored alone, or says what it keeps."""


class Recovery:
    """Saves, and brings the dead back.

    Args:
        dense_state: gives the dense parameters by name, whenever a save is due.
        clock: seconds, monotonic; for the ``machine`` part of events and the measured totals only.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        supervisor: SupervisorClient,
        strategy: Strategy,
        overhead: OverheadLedger,
        pls: PlsLedger,
        updates: UpdateLedger | None,
        store: StoreSpec,
        dense_state: Callable[[], Mapping[str, Tensor]],
        max_replacements_in_a_row: int,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._strategy = strategy
        self.overhead = overhead
        self.pls = pls
        self.updates = updates
        self._store = store
        self._dense_state = dense_state
        self._max_in_a_row = max_replacements_in_a_row
        self._clock = clock
        self._manifest: Manifest | None = None
        self._begun: _Begun | None = None
        self._sequence = 0
        self.num_lost_ranks = 0
        self.reschedule_h: float | None = None
        """Emulated hours that rescheduling takes at the next failure; None: what the profile says."""
        self.before: Callable[[], None] = _nothing
        """Called when ranks are found dead, before that is recorded: what happened first is recorded first."""
        self.listeners: list[Holder] = []
        """Are told whose shards were restored alone: whoever holds rows of theirs holds rows that are no more."""
        self.spared: Callable[[Rank], tuple[int, int]] = _nothing_spared
        """Updates sent to a rank, all and tracked, that its replacement gets though the shard is restored alone."""
        self.save_listeners: list[Callable[[Progress], None]] = []
        """Are told that the ranks froze what they save: what was unsaved may be no longer."""
        self.measured_s: dict[str, float] = defaultdict(float, save=0.0, load=0.0, lost=0.0, reschedule=0.0)

    @property
    def saved_step(self) -> int | None:
        """Step of the newest save, committed or begun."""
        newest = self._begun.progress if self._begun else self._manifest
        return newest.step if newest else None

    @property
    def saved_samples(self) -> int | None:
        """Samples behind the newest save, committed or begun."""
        newest = self._begun.progress if self._begun else self._manifest
        return newest.samples if newest else None

    @property
    def is_saving(self) -> bool:
        """Whether a save was begun that is not committed yet."""
        return self._begun is not None

    def ask(self, requests: Mapping[Rank, Request], progress: Progress) -> dict[Rank, Reply]:
        """Have every request served, whoever dies meanwhile; replies in rank order. See :meth:`finish`."""
        return self._finish(dict(requests), lambda: self._cluster.call(requests), progress)

    def start(self, requests: Mapping[Rank, Request]) -> Underway:
        """Set requests on their way; nothing else may be asked until they are finished."""
        return Underway(dict(requests), self._cluster.start(requests))

    def finish(self, underway: Underway, progress: Progress) -> dict[Rank, Reply]:
        """Wait until requests have been served, whoever died meanwhile; replies in rank order.

        After a partial recovery the requests of the dead, and only they, are sent again, the same bytes, to the
        replacements; also of those that had answered and died while others were recovered, since their answer died
        with them. Raises RolledBack after a full recovery: the requests are then void.
        """
        return self._finish(underway.requests, lambda: self._cluster.finish(underway.token), progress)

    def _finish(
        self, requests: Mapping[Rank, Request], first: Callable[[], dict[Rank, Reply]], progress: Progress
    ) -> dict[Rank, Reply]:
        replies: dict[Rank, Reply] = {}
        call = first
        for _ in range(self._max_in_a_row):
            asked_s = self._clock()
            try:
                replies.update(call())
                return in_rank_order(replies, self._cluster.ranks)
            except RankLost as lost:
                replies.update(lost.replies)
                casualties = self._recover(lost, progress, self._clock() - asked_s)
                replies = {rank: reply for rank, reply in replies.items() if rank not in casualties}
                outstanding = {rank: request for rank, request in requests.items() if rank not in replies}
                call = partial(self._cluster.call, outstanding)
        raise RunFailed(
            f"step {progress.step}: ranks died {self._max_in_a_row} times in a row at one request "
            "(cluster.max_replacements_in_a_row)"
        )

    def save(self, plan: SavePlan, progress: Progress, *, charged: bool) -> None:
        """Write a checkpoint, or begin one in the background, which then exists once it is settled.

        It exists when the supervisor has committed its manifest.
        """
        assert self._begun is None, "one save at a time"
        began_s = self._clock()
        self._supervisor.status(phase="save")
        files = self._manifest.shards if self._manifest else {}
        requests = {
            rank: Save(
                plan=plan,
                sequence=self._sequence,
                step=progress.step,
                records=tuple(files.get(rank, ())),
                in_background=self._store.in_background,
            )
            for rank in self._cluster.ranks
        }
        written: dict[Rank, Written] = self.ask(requests, progress)
        if self.updates is not None:
            self.updates.saving()
        write_dense = self._dense_writer(progress)
        begun = _Begun(plan=plan, progress=progress, charged=charged, requests=requests)
        if self._store.in_background:
            begun.dense = Background("save", write_dense)
            begun.stall_s = self._clock() - began_s
            self._begun = begun
        else:
            self._commit(begun, written, write_dense(), began_s)
        for listener in self.save_listeners:
            listener(progress)
        self._supervisor.status(phase="train")

    def finish_pending_save(self, progress: Progress) -> None:
        """Wait for the save that was begun, if there is one, and commit it. Raises RolledBack if it came to nothing."""
        begun = self._begun
        if begun is None:
            return
        began_s = self._clock()
        self._supervisor.status(phase="save")
        requests = {rank: Collect(save=request) for rank, request in begun.requests.items()}
        written: dict[Rank, Written] = self.ask(requests, progress)
        assert begun.dense is not None
        self._begun = None
        self._commit(begun, written, begun.dense.result(), began_s)
        self._supervisor.status(phase="train")

    def give_up_save(self) -> None:
        """Give up the save that was begun, if there is one: no thread of it is left, and no file of the trainer's."""
        begun, self._begun = self._begun, None
        if begun is not None and begun.dense is not None:
            begun.dense.wait()
            discard_dense(self._store.root, CHIEF, self._sequence)

    def _dense_writer(self, progress: Progress) -> Callable[[], FileRecord]:
        """What writes the dense network as it is now."""
        tensors = self._dense_state()
        if self._store.in_background:
            tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return partial(
            write_dense,
            self._store.root,
            CHIEF,
            self._sequence,
            progress.step,
            tensors=tensors,
            # Every random stream is derived from (seed, labels, step): the position is the state of all of them.
            extra={"position": {"step": progress.step, "samples": progress.samples}, "optimizer": "sgd"},
            fsync=self._store.fsync,
        )

    def _commit(self, begun: "_Begun", written: Mapping[Rank, Written], trainer: FileRecord, began_s: float) -> None:
        """Make a checkpoint of what was written. ``began_s``: since when training has been waiting for it."""
        manifest = Manifest(
            sequence=self._sequence,
            step=begun.progress.step,
            samples=begun.progress.samples,
            kind=begun.plan.kind,
            config_hash=self._store.config_hash,
            shards={rank: reply.records for rank, reply in written.items()},
            trainer=trainer,
        )
        self._supervisor.commit(manifest)
        self._manifest = manifest
        self._sequence += 1
        begun.stall_s += self._clock() - began_s + sum(reply.waited_s for reply in written.values())
        self._account(begun, written, trainer.payload_bytes + sum(reply.payload_bytes for reply in written.values()))

    def _account(self, begun: "_Begun", written: Mapping[Rank, Written], payload: int) -> None:
        plan, progress = begun.plan, begun.progress
        if plan.closes_interval:
            self.pls.saved(progress.samples)
        for rank, reply in written.items():
            if self.updates is not None and reply.persisted_updates is not None and reply.persisted_tracked is not None:
                self.updates.persisted(rank, reply.persisted_updates, reply.persisted_tracked)
        if self.updates is not None:
            self.updates.committed()
        save_h = self.overhead.charge_save(payload, self._store.bytes_full) if begun.charged else 0.0
        if begun.charged:
            self.measured_s["save"] += begun.stall_s
        self._supervisor.record(
            Saved(
                step=progress.step,
                samples=progress.samples,
                sequence=self._sequence - 1,
                save=plan.kind,
                closes_interval=plan.closes_interval,
                charged=begun.charged,
                payload_bytes=payload,
                num_rows=sum(reply.num_rows for reply in written.values()),
                persisted_updates=_sum_known(reply.persisted_updates for reply in written.values()),
                persisted_tracked=_sum_known(reply.persisted_tracked for reply in written.values()),
                save_h=save_h,
                machine={
                    "seconds": begun.stall_s,
                    "compacted": [rank for rank, reply in written.items() if reply.compacted],
                },
            )
        )

    def _recover(self, lost: RankLost, progress: Progress, detect_s: float) -> set[Rank]:
        """Replace the dead, carry out the strategy's plan, charge it. Who dies meanwhile joins the same failure.

        Returns all who died. Raises RolledBack if the plan was to rollback.
        """
        self.before()
        self._supervisor.status(phase="recover")
        casualties: set[Rank] = set()
        measured: dict[str, float] = {"reschedule": detect_s, "load": 0.0}
        for _ in range(self._max_in_a_row):
            try:
                casualties |= lost.ranks
                replaced_s = self._clock()
                self._cluster.replace(lost.detail, progress.step, progress.samples, detect_s)
                measured["reschedule"] += (now_s := self._clock()) - replaced_s
                plan = self._plan(frozenset(casualties), progress)
                if plan.rollback:
                    self.give_up_save()  # ranks give up their part when they are restored
                num_rows = self._carry_out(plan, progress)
                measured["load"] += self._clock() - now_s
                break
            except RankLost as again:
                lost = again
        else:
            raise RunFailed(
                f"step {progress.step}: ranks kept dying during {self._max_in_a_row} recoveries in a row "
                "(cluster.max_replacements_in_a_row)"
            )
        kept = dict.fromkeys(sorted(casualties, key=ps_index), Kept())
        for listener in () if plan.rollback else self.listeners:
            kept |= listener(frozenset(casualties)) or {}
        self._charge(plan, progress, kept, num_rows, measured)
        self._supervisor.status(phase="train")
        if plan.rollback:
            assert self._manifest is not None
            dense, _ = read_dense(self._store.root, self._manifest.trainer)
            raise RolledBack(self._manifest.step, dense)
        return casualties

    def _plan(self, casualties: frozenset[Rank], progress: Progress) -> RecoveryPlan:
        """The strategy's plan. Before the initial save nothing has been applied: initial values lose nothing."""
        manifest = self._manifest
        committed = replace(
            progress,
            saved_step=manifest.step if manifest else None,
            saved_samples=manifest.samples if manifest else None,
        )
        plan = self._strategy.plan_recovery(casualties, committed)
        if manifest is None and plan.source == "checkpoint" and progress.step == 0:
            return RecoveryPlan(rollback=False, ranks=casualties, source="initial")
        return plan

    def _carry_out(self, plan: RecoveryPlan, progress: Progress) -> int:
        """Rows that were restored."""
        ranks = self._cluster.ranks if plan.rollback else sorted(plan.ranks, key=ps_index)
        if plan.source == "initial":
            requests: dict[Rank, Request] = {rank: Initialise(step=progress.step) for rank in ranks}
        else:
            assert self._manifest is not None, "a strategy that recovers from checkpoints saves before the first step"
            step = self._manifest.step if plan.rollback else progress.step
            requests = {rank: Restore(records=self._manifest.shards[rank], step=step) for rank in ranks}
        return sum(reply.num_rows for reply in self._cluster.call(requests).values())

    def _charge(
        self,
        plan: RecoveryPlan,
        progress: Progress,
        kept: Mapping[Rank, Kept],
        num_rows: int,
        measured: Mapping[str, float],
    ) -> None:
        manifest = self._manifest if plan.source == "checkpoint" else None
        added: dict[Rank, float] = {}
        gone: list[tuple[int, int]] = []
        if plan.rollback:
            assert manifest is not None
            cost = self.overhead.charge_failure(progress.samples - manifest.samples, self.reschedule_h)
            self.pls.rolled_back(manifest.samples)
            if self.updates is not None:
                self.updates.rolled_back()
        else:
            cost = self.overhead.charge_failure(reschedule_h=self.reschedule_h)
            for rank in kept:
                added[rank] = self.pls.lost(rank, progress.samples)
                self.pls.restored(rank, progress.samples)
                if self.updates is not None:
                    gone.append(self.updates.lost(rank, self.spared(rank), kept[rank].updates))
        self.reschedule_h = None
        self.num_lost_ranks += len(kept)
        for bucket, seconds in measured.items():
            self.measured_s[bucket] += seconds
        self._supervisor.record(
            Recovered(
                step=progress.step,
                samples=progress.samples,
                ranks=list(kept),
                rollback=plan.rollback,
                source=plan.source,
                resume_step=manifest.step if plan.rollback and manifest else progress.step,
                resume_samples=manifest.samples if plan.rollback and manifest else progress.samples,
                sequence=manifest.sequence if manifest else None,
                num_rows=num_rows,
                pls=added,
                lost_updates=None if self.updates is None else sum(updates for updates, _ in gone),
                lost_tracked=None if self.updates is None else sum(tracked for _, tracked in gone),
                recovered_rows=sum(each.num_rows for each in kept.values()),
                recovered_updates=None if self.updates is None else sum(each.updates[0] for each in kept.values()),
                recovered_tracked=None if self.updates is None else sum(each.updates[1] for each in kept.values()),
                load_h=cost.load_h,
                lost_h=cost.lost_h,
                reschedule_h=cost.reschedule_h,
                machine={"seconds": measured["load"], "reschedule_seconds": measured["reschedule"]},
            )
        )


def _nothing() -> None:
    """Nobody has anything to record."""


def _nothing_spared(rank: Rank) -> tuple[int, int]:
    """No rank gets anything but what is sent again, which does not count as sent yet."""
    return 0, 0


def _sum_known(values: Iterable[int | None]) -> int | None:
    """Their sum, or None if one of them is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
