"""Bounded staleness: workers that train on rows that may be old, within a bound (HET, VLDB 2022, arXiv 2112.07221).

Clocks count the updates of a row. c_s: the clock up to which a worker's copy is complete. c_c: c_s plus the worker's
own updates not yet pushed. c_g: the clock of the row at its PS rank. s is ``cache.staleness``.

- Write: a worker updates its copy at once and sums its gradients. At c_c - c_s > s their sum is pushed; c_g and c_s
  grow by the number of updates, and the copy stays.
- Read: a copy may be used while c_g - c_s <= s: it lacks at most s of the updates by others that the PS rank has.
  Otherwise its pending gradients are pushed and the row is fetched anew.
- Beyond ``cache.max_rows`` copies the least recently used one is evicted, and its pending gradients are pushed.

So a row that is read lacks at most s updates that others have pushed, and as many of each worker that has not pushed.
With s = 0 the results are those of no cache, to the bit. Each rank gets one message a step, as without a cache.

- Where a save is due, all that is pending is pushed and the caches are emptied: what follows depends on the checkpoint
  alone. Kills and evaluations change no cache; an evaluation sees rows as if everything had been pushed.
- When a shard is restored alone, the copies of its rows are discarded; gradients pending for it are lost, and counted.

Where descriptions of HET differ, this follows its release (Hsword/Hetu, ``src/hetu_cache/src/cache.cc``). The bound of
reads is stricter than the other reading, c_g - c_c <= s. Differences from HET:

- One trainer runs the workers in turn: batch t is of worker t mod W. Nothing races, and a run can be repeated. The
  workers share one dense network, which is updated after every batch.
- All pushes pass through the trainer, so a row's clock is at hand. ``clock_bytes`` is what asking for it would cost.
- A batch counts as one update of a row; in Hetu every occurrence of the row in the batch does. In Hetu's release a row
  that is too old is replaced without a push, and pending gradients are added to the new value.

A row is found by one look-up in an array of 4 bytes a row (only pages in use take memory). So the cost of a step does
not depend on the number of cached rows.

N distinct rows of a batch, K keys of rows to fetch, D embedding dim, X columns of a row, M all keys (rows in the
rank-major order of all rows), W workers, E rows that some worker caches (entries), S cached copies (slots; a worker has
at most one copy of a row), P slots that are flushed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.client.embedding_client import ClientSpec, EmbeddingClient, Keys, Pulled, Traffic, local_rows, make_pushes
from harness.client.slots import Recency, SlotPool, Slots, grown
from harness.core.lookup import BatchPlan, TouchedRows
from harness.core.plans import Progress, Rank
from harness.core.resumable import Resumable
from harness.kernels.row_loops import sum_runs

_FIRST_CAPACITY = 1024
_OF_ENTRIES = ("_key_E", "_clock_E", "_slot_EW")
_OF_SLOTS = (
    *("_entry_S", "_worker_S", "_version_S", "_updates_S", "_counts_S", "_sampled_S"),
    *("_grads_SD", "_values_SX"),
)


Pending = tuple[TouchedRows, Tensor]
"""Rows whose gradients are to be pushed, and the gradient of each, (N, D), summed over workers."""


class WorkerCaches(Resumable):
    """Copies of rows by worker: values, gradients not yet pushed, and clocks that count updates.

    One update is one batch's gradient of a row. A row's clock counts the updates pushed to its PS rank since a worker
    first cached the row; only differences of clocks are meaningful. A copy's version is the clock up to which the copy
    is complete; the clock does not count updates that are still pending. Clock minus version (:meth:`behind`) is the
    number of updates by other workers that the PS rank has and the copy lacks. Worker ``step % W`` trains on batch
    ``step``.

    ``cache.max_rows`` bounds the copies of all workers. The least recently used copy is evicted first; among rows used
    at the same step, the lower key. Rows of the current batch are kept, even if they alone exceed the bound.
    """

    _state = (*_OF_ENTRIES, *_OF_SLOTS, "_entries", "_slots", "_recency")
    _state_types = (SlotPool,)

    def __init__(self, spec: ClientSpec) -> None:
        self._bases_R = spec.batches.placement.rank_base_R
        self._cache = spec.cache
        self._dim, self._width = spec.run.dim, spec.run.width
        self.clear()

    def clear(self) -> None:
        """Drop all copies, with their pending gradients."""
        self._entry_of_M = np.zeros(self._bases_R[-1], np.int32)  # 0: no worker caches the row; else its entry + 1
        self._entries = SlotPool()
        self._key_E = np.empty(0, np.int64)
        self._clock_E = np.empty(0, np.int64)
        self._slot_EW = np.empty((0, self._cache.workers), np.int32)  # -1: not cached
        self._slots = SlotPool()
        self._entry_S = np.empty(0, np.int32)
        self._worker_S = np.empty(0, np.int32)
        self._version_S = np.empty(0, np.int64)
        self._updates_S = np.empty(0, np.int32)  # pending; the three arrays below are meaningful where there are any
        self._counts_S = np.empty(0, np.int32)
        self._sampled_S = np.empty(0, bool)
        self._grads_SD = torch.empty((0, self._dim))
        self._values_SX = torch.empty((0, self._width))
        self._flushed: list[tuple[Keys, Slots]] = []  # keys and slots whose gradients go out with the next message
        self._recency = None if self._cache.max_rows is None else Recency()
        self._grow(self._entries, _FIRST_CAPACITY, _OF_ENTRIES, fill=-1)
        self._grow(self._slots, _FIRST_CAPACITY, _OF_SLOTS)

    def _loaded(self) -> None:
        used_E = np.flatnonzero(self._key_E >= 0)
        self._entry_of_M[self._key_E[used_E]] = used_E + 1

    @property
    def num_rows(self) -> int:
        return self._slots.num_used

    def find(self, step: int, keys_N: Keys) -> Keys:
        """The slots of the copies that the worker of ``step`` has, int64; -1 for a row without a copy."""
        entries_N = self._entry_of_M[keys_N] - 1
        slots_N = self._slot_EW[entries_N, step % self._cache.workers]
        return np.where(entries_N < 0, -1, slots_N).astype(np.int64)

    def behind(self, slots_N: Keys) -> Keys:
        """The number of updates by other workers that the PS rank has and the copy lacks, for each slot."""
        return self._clock_E[self._entry_S[slots_N]] - self._version_S[slots_N]

    def wanted(self, step: int, keys_N: Keys) -> Keys:
        """The rows that the worker of ``step`` must fetch: it has no copy, or one more than ``staleness`` behind."""
        slots_N = self.find(step, keys_N)
        return keys_N[(slots_N < 0) | (self.behind(slots_N) > self._cache.staleness)]

    def use(self, slots_N: Keys, step: int) -> Tensor:
        """The values of copies, float32 (N, X). Records that batch number ``step`` uses them."""
        if self._recency is not None:
            self._recency.use(step, slots_N)
        return self._values_SX.index_select(0, torch.from_numpy(slots_N))

    def pending(self, keys_N: Keys) -> tuple[Keys, Tensor]:
        """The indices of those ``keys_N`` with pending gradients, ascending, and the gradients summed over workers."""
        entries_N = self._entry_of_M[keys_N] - 1
        slots_NW = np.where(entries_N[:, None] < 0, -1, self._slot_EW[entries_N])
        row_P, worker_P = np.nonzero((slots_NW >= 0) & (self._updates_S[slots_NW] > 0))
        starts = _starts(row_P)
        return row_P[starts], self._sums(slots_NW[row_P, worker_P].astype(np.int64), starts)

    def update(self, slots_N: Keys, updated_NX: Tensor, grads_ND: Tensor, plan: BatchPlan) -> int:
        """Give copies their new values, and add the gradients to those pending.

        A copy with more than ``staleness`` pending updates is flushed. Returns the most pending updates that one of
        these copies has afterwards.
        """
        index_N = torch.from_numpy(slots_N)
        self._values_SX.index_put_((index_N,), updated_NX)
        is_more_N = self._updates_S[slots_N] > 0
        before_ND = self._grads_SD.index_select(0, index_N)
        before_ND[torch.from_numpy(~is_more_N)] = 0
        self._grads_SD.index_put_((index_N,), before_ND.add_(grads_ND))
        self._counts_S[slots_N] = np.where(is_more_N, self._counts_S[slots_N], 0) + plan.counts_N
        self._sampled_S[slots_N] = (is_more_N & self._sampled_S[slots_N]) | plan.sampled_N
        self._updates_S[slots_N] += 1
        self.flush(slots_N[self._updates_S[slots_N] > self._cache.staleness])
        return int(self._updates_S[slots_N].max(initial=0))

    def flush(self, slots_P: Keys) -> None:
        """Queue the pending gradients of these copies for the next message, and advance the clocks and versions."""
        slots_P = slots_P[self._updates_S[slots_P] > 0]
        entries_P = self._entry_S[slots_P]
        np.add.at(self._clock_E, entries_P, self._updates_S[slots_P])
        self._version_S[slots_P] += self._updates_S[slots_P]
        self._updates_S[slots_P] = 0
        self._flushed.append((self._key_E[entries_P], slots_P))

    def make_ready(self, step: int, keys_N: Keys) -> Pending:
        """Make room for the rows of ``keys_N`` without a copy, and flush copies that must be fetched anew.

        Returns all gradients to push before batch ``step`` is read: of copies flushed by :meth:`update`, of evicted
        copies, and of copies that are fetched anew.
        """
        slots_N = self.find(step, keys_N)
        own_N = slots_N[slots_N >= 0]
        if self._recency is not None:
            assert self._cache.max_rows is not None
            self._recency.protect(step, own_N)
            excess = self.num_rows + len(slots_N) - len(own_N) - self._cache.max_rows
            evicted = self._recency.take_oldest(excess, before=step)
            self.flush(evicted)
            self._free(evicted)
        # Only now: evictions may have advanced clocks.
        self.flush(own_N[self.behind(own_N) > self._cache.staleness])
        return self.take_flushed()

    def take_flushed(self) -> Pending:
        """Remove and return the flushed gradients; several of one row are summed, in the order of their workers."""
        nothing: tuple[Keys, Slots] = (np.empty(0, np.int64), np.empty(0, np.int64))
        keys_P, slots_P = map(np.concatenate, zip(nothing, *self._flushed, strict=True))
        self._flushed = []
        order = np.lexsort((self._worker_S[slots_P], keys_P))
        keys_P, slots_P = keys_P[order], slots_P[order]
        starts = _starts(keys_P)
        keys_N = keys_P[starts]
        bounds = np.searchsorted(keys_N, self._bases_R)
        touched = TouchedRows(
            keys_N=keys_N,
            rows_N=keys_N - np.repeat(self._bases_R[:-1], np.diff(bounds)),
            counts_N=np.add.reduceat(self._counts_S[slots_P], starts, dtype=np.int32),
            sampled_N=np.logical_or.reduceat(self._sampled_S[slots_P], starts),
            bounds=tuple(bounds.tolist()),
        )
        return touched, self._sums(slots_P, starts)

    def insert(self, step: int, keys_N: Keys, values_NX: Tensor) -> None:
        """Insert copies that have just been fetched; they have no pending gradients."""
        slots_N = self.find(step, keys_N)
        is_new_N = slots_N < 0
        slots_N[is_new_N] = self._add(step % self._cache.workers, keys_N[is_new_N])
        assert not self._updates_S[slots_N].any(), "pending gradients are flushed before a row is fetched anew"
        self._values_SX.index_put_((torch.from_numpy(slots_N),), values_NX)
        self._version_S[slots_N] = self._clock_E[self._entry_S[slots_N]]

    def drain(self) -> Pending:
        """Empty all caches, and return all pending gradients."""
        self.flush(np.flatnonzero(self._updates_S))
        pending = self.take_flushed()
        self.clear()
        return pending

    def discard(self, first: int, last: int) -> None:
        """Drop the copies of rows ``first <= key < last``, with their pending gradients."""
        used_E = np.flatnonzero((self._key_E >= first) & (self._key_E < last))
        slots = self._slot_EW[used_E].ravel()
        self._free(slots[slots >= 0].astype(np.int64))

    def _free(self, slots_P: Keys) -> None:
        """Remove copies and their pending gradients; a row without a copy loses its entry, and so its clock."""
        entries_P = self._entry_S[slots_P]
        self._slot_EW[entries_P, self._worker_S[slots_P]] = -1
        self._updates_S[slots_P] = 0
        self._slots.give(slots_P)
        if self._recency is not None:
            self._recency.forget(slots_P)
        entries = np.unique(entries_P).astype(np.int64)
        orphans = entries[(self._slot_EW[entries] < 0).all(axis=1)]
        self._entry_of_M[self._key_E[orphans]] = 0
        self._key_E[orphans] = -1
        self._entries.give(orphans)

    def _add(self, worker: int, keys_N: Keys) -> Keys:
        """Take slots for copies that ``worker`` lacks, and entries for rows that no worker has; returns the slots."""
        entries_N = self._entry_of_M[keys_N].astype(np.int64) - 1
        is_new_N = entries_N < 0
        fresh_N = keys_N[is_new_N]
        self._grow(self._entries, self._entries.num_used + len(fresh_N), _OF_ENTRIES, fill=-1)
        entries_N[is_new_N] = added = self._entries.take(len(fresh_N))
        self._entry_of_M[fresh_N] = added + 1
        self._key_E[added] = fresh_N
        self._clock_E[added] = 0
        self._grow(self._slots, self._slots.num_used + len(keys_N), _OF_SLOTS)
        slots_N = self._slots.take(len(keys_N))
        self._entry_S[slots_N] = entries_N
        self._worker_S[slots_N] = worker
        self._slot_EW[entries_N, worker] = slots_N
        return slots_N

    def _grow(self, pool: SlotPool, needed: int, names: Sequence[str], *, fill: int = 0) -> None:
        """Grow ``pool``, and the arrays that its numbers index, to ``needed``, or to twice the present size.

        Doubling stops at the bound of copies, which bounds the entries too, since each entry has a copy.
        """
        if needed > pool.capacity:
            twice, most = 2 * pool.capacity, self._cache.max_rows
            pool.grow(max(needed, twice if most is None else min(twice, most)))
            for name in names:
                setattr(self, name, grown(getattr(self, name), pool.capacity, fill=fill))

    def _sums(self, slots_P: Keys, starts_N: Keys) -> Tensor:
        """The sum of the gradients in each run of ``slots_P``, (N, D). ``starts_N``: where the runs begin."""
        num_tables = num_vectors = 1  # slot s has vector s
        return torch.from_numpy(sum_runs(self._grads_SD.numpy(), slots_P, starts_N, num_tables, num_vectors))


def _starts(sorted_P: Keys) -> Keys:
    """Indices at which runs of equal values begin."""
    is_first_P = np.ones(len(sorted_P), bool)
    np.not_equal(sorted_P[1:], sorted_P[:-1], out=is_first_P[1:])
    return np.flatnonzero(is_first_P)


@dataclass
class StaleTraffic(Traffic):
    """Traffic, and the staleness of the rows that batches read: the updates by other workers that a copy lacked.

    ``max_pending``: the most updates of one copy that were still pending after a step.
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
    """Trains on the copies of several workers in turn.

    The results of a run depend on ``cache.staleness``, ``cache.workers`` and ``cache.max_rows``.
    """

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
        self._lacks_copies = False  # whether copies of the pulled batch may have been dropped
        self._pulled: tuple[BatchPlan, Keys, Tensor] | None = None  # the batch's plan, slots and rows
        self._pushing: tuple[TouchedRows, TouchedRows] | None = None  # rows whose gradients are under way, of a batch

    async def pull(self, progress: Progress) -> Pulled:
        step = progress.step
        await self._fetch(progress)
        batch, plan = self._batches(step)
        slots_N = self._caches.find(step, plan.keys_N)
        behind_N = self._caches.behind(slots_N)
        self.traffic.total_staleness += int(behind_N.sum())
        self.traffic.max_staleness = max(self.traffic.max_staleness, int(behind_N.max()))
        self.traffic.access(len(slots_N))
        rows_ND = self._caches.use(slots_N, step)
        self._lacks_copies = False
        self._pulled = plan, slots_N, rows_ND
        return Pulled(batch, plan, rows_ND)

    async def push(
        self, grads_ND: Tensor, progress: Progress, *, is_boundary: bool, overlap: Callable[[], None]
    ) -> None:
        """Update the worker's copies, and send each rank one message.

        The message pushes the gradients that are due and, unless ``is_boundary``, fetches rows for the next batch.
        """
        assert self._pulled is not None
        plan, slots_N, rows_ND = self._pulled
        if self._lacks_copies:  # a shard was restored while the batch was computed: its gradients are of restored rows
            await self._fetch(progress)
            slots_N = self._caches.find(progress.step, plan.keys_N)
            rows_ND = self._caches.use(slots_N, progress.step)
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
        sent = self._requests.start(self._messages(pushes, rows))
        if step + 1 < self._spec.num_steps:
            self._batches(step + 1)
        overlap()
        replies = await self._requests.finish(sent, progress)
        self._pushing = None
        if wanted_K is not None:
            self._store(step, wanted_K, replies)
        self._must_ask = is_boundary

    async def look_up(self, plan: TouchedRows, progress: Progress) -> Tensor:
        """The rows of any batch with all pending gradients applied. The gradients remain pending."""
        rows_ND = await super().look_up(plan, progress)
        changed_P, sums_PD = self._caches.pending(plan.keys_N)
        index_P = torch.from_numpy(changed_P)
        pushed_PD = self._spec.run.optimizer.stepped(rows_ND.index_select(0, index_P), sums_PD, self._learning_rate)
        return rows_ND.index_put_((index_P,), pushed_PD)

    def summary(self) -> dict[str, float]:
        return self.traffic.summary()

    async def _fetch(self, progress: Progress) -> None:
        """Fetch the rows of the batch of which its worker has no copy, or one that is too stale."""
        wanted_K = self._wanted(progress.step)
        while self._must_ask or len(wanted_K):
            self._must_ask = False
            replies = await self._requests.ask(self._messages(rows=self._local(wanted_K)), progress)
            self._store(progress.step, wanted_K, replies)
            wanted_K = self._wanted(progress.step)  # a shard may have been restored meanwhile

    def _wanted(self, step: int) -> Keys:
        return self._caches.wanted(step, self._batches(step)[1].keys_N)

    def _store(self, step: int, keys_K: Keys, replies: dict[Rank, Tensor]) -> None:
        self._caches.insert(step, keys_K, torch.cat(list(replies.values())))
        self.traffic.fetch(len(keys_K))
        self.traffic.peak(self._caches.num_rows)

    def shards_restored(self, ranks: Iterable[Rank]) -> Mapping[Rank, tuple[int, int]]:
        """See EmbeddingClient. The correction: updates in the message in flight minus updates of the present step.

        The ledger counts the present step's updates later. The correction is negative if more of them were still
        pending, and are lost, than the message holds of earlier steps.
        """
        for rank in ranks:
            self._caches.discard(*self._spans[rank])
        self._lacks_copies = True
        if self._pushing is None:
            return {}
        pushed, own = (self._spec.run.count_updates(rows.keys_N, rows.counts_N) for rows in self._pushing)
        return {rank: (pushed[0][k] - own[0][k], pushed[1][k] - own[1][k]) for k, rank in enumerate(self._ranks)}

    def _local(self, keys_N: Keys) -> list[Tensor]:
        return [local_rows(keys_N, first, last) for first, last in self._spans.values()]
