"""The rows that a batch looks up: deduplicated, counted, ordered by rank and row.

B batch, F features, N distinct rows of a batch (rank-major), D embedding dim, A = B * F accesses.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement
from harness.kernels import row_loops
from harness.kernels.sorted_keys import deduplicate, words_to_sort


@dataclass(frozen=True)
class TouchedRows:
    """Distinct rows that samples touch, grouped by rank.

    ``keys_N`` (int64, ascending): the rows' positions in the rank-major order of all rows (``Placement.rank_base_R``).
    ``rows_N`` (int64): their local flat rows. ``counts_N`` (int32): how many samples touch each row. ``sampled_N``
    (bool): whether one of these samples is in the sub-sample. Entries ``bounds[k]`` to ``bounds[k + 1]`` (exclusive)
    belong to rank k.
    """

    keys_N: np.ndarray
    rows_N: np.ndarray
    counts_N: np.ndarray
    sampled_N: np.ndarray
    bounds: tuple[int, ...]

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """The local flat rows of each rank: views of ``rows_N``, int64."""
        return tuple(torch.from_numpy(self.rows_N[first:last]) for first, last in pairwise(self.bounds))


@dataclass(frozen=True)
class BatchPlan(TouchedRows):
    """The distinct rows that one batch looks up, and the row that each access reads.

    Access ``b * F + f``, of feature f of sample b, reads row number ``inverse_A[b * F + f]`` (int64) of the N rows.
    ``order_A`` are the accesses sorted by row (stable), in which those of row n begin at ``starts_N[n]``.
    """

    inverse_A: Tensor
    order_A: Tensor
    starts_N: Tensor


def plan_batch(ids_BF: np.ndarray, placement: Placement, sampled_B: np.ndarray) -> BatchPlan:
    """Deduplicate the rows of a batch, and group them by rank.

    ``ids_BF``: the row id of each sample in each table. ``sampled_B`` (bool): which samples are in the sub-sample.
    """
    num_bits = ids_BF.size.bit_length()
    words_A = words_to_sort(np.ascontiguousarray(ids_BF, np.int32), placement.origins_OT, num_bits)
    words_A.sort()  # of numpy, with vector instructions
    keys_N, rows_N, counts_N, sampled_N, bounds_R, inverse_A, order_A, starts_N = deduplicate(
        words_A, num_bits, sampled_B, placement.rank_base_R
    )
    return BatchPlan(
        keys_N=keys_N,
        rows_N=rows_N,
        counts_N=counts_N,
        sampled_N=sampled_N,
        bounds=tuple(bounds_R.tolist()),
        inverse_A=torch.from_numpy(inverse_A),
        order_A=torch.from_numpy(order_A),
        starts_N=torch.from_numpy(starts_N),
    )


def coalesce(grads_BVD: Tensor, plan: BatchPlan, num_skipped: int = 1) -> Tensor:
    """Sum the gradients of accesses that read the same row, in the order of the batch: (B, V, D) -> (N, D).

    A sample has V = ``num_skipped`` + F vectors. The first ``num_skipped`` are not rows, but for example the output of
    DLRM's bottom MLP; their gradients are left out.
    """
    values_XD, order_A, starts_N = grads_BVD.flatten(0, 1).numpy(), plan.order_A.numpy(), plan.starts_N.numpy()
    num_vectors = grads_BVD.shape[1]
    return torch.from_numpy(row_loops.sum_runs(values_XD, order_A, starts_N, num_vectors - num_skipped, num_vectors))
