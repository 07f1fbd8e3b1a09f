"""Requests to ranks, completed in spite of the death of ranks.

A failed request detects a death. The dead ranks are then replaced, the strategy's recovery plan is carried out and
charged, and the requests to the dead ranks are sent again. Nothing here depends on a strategy's name or the engine.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from harness.cluster.protocol import Cluster, Reply, Request, Restored, no_op
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.errors import RankLost, RunFailed
from harness.core.plans import Progress, Rank, RecoveryPlan, is_ps
from harness.core.strategies import Strategy
from harness.recovery.accounting import Accounting
from harness.recovery.checkpointer import Checkpoints
from harness.recovery.injections import Injections
from harness.recovery.kinds import LostRanks
from harness.recovery.recoveries import Recoveries, losing, plan_recovery, rolls_back
from harness.store import read_state


class RolledBack(Exception):
    """Control flow: full recovery took place, and every PS rank is back at ``step``.

    The trainer must load ``dense``, the dense network's tensors by name, and repeat the steps after ``step``.
    """

    def __init__(self, step: int, dense: Mapping[str, Tensor]) -> None:
        self.step = step
        self.dense = dict(dense)
        super().__init__(f"rolled back to step {step}")


@dataclass(frozen=True)
class StartedRequests:
    """Requests that have been sent, and the cluster's token by which their replies are waited for."""

    requests: dict[Rank, Request]
    token: Any


@dataclass(kw_only=True, eq=False)
class FailoverClient:
    """Sends requests to ranks and recovers from the death of ranks until all are served.

    Args:
        injections: planned faults, some of which strike while requests and recoveries are made here.
        before_recovery: called when ranks are found dead, to record earlier events before those of the failure.
        shards_restored: tells the embedding client which shards were restored without their last updates. Returns the
            corrections of lost updates by rank (``EmbeddingClient.shards_restored``).
        restore_dense: sets the dense network to the given tensors of a checkpoint.
        max_replacements_in_a_row: bound on the failures of one request, and on the attempts at one recovery.
    """

    cluster: Cluster
    supervisor: SupervisorClient
    strategy: Strategy
    checkpoints: Checkpoints
    accounting: Accounting
    recoveries: Recoveries
    injections: Injections
    before_recovery: Callable[[], None]
    shards_restored: Callable[[Iterable[Rank]], Mapping[Rank, tuple[int, int]]]
    restore_dense: Callable[[Mapping[str, Tensor]], None]
    max_replacements_in_a_row: int

    def __post_init__(self) -> None:
        self._waits_since_s = self.supervisor.clock()  # of a recovery: since when it has waited for ranks
        self._num_recoveries = 0

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All PS ranks, in order."""
        return self.cluster.ranks

    def ask(self, requests: Mapping[Rank, Request], progress: Progress) -> dict[Rank, Reply]:
        """Send requests and wait until all are served, as :meth:`start` and :meth:`finish` do."""
        return self.finish(self.start(requests), progress)

    def ask_once(self, requests: Mapping[Rank, Request]) -> dict[Rank, Reply] | None:
        """Send requests to PS ranks once, and wait for the replies; None if one of them is missing.

        Dead ranks are not replaced here: the next request of a step detects them.
        """
        try:
            return self.cluster.call(requests)
        except RankLost as lost:
            return lost.replies if requests.keys() <= lost.replies.keys() else None

    def start(self, requests: Mapping[Rank, Request]) -> StartedRequests:
        """Send requests without waiting."""
        sent = dict(self.recoveries.accompany(requests))
        started = StartedRequests(sent, self.cluster.start(sent))
        self.injections.sent(sent)
        return started

    def finish(
        self,
        started: StartedRequests,
        progress: Progress,
        drain: Callable[[Progress], None] = lambda _: None,
    ) -> dict[Rank, Reply]:
        """Wait until requests have been served, through failures; replies in rank order.

        After a recovery without rollback, exactly the requests to the dead ranks are sent again, unchanged, to the
        replacements. A reply does not count if its rank died later, while other ranks were recovered. ``drain``:
        called with ``progress`` before a recovery, to finish other requests in flight; it may make the recovery
        itself.

        Raises:
            RolledBack: a full recovery took place; the requests are void.
            RunFailed: ranks died ``max_replacements_in_a_row`` times in a row, the strategy cannot recover, or its plan
                cannot be carried out.
            StoreError: the checkpoint cannot be read.
        """
        replies: dict[Rank, Reply] = {}
        call = partial(self.cluster.finish, started.token)
        for _ in range(self.max_replacements_in_a_row):
            asked_s = self.supervisor.clock()
            try:
                replies.update(call())
                return {rank: replies[rank] for rank in started.requests}
            except RankLost as lost:
                replies.update(lost.replies)
                detect_s, num_before = self.supervisor.clock() - asked_s, self._num_recoveries
                drain(progress)
                if self._num_recoveries == num_before:
                    dead = self._recover(lost, progress, detect_s)
                    replies = {rank: reply for rank, reply in replies.items() if rank not in dead}
                outstanding = {rank: request for rank, request in started.requests.items() if rank not in replies}
                call = partial(self.cluster.call, outstanding)
        raise RunFailed(
            f"step {progress.step}: ranks died {self.max_replacements_in_a_row} times in a row at one request "
            "(cluster.max_replacements_in_a_row)"
        )

    def _recover(self, lost: RankLost, progress: Progress, detect_s: float) -> frozenset[Rank]:
        """Replace dead ranks, carry out the strategy's plan, and charge it; returns all ranks that died.

        A rank that dies before the recovery is complete belongs to the same failure. If only trainers died and one
        lives, nothing is restored. Raises RolledBack if the plan was a rollback.
        """
        self._num_recoveries += 1
        self.before_recovery()
        self.supervisor.status(phase="recover")
        dead: frozenset[Rank] = frozenset()
        reschedule_s, load_s = 0.0, 0.0
        for _ in range(self.max_replacements_in_a_row):
            dead |= lost.ranks
            reschedule_s += detect_s
            since_s = self._waits_since_s = self.supervisor.clock()
            try:
                self.supervisor.replace(lost.detail, progress.step, progress.samples, detect_s)
                self.injections.strike("regroup")
                self.cluster.replace(lost.ranks)
                began_s, since_s = since_s, self.supervisor.clock()
                reschedule_s += since_s - began_s
                self._waits_since_s = since_s
                loss = self._loss(dead, progress)
                takes_trainers = self.injections.has_taken_trainers
                plan = plan_recovery(self.strategy, dead, loss.progress, takes_trainers=takes_trainers)
                if rolls_back(plan):
                    self.checkpoints.give_up()  # the ranks abandon their parts when they are restored
                num_rows = self._restore(plan, loss) if plan.kinds or rolls_back(plan) else 0
                load_s += self.supervisor.clock() - since_s
                break
            except RankLost as again:
                lost, detect_s = again, self.supervisor.clock() - self._waits_since_s
                load_s += self._waits_since_s - since_s
        else:
            raise RunFailed(
                f"step {progress.step}: ranks kept dying during {self.max_replacements_in_a_row} recoveries in a row "
                "(cluster.max_replacements_in_a_row)"
            )
        self.supervisor.record(
            self.accounting.recovered(
                plan,
                loss,
                num_rows=num_rows,
                uploaded=self.recoveries.uploaded(plan),
                in_flight=self.shards_restored(losing(plan)) if plan.kinds else {},
                struck=self.injections.take_struck(),
                load_s=load_s,
                reschedule_s=reschedule_s,
            )
        )
        self.supervisor.status(phase="train")
        if rolls_back(plan):
            assert loss.checkpoint is not None
            state = read_state(self.checkpoints.root, loss.checkpoint.trainer)
            raise RolledBack(loss.checkpoint.step, state["tensors"])
        if plan.dense == "checkpoint":
            assert loss.checkpoint is not None
            self.restore_dense(read_state(self.checkpoints.root, loss.checkpoint.trainer)["tensors"])
        return dead

    def _loss(self, dead: frozenset[Rank], progress: Progress) -> LostRanks:
        newest = self.checkpoints.newest
        committed = replace(progress, saved_step=newest and newest.step, saved_samples=newest and newest.samples)
        return LostRanks(ranks=frozenset(filter(is_ps, dead)), progress=committed, checkpoint=newest)

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
