"""The accounting of one run: emulated overhead, PLS, updates, and the seconds that this machine took.

Every save and every failure is charged here and nowhere else, by one set of rules for all strategies and both engines.
Emulated hours and measured seconds are kept apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.cluster.protocol import Written
from harness.core.events import Recovered, Saved
from harness.core.faults import Struck
from harness.core.overhead import OverheadLedger
from harness.core.plans import Progress, Rank, RecoveryPlan, SavePlan
from harness.core.pls import PlsLedger, UpdateLedger
from harness.core.resumable import Resumable
from harness.store import Manifest


@dataclass(frozen=True, kw_only=True)
class UploadedRows:
    """Rows of a dead shard that its replacement gets from the trainer's mirror: they are newer than the checkpoint.

    ``num_bytes``: values and row ids. ``updates``: unsaved updates in these rows, of all tables and of the tracked
    tables.
    """

    num_rows: int = 0
    num_bytes: int = 0
    updates: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class CommittedSave:
    """A save whose manifest has been written. ``stall_s``: seconds that training stood still for it."""

    plan: SavePlan
    progress: Progress
    is_charged: bool
    manifest: Manifest
    written: Mapping[Rank, Written]
    stall_s: float


@dataclass(frozen=True, kw_only=True)
class CompletedRecovery:
    """A recovery plan that has been carried out.

    ``manifest``: the checkpoint that was read, None for initial values. ``uploaded``: by dead rank, in rank order.
    ``in_flight``: updates, all and tracked, that a replacement receives with a request that is sent again although its
    shard was restored alone. ``struck``: what the trace says of the failure. ``load_s``, ``reschedule_s``: seconds of
    this machine.
    """

    plan: RecoveryPlan
    progress: Progress
    manifest: Manifest | None
    num_rows: int
    uploaded: Mapping[Rank, UploadedRows]
    in_flight: Mapping[Rank, tuple[int, int]]
    struck: Struck
    load_s: float
    reschedule_s: float


class Accounting(Resumable):
    """Charges saves and failures to the ledgers of one run.

    Args:
        updates: counts updates sent, persisted and lost; None where they are not counted.
        bytes_full: payload of a full save, dense network included.
        row_bytes: payload of one row in it.
        memory_bytes: memory of tracker and replica in the PS rank that needs most; None if it is unknown.
    """

    _state = ("_overhead", "_pls", "_updates", "_num_lost_ranks", "_measured_s")

    def __init__(
        self,
        *,
        overhead: OverheadLedger,
        pls: PlsLedger,
        updates: UpdateLedger | None,
        bytes_full: int,
        row_bytes: int,
        memory_bytes: int | None,
    ) -> None:
        self._overhead = overhead
        self._pls = pls
        self._updates = updates
        self._bytes_full = bytes_full
        self._row_bytes = row_bytes
        self._memory_bytes = memory_bytes
        self._num_lost_ranks = 0
        self._measured_s = {"save": 0.0, "load": 0.0, "lost": 0.0, "reschedule": 0.0}

    @property
    def overhead_h(self) -> float:
        """Emulated hours charged so far, in all four buckets."""
        return self._overhead.total_h

    @property
    def counts_updates(self) -> bool:
        """Whether updates are counted."""
        return self._updates is not None

    def sent(self, ranks: Sequence[Rank], updates_R: Sequence[int], tracked_R: Sequence[int]) -> None:
        """Count the updates of one finished step: to all tables and to the tracked tables, by rank."""
        if self._updates is not None:
            for rank, updates, tracked in zip(ranks, updates_R, tracked_R, strict=True):
                self._updates.sent(rank, updates, tracked)

    def rerun(self, seconds: float) -> None:
        """Count the ``seconds`` of a step that is repeated after a rollback as lost."""
        self._measured_s["lost"] += seconds

    def freeze(self) -> None:
        """Record that the contents of the present save are fixed; it may be committed later."""
        if self._updates is not None:
            self._updates.saving()

    def committed(self, save: CommittedSave) -> Saved:
        """Charge a committed save and return its event. A part that was written again is paid for twice."""
        plan, progress, written = save.plan, save.progress, save.written
        if plan.closes_interval:
            self._pls.saved(progress.samples)
        if self._updates is not None:
            for rank, reply in written.items():
                if reply.persisted_updates is not None and reply.persisted_tracked is not None:
                    self._updates.persisted(rank, reply.persisted_updates, reply.persisted_tracked)
            self._updates.committed()
        repeated = sum(reply.payload_bytes for reply in written.values() if reply.struck)
        parts = sum(reply.payload_bytes for reply in written.values())
        payload = save.manifest.trainer.payload_bytes + parts + repeated
        save_h = 0.0
        if save.is_charged:
            save_h = self._overhead.charge_save(payload, self._bytes_full, progress.samples)
            self._measured_s["save"] += save.stall_s
        return Saved(
            step=progress.step,
            samples=progress.samples,
            sequence=save.manifest.sequence,
            save=plan.kind,
            closes_interval=plan.closes_interval,
            charged=save.is_charged,
            payload_bytes=payload,
            repeated_bytes=repeated,
            num_rows=sum(reply.num_rows for reply in written.values()),
            persisted_updates=_sum_known(reply.persisted_updates for reply in written.values()),
            persisted_tracked=_sum_known(reply.persisted_tracked for reply in written.values()),
            save_h=save_h,
            machine={
                "seconds": save.stall_s,
                "compacted": [rank for rank, reply in written.items() if reply.compacted],
            },
        )

    def slowed(self, wait_h: float) -> None:
        """Charge a slowdown of ranks."""
        self._overhead.charge_slowdown(wait_h)

    def recovered(self, recovery: CompletedRecovery) -> Recovered:
        """Charge a failure and return the event of its recovery."""
        plan, progress, manifest = recovery.plan, recovery.progress, recovery.manifest
        uploaded_rows = recovery.uploaded.values()
        upload_bytes = sum(rows.num_bytes for rows in uploaded_rows)
        self._num_lost_ranks += len(recovery.uploaded)
        self._measured_s["load"] += recovery.load_s
        self._measured_s["reschedule"] += recovery.reschedule_s
        pls: dict[Rank, float] = {}
        lost: list[tuple[int, int]] = []
        resume = manifest if plan.rollback else None
        load_bytes = self._load_bytes(recovery)
        cost = self._overhead.charge_failure(
            progress.samples - resume.samples if resume else 0,
            recovery.struck.repair_h,
            load_bytes=load_bytes,
            bytes_full=self._bytes_full,
            samples=progress.samples,
            num_ranks=len(recovery.uploaded),
            hangs=recovery.struck.hangs,
        )
        if plan.rollback:
            assert manifest is not None, "a rollback needs a checkpoint"
            self._pls.rolled_back(manifest.samples)
            if self._updates is not None:
                self._updates.rolled_back()
        else:
            for rank, uploaded in recovery.uploaded.items():
                if rank in plan.replicated:
                    pls[rank] = 0.0  # and its newest durable rows are still those of the last save
                    continue
                pls[rank] = self._pls.lost(rank, progress.samples)
                self._pls.restored(rank, progress.samples)
                if self._updates is not None:
                    lost.append(self._updates.lost(rank, recovery.in_flight[rank], uploaded.updates))
        counts = self._updates is not None
        return Recovered(
            step=progress.step,
            samples=progress.samples,
            ranks=list(recovery.uploaded),
            rollback=plan.rollback,
            source=plan.source if plan.rollback or plan.ranks - plan.replicated else "replica",
            replicated=[rank for rank in recovery.uploaded if rank in plan.replicated],
            resume_step=resume.step if resume else progress.step,
            resume_samples=resume.samples if resume else progress.samples,
            sequence=manifest.sequence if manifest else None,
            num_rows=recovery.num_rows,
            pls=pls,
            lost_updates=sum(updates for updates, _ in lost) if counts else None,
            lost_tracked=sum(tracked for _, tracked in lost) if counts else None,
            recovered_rows=sum(rows.num_rows for rows in uploaded_rows),
            recovered_updates=sum(rows.updates[0] for rows in uploaded_rows) if counts else None,
            recovered_tracked=sum(rows.updates[1] for rows in uploaded_rows) if counts else None,
            upload_bytes=upload_bytes,
            load_h=cost.load_h,
            lost_h=cost.lost_h,
            reschedule_h=cost.reschedule_h,
            load_bytes=load_bytes,
            machine={"seconds": recovery.load_s, "reschedule_seconds": recovery.reschedule_s},
        )

    def _load_bytes(self, recovery: CompletedRecovery) -> int:
        """Payload of the rows that are read: all, or those of the dead shards once, and of uploaded rows.

        Initial values are none.
        """
        if recovery.plan.source == "initial":
            return 0
        if recovery.plan.rollback:
            return self._bytes_full
        return recovery.num_rows * self._row_bytes + sum(rows.num_bytes for rows in recovery.uploaded.values())

    def totals(self, *, replica_bytes: int | None, trainer_bytes: int) -> dict[str, Any]:
        """Fields of the last event: PLS, updates, failures, saves, emulated hours, bytes.

        ``replica_bytes``: what replicas took on the wire, None without. ``trainer_bytes``: memory of the mirror.
        """
        overhead, updates = self._overhead, self._updates
        counted = (
            *("update_pls", "update_pls_tracked", "applied_updates", "lost_updates"),
            *("applied_tracked", "lost_tracked", "recovered_updates", "recovered_tracked"),
        )
        charged = (
            *("num_failures", "num_saves", "payload_bytes"),
            *("save_h", "load_h", "lost_h", "reschedule_h", "overhead_frac", "node_h"),
        )
        return {
            "pls": self._pls.total,
            "num_lost_ranks": self._num_lost_ranks,
            **{name: getattr(updates, name) if updates else None for name in counted},
            **{name: getattr(overhead, name) for name in charged},
            "wire_bytes": overhead.wire_bytes + (replica_bytes or 0),
            "replica_bytes": replica_bytes,
            "memory_bytes": None if self._memory_bytes is None else max(self._memory_bytes, trainer_bytes),
        }

    def measured_s(self) -> dict[str, float]:
        """Seconds of this machine by bucket: save, load, lost, reschedule."""
        return dict(self._measured_s)


def _sum_known(values: Iterable[int | None]) -> int | None:
    """The sum, or None if one of the values is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
