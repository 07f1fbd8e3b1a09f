"""How rows travel between the trainer and the PS ranks. Every path gives the trainer the same bits.

A path sees each step twice, ``fetch`` and ``push``, and is told where a message must not run ahead: at the boundaries
where a save, an evaluation or a kill is due. ``step`` counts finished steps, so ``fetch`` at ``step`` is for the batch
number ``step`` (from 0), and ``push`` at ``step`` makes it ``step + 1``.

N distinct rows of a batch, rank-major; D embedding dim.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from harness.cluster.protocol import Exchange, Push
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank
from harness.data.dataset import Batch, Dataset
from harness.recovery import Recovery


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


class DataPath(Protocol):
    """What the step loop asks of a path."""

    def fetch(self, progress: Progress) -> tuple[Batch, BatchPlan, Tensor]:
        """The next batch, its plan, and its rows, float32 (N, D)."""
        ...

    def push(self, plan: BatchPlan, grads_ND: Tensor, progress: Progress, *, is_boundary: bool) -> None:
        """Apply the gradients of the batch that was fetched last.

        ``is_boundary``: something is due after this step; when this returns, every rank holds exactly what it would
        hold had each step been sent to it alone, and nothing is under way.
        """
        ...

    def reset(self) -> None:
        """Full recovery took place: forget what was fetched."""
        ...

    def summary(self) -> dict[str, float] | None:
        """What a cache saved, for the record; None without one."""
        ...


class DirectPath:
    """One message a step and rank: the gradients of this step, then the lookups of the next. Applied before read."""

    def __init__(self, recovery: Recovery, batches: Batches, ranks: tuple[Rank, ...], learning_rate: float) -> None:
        self._recovery = recovery
        self._batches = batches
        self._ranks = ranks
        self._learning_rate = learning_rate
        self._next: tuple[Batch, BatchPlan, Tensor] | None = None

    def fetch(self, progress: Progress) -> tuple[Batch, BatchPlan, Tensor]:
        """Rows that came with the last message, or are asked for now."""
        fetched, self._next = self._next, None
        if fetched is None:
            batch, plan = self._batches(progress.step)
            fetched = batch, plan, pull(self._recovery, self._ranks, plan, progress)
        return fetched

    def push(self, plan: BatchPlan, grads_ND: Tensor, progress: Progress, *, is_boundary: bool) -> None:
        """Send, and unless something is due between the halves, ask for the next rows in the same message."""
        following = None if is_boundary else self._batches(progress.step + 1)
        next_rows = following[1].rows if following else [None] * len(self._ranks)
        grads = grads_ND.split(plan.splits)
        # A rank with nothing to do gets an empty message, so that no death goes unseen.
        requests = {
            rank: Exchange(
                push=Push(
                    step=progress.step + 1,
                    rows_N=plan.rows[k],
                    grads_ND=grads[k],
                    counts_N=plan.counts[k],
                    sampled_N=plan.sampled[k],
                    learning_rate=self._learning_rate,
                ),
                pull_N=next_rows[k],
            )
            for k, rank in enumerate(self._ranks)
        }
        replies = self._recovery.ask(requests, progress)
        if following:
            self._next = (*following, torch.cat(list(replies.values())))

    def reset(self) -> None:
        """Drop the rows that came ahead."""
        self._next = None

    def summary(self) -> None:
        """No cache."""


def pull(recovery: Recovery, ranks: tuple[Rank, ...], plan: BatchPlan, progress: Progress) -> Tensor:
    """Look up the rows of ``plan`` on all ranks, (N, D). Touches no tracker and no counter."""
    requests = {rank: Exchange(pull_N=rows) for rank, rows in zip(ranks, plan.rows, strict=True)}
    return torch.cat(list(recovery.ask(requests, progress).values()))
