"""Slots of a cache: the pool of free slots, and the order in which slots were last used. N slots in a call."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.resumable import Resumable

Slots = NDArray[np.int64]

_FIRST_CAPACITY = 1024
_SLACK = 1 << 12  # outdated uses that may be queued before the queue is swept


def no_slots() -> Slots:
    return np.empty(0, np.int64)


@dataclass
class SlotPool:
    """The slot numbers below ``capacity``. Those that are free are the first ``num_free`` entries of ``free``."""

    capacity: int = 0
    num_free: int = 0
    free: Slots = field(default_factory=no_slots)

    def copy(self) -> "SlotPool":
        return replace(self, free=self.free.copy())

    @property
    def num_used(self) -> int:
        return self.capacity - self.num_free

    def grow(self, capacity: int) -> None:
        """Add slots, all free, up to ``capacity`` of them; a no-op if there are as many."""
        if capacity <= self.capacity:
            return
        free = np.empty(capacity, np.int64)
        free[: self.num_free] = self.free[: self.num_free]
        added = capacity - self.capacity
        free[self.num_free : self.num_free + added] = np.arange(self.capacity, capacity)
        self.free, self.capacity, self.num_free = free, capacity, self.num_free + added

    def take(self, num: int) -> Slots:
        """Take ``num`` free slots, int64, those given back last. At least ``num`` must be free."""
        assert num <= self.num_free
        self.num_free -= num
        return self.free[self.num_free : self.num_free + num].copy()

    def give(self, slots: Slots) -> None:
        """Give slots back: they are free again."""
        self.free[self.num_free : self.num_free + len(slots)] = slots
        self.num_free += len(slots)


class Recency(Resumable):
    """Finds the least recently used slots, at constant cost per use.

    Uses are queued in order. An entry of the queue counts only if it is the last use of its slot, so that a use need
    not remove the slot's earlier entry. Outdated entries are skipped at the head, and swept out when they are many.
    """

    _state = ("_queue", "_num_queued", "_last_S")

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Slots]] = deque()
        self._num_queued = 0
        self._last_S = np.full(_FIRST_CAPACITY, -1, np.int64)

    def use(self, step: int, slots_N: Slots) -> None:
        """Record a use of ``slots_N`` at ``step``. Of these slots the first counts as used least recently.

        A second call for a step replaces the first: a slot counts once, also if it was freed and taken in between.
        """
        if self._queue and self._queue[-1][0] == step:
            self._num_queued -= len(self._queue.pop()[1])
        self.protect(step, slots_N)
        self._queue.append((step, slots_N))
        self._num_queued += len(slots_N)
        if self._num_queued > 2 * len(self._last_S) + _SLACK:
            self._sweep()

    def protect(self, step: int, slots_N: Slots) -> None:
        """Keep slots out of :meth:`take_oldest`, since the coming step ``step`` will use them."""
        if len(slots_N) and (top := int(slots_N.max())) >= len(self._last_S):
            self._last_S = grown(self._last_S, 2 * (top + 1), fill=-1)
        self._last_S[slots_N] = step

    def forget(self, slots_N: Slots) -> None:
        """Count slots as never used: :meth:`take_oldest` does not find them."""
        self._last_S[slots_N] = -1

    def take_oldest(self, num: int, *, before: int) -> Slots:
        """Take the ``num`` least recently used slots out of the queue, or all that were last used before ``before``.

        ``before``: number of a step. The caller must :meth:`forget` the slots, or use them again.
        """
        found: list[Slots] = []
        while num > 0 and self._queue and self._queue[0][0] < before:
            step, slots = self._queue.popleft()
            self._num_queued -= len(slots)
            counting = slots[self._last_S[slots] == step]
            found.append(counting[:num])
            if len(rest := counting[num:]):
                self._queue.appendleft((step, rest))
                self._num_queued += len(rest)
            num -= len(found[-1])
        return np.concatenate([no_slots(), *found])

    def _sweep(self) -> None:
        """Drop the outdated entries of the queue."""
        kept = ((step, slots[self._last_S[slots] == step]) for step, slots in self._queue)
        self._queue = deque((step, slots) for step, slots in kept if len(slots))
        self._num_queued = sum(len(slots) for _, slots in self._queue)


def grown(array: Any, length: int, *, fill: int = 0) -> Any:
    """A longer copy of an array, whose new rows hold ``fill``, or of a tensor, whose new rows are uninitialised."""
    if isinstance(array, Tensor):
        return torch.cat([array, torch.empty((length - len(array), *array.shape[1:]))])
    longer = np.full((length, *array.shape[1:]), fill, array.dtype)
    longer[: len(array)] = array
    return longer
