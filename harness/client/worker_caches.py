"""The cached embedding rows of several workers, each row with its clocks: the state of ``client.staleness``.

Keys are rows in the rank-major order of all rows (``Placement.rank_base_R``). M all keys, W workers, E rows that some
worker caches (entries), S cached copies (slots; a worker has at most one of a row), N keys of a request, P slots that
are flushed, D embedding dim, X columns of a row: D values, then state of the optimizer.

A row is found by one look-up in an array of 4 bytes a row (only pages in use take memory), so the cost of a step does
not depend on the number of cached rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from harness.client.embedding_client import ClientSpec, Keys
from harness.client.slots import Recency, SlotPool, Slots, grown
from harness.core.lookup import BatchPlan, TouchedRows
from harness.core.resumable import Resumable
from harness.kernels.row_loops import sum_runs

_FIRST_CAPACITY = 1024
_OF_ENTRIES = ("_key_E", "_clock_E", "_slot_EW")
_OF_SLOTS = (
    *("_entry_S", "_worker_S", "_version_S", "_updates_S", "_counts_S", "_sampled_S"),
    *("_grads_SD", "_values_SX"),
)


Pending = tuple[TouchedRows, Tensor]
"""Rows whose gradients are to be pushed, and these gradients, (N, D), summed over workers."""


class WorkerCaches(Resumable):
    """Copies of rows by worker: values, gradients not yet pushed, and clocks that count updates.

    One update is one batch's gradient of a row. A row's global clock counts the updates pushed to its PS rank since
    some worker cached it; only differences of clocks are meaningful. A copy's version is the clock as of which it is
    complete; its own pending updates are not in the clock. ``behind`` is clock minus version: the updates of other
    workers that the PS rank has and the copy lacks. Worker ``step % W`` trains on batch ``step``.

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
        """Number of copies of all workers."""
        return self._slots.num_used

    def find(self, step: int, keys_N: Keys) -> Keys:
        """The slots of the copies of the worker of ``step``, -1 for a row without a copy."""
        entries_N = self._entry_of_M[keys_N] - 1
        slots_N = self._slot_EW[entries_N, step % self._cache.workers]
        return np.where(entries_N < 0, -1, slots_N).astype(np.int64)

    def behind(self, slots_N: Keys) -> Keys:
        """Updates by others that the PS ranks have and these copies lack."""
        return self._clock_E[self._entry_S[slots_N]] - self._version_S[slots_N]

    def wanted(self, step: int, keys_N: Keys) -> Keys:
        """The rows that the worker of ``step`` must fetch: without a copy, or more than ``staleness`` behind."""
        slots_N = self.find(step, keys_N)
        return keys_N[(slots_N < 0) | (self.behind(slots_N) > self._cache.staleness)]

    def use(self, slots_N: Keys, step: int) -> Tensor:
        """The values of copies, float32 (N, X), for batch number ``step``; records the use."""
        if self._recency is not None:
            self._recency.use(step, slots_N)
        return self._values_SX.index_select(0, torch.from_numpy(slots_N))

    def pending(self, keys_N: Keys) -> tuple[Keys, Tensor]:
        """Indices of the ``keys_N`` with unpushed gradients, ascending, and these gradients summed over workers."""
        entries_N = self._entry_of_M[keys_N] - 1
        slots_NW = np.where(entries_N[:, None] < 0, -1, self._slot_EW[entries_N])
        row_P, worker_P = np.nonzero((slots_NW >= 0) & (self._updates_S[slots_NW] > 0))
        starts = _starts(row_P)
        return row_P[starts], self._sums(slots_NW[row_P, worker_P].astype(np.int64), starts)

    def update(self, slots_N: Keys, updated_NX: Tensor, grads_ND: Tensor, plan: BatchPlan) -> int:
        """Apply a worker's own update to its copies: new values, and one more gradient pending, or queued for a push.

        Returns the most pending updates that one of these copies is left with.
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
        """Queue the pending gradients of these copies for the next message; clocks of rows and copies advance."""
        slots_P = slots_P[self._updates_S[slots_P] > 0]
        entries_P = self._entry_S[slots_P]
        np.add.at(self._clock_E, entries_P, self._updates_S[slots_P])
        self._version_S[slots_P] += self._updates_S[slots_P]
        self._updates_S[slots_P] = 0
        self._flushed.append((self._key_E[entries_P], slots_P))

    def make_ready(self, step: int, keys_N: Keys) -> Pending:
        """Make room for the rows of ``keys_N`` without a copy; flush copies that must be fetched anew.

        Returns all gradients to push before batch ``step`` is read: of copies over the bound, evicted, or fetched anew.
        """
        slots_N = self.find(step, keys_N)
        own_N = slots_N[slots_N >= 0]
        if self._recency is not None:
            assert self._cache.max_rows is not None
            self._recency.protect(step, own_N)
            excess = self.num_rows + len(slots_N) - len(own_N) - self._cache.max_rows
            evicted = self._recency.oldest(excess, before=step)
            self.flush(evicted)
            self._free(evicted)
        # Only now: evictions may have advanced clocks.
        self.flush(own_N[self.behind(own_N) > self._cache.staleness])
        return self.take_flushed()

    def take_flushed(self) -> Pending:
        """Return the gradients queued since the last call, of one row summed in the order of workers."""
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

        No entry lacks a copy, so both pools grow to at most the bound of copies, unless one batch needs more.
        """
        if needed > pool.capacity:
            twice, most = 2 * pool.capacity, self._cache.max_rows
            pool.grow(max(needed, twice if most is None else min(twice, most)))
            for name in names:
                setattr(self, name, grown(getattr(self, name), pool.capacity, fill=fill))

    def _sums(self, slots_P: Keys, starts_N: Keys) -> Tensor:
        return torch.from_numpy(sum_runs(self._grads_SD.numpy(), slots_P, starts_N, 1, 1))


def _starts(sorted_P: Keys) -> Keys:
    """Indices at which runs of equal values begin."""
    is_first_P = np.ones(len(sorted_P), bool)
    np.not_equal(sorted_P[1:], sorted_P[:-1], out=is_first_P[1:])
    return np.flatnonzero(is_first_P)
