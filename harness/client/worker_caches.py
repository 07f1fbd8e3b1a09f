"""The cached embedding rows of several workers, each row with its clocks: the state behind ``harness.client.stale``.

Keys are rows in the rank-major order of all rows (``Placement.positions``). M all keys, W workers, E rows that some
worker caches (entries), S cached copies (slots; a worker has one of a row at most), N keys of a request, P slots that
are told of, D embedding dim.

Finding a row costs one look into an array of 4 bytes a row (of which the system provides the pages that are used), so
a step costs the same however much is cached.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.lookup import sum_runs

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

_FIRST_CAPACITY = 1024
_SLACK = 1 << 12  # uses that may be queued in vain before the queue is swept


@dataclass(frozen=True)
class Pending:
    """Gradients to push, summed over workers, by ascending key; the samples behind each, and whether one is sampled."""

    keys_N: I64
    grads_ND: Tensor
    counts_N: NDArray[np.int32]
    sampled_N: Flags


class Numbers:
    """Small numbers, handed out and given back."""

    def __init__(self) -> None:
        self.capacity = 0
        self.num_free = 0
        self._free = np.empty(0, np.int64)

    @property
    def num_used(self) -> int:
        """How many are out."""
        return self.capacity - self.num_free

    def grow(self, capacity: int) -> None:
        """Numbers below ``capacity``."""
        free = np.empty(capacity, np.int64)
        free[: self.num_free] = self._free[: self.num_free]
        added = capacity - self.capacity
        free[self.num_free : self.num_free + added] = np.arange(self.capacity, capacity)
        self._free, self.capacity, self.num_free = free, capacity, self.num_free + added

    def take(self, num: int) -> I64:
        """``num`` numbers that nobody has; there must be so many."""
        assert num <= self.num_free
        self.num_free -= num
        return self._free[self.num_free : self.num_free + num].copy()

    def give(self, numbers: I64) -> None:
        """They are free again."""
        self._free[self.num_free : self.num_free + len(numbers)] = numbers
        self.num_free += len(numbers)


class Recency:
    """Which slots were used longest ago, at constant cost per use.

    Uses are queued as they come. A slot's place in the queue counts only if it is that of its last use, so a use
    need not take the earlier one out; what does not count is passed over at the head and swept out now and then.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, I64]] = deque()
        self._num_queued = 0
        self._num_known = 0
        self._last_S = np.full(_FIRST_CAPACITY, -1, np.int64)

    def use(self, step: int, slots_N: I64) -> None:
        """All of ``slots_N`` were used at ``step``; among them the first counts as used longest ago."""
        self.spare(step, slots_N)
        self._queue.append((step, slots_N))
        self._num_queued += len(slots_N)
        if self._num_queued > 2 * self._num_known + _SLACK:
            self._sweep()

    def spare(self, step: int, slots_N: I64) -> None:
        """They are going to be used at ``step``: until then they are not among the oldest."""
        if len(slots_N) and (top := int(slots_N.max())) >= len(self._last_S):
            self._last_S = grown(self._last_S, 2 * (top + 1), fill=-1)
        self._num_known += int((self._last_S[slots_N] < 0).sum())
        self._last_S[slots_N] = step

    def forget(self, slots_N: I64) -> None:
        """They hold nothing any more."""
        self._num_known -= int((self._last_S[slots_N] >= 0).sum())
        self._last_S[slots_N] = -1

    def oldest(self, num: int, *, before: int) -> I64:
        """The ``num`` slots whose last use was longest ago, or fewer: none used at step ``before`` or later."""
        found: list[I64] = []
        while num > 0 and self._queue and self._queue[0][0] < before:
            step, slots = self._queue.popleft()
            self._num_queued -= len(slots)
            counting = slots[self._last_S[slots] == step]
            found.append(counting[:num])
            if len(rest := counting[num:]):
                self._queue.appendleft((step, rest))
                self._num_queued += len(rest)
            num -= len(found[-1])
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _sweep(self) -> None:
        kept = ((step, slots[self._last_S[slots] == step]) for step, slots in self._queue)
        self._queue = deque((step, slots) for step, slots in kept if len(slots))
        self._num_queued = sum(len(slots) for _, slots in self._queue)


class WorkerCaches:
    """What every worker has of which row: its value, gradients not yet pushed, and clocks that count updates.

    One update is one batch's gradient of a row. A row's global clock counts those that its PS rank was told of, since
    some worker cached it; only differences of clocks mean anything. A copy's version is the clock as of which it has
    everything; what is pending of its own is not in the clock. ``behind`` is the difference: the updates of other
    workers that the PS rank has and the copy lacks.

    Args:
        max_rows: bound on the copies of all workers; what was used longest ago goes first, of rows used at the same
            step the one with the lower key. The rows of one batch stay, even if they alone are more.
    """

    def __init__(self, *, num_workers: int, num_keys: int, dim: int, max_rows: int | None) -> None:
        self._entry_of_M = np.zeros(num_keys, np.int32)  # 0: nobody caches the row; else its entry + 1
        self._num_workers = num_workers
        self._dim = dim
        self._max_rows = max_rows
        self._start_empty()

    def _start_empty(self) -> None:
        self._entries = Numbers()
        self._key_E = np.empty(0, np.int64)
        self._clock_E = np.empty(0, np.int64)
        self._slot_EW = np.empty((0, self._num_workers), np.int32)  # -1: not cached
        self._slots = Numbers()
        self._entry_S = np.empty(0, np.int32)
        self._worker_S = np.empty(0, np.int32)
        self._version_S = np.empty(0, np.int64)
        self._updates_S = np.empty(0, np.int32)  # pending ones; the three below mean something where there are any
        self._counts_S = np.empty(0, np.int32)
        self._sampled_S = np.empty(0, bool)
        self._grads_SD = torch.empty((0, self._dim))
        self._values_SD = torch.empty((0, self._dim))
        self._told: list[tuple[I64, I64]] = []  # keys and slots whose gradients are on their way out
        self._recency = None if self._max_rows is None else Recency()
        self._grow_entries(_FIRST_CAPACITY)
        self._grow_slots(_FIRST_CAPACITY)

    @property
    def num_rows(self) -> int:
        """Copies that are held, by all workers."""
        return self._slots.num_used

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, worker: int, keys_N: I64) -> I64:
        """Slots of the worker's copies, -1 of a row that it does not have."""
        entries_N = self._entry_of_M[keys_N] - 1
        return np.where(entries_N < 0, -1, self._slot_EW[entries_N, worker]).astype(np.int64)

    def behind(self, slots_N: I64) -> I64:
        """Updates by others that the PS ranks have and these copies lack."""
        return self._clock_E[self._entry_S[slots_N]] - self._version_S[slots_N]

    def wanted(self, worker: int, keys_N: I64, staleness: int) -> Flags:
        """Of which rows the worker must fetch a copy: it has none, or one that is too far behind."""
        slots_N = self.find(worker, keys_N)
        return (slots_N < 0) | (self.behind(slots_N) > staleness)

    def use(self, slots_N: I64, step: int) -> Tensor:
        """The values of copies, float32 (N, D), for the batch number ``step``."""
        if self._recency is not None:
            self._recency.use(step, slots_N)
        return self._values_SD.index_select(0, torch.from_numpy(slots_N))

    def pending(self, keys_N: I64) -> tuple[I64, Tensor]:
        """Which of ``keys_N`` (their indices) have gradients not yet pushed, and the sums over workers, in order."""
        entries_N = self._entry_of_M[keys_N] - 1
        slots_NW = np.where(entries_N[:, None] < 0, -1, self._slot_EW[entries_N])
        row_P, worker_P = np.nonzero((slots_NW >= 0) & (self._updates_S[slots_NW] > 0))
        if not len(row_P):
            return row_P, torch.empty((0, self._dim))
        starts = _starts(row_P)
        return row_P[starts], self._sums(slots_NW[row_P, worker_P].astype(np.int64), starts)

    # --- writing --------------------------------------------------------------------------------------------------

    def update(
        self,
        slots_N: I64,
        updated_ND: Tensor,
        grads_ND: Tensor,
        counts_N: NDArray[np.int32],
        sampled_N: Flags,
    ) -> I64:
        """The worker's own update of its copies: new values, and one more gradient pending.

        Returns how many updates of each are pending now.
        """
        index_N = torch.from_numpy(slots_N)
        self._values_SD.index_put_((index_N,), updated_ND)
        is_more_N = self._updates_S[slots_N] > 0
        before_ND = self._grads_SD.index_select(0, index_N)
        before_ND[torch.from_numpy(~is_more_N)] = 0
        self._grads_SD.index_put_((index_N,), before_ND.add_(grads_ND))
        self._counts_S[slots_N] = np.where(is_more_N, self._counts_S[slots_N], 0) + counts_N
        self._sampled_S[slots_N] = (is_more_N & self._sampled_S[slots_N]) | sampled_N
        self._updates_S[slots_N] += 1
        return self._updates_S[slots_N].astype(np.int64)

    def tell(self, slots_P: I64) -> None:
        """Push what is pending of these copies with the next message: the rows' clocks move on, and the copies' too."""
        slots_P = slots_P[self._updates_S[slots_P] > 0]
        entries_P = self._entry_S[slots_P]
        np.add.at(self._clock_E, entries_P, self._updates_S[slots_P])
        self._version_S[slots_P] += self._updates_S[slots_P]
        self._updates_S[slots_P] = 0
        self._told.append((self._key_E[entries_P], slots_P))

    def make_ready(self, worker: int, keys_N: I64, *, step: int, staleness: int) -> None:
        """Make room for what the worker lacks of ``keys_N``; tell what is pending of copies that it must fetch anew."""
        slots_N = self.find(worker, keys_N)
        own_N = slots_N[slots_N >= 0]
        if self._recency is not None:
            assert self._max_rows is not None
            self._recency.spare(step, own_N)
            excess = self.num_rows + len(slots_N) - len(own_N) - self._max_rows
            leaving = self._recency.oldest(excess, before=step)
            self.tell(leaving)
            self._free(leaving)
        # Only now: what had to leave may have moved clocks on.
        self.tell(own_N[self.behind(own_N) > staleness])

    def collect(self) -> Pending:
        """All that was told since the last time, by key; gradients of one row are summed in the order of workers."""
        keys_P = np.concatenate([keys for keys, _ in self._told]) if self._told else np.empty(0, np.int64)
        slots_P = np.concatenate([slots for _, slots in self._told]) if self._told else np.empty(0, np.int64)
        self._told = []
        if not len(keys_P):
            return Pending(keys_P, torch.empty((0, self._dim)), np.empty(0, np.int32), np.empty(0, bool))
        order = np.lexsort((self._worker_S[slots_P], keys_P))
        keys_P, slots_P = keys_P[order], slots_P[order]
        starts = _starts(keys_P)
        return Pending(
            keys_P[starts],
            self._sums(slots_P, starts),
            np.add.reduceat(self._counts_S[slots_P], starts, dtype=np.int32),
            np.logical_or.reduceat(self._sampled_S[slots_P], starts),
        )

    def store(self, worker: int, keys_N: I64, values_ND: Tensor) -> None:
        """Copies that have just been fetched; nothing of them is pending."""
        slots_N = self.find(worker, keys_N)
        is_new_N = slots_N < 0
        slots_N[is_new_N] = self._add(worker, keys_N[is_new_N])
        assert not self._updates_S[slots_N].any(), "pending gradients are told before a row is fetched anew"
        self._values_SD.index_put_((torch.from_numpy(slots_N),), values_ND)
        self._version_S[slots_N] = self._clock_E[self._entry_S[slots_N]]

    # --- leaving --------------------------------------------------------------------------------------------------

    def drain(self) -> Pending:
        """Everything that is pending; all caches are empty then."""
        self.tell(np.flatnonzero(self._updates_S))
        pending = self.collect()
        self.clear()
        return pending

    def discard(self, first: int, last: int) -> None:
        """Forget the copies of rows ``first <= key < last``, and what is pending of them."""
        used_E = np.flatnonzero((self._key_E >= first) & (self._key_E < last))
        slots = self._slot_EW[used_E].ravel()
        self._free(slots[slots >= 0].astype(np.int64))

    def clear(self) -> None:
        """Forget all copies, and what is pending of them."""
        self._entry_of_M[self._key_E[self._key_E >= 0]] = 0
        self._start_empty()

    def _free(self, slots_P: I64) -> None:
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

    # --- memory ---------------------------------------------------------------------------------------------------

    def _add(self, worker: int, keys_N: I64) -> I64:
        entries_N = self._entry_of_M[keys_N].astype(np.int64) - 1
        is_new_N = entries_N < 0
        fresh_N = keys_N[is_new_N]
        self._grow_entries(self._entries.num_used + len(fresh_N))
        entries_N[is_new_N] = added = self._entries.take(len(fresh_N))
        self._entry_of_M[fresh_N] = added + 1
        self._key_E[added] = fresh_N
        self._clock_E[added] = 0
        self._grow_slots(self._slots.num_used + len(keys_N))
        slots_N = self._slots.take(len(keys_N))
        self._entry_S[slots_N] = entries_N
        self._worker_S[slots_N] = worker
        self._slot_EW[entries_N, worker] = slots_N
        return slots_N

    def _grow_entries(self, needed: int) -> None:
        if needed <= self._entries.capacity:
            return
        capacity = max(needed, 2 * self._entries.capacity)
        self._entries.grow(capacity)
        self._key_E = grown(self._key_E, capacity, fill=-1)
        self._clock_E = grown(self._clock_E, capacity)
        self._slot_EW = grown(self._slot_EW, capacity, fill=-1)

    def _grow_slots(self, needed: int) -> None:
        if needed <= self._slots.capacity:
            return
        capacity = max(needed, 2 * self._slots.capacity)
        if self._max_rows is not None:  # no more than can ever be needed, unless one batch needs more
            capacity = max(needed, min(capacity, self._max_rows))
        self._slots.grow(capacity)
        self._entry_S = grown(self._entry_S, capacity)
        self._worker_S = grown(self._worker_S, capacity)
        self._version_S = grown(self._version_S, capacity)
        self._updates_S = grown(self._updates_S, capacity)
        self._counts_S = grown(self._counts_S, capacity)
        self._sampled_S = grown(self._sampled_S, capacity)
        self._grads_SD = torch.cat([self._grads_SD, torch.empty((capacity - len(self._grads_SD), self._dim))])
        self._values_SD = torch.cat([self._values_SD, torch.empty((capacity - len(self._values_SD), self._dim))])

    def _sums(self, slots_P: I64, starts_N: I64) -> Tensor:
        return sum_runs(self._grads_SD, torch.from_numpy(slots_P), torch.from_numpy(starts_N))


def grown(array: NDArray[Any], length: int, *, fill: int = 0) -> NDArray[Any]:
    """A longer copy, ``fill`` in the rows that are new."""
    longer = np.full((length, *array.shape[1:]), fill, array.dtype)
    longer[: len(array)] = array
    return longer


def _starts(sorted_P: I64) -> I64:
    """Where runs of equal values begin."""
    is_first_P = np.ones(len(sorted_P), bool)
    np.not_equal(sorted_P[1:], sorted_P[:-1], out=is_first_P[1:])
    return np.flatnonzero(is_first_P)
