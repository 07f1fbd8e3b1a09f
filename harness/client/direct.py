"""How rows travel between the trainer and the PS ranks. Every path but ``harness.client.stale`` gives the same bits.

A path sees each step twice, ``fetch`` and ``push``, and is told where a message must not run ahead: at the boundaries
where a save, an evaluation or a kill is due. ``step`` counts finished steps, so ``fetch`` at ``step`` is for the batch
number ``step`` (from 0), and ``push`` at ``step`` makes it ``step + 1``.

N distinct rows of a batch, rank-major; D embedding dim.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from harness.cluster.protocol import Exchange, Push, Request, Several
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank
from harness.data.dataset import Batch, Dataset
from harness.kernels import compiled
from harness.recovery.failover import Recovery, Underway


class Batches:
    """The training batches, each with what it asks of the ranks: a pure function of the step."""

    def __init__(self, dataset: Dataset, placement: Placement, *, batch_size: int, ssu_period: int) -> None:
        self.placement = placement
        self._dataset = dataset
        self._batch_size = batch_size
        self._ssu_period = ssu_period

    def __call__(self, step: int) -> tuple[Batch, BatchPlan]:
        """Batch number ``step``, from 0."""
        batch = self._dataset.train_batch(step, self._batch_size)
        index_B = batch.first_sample + np.arange(len(batch.ids_BF))
        return batch, plan_batch(batch.ids_BF, self.placement, index_B % self._ssu_period == 0)


@dataclass(frozen=True)
class Fetched:
    """A batch, its plan, and where its N rows are: ``rows_XD[slots_N]``, or all of ``rows_XD`` in order; float32.

    With ``slots_N`` they are the rows of a cache itself, which the push of this batch changes.
    """

    batch: Batch
    plan: BatchPlan
    rows_XD: Tensor
    slots_N: Tensor | None = None

    @property
    def rows_ND(self) -> Tensor:
        """The rows, in order."""
        return self.rows_XD if self.slots_N is None else self.rows_XD.index_select(0, self.slots_N)


class DataPath(Protocol):
    """What the step loop asks of a path."""

    def fetch(self, progress: Progress) -> Fetched:
        """The next batch with its rows, which are as they are until it is pushed."""
        ...

    def push(
        self,
        plan: BatchPlan,
        grads_ND: Tensor,
        progress: Progress,
        *,
        is_boundary: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Apply the gradients of the batch that was fetched last.

        ``is_boundary``: something is due after this step; when this returns, every rank holds exactly what it would
        hold had each step been sent to it alone, and nothing is under way. (A path that is not exact guarantees this
        where a save is due, and at the end.) ``meanwhile`` is work that a path may have done while it would wait.
        """
        ...

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """Rows of any batch at a boundary, (N, D), for an evaluation. Touches no tracker, no counter and no cache."""
        ...

    def reset(self) -> None:
        """Full recovery took place: forget what was fetched."""
        ...

    def summary(self) -> dict[str, float] | None:
        """What a cache saved, for the record; None without one."""
        ...


class DirectPath:
    """One message a step and rank: the gradients of this step, then the lookups of the step after the next.

    It travels while the next step is at work, so nobody waits for it. Of the rows that it brings, those that the next
    step changes are as they were before: the trainer has their values and their gradients, and makes that update
    itself, by the arithmetic of ``Shard.apply``. Nothing is looked up past a boundary. When a shard is restored alone,
    what was asked for ahead is void, and the gradients of finished steps are lost with all that the shard had not
    saved, also those of a message that is sent again.

    Args:
        is_boundary: whether something is due after so many steps.
    """

    def __init__(
        self,
        recovery: Recovery,
        batches: Batches,
        ranks: tuple[Rank, ...],
        *,
        learning_rate: float,
        num_steps: int,
        is_boundary: Callable[[int], bool],
    ) -> None:
        self._recovery = recovery
        self._batches = batches
        self._ranks = ranks
        self._learning_rate = learning_rate
        self._num_steps = num_steps
        self._is_boundary = is_boundary
        recovery.listeners.append(self._forget)
        self.reset()

    def reset(self) -> None:
        """Drop the rows that came ahead, or are coming."""
        self._planned: dict[int, tuple[Batch, BatchPlan]] = {}  # of this step, and what comes after it
        self._rows_ND: Tensor | None = None  # of the batch that was fetched last
        self._next_ND: Tensor | None = None  # of the one after it
        self._underway: Underway | None = None
        self._is_void = False

    def fetch(self, progress: Progress) -> Fetched:
        """Rows that came ahead, or are asked for now."""
        batch, plan = self._batch(progress.step)
        self._rows_ND, self._next_ND = self._next_ND, None
        if self._rows_ND is None:
            self._receive(progress)
            self._rows_ND = pull(self._recovery, self._ranks, plan, progress)
            ahead = self._ahead(progress.step + 1)
            if ahead is not None:
                self._start([None] * len(self._ranks), ahead)
        return Fetched(batch, plan, self._rows_ND)

    def push(
        self,
        plan: BatchPlan,
        grads_ND: Tensor,
        progress: Progress,
        *,
        is_boundary: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Send, and unless something is due before, ask in the same message for the rows of the step after the next."""
        step = progress.step
        next_ND = self._receive(progress)
        if next_ND is not None:
            assert self._rows_ND is not None
            compiled.sgd_step_shared(
                next_ND.numpy(),
                self._batch(step + 1)[1].keys_N,
                plan.keys_N,
                self._rows_ND.numpy(),
                grads_ND.numpy(),
                self._learning_rate,
            )
            self._next_ND = next_ND
        ahead = None if next_ND is None else self._ahead(step + 2)
        self._start(make_pushes(plan, grads_ND, step + 1, self._learning_rate), ahead)
        del self._planned[step]
        if step + 3 < self._num_steps:
            self._batch(step + 3)
        meanwhile()
        if is_boundary:
            self._receive(progress)

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """The ranks hold everything."""
        return pull(self._recovery, self._ranks, plan, progress)

    def summary(self) -> None:
        """No cache."""

    def _batch(self, step: int) -> tuple[Batch, BatchPlan]:
        if step not in self._planned:
            self._planned[step] = self._batches(step)
        return self._planned[step]

    def _ahead(self, step: int) -> BatchPlan | None:
        """What batch number ``step`` asks for, if it may be asked for before the one before it is applied."""
        return None if step >= self._num_steps or self._is_boundary(step) else self._batch(step)[1]

    def _start(self, pushes: Sequence[Push | None], ahead: BatchPlan | None) -> None:
        """A rank with nothing to do gets an empty message, so that no death goes unseen."""
        rows = [None] * len(self._ranks) if ahead is None else ahead.rows
        requests: dict[Rank, Request] = {
            rank: Exchange(push=push, pull_N=rows_N)
            for rank, push, rows_N in zip(self._ranks, pushes, rows, strict=True)
        }
        self._underway = self._recovery.start(requests)

    def _receive(self, progress: Progress) -> Tensor | None:
        """The rows that were asked for with the last message, if there were any and they still count."""
        underway, self._underway = self._underway, None
        if underway is None:
            return None
        self._is_void = False
        replies = list(self._recovery.finish(underway, progress).values())
        return None if self._is_void or replies[0] is None else torch.cat(replies)

    def _forget(self, casualties: frozenset[Rank]) -> None:
        """Shards were restored alone: what came ahead is of before."""
        self._next_ND = None
        self._is_void = True


class SplitPath:
    """Kept to compare with: lookups and gradients in messages of their own, of a rank or of each of its tables."""

    def __init__(
        self, recovery: Recovery, batches: Batches, ranks: tuple[Rank, ...], *, learning_rate: float, by_table: bool
    ) -> None:
        self._recovery = recovery
        self._batches = batches
        self._ranks = ranks
        self._learning_rate = learning_rate
        self._ends_R = [_message_ends(batches.placement, k, by_table=by_table) for k in range(len(ranks))]

    def fetch(self, progress: Progress) -> Fetched:
        """Ask for the rows of the batch."""
        batch, plan = self._batches(progress.step)
        requests = {
            rank: Several(tuple(Exchange(pull_N=rows_N) for rows_N in rows.tensor_split(cuts)))
            for rank, rows, cuts in zip(self._ranks, plan.rows, self._cuts(plan), strict=True)
        }
        replies = self._recovery.ask(requests, progress)
        return Fetched(batch, plan, torch.cat([rows_ND for reply in replies.values() for rows_ND in reply]))

    def push(
        self,
        plan: BatchPlan,
        grads_ND: Tensor,
        progress: Progress,
        *,
        is_boundary: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Send the gradients, and wait."""
        pushes = make_pushes(plan, grads_ND, progress.step + 1, self._learning_rate)
        requests = {
            rank: Several(tuple(Exchange(push=part) for part in _parts(push, cuts)))
            for rank, push, cuts in zip(self._ranks, pushes, self._cuts(plan), strict=True)
        }
        self._recovery.ask(requests, progress)

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """The ranks hold everything."""
        return pull(self._recovery, self._ranks, plan, progress)

    def _cuts(self, plan: BatchPlan) -> list[list[int]]:
        """Where each rank's rows are cut into messages."""
        return [
            np.searchsorted(rows.numpy(), ends).tolist() for rows, ends in zip(plan.rows, self._ends_R, strict=True)
        ]

    def reset(self) -> None:
        """Nothing is ahead."""

    def summary(self) -> None:
        """No cache."""


def pull(recovery: Recovery, ranks: tuple[Rank, ...], plan: BatchPlan, progress: Progress) -> Tensor:
    """Look up the rows of ``plan`` on all ranks, (N, D). Touches no tracker and no counter."""
    requests = {rank: Exchange(pull_N=rows) for rank, rows in zip(ranks, plan.rows, strict=True)}
    return torch.cat(list(recovery.ask(requests, progress).values()))


def make_pushes(plan: BatchPlan, grads_ND: Tensor, step: int, learning_rate: float) -> list[Push]:
    """What each rank is sent of the gradients of step ``step``, counted from 1."""
    return [
        Push(
            step=step,
            rows_N=plan.rows[k],
            grads_ND=grads_ND[first:last],
            counts_N=plan.counts[k],
            sampled_N=plan.sampled[k],
            learning_rate=learning_rate,
        )
        for k, (first, last) in enumerate(pairwise(plan.bounds))
    ]


def _message_ends(placement: Placement, rank_index: int, *, by_table: bool) -> np.ndarray:
    """First rows of all tables that a rank has rows of, but the first; none where a message is of a whole rank."""
    offsets_T = placement.offsets_RT[rank_index]
    return np.unique(offsets_T[:-1][np.diff(offsets_T) > 0])[1:] if by_table else offsets_T[:0]


def _parts(push: Push, cuts: list[int]) -> list[Push]:
    """``push``, cut into parts of a step."""
    columns = [values.tensor_split(cuts) for values in (push.rows_N, push.grads_ND, push.counts_N, push.sampled_N)]
    return [
        dataclasses.replace(
            push, rows_N=rows, grads_ND=grads, counts_N=counts, sampled_N=sampled, part=part, num_parts=len(cuts) + 1
        )
        for part, (rows, grads, counts, sampled) in enumerate(zip(*columns, strict=True))
    ]
