"""Bounded staleness: workers that train on rows that may be old, but not too old (HET, VLDB 2022, arXiv 2112.07221).

HET caches embedding rows at every worker and bounds, per row, how stale reads and writes are, by clocks that count
updates: c_s as of which a copy has everything; c_c, that is c_s plus own updates not yet pushed; c_g of the row at its
PS rank. Where descriptions differ this follows the release (Hsword/Hetu: ``src/hetu_cache/src/cache.cc``, and
``SyncEmbedding`` and ``PushEmbedding`` of its parameter server). s is ``cache.staleness``.

- Write: a worker updates its copy at once and adds the gradients up. At c_c - c_s > s their sum is pushed, c_g moves on
  by the number of updates, and so does c_s: the copy stays.
- Read: a copy may be used while c_g - c_s <= s, that is while it lacks at most s of the updates by others that the PS
  rank has. Else what is pending of it is pushed and the row fetched anew. (Stricter than c_g - c_c <= s, the other
  reading.)
- Beyond ``cache.max_rows`` copies the one used longest ago is evicted, and what is pending of it pushed.

So a row that is read lacks at most s updates that others have pushed, and s of each that has not. With s = 0 every
update is pushed at once and every read of the newest version: the run is bit-equal to one without a cache.

What differs from HET:

- There is one trainer. It plays ``cache.workers`` workers in turn: batch number t is that of worker t mod W, who has a
  cache of its own. So nothing races, and a run can be repeated. All share one dense network, as with all-reduce, but it
  is updated after every batch.
- All pushes pass through here, so c_g is known and not asked for. What asking would cost is in the summary as
  ``clock_bytes``, not in ``bytes``.
- A batch counts as one update of a row; in Hetu every occurrence of the row in the batch does.
- In Hetu's release a row that is too old is replaced without a push, and what is pending is added to the new value.

Failures: where a save is due, all that is pending is pushed with that step and all caches are emptied. So a save and a
tracker's choice find every update, and what follows a checkpoint depends on it alone: full recovery ends bit-equal to
no failure. Evaluations and kills disturb nothing: an evaluation sees rows with all that is pending, which stays so.
When a shard is restored alone, copies of its rows are discarded; what was pending of them is lost, and counted so.

N distinct rows of a batch, K keys of rows to fetch, D embedding dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.client.direct import Batches, Fetched, pull
from harness.client.row_cache import Traffic
from harness.client.worker_caches import I64, Pending, WorkerCaches
from harness.cluster.protocol import Exchange, Push
from harness.core.lookup import BatchPlan
from harness.core.plans import Progress, Rank, ps_index
from harness.core.pls import UpdateCounter
from harness.core.shard import stepped
from harness.data.dataset import Batch
from harness.recovery.failover import Recovery


@dataclass(frozen=True)
class Turn:
    """The batch of one worker."""

    step: int
    worker: int
    batch: Batch
    plan: BatchPlan


@dataclass
class Staleness:
    """How old what was read was, in updates by others that the PS rank had and the copy lacked."""

    total: int = 0
    worst: int = 0
    most_pending: int = 0  # own updates of one row that a worker kept to itself, after a step

    def summary(self, num_reads: int) -> dict[str, float]:
        """For the record."""
        return {
            "mean_staleness": self.total / num_reads if num_reads else 0.0,
            "max_staleness": self.worst,
            "max_pending": self.most_pending,
        }


class StalePath:
    """A data path (``client.direct``) of several workers' caches. Its bits depend on ``staleness`` and the workers.

    Args:
        staleness: s above.
        max_rows: bound on the copies in all caches; the rows of a single batch may be more.
        count_updates: counts updates as the ledger does.
        empties: whether caches must be empty, and every update told, after so many steps.
    """

    def __init__(
        self,
        recovery: Recovery,
        batches: Batches,
        ranks: tuple[Rank, ...],
        *,
        dim: int,
        learning_rate: float,
        num_steps: int,
        staleness: int,
        num_workers: int,
        max_rows: int | None,
        count_updates: UpdateCounter,
        empties: Callable[[int], bool],
    ) -> None:
        self._recovery = recovery
        self._batches = batches
        self._ranks = ranks
        self._id_bytes, self._row_bytes = 8, 4 * dim
        self._gradient_bytes = 8 + 4 * dim + 4 + 1  # row id; gradient; count; whether it is sampled
        self._learning_rate = learning_rate
        self._num_steps = num_steps
        self._staleness = staleness
        self._num_workers = num_workers
        self._count_updates = count_updates
        self._empties = empties
        self._base_R = batches.placement.rank_base_R
        self._caches = WorkerCaches(num_workers=num_workers, num_keys=int(self._base_R[-1]), dim=dim, max_rows=max_rows)
        self.traffic = Traffic()
        self.seen = Staleness()
        recovery.listeners.append(self._discard)
        recovery.spared = self._spared
        self.reset()

    def reset(self) -> None:
        """Full recovery took place: every copy is void."""
        self._caches.clear()
        self._next: Turn | None = None  # its rows are cached, as far as they had been asked for
        self._planned: Turn | None = None
        self._must_ask = True  # something was due: hear from every rank before going on
        self._fetched: tuple[I64, Tensor] | None = None  # slots and rows of the batch
        self._pushing: tuple[BatchPlan, Pending] | None = None  # a batch, and what is under way with it

    # --- the step loop's side ---------------------------------------------------------------------------------------

    def fetch(self, progress: Progress) -> Fetched:
        """The next batch with its rows, from the cache of the worker whose turn it is."""
        turn, self._next = self._next or self._turn(progress.step), None
        wanted_K = self._wanted(turn)
        while self._must_ask or len(wanted_K):
            self._must_ask = False
            replies = self._recovery.ask(self._messages([None] * len(self._ranks), wanted_K), progress)
            self._store(turn, wanted_K, replies)
            wanted_K = self._wanted(turn)  # a shard may have been restored meanwhile
        slots_N = self._caches.find(turn.worker, turn.plan.keys_N)
        self._observe(slots_N)
        rows_ND = self._caches.use(slots_N, turn.step)
        self._fetched = slots_N, rows_ND
        return Fetched(turn.batch, turn.plan, rows_ND)

    def push(
        self,
        plan: BatchPlan,
        grads_ND: Tensor,
        progress: Progress,
        *,
        is_boundary: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Update the worker's copies; one message a rank pushes what must go and asks for rows of the next worker."""
        self._update(plan, grads_ND)
        step = progress.step + 1
        if self._empties(step):
            assert is_boundary, "caches are emptied where a save is due"
            following, pending = None, self._caches.drain()
        else:
            following = self._turn(step)
            pending = self._make_ready(following)
        # What leaves does not depend on whether something is due here; only lookups wait until it is done.
        asking = None if is_boundary else following
        wanted_K = self._wanted(asking) if asking else None
        self._pushing = plan, pending
        underway = self._recovery.start(self._messages(self._pushes(pending, step), wanted_K))
        if step + 1 < self._num_steps:
            self._planned = self._turn(step + 1)
        meanwhile()
        replies = self._recovery.finish(underway, progress)
        self._pushing = None
        if asking and wanted_K is not None:
            self._store(asking, wanted_K, replies)
        self._next, self._must_ask = following, is_boundary

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """Rows as they would be if everything that is pending were pushed; it is not."""
        rows_ND = pull(self._recovery, self._ranks, plan, progress)
        changed_P, sums_PD = self._caches.pending(plan.keys_N)
        index_P = torch.from_numpy(changed_P)
        told_PD = stepped(rows_ND.index_select(0, index_P), sums_PD, self._learning_rate)
        return rows_ND.index_put_((index_P,), told_PD)

    def summary(self) -> dict[str, float]:
        """What moved, and how old rows were."""
        traffic, seen = self.traffic, self.seen
        num_hits = traffic.accessed_rows - traffic.fetched_rows
        # Hetu sends key and version of each row that it reads, gets key and version with each that it must replace, and
        # tells with each gradient how many updates it sums up: 8 bytes each. Keys of fetched rows are in `bytes`.
        clock_bytes = num_hits * 16 + traffic.fetched_rows * 24 + traffic.written_rows * 8
        return {**traffic.summary(), **seen.summary(traffic.accessed_rows), "clock_bytes": clock_bytes}

    # --- turns --------------------------------------------------------------------------------------------------------

    def _turn(self, step: int) -> Turn:
        planned, self._planned = self._planned, None
        if planned is not None and planned.step == step:
            return planned
        batch, plan = self._batches(step)
        return Turn(step, step % self._num_workers, batch, plan)

    def _wanted(self, turn: Turn) -> I64:
        """Keys that the worker must fetch for its batch."""
        keys_N = turn.plan.keys_N
        return keys_N[self._caches.wanted(turn.worker, keys_N, self._staleness)]

    def _make_ready(self, turn: Turn) -> Pending:
        """Everything that must be pushed before the batch is read: by the write bound, for room, or for being read."""
        self._caches.make_ready(turn.worker, turn.plan.keys_N, step=turn.step, staleness=self._staleness)
        return self._caches.collect()

    def _update(self, plan: BatchPlan, grads_ND: Tensor) -> None:
        """The worker's own update of its copies, by the arithmetic of ``Shard.apply``; mark what is over the bound."""
        assert self._fetched is not None
        slots_N, rows_ND = self._fetched
        updates_N = self._caches.update(
            slots_N,
            stepped(rows_ND, grads_ND, self._learning_rate),
            grads_ND,
            plan.counts_N,
            plan.sampled_N,
        )
        is_over_N = updates_N > self._staleness
        self._caches.tell(slots_N[is_over_N])
        self.seen.most_pending = max(self.seen.most_pending, int(updates_N[~is_over_N].max(initial=0)))

    def _store(self, turn: Turn, keys_K: I64, replies: dict[Rank, Tensor]) -> None:
        self._caches.store(turn.worker, keys_K, torch.cat(list(replies.values())))
        self.traffic.fetched_rows += len(keys_K)
        self.traffic.sent_bytes += len(keys_K) * self._id_bytes
        self.traffic.received_bytes += len(keys_K) * self._row_bytes
        self.traffic.peak_rows = max(self.traffic.peak_rows, self._caches.num_rows)

    def _discard(self, casualties: frozenset[Rank]) -> None:
        """Shards were restored alone: copies of their rows, and what was pending of them, are no more."""
        for rank in casualties:
            self._caches.discard(int(self._base_R[ps_index(rank)]), int(self._base_R[ps_index(rank) + 1]))

    def _spared(self, rank: Rank) -> tuple[int, int]:
        """What the message under way holds of earlier steps: its replacement gets that, though it counts as sent.

        The batch's own updates do not yet count as sent. Negative where more of these are pending than there is of
        earlier steps in the message: they will count as sent, and are lost.
        """
        if self._pushing is None:
            return 0, 0
        plan, pending = self._pushing
        told = self._count_updates(pending.keys_N, pending.counts_N)
        own = self._count_updates(plan.keys_N, plan.counts_N)
        k = ps_index(rank)
        return told[0][k] - own[0][k], told[1][k] - own[1][k]

    # --- messages -----------------------------------------------------------------------------------------------------

    def _pushes(self, pending: Pending, step: int) -> list[Push]:
        """What each rank is sent of ``pending``, as the gradients of step ``step``."""
        self.traffic.written_rows += len(pending.keys_N)
        self.traffic.sent_bytes += len(pending.keys_N) * self._gradient_bytes
        cuts = np.searchsorted(pending.keys_N, self._base_R)
        spans = [slice(cuts[k], cuts[k + 1]) for k in range(len(self._ranks))]
        return [
            Push(
                step=step,
                rows_N=torch.from_numpy(pending.keys_N[span] - self._base_R[k]),
                grads_ND=pending.grads_ND[span],
                counts_N=torch.from_numpy(pending.counts_N[span]),
                sampled_N=torch.from_numpy(pending.sampled_N[span]),
                learning_rate=self._learning_rate,
            )
            for k, span in enumerate(spans)
        ]

    def _messages(self, pushes: Sequence[Push | None], wanted_K: I64 | None) -> dict[Rank, Exchange]:
        """One message to every rank, empty if need be, so that no death goes unseen."""
        if wanted_K is None:
            return {rank: Exchange(push=push) for rank, push in zip(self._ranks, pushes, strict=True)}
        cuts = np.searchsorted(wanted_K, self._base_R)
        return {
            rank: Exchange(push=pushes[k], pull_N=torch.from_numpy(wanted_K[cuts[k] : cuts[k + 1]] - self._base_R[k]))
            for k, rank in enumerate(self._ranks)
        }

    def _observe(self, slots_N: I64) -> None:
        behind_N = self._caches.behind(slots_N)
        self.seen.total += int(behind_N.sum())
        self.seen.worst = max(self.seen.worst, int(behind_N.max()))
        self.traffic.accessed_rows += len(slots_N)
        self.traffic.uncached_bytes += len(slots_N) * (self._id_bytes + self._row_bytes + self._gradient_bytes)
