"""Bounded staleness: workers that train on rows that may be old, within a bound (HET, VLDB 2022, arXiv 2112.07221).

Clocks count the updates of a row. c_s: the clock up to which a worker's copy is complete. c_c: c_s plus own updates not
yet pushed. c_g: the clock of the row at its PS rank. s is ``cache.staleness``.

- Write: a worker updates its copy at once and sums its gradients. At c_c - c_s > s their sum is pushed; c_g and c_s
  grow by the number of updates, and the copy stays.
- Read: a copy may be used while c_g - c_s <= s: it lacks at most s of the updates by others that the PS rank has.
  Otherwise its pending gradients are pushed and the row is fetched anew.
- Beyond ``cache.max_rows`` copies the least recently used one is evicted, and its pending gradients are pushed.

docs/ARCHITECTURE.md, "Bounded staleness", has what follows from it, what differs from HET, and what saves, evaluations
and failures do to the caches. N distinct rows of a batch, K keys of rows to fetch, D embedding dim, X columns of a row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.client.embedding_client import ClientSpec, EmbeddingClient, Keys, Pulled, local_rows, make_pushes
from harness.client.traffic import Traffic
from harness.client.worker_caches import WorkerCaches
from harness.core.lookup import BatchPlan, TouchedRows
from harness.core.plans import Progress, Rank


@dataclass
class StaleTraffic(Traffic):
    """Traffic, and the staleness of the rows read: the number of other workers' updates that the copy lacked.

    ``max_pending``: the most updates of one row that a worker had not pushed after a step.
    """

    total_staleness: int = 0
    max_staleness: int = 0
    max_pending: int = 0

    def summary(self) -> dict[str, float]:
        num_hits = self.accessed_rows - self.fetched_rows
        return {
            **super().summary(),
            "mean_staleness": self.total_staleness / self.accessed_rows if self.accessed_rows else 0.0,
            "max_staleness": self.max_staleness,
            "max_pending": self.max_pending,
            # Hetu sends key and version of each row that it reads, receives key and version with each that it replaces,
            # and sends with each gradient the number of its updates: 8 bytes each. Keys of fetched rows are in `bytes`.
            "clock_bytes": num_hits * 16 + self.fetched_rows * 24 + self.written_rows * 8,
        }


class StaleClient(EmbeddingClient):
    """Trains on the copies of several workers in turn. Its bits depend on ``cache.staleness`` and ``cache.workers``."""

    _state = ("_caches", "_must_ask", "traffic")
    _state_types = (StaleTraffic,)

    def __init__(self, spec: ClientSpec) -> None:
        super().__init__(spec)
        self._caches = WorkerCaches(spec)
        self.traffic = StaleTraffic(spec.run.dim, spec.run.width)
        self.reset()

    def reset(self) -> None:
        self._caches.clear()
        self._must_ask = True  # something was due: every rank must answer before the next batch
        self._pulled: tuple[BatchPlan, Keys, Tensor] | None = None  # the batch's plan, slots and rows
        self._pushing: tuple[TouchedRows, TouchedRows] | None = None  # rows whose gradients are under way, of a batch

    def pull(self, progress: Progress) -> Pulled:
        step = progress.step
        wanted_K = self._wanted(step)
        while self._must_ask or len(wanted_K):
            self._must_ask = False
            replies = self._failover.ask(self._messages(rows=self._local(wanted_K)), progress)
            self._store(step, wanted_K, replies)
            wanted_K = self._wanted(step)  # a shard may have been restored meanwhile
        batch, plan = self._batches(step)
        slots_N = self._caches.find(step, plan.keys_N)
        behind_N = self._caches.behind(slots_N)
        self.traffic.total_staleness += int(behind_N.sum())
        self.traffic.max_staleness = max(self.traffic.max_staleness, int(behind_N.max()))
        self.traffic.access(len(slots_N))
        rows_ND = self._caches.use(slots_N, step)
        self._pulled = plan, slots_N, rows_ND
        return Pulled(batch, plan, rows_ND)

    def push(self, grads_ND: Tensor, progress: Progress, *, is_boundary: bool, overlap: Callable[[], None]) -> None:
        """Update the worker's copies. One message a rank pushes gradients and fetches rows for the next worker."""
        assert self._pulled is not None
        plan, slots_N, rows_ND = self._pulled
        updated_ND = self._spec.run.optimizer.stepped(rows_ND, grads_ND, self._learning_rate)
        most_pending = self._caches.update(slots_N, updated_ND, grads_ND, plan)
        self.traffic.max_pending = max(self.traffic.max_pending, most_pending)
        step = progress.step + 1
        if self._spec.needs_all(step):
            assert is_boundary, "caches are emptied where a save is due"
            pushed, sums_ND = self._caches.drain()
        else:
            pushed, sums_ND = self._caches.make_ready(step, self._batches(step)[1].keys_N)
        # Pushes are the same whether or not an action is due here; only lookups wait until the action is done.
        wanted_K = None if is_boundary else self._wanted(step)
        self._pushing = pushed, plan
        rows = () if wanted_K is None else self._local(wanted_K)
        self.traffic.push(len(pushed.keys_N))
        pushes = make_pushes(pushed, sums_ND, step, self._learning_rate)
        underway = self._failover.start(self._messages(pushes, rows))
        if step + 1 < self._spec.num_steps:
            self._batches(step + 1)
        overlap()
        replies = self._failover.finish(underway, progress)
        self._pushing = None
        if wanted_K is not None:
            self._store(step, wanted_K, replies)
        self._must_ask = is_boundary

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """Rows of any batch with all pending gradients applied; the gradients remain pending."""
        rows_ND = super().look_up(plan, progress)
        changed_P, sums_PD = self._caches.pending(plan.keys_N)
        index_P = torch.from_numpy(changed_P)
        pushed_PD = self._spec.run.optimizer.stepped(rows_ND.index_select(0, index_P), sums_PD, self._learning_rate)
        return rows_ND.index_put_((index_P,), pushed_PD)

    def summary(self) -> dict[str, float]:
        return self.traffic.summary()

    def _wanted(self, step: int) -> Keys:
        """Keys of the rows that the worker of ``step`` must fetch for its batch."""
        return self._caches.wanted(step, self._batches(step)[1].keys_N)

    def _store(self, step: int, keys_K: Keys, replies: dict[Rank, Tensor]) -> None:
        self._caches.insert(step, keys_K, torch.cat(list(replies.values())))
        self.traffic.fetch(len(keys_K))
        self.traffic.peak(self._caches.num_rows)

    def shards_restored(self, ranks: Iterable[Rank]) -> Mapping[Rank, tuple[int, int]]:
        """See EmbeddingClient. Updates in the message under way, less the present step's, which are counted later.

        Negative where more of the present step's updates stay pending, and are lost, than the message has of earlier
        steps.
        """
        for rank in ranks:
            self._caches.discard(*self._spans[rank])
        if self._pushing is None:
            return {}
        pushed, own = (self._spec.run.count_updates(rows.keys_N, rows.counts_N) for rows in self._pushing)
        return {rank: (pushed[0][k] - own[0][k], pushed[1][k] - own[1][k]) for k, rank in enumerate(self._ranks)}

    def _local(self, keys_N: Keys) -> list[Tensor]:
        """By rank, the local rows of ``keys_N``."""
        return [local_rows(keys_N, first, last) for first, last in self._spans.values()]
