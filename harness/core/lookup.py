"""What a batch asks of the ranks: rows deduplicated, counted, ordered by rank and row.

B batch, F features, N distinct rows of a batch (rank-major), D embedding dim, A = B*F accesses.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement


@dataclass(frozen=True)
class BatchPlan:
    """The lookups of one batch.

    ``keys_N`` are its distinct rows, ascending, in the rank-major order of all rows (``Placement.positions``);
    ``counts_N`` (int32) how many samples touch each, ``sampled_N`` (bool) whether one of them is in the sub-sample.
    Those of rank k are ``bounds[k]`` to ``bounds[k + 1]``: ``rows[k]`` (int64), its local flat rows, ``counts[k]`` and
    ``sampled[k]``. ``inverse_A`` (int64) says which of the N rows access ``b * F + f`` reads; ``order_A`` sorts
    accesses by row (stable) and ``starts_N`` is where each row's accesses begin.
    """

    keys_N: np.ndarray
    counts_N: np.ndarray
    sampled_N: np.ndarray
    bounds: tuple[int, ...]
    rows: tuple[Tensor, ...]
    counts: tuple[Tensor, ...]
    sampled: tuple[Tensor, ...]
    inverse_A: Tensor
    order_A: Tensor
    starts_N: Tensor

    @property
    def splits(self) -> tuple[int, ...]:
        """How many of the N rows are each rank's."""
        return tuple(last - first for first, last in pairwise(self.bounds))


def plan_batch(ids_BF: np.ndarray, placement: Placement, sampled_B: np.ndarray) -> BatchPlan:
    """Deduplicate and place the rows of a batch with one sort."""
    keys_A = placement.positions(ids_BF).ravel()
    sorted_A, order_A = sort_stably(keys_A)
    is_first_A = np.empty(len(sorted_A), dtype=bool)
    is_first_A[0] = True
    np.not_equal(sorted_A[1:], sorted_A[:-1], out=is_first_A[1:])
    starts_N = np.flatnonzero(is_first_A)
    keys_N = sorted_A[starts_N]
    inverse_A = np.empty(len(keys_A), dtype=np.int64)
    inverse_A[order_A] = np.cumsum(is_first_A) - 1
    counts_N = np.diff(starts_N, append=len(keys_A)).astype(np.int32)
    sampled_A = np.repeat(sampled_B, ids_BF.shape[1])[order_A]
    sampled_N = np.logical_or.reduceat(sampled_A, starts_N)

    base_R = placement.rank_base_R
    bounds = tuple(np.searchsorted(keys_N, base_R).tolist())
    spans = [slice(*ends) for ends in pairwise(bounds)]
    return BatchPlan(
        keys_N=keys_N,
        counts_N=counts_N,
        sampled_N=sampled_N,
        bounds=bounds,
        rows=tuple(torch.from_numpy(keys_N[span] - base_R[k]) for k, span in enumerate(spans)),
        counts=tuple(torch.from_numpy(counts_N[span]) for span in spans),
        sampled=tuple(torch.from_numpy(sampled_N[span]) for span in spans),
        inverse_A=torch.from_numpy(inverse_A),
        order_A=torch.from_numpy(order_A),
        starts_N=torch.from_numpy(starts_N),
    )


def sort_stably(keys_A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Non-negative keys in ascending order, and where each was; equal keys in their order.

    A key and its place in one word: numpy sorts words with vector instructions, in a sixth of what ``argsort`` takes.
    """
    num_bits = len(keys_A).bit_length()
    words_A = keys_A << num_bits
    words_A |= np.arange(len(keys_A))
    words_A.sort()
    return words_A >> num_bits, words_A & ((1 << num_bits) - 1)


def coalesce(grads_AD: Tensor, plan: BatchPlan) -> Tensor:
    """Sum the gradients of accesses that read the same row, in the order of the batch: (A, D) -> (N, D)."""
    return sum_runs(grads_AD, plan.order_A, plan.starts_N)


def sum_runs(values_AD: Tensor, order_P: Tensor, starts_N: Tensor) -> Tensor:
    """Sums of ``values_AD[order_P]`` over runs that begin at ``starts_N``, the first at 0: (N, D).

    The only routine that adds up duplicates. It sums each run in order, whatever the number of threads, so both engines
    get the same bits; a run of one is copied to the bit, but for the sign of a zero. ``_embedding_bag_forward_only`` is
    a segmented sum over gathered rows and several times faster than ``index_add_`` (DESIGN section 6, fact 8).
    """
    summed_ND, _, _, _ = torch.ops.aten._embedding_bag_forward_only(values_AD, order_P, starts_N)
    return summed_ND
