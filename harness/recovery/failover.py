"""The replacement and restoration of lost ranks, by the strategy's recovery plan, until no other rank dies meanwhile.

Nothing here depends on a strategy's name or the engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from harness.cluster.protocol import Cluster, Reply, Request, Restored, no_op
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.errors import RankLost, RunFailed
from harness.core.plans import Progress, Rank, RecoveryPlan, is_ps
from harness.core.strategies import Strategy
from harness.recovery.accounting import Accounting
from harness.recovery.checkpointer import Checkpointer
from harness.recovery.injections import Injections
from harness.recovery.interrupts import Interrupts
from harness.recovery.kinds import LostRanks, Restoration
from harness.recovery.notices import Notices
from harness.recovery.recoveries import Recoveries, plan_recovery, rolls_back


@dataclass(kw_only=True, eq=False)
class Failover:
    """Replaces dead ranks and has their shards restored.

    Args:
        injections: planned faults, some of which strike while ranks are replaced or restored.
        interrupts: has planned faults strike during a recovery.
        notices: what ranks did that were told of their death.
        max_replacements_in_a_row: bound on the attempts at one recovery.
    """

    cluster: Cluster
    supervisor: SupervisorClient
    strategy: Strategy
    checkpointer: Checkpointer
    recoveries: Recoveries
    injections: Injections
    interrupts: Interrupts
    notices: Notices
    accounting: Accounting
    max_replacements_in_a_row: int

    def __post_init__(self) -> None:
        self._waits_since_s = self.supervisor.clock()  # since when a recovery has waited for ranks

    def restore(self, lost: RankLost, progress: Progress, detect_s: float) -> Restoration:
        """Replace dead ranks, and carry out the strategy's plan. ``detect_s``: from the request to its failure.

        A rank that dies before the recovery is complete belongs to the same failure. If only trainers died and one
        lives, nothing is restored.

        Raises:
            RunFailed: ranks died ``max_replacements_in_a_row`` times in a row, the strategy cannot recover, or its plan
                cannot be carried out.
            StoreError: the checkpoint cannot be read.
        """
        dead: frozenset[Rank] = frozenset()
        reschedule_s, load_s = 0.0, 0.0
        for _ in range(self.max_replacements_in_a_row):
            dead |= lost.ranks
            reschedule_s += detect_s
            since_s = self._waits_since_s = self.supervisor.clock()
            try:
                self._replace(lost, progress, detect_s)
                began_s, since_s = since_s, self.supervisor.clock()
                reschedule_s += since_s - began_s
                self._waits_since_s = since_s
                loss = self._loss(dead, progress)
                takes_trainers = self.injections.not_charged.takes_trainers
                kept = self.notices.kinds
                plan = plan_recovery(self.strategy, dead, loss.progress, takes_trainers=takes_trainers, kept=kept)
                if rolls_back(plan):
                    self.checkpointer.give_up()  # the ranks abandon their parts when they are restored
                    self.checkpointer.drop_noticed()
                num_rows = self._restore(plan, loss) if plan.kinds or rolls_back(plan) else 0
                upload_bytes = sum(rows.num_bytes for rows in self.recoveries.uploaded(plan).values())
                if self.interrupts.strikes_recovery(plan, loss.progress, upload_bytes):
                    self._serve({})  # finds the ranks that have died
                load_s += self.supervisor.clock() - since_s
                self.notices.recovered(plan)
                return Restoration(plan=plan, loss=loss, num_rows=num_rows, load_s=load_s, reschedule_s=reschedule_s)
            except RankLost as again:
                lost, detect_s = again, self.supervisor.clock() - self._waits_since_s
                load_s += self._waits_since_s - since_s
        raise RunFailed(
            f"step {progress.step}: ranks kept dying during {self.max_replacements_in_a_row} recoveries in a row "
            "(cluster.max_replacements_in_a_row)"
        )

    def dense(self, restoration: Restoration) -> Mapping[str, Tensor]:
        """The dense network's tensors in the checkpoint of a restoration. Raises StoreError."""
        checkpoint = restoration.loss.checkpoint
        assert checkpoint is not None, "a plan that reads a checkpoint needs one"
        return self.checkpointer.store.read_dense(checkpoint.trainer)

    def _replace(self, lost: RankLost, progress: Progress, detect_s: float) -> None:
        self.supervisor.replace(lost.detail, progress.step, progress.samples, detect_s)
        self.injections.strike("regroup")
        self.cluster.replace(lost.ranks)

    def _loss(self, dead: frozenset[Rank], progress: Progress) -> LostRanks:
        ranks, handed_over = frozenset(filter(is_ps, dead)), self.notices.handed_over()
        newest = self.checkpointer.lose(self.strategy.lost_tiers(ranks, self.injections.not_charged))
        committed = replace(progress, saved_step=newest and newest.step, saved_samples=newest and newest.samples)
        committed = replace(committed, saved_tier=newest.tier if newest else "shared")
        at_loss = self.accounting.with_loss_of(ranks - self.notices.kinds.keys(), committed)
        return LostRanks(ranks=ranks, progress=at_loss, checkpoint=newest, handed_over=handed_over)

    def _restore(self, plan: RecoveryPlan, loss: LostRanks) -> int:
        """Have the ranks of ``plan`` restored, and call the kinds' hooks; returns the number of restored rows."""
        requests = self.recoveries.requests(plan, loss, self._serve)
        replies = self._serve(requests, lambda: self.injections.strike("restore"))
        for rank, reply in replies.items():
            if not isinstance(reply, Restored):
                kind, step = plan.kinds.get(rank), loss.progress.step
                raise RunFailed(f"step {step}: {rank}: expected Restored of the recovery {kind}, got {reply!r}")
        for kind in self.recoveries:
            kind.restored(loss, requests, self._serve)
        return sum(reply.num_rows for reply in replies.values())

    def _serve(self, requests: Mapping[Rank, Request], meanwhile: Callable[[], None] = no_op) -> dict[Rank, Reply]:
        """Send the requests of a recovery, call ``meanwhile``, wait for the replies, and return them.

        The time to detect another death is counted from the beginning of the wait. Raises what :meth:`Cluster.finish`
        raises.
        """
        sent = self.cluster.start(requests)
        meanwhile()
        self._waits_since_s = self.supervisor.clock()
        return self.cluster.finish(sent)
