"""The accounting of one run: emulated overhead, PLS, updates, and the seconds that this machine took.

Every save and every failure of a run is charged here, by one set of rules for all strategies and both engines. Emulated
hours and measured seconds are kept apart.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from harness.cluster.protocol import Written
from harness.core.events import BUCKETS, STALLS, Grown, Noticed, Recovered, Saved
from harness.core.faults import Injection
from harness.core.lookup import BatchPlan
from harness.core.overhead import FailureCost, Moved, OverheadLedger
from harness.core.plans import CHIEF, ParityGroups, Progress, Rank, RecoveryPlan, SavePlan, Tier
from harness.core.pls import PlsLedger, UpdateCounter, UpdateLedger
from harness.core.resumable import Resumable
from harness.recovery.kinds import Restoration, UploadedRows
from harness.recovery.recoveries import RECOVERIES, Recoveries, losing, reads_checkpoint, rolls_back
from harness.store import Manifest


@dataclass(kw_only=True, eq=False)
class Ledgers:
    """The ledgers of a run or a simulation, and the payload bytes on which the charges of recoveries depend.

    Args:
        shard_bytes: by PS rank, the payload of its rows in a full save.
        groups: the groups of ranks that have a parity; None without parities.
    """

    overhead: OverheadLedger
    pls: PlsLedger
    shard_bytes: Mapping[Rank, int]
    groups: ParityGroups | None = None

    def with_loss_of(self, ranks: Iterable[Rank], progress: Progress) -> Progress:
        """``progress`` with the PLS that the run has if ``ranks`` are restored alone."""
        return replace(progress, pls=self.pls.with_loss_of(ranks, progress.samples))

    def charge_recovery(
        self, plan: RecoveryPlan, progress: Progress, injection: Injection, upload_bytes: int = 0
    ) -> tuple[FailureCost, dict[Rank, float]]:
        """Charge one recovery; the ranks of ``plan`` are in order.

        Returns the cost, and by lost PS rank the PLS that it adds: 0 for a rank that lost nothing. After a rollback
        there are no entries.

        The death of some trainers is charged rescheduling alone, and a load only with ``Costs.trainer_load``. The death
        of all trainers is charged the load of the checkpoint with their network, if there is one, and no spare shortens
        the rescheduling (reconstructed: docs/CPR.md).

        ``progress``: where the failure was detected; its newest save is the newest checkpoint. ``upload_bytes``: bytes
        of rows and ids that the trainer sent to the replacements.
        """
        cost = self._charge_to(self.overhead, plan, progress, injection, upload_bytes)
        added = {} if rolls_back(plan) else dict.fromkeys(plan.kinds, 0.0)
        if rolls_back(plan):
            self.pls.rolled_back(progress.saved_samples or 0)
        for rank in losing(plan):
            added[rank] = self.pls.lost(rank, progress.samples)
        return cost, added

    def recovery_prices_h(
        self, plan: RecoveryPlan, progress: Progress, injection: Injection, upload_bytes: int = 0
    ) -> dict[str, float]:
        """The hours that a recovery takes, by bucket, in order. Arguments as of :meth:`charge_recovery`."""
        cost = self._charge_to(copy(self.overhead), plan, progress, injection, upload_bytes)
        return {"reschedule": cost.reschedule_h, "load": cost.load_h}

    def _charge_to(
        self,
        overhead: OverheadLedger,
        plan: RecoveryPlan,
        progress: Progress,
        injection: Injection,
        upload_bytes: int,
    ) -> FailureCost:
        goes_back, takes_spares = rolls_back(plan), CHIEF not in plan.trainers
        return overhead.charge_failure(
            progress.samples - (progress.saved_samples or 0) if goes_back else 0,
            injection.repair_h,
            read=self.recovery_bytes(plan, upload_bytes),
            samples=progress.samples,
            loads=bool(plan.kinds) or reads_checkpoint(plan),
            num_ranks=takes_spares * len(plan.ranks),
            hangs=injection.hangs,
            tier=progress.saved_tier if goes_back else "shared",
        )

    def recovery_bytes(self, plan: RecoveryPlan, upload_bytes: int = 0) -> Moved:
        """The payload bytes that a recovery reads."""
        if rolls_back(plan):
            return Moved(self.overhead.full.num, max(*self.shard_bytes.values(), self.dense_bytes))
        read_bytes = [self._read_bytes(rank, kind) for rank, kind in plan.kinds.items()]
        of_trainer = upload_bytes + (self.dense_bytes if plan.dense == "checkpoint" else 0)
        return Moved(of_trainer + sum(read_bytes), max(*read_bytes, of_trainer, 0))

    @property
    def dense_bytes(self) -> int:
        """The payload of the dense network in a save."""
        return self.overhead.full.num - sum(self.shard_bytes.values())

    def _read_bytes(self, rank: Rank, kind: str) -> int:
        """The payload that the replacement of ``rank`` reads: of its shard, of as many as its group has, or of none."""
        num_shards = self.groups.size_of(rank) if self.groups and RECOVERIES[kind].reads_group else 1
        return self.shard_bytes[rank] * num_shards * RECOVERIES[kind].reads_rows

    def charge_return(self, nodes: Iterable[Rank]) -> FailureCost:
        """Charge the return of ``nodes``, whose shards are copied to them with all their updates."""
        sizes = [self.shard_bytes[rank] for rank in nodes]
        return self.overhead.charge_growth(Moved(sum(sizes), max(sizes)))


@dataclass(kw_only=True, eq=False)
class Accounting(Ledgers, Resumable):
    """Charges saves and failures to the ledgers of one run.

    Args:
        updates: the ledger of updates sent, persisted and lost; None if they are not counted.
        memory_bytes: memory of tracker and replica in the PS rank that needs most; None if it is unknown.

    Attributes:
        measured_s: measured seconds in each of ``STALLS``.
        unmeasured: the dead ranks of each failure whose drop in AUC has not been measured yet.
    """

    updates: UpdateLedger | None
    count_updates: UpdateCounter
    memory_bytes: int | None

    _state = ("overhead", "pls", "updates", "_num_lost_ranks", "unmeasured", "measured_s")

    def __post_init__(self) -> None:
        self._num_lost_ranks = 0
        self.unmeasured: list[list[Rank]] = []
        self.measured_s = dict.fromkeys(STALLS, 0.0)

    def count_step(self, plan: BatchPlan) -> None:
        """Count the updates of one finished step, whose batch has ``plan``."""
        if self.updates is not None:
            self.updates.sent(*self.count_updates(plan.keys_N, plan.counts_N))

    def note_rerun(self, seconds: float) -> None:
        """Add the measured ``seconds`` of a step that was repeated after a rollback to the lost computation."""
        self.measured_s["lost"] += seconds

    def freeze(self) -> None:
        """Record that the contents of the present save are fixed now; the save may be committed later."""
        if self.updates is not None:
            self.updates.freeze()

    def charge_save(self, plan: SavePlan, manifest: Manifest, written: Mapping[Rank, Written], stall_s: float) -> Saved:
        """Charge a committed save and return its event. A part that was written again after a failed write costs twice.

        ``stall_s``: measured seconds that training stood still for the save. The initial save is not charged, since all
        strategies that save start with it.
        """
        is_charged = manifest.step > 0
        if plan.closes_interval:
            self.pls.saved(manifest.samples)
        if self.updates is not None:
            for rank, reply in written.items():
                if reply.persisted_updates is not None and reply.persisted_tracked is not None:
                    self.updates.persisted(rank, reply.persisted_updates, reply.persisted_tracked)
            self.updates.committed(plan.tier)
        repeated = sum(reply.payload_bytes for reply in written.values() if reply.faults)
        moved = self.save_bytes(written, manifest.trainer.payload_bytes)
        save_h = 0.0
        if is_charged:
            save_h = self.overhead.charge_save(moved, manifest.samples, plan.tier)
            self.measured_s["save"] += stall_s
        return Saved(
            step=manifest.step,
            samples=manifest.samples,
            sequence=manifest.sequence,
            save=plan.kind,
            tier=plan.tier,
            closes_interval=plan.closes_interval,
            charged=is_charged,
            payload_bytes=moved.num,
            repeated_bytes=repeated,
            slowest_bytes=moved.most,
            num_rows=sum(reply.num_rows for reply in written.values()),
            persisted_updates=_sum_known(reply.persisted_updates for reply in written.values()),
            persisted_tracked=_sum_known(reply.persisted_tracked for reply in written.values()),
            save_h=save_h,
            machine={
                "seconds": stall_s,
                "compacted": [rank for rank, reply in written.items() if reply.compacted],
            },
        )

    def save_bytes(self, written: Mapping[Rank, Written], dense_bytes: int) -> Moved:
        """The payload bytes of a save, those written again included."""
        by_rank = [reply.payload_bytes * (2 if reply.faults else 1) for reply in written.values()]
        return Moved(dense_bytes + sum(by_rank), max(dense_bytes, *by_rank))

    def save_prices_h(self, written: Mapping[Rank, Written], tier: Tier) -> dict[str, float]:
        """The hours that training waits for a save in ``tier``, by bucket, before the dense network is written."""
        return self.overhead.save_prices_h(self.save_bytes(written, self.dense_bytes), tier)

    def charge_notice(
        self,
        notices_h: Mapping[Rank, float],
        written: Mapping[Rank, Written],
        *,
        kinds: Mapping[Rank, str],
        progress: Progress,
        sequence: int | None,
        stall_s: float,
    ) -> Noticed:
        """Charge what the ranks ``notices_h`` did on notice of their death, and return the event.

        ``written``: what ranks saved, in manifest ``sequence``; the others handed their shards over. ``kinds``: as
        ``Notices.kinds``. ``stall_s``: measured seconds that training stood still.
        """
        for rank, reply in written.items():
            if self.updates is not None:
                self.updates.persisted_on_notice(rank, reply.persisted_updates or 0, reply.persisted_tracked or 0)
        payloads = {k: written[k].payload_bytes if k in written else self.shard_bytes[k] for k in notices_h}
        self.measured_s["save"] += stall_s
        return Noticed(
            step=progress.step,
            samples=progress.samples,
            notices_h=dict(notices_h),
            kinds=dict(kinds),
            sequence=sequence,
            num_rows=sum(reply.num_rows for reply in written.values()),
            payload_bytes=payloads,
            persisted_updates=_sum_known(reply.persisted_updates for reply in written.values()),
            persisted_tracked=_sum_known(reply.persisted_tracked for reply in written.values()),
            save_h=self.overhead.charge_notice(payloads.values()),
            machine={"seconds": stall_s},
        )

    def charge_failure(
        self,
        restoration: Restoration,
        *,
        uploaded: Mapping[Rank, UploadedRows],
        in_flight: Mapping[Rank, tuple[int, int]],
        injection: Injection,
    ) -> Recovered:
        """Charge a failure and return the event of its recovery.

        ``uploaded``: by dead PS rank, the rows that its replacement got from the trainer. ``in_flight``: by rank, the
        correction of its lost updates, all and tracked (``UpdateLedger.lost``). ``injection``: what the charge depends
        on.
        """
        plan, loss = restoration.plan, restoration.loss
        goes_back, progress, counts = rolls_back(plan), loss.progress, self.updates is not None
        upload_bytes = sum(rows.num_bytes for rows in uploaded.values())
        self._num_lost_ranks += len(plan.ranks)
        if plan.kinds or goes_back or plan.dense != "kept":  # else trainers died, and one lives that has all they had
            self.unmeasured.append(list(plan.ranks))
        self.measured_s["load"] += restoration.load_s
        self.measured_s["reschedule"] += restoration.reschedule_s
        cost, pls = self.charge_recovery(plan, progress, injection, upload_bytes)
        dense_since = {"checkpoint": progress.saved_samples or 0, "initial": 0}.get(plan.dense, progress.samples)
        lost: list[tuple[int, int]] = []
        if self.updates is not None:
            lost = [
                self.updates.lost(rank, in_flight.get(rank, (0, 0)), uploaded[rank].updates) for rank in losing(plan)
            ]
            if goes_back:
                lost.append(self.updates.rolled_back(progress.saved_tier))
        return Recovered(
            step=progress.step,
            samples=progress.samples,
            ranks=plan.ranks,
            kinds=dict(plan.kinds),
            rollback=goes_back,
            resume_step=(progress.saved_step or 0) if goes_back else progress.step,
            resume_samples=(progress.saved_samples or 0) if goes_back else progress.samples,
            sequence=loss.checkpoint.sequence if loss.checkpoint and reads_checkpoint(plan) else None,
            dense=plan.dense,
            lost_dense_samples=progress.samples - dense_since,
            num_rows=restoration.num_rows,
            pls=pls,
            lost_updates=sum(updates for updates, _ in lost) if counts else None,
            lost_tracked=sum(tracked for _, tracked in lost) if counts else None,
            recovered_rows=sum(rows.num_rows for rows in uploaded.values()),
            recovered_updates=sum(rows.updates[0] for rows in uploaded.values()) if counts else None,
            recovered_tracked=sum(rows.updates[1] for rows in uploaded.values()) if counts else None,
            upload_bytes=upload_bytes,
            **vars(cost),
            machine={"seconds": restoration.load_s, "reschedule_seconds": restoration.reschedule_s},
        )

    def charge_growth(self, nodes: Iterable[Rank], progress: Progress, seconds: float) -> Grown:
        """Charge the return of ``nodes``, and return its event. ``seconds``: measured."""
        cost, self.measured_s["reschedule"] = self.charge_return(nodes), self.measured_s["reschedule"] + seconds
        return Grown(
            step=progress.step,
            samples=progress.samples,
            ranks=list(nodes),
            load_h=cost.load_h,
            reschedule_h=cost.reschedule_h,
            load_bytes=cost.load_bytes,
            machine={"seconds": seconds},
        )

    def totals(self, recoveries: Recoveries) -> dict[str, Any]:
        """The fields of the Finished event that count PLS, updates, failures, saves, emulated hours, and bytes."""
        overhead, updates = self.overhead, self.updates
        trainer_bytes = sum(kind.trainer_bytes for kind in recoveries)
        counted = updates.totals() if updates else dict.fromkeys(UpdateLedger(()).totals())
        charged = (
            *("num_failures", "num_saves", "payload_bytes"),
            *(f"{bucket}_h" for bucket in BUCKETS),
            *("overhead_frac", "node_h"),
        )
        return {
            "pls": self.pls.total,
            "num_lost_ranks": self._num_lost_ranks,
            **counted,
            **{name: getattr(overhead, name) for name in charged},
            "wire_bytes": overhead.payload_bytes + overhead.load_bytes + sum(kind.wire_bytes for kind in recoveries),
            "memory_bytes": None if self.memory_bytes is None else max(self.memory_bytes, trainer_bytes),
            **{name: value for kind in recoveries for name, value in kind.summary().items()},
        }


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
