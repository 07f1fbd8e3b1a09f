"""Requests to the PS ranks that survive the death of ranks.

A request that fails is how a death is detected. The dead ranks are replaced, the strategy's recovery plan is carried
out and charged, and the requests of the dead are sent again. Nothing here depends on a strategy's name or the engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from harness.cluster.protocol import Cluster, CopyFromBuddy, Initialise, Reply, Request, Restore, in_rank_order, no_op
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.errors import RankLost, RunFailed
from harness.core.plans import Progress, Rank, RecoveryPlan, rank_order
from harness.core.strategy import Strategy
from harness.recovery.accounting import Accounting, CompletedRecovery, UploadedRows
from harness.recovery.checkpointer import Checkpoints
from harness.recovery.injections import Injections
from harness.recovery.mirror import Mirror
from harness.recovery.replication import Replication
from harness.store import read_dense


class RolledBack(Exception):
    """Full recovery took place: every rank is at ``step`` again. The trainer must follow, with ``dense`` parameters."""

    def __init__(self, step: int, dense: Mapping[str, Tensor]) -> None:
        self.step = step
        self.dense = dict(dense)
        super().__init__(f"rolled back to step {step}")


@dataclass(frozen=True)
class StartedRequests:
    """Requests that have been sent, and the cluster's token for their replies."""

    requests: dict[Rank, Request]
    token: Any


class RowHolder(Protocol):
    """A component at the trainer that holds copies of rows, or updates not yet sent to the PS ranks."""

    def shards_restored(self, ranks: frozenset[Rank]) -> None:
        """Discard the copies of rows of ``ranks``, whose shards alone were restored, and updates not yet sent."""
        ...

    def in_flight_updates(self, rank: Rank) -> tuple[int, int]:
        """Updates, all and tracked, in the present request to ``rank`` that the ledger counts as sent already.

        The replacement of ``rank`` receives them although its shard was restored alone. Negative where the request
        holds less of earlier steps than it will be counted for.
        """
        ...


class FailoverClient:
    """Sends requests to PS ranks and recovers from the death of ranks until all are served.

    Args:
        injections: planned kills, which may wait for requests and recoveries made here.
        before_recovery: called when ranks are found dead, before anything of the failure is recorded, so that what
            happened first is recorded first.
        replication: of strategies that keep replicas; None otherwise.
        max_replacements_in_a_row: bound on failures of one request, and on deaths during one recovery.
        clock: seconds, monotonic; for the ``machine`` part of events and measured totals only.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        supervisor: SupervisorClient,
        strategy: Strategy,
        checkpoints: Checkpoints,
        accounting: Accounting,
        mirror: Mirror,
        injections: Injections,
        before_recovery: Callable[[], None],
        max_replacements_in_a_row: int,
        clock: Callable[[], float],
        replication: Replication | None = None,
    ) -> None:
        self._cluster = cluster
        self._replication = replication
        self._supervisor = supervisor
        self._strategy = strategy
        self._checkpoints = checkpoints
        self._accounting = accounting
        self._mirror = mirror
        self._injections = injections
        self._before_recovery = before_recovery
        self._max_in_a_row = max_replacements_in_a_row
        self._clock = clock
        self._waits_since_s = clock()  # of a recovery: since when it has waited for ranks
        self._holder: RowHolder | None = None

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All PS ranks, in order."""
        return self._cluster.ranks

    def attach(self, holder: RowHolder) -> None:
        """Register the only ``holder``, which takes part in every later partial recovery."""
        assert self._holder is None, "one holder of rows"
        self._holder = holder

    def ask(self, requests: Mapping[Rank, Request], progress: Progress) -> dict[Rank, Reply]:
        """Send requests and wait until all are served; replies in rank order.

        Equivalent to :meth:`start` followed by :meth:`finish`.
        """
        return self.finish(self.start(requests), progress)

    def ask_once(self, requests: Mapping[Rank, Request]) -> dict[Rank, Reply] | None:
        """Replies in rank order; None if a rank is dead.

        Dead ranks are not replaced here: the next request of a step detects them.
        """
        try:
            return in_rank_order(self._cluster.call(requests), self.ranks)
        except RankLost:
            return None

    def start(self, requests: Mapping[Rank, Request]) -> StartedRequests:
        """Send requests without waiting. They must be finished before anything else is asked."""
        sent = self._mirrored(requests)
        started = StartedRequests(sent, self._cluster.start(sent))
        self._injections.sent(sent)
        return started

    def finish(self, started: StartedRequests, progress: Progress) -> dict[Rank, Reply]:
        """Wait until requests have been served, through failures; replies in rank order.

        After a partial recovery the requests of the dead, and only they, are sent again, the same bytes, to the
        replacements; also of ranks that had answered and died while others were recovered, since their reply is void.

        Raises:
            RolledBack: a full recovery took place; the requests are void.
            RunFailed: ranks died ``max_replacements_in_a_row`` times in a row.
        """
        return self._finish(started.requests, lambda: self._cluster.finish(started.token), progress)

    def _mirrored(self, requests: Mapping[Rank, Request]) -> dict[Rank, Request]:
        return dict(requests) if self._replication is None else self._replication.mirrored(requests)

    def _finish(
        self, requests: Mapping[Rank, Request], first: Callable[[], dict[Rank, Reply]], progress: Progress
    ) -> dict[Rank, Reply]:
        replies: dict[Rank, Reply] = {}
        call = first
        for _ in range(self._max_in_a_row):
            asked_s = self._clock()
            try:
                replies.update(call())
                return in_rank_order(replies, self.ranks)
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

    def _recover(self, lost: RankLost, progress: Progress, detect_s: float) -> frozenset[Rank]:
        """Replace dead ranks, carry out the strategy's plan, charge it.

        A rank that dies before the recovery is complete belongs to the same failure.
        Returns all ranks that died. Raises RolledBack if the plan was a rollback.
        """
        self._before_recovery()
        self._supervisor.status(phase="recover")
        casualties: frozenset[Rank] = frozenset()
        reschedule_s, load_s = 0.0, 0.0
        for _ in range(self._max_in_a_row):
            casualties |= lost.ranks
            reschedule_s += detect_s
            since_s = self._waits_since_s = self._clock()
            try:
                self._cluster.replace(
                    lost.detail, progress.step, progress.samples, detect_s, lambda: self._injections.strike("regroup")
                )
                began_s, since_s = since_s, self._clock()
                reschedule_s += since_s - began_s
                self._waits_since_s = since_s
                plan = self._plan(casualties, progress)
                if plan.rollback:
                    self._checkpoints.give_up()  # the ranks abandon their parts when they are restored
                num_rows, uploaded = self._restore(plan, progress)
                self._replicate(plan, casualties)
                load_s += self._clock() - since_s
                break
            except RankLost as again:
                lost, detect_s = again, self._clock() - self._waits_since_s
                load_s += self._waits_since_s - since_s
        else:
            raise RunFailed(
                f"step {progress.step}: ranks kept dying during {self._max_in_a_row} recoveries in a row "
                "(cluster.max_replacements_in_a_row)"
            )
        dead = sorted(casualties, key=rank_order)
        holder = None if plan.rollback else self._holder
        if holder is not None:
            holder.shards_restored(casualties - plan.replicated)
        newest = self._checkpoints.newest
        completed = CompletedRecovery(
            plan=plan,
            progress=progress,
            manifest=newest if plan.reads_checkpoint else None,
            num_rows=num_rows,
            uploaded={rank: uploaded.get(rank, UploadedRows()) for rank in dead},
            in_flight={rank: holder.in_flight_updates(rank) if holder else (0, 0) for rank in dead},
            struck=self._injections.take_struck(),
            load_s=load_s,
            reschedule_s=reschedule_s,
        )
        self._supervisor.record(self._accounting.recovered(completed))
        self._supervisor.status(phase="train")
        if plan.rollback:
            assert newest is not None
            dense, _ = read_dense(self._checkpoints.root, newest.trainer)
            raise RolledBack(newest.step, dense)
        return casualties

    def _plan(self, casualties: frozenset[Rank], progress: Progress) -> RecoveryPlan:
        """The strategy's plan. Before the initial save nothing has been applied: initial values lose nothing."""
        newest = self._checkpoints.newest
        committed = replace(
            progress,
            saved_step=newest.step if newest else None,
            saved_samples=newest.samples if newest else None,
        )
        plan = self._strategy.plan_recovery(casualties, committed)
        if newest is None and plan.source == "checkpoint" and progress.step == 0:
            return RecoveryPlan(rollback=False, ranks=casualties, source="initial")
        return plan

    def _restore(self, plan: RecoveryPlan, progress: Progress) -> tuple[int, Mapping[Rank, UploadedRows]]:
        """Give the ranks of ``plan`` their rows; the number of rows, and what of them the trainer's mirror gave."""
        uploaded: dict[Rank, UploadedRows] = {}
        ranks = self.ranks if plan.rollback else sorted(plan.ranks, key=rank_order)
        newest = self._checkpoints.newest
        requests: dict[Rank, Request] = {}
        for rank in ranks:
            if rank in plan.replicated:
                requests[rank] = CopyFromBuddy()
            elif plan.source == "initial":
                requests[rank] = Initialise(step=progress.step)
            else:
                assert newest is not None, "a strategy that recovers from checkpoints saves before the first step"
                newer = None
                if not plan.rollback:
                    newer, uploaded[rank] = self._mirror.restore(rank, progress.step, resets_states=plan.resets_states)
                requests[rank] = Restore(
                    records=newest.shards[rank],
                    step=newest.step if plan.rollback else progress.step,
                    resets_states=plan.resets_states,
                    newer=newer,
                )
        replies = self._serve(requests, lambda: self._injections.strike("restore"))
        return sum(reply.num_rows for reply in replies.values()), uploaded

    def _replicate(self, plan: RecoveryPlan, casualties: frozenset[Rank]) -> None:
        """Make all replicas whole again, after all shards were restored."""
        if self._replication is not None:
            copies = self._replication.copies(plan, casualties)
            self._serve(copies)
            self._replication.copied(copies)

    def _serve(self, requests: Mapping[Rank, Request], meanwhile: Callable[[], None] = no_op) -> dict[Rank, Reply]:
        """Serve requests of a recovery. The seconds until a death is found count from the wait, not from before it."""
        sent = self._cluster.start(requests)
        meanwhile()
        self._waits_since_s = self._clock()
        return self._cluster.finish(sent)
