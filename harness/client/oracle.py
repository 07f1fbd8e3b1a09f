"""Windows of steps, planned ahead of the step loop: their rows, and the slot of each row in the cache.

The order of batches is known, so a plan is a function of the batches and of where windows end. Failures do not change
it. A row enters the cache before the window that needs it, keeps one slot, and stays while the present window or the
next one needs it.

Keys are rows in the rank-major order of all rows (``Placement.rank_base_R``). N distinct rows of a batch, U distinct
rows of a window, H rows that the cache holds, A = the rows of all steps of a window, one step's N after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.client.embedding_client import Batches, Keys
from harness.client.slots import SlotPool, Slots, no_slots
from harness.core.lookup import BatchPlan
from harness.data.dataset import Batch
from harness.kernels.sorted_keys import merge, places

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Distinct rows by ascending key, and the slot of each; int64."""

    keys: Keys = field(default_factory=no_slots)
    slots: Slots = field(default_factory=no_slots)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, which: Mask | slice) -> "Rows":
        return Rows(self.keys[which], self.slots[which])


Past = tuple[Keys, bool]
"""The keys of a planned window, ascending, and whether all updates are flushed at its end."""


@dataclass(frozen=True, kw_only=True)
class Placing:
    """The inputs of a window's plan beside the batches: the at most two windows before, and the rows held by then.

    ``past``: these windows, in order. ``held``: their rows and slots, which the cache holds while the first of the two
    runs. ``pool``: the free slots. A plan changes none of these; it makes a new object for the next plan.
    """

    past: tuple[Past, ...] = ()
    held: Rows = field(default_factory=Rows)
    pool: SlotPool = field(default_factory=SlotPool)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive steps from number ``first``, their rows, and the cache's changes when the window *before* begins.

    ``slots``: by step, the slots of its rows. ``rows``: the distinct rows of all steps. ``counts_U`` (int32): the
    updates of each of ``rows`` in this window. ``is_leaving_H``: which rows of ``before.held`` are evicted when the
    window before begins. ``coming``: the rows that are fetched then; they take the slots of evicted rows first.
    ``before``, ``after``: the inputs of this plan and of the next one. ``least``: see :func:`least_rows`.
    """

    first: int
    steps: tuple[tuple[Batch, BatchPlan], ...]
    slots: tuple[Tensor, ...]
    rows: Rows
    counts_U: NDArray[np.int32]
    is_leaving_H: Mask
    coming: Rows
    least: tuple[int, int]
    before: Placing
    after: Placing

    @property
    def stop(self) -> int:
        return self.first + len(self.steps)


class Oracle:
    """Plans one window after another.

    ``max_window_rows``: the most distinct rows of a window, or None. A window has fewer steps if it would otherwise
    exceed the bound, but at least one.
    """

    def __init__(self, batches: Batches, *, max_window_rows: int | None) -> None:
        self._batches = batches
        self._max_window_rows = max_window_rows
        self._steps: dict[int, tuple[Batch, BatchPlan]] = {}  # planned, but cut off a window

    def plan(self, before: Placing, first: int, stop: int, *, is_flushed: bool) -> Window:
        """Plan the window of steps ``first`` to ``stop`` (exclusive), or of the first ones of these.

        ``is_flushed``: whether all updates are flushed at ``stop``.
        """
        steps = [self._steps.pop(step, None) or self._batches(step) for step in range(first, stop)]
        merged = _merge([plan for _, plan in steps])
        fitting = merged.num_steps_with(self._max_window_rows)
        if fitting < len(steps):
            self._steps |= {first + number: steps[number] for number in range(fitting, len(steps))}
            del steps[fitting:]
            merged, is_flushed = _merge([plan for _, plan in steps]), False
        rows, coming, is_leaving_H, after = _place(before, merged.keys_U, is_flushed=is_flushed)
        return Window(
            first=first,
            steps=tuple(steps),
            slots=torch.from_numpy(rows.slots[merged.inverse_A]).split(merged.sizes),
            rows=rows,
            counts_U=merged.counts_U,
            is_leaving_H=is_leaving_H,
            coming=coming,
            least=least_rows(merged.keys_U, before.past),
            before=before,
            after=after,
        )


def _place(before: Placing, keys_U: Keys, *, is_flushed: bool) -> tuple[Rows, Rows, Mask, Placing]:
    """Give slots to the rows of a window.

    Returns its rows, the rows to fetch, a mask over ``before.held`` of rows to evict, and the inputs of the next plan.
    """
    held = before.held
    where_U, is_held_U = _find(keys_U, held.keys)
    is_leaving_H = np.ones(len(held), bool)
    is_leaving_H[where_U[is_held_U]] = False
    for last_keys, _ in before.past[-1:]:
        is_leaving_H[places(held.keys, last_keys)] = False
    num_new, pool = int(np.count_nonzero(~is_held_U)), before.pool.copy()
    pool.give(held.slots[is_leaving_H])
    pool.grow(pool.num_used + num_new)
    coming = Rows(keys_U[~is_held_U], pool.take(num_new))
    slots_U = np.empty(len(keys_U), np.int64)
    slots_U[~is_held_U] = coming.slots
    slots_U[is_held_U] = held.slots[where_U[is_held_U]]
    past = (*before.past[-1:], (keys_U, is_flushed))
    after = Placing(past=past, held=_union(held[~is_leaving_H], coming), pool=pool)
    return Rows(keys_U, slots_U), coming, is_leaving_H, after


def least_rows(keys_U: Keys, past: Sequence[Past]) -> tuple[int, int]:
    """Lower bounds on the rows that a cache must fetch, and write back, because of one window.

    ``keys_U``: the rows of the window. ``past``: the windows before. The sums over all windows are lower bounds for
    every cache that starts empty, holds all rows of a window before the window starts, keeps a row only while the
    present window or the next one needs it, and flushes all updates where that is required.

    A row stays in such a cache as long as no two successive windows leave it untouched. Such a stay costs one fetch. It
    costs one write at its end, and one more for each flush during the stay that is followed by an update of the row.
    """
    is_pending_U = np.zeros(len(keys_U), bool)  # in a window whose updates are not flushed yet
    is_held_U = np.zeros(len(keys_U), bool)
    for keys, is_flushed in past[-2:]:
        _, is_in_U = _find(keys_U, keys)
        is_held_U |= is_in_U
        is_pending_U = np.zeros(len(keys_U), bool) if is_flushed else is_pending_U | is_in_U
    return int(np.count_nonzero(~is_held_U)), int(np.count_nonzero(~is_pending_U))


def _find(keys_U: Keys, others: Keys) -> tuple[NDArray[np.int64], Mask]:
    """The place of each of ``keys_U`` among ``others``, and whether it is one of them; both ascending and distinct."""
    where_U = places(others, keys_U)
    is_in_U = where_U < len(others)
    is_in_U[is_in_U] = others[where_U[is_in_U]] == keys_U[is_in_U]
    return where_U, is_in_U


def _union(left: Rows, right: Rows) -> Rows:
    """The rows of ``left`` and ``right``, which share no row, by ascending key."""
    keys = np.concatenate([left.keys, right.keys])
    order = np.argsort(keys, kind="stable")  # merges two ascending runs in linear time
    return Rows(keys[order], np.concatenate([left.slots, right.slots])[order])


@dataclass(frozen=True)
class _Merged:
    """The rows of consecutive steps. ``keys_U[inverse_A]``: the keys of all steps in order; ``sizes``: N of each."""

    keys_U: Keys
    counts_U: NDArray[np.int32]
    inverse_A: NDArray[np.int64]
    firsts_U: NDArray[np.int64]  # where in A each row comes first
    sizes: list[int]

    def num_steps_with(self, max_rows: int | None) -> int:
        """How many steps from the first on together touch at most ``max_rows`` distinct rows; at least 1."""
        if max_rows is None or len(self.keys_U) <= max_rows:
            return len(self.sizes)
        step_U = np.searchsorted(np.cumsum(self.sizes), self.firsts_U, side="right")
        num_rows_after = np.cumsum(np.bincount(step_U, minlength=len(self.sizes)))
        return max(1, int(np.searchsorted(num_rows_after, max_rows, side="right")))


def _merge(plans: Sequence[BatchPlan]) -> _Merged:
    """Merge the rows of consecutive steps with these plans."""
    sizes = [len(plan.keys_N) for plan in plans]
    num_bits = sum(sizes).bit_length()
    words_A = np.concatenate([plan.keys_N for plan in plans])
    words_A <<= num_bits
    words_A |= np.arange(len(words_A))
    words_A.sort()  # of numpy, with vector instructions
    counts_A = np.concatenate([plan.counts_N for plan in plans])
    keys_U, counts_U, inverse_A, firsts_U = merge(words_A, num_bits, counts_A)
    return _Merged(keys_U, counts_U, inverse_A, firsts_U, sizes)
