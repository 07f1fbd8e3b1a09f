"""Distances of rows, and sums at rows, in compiled loops. The plain twins are in ``tests.core.test_trackers``.

M rows of a shard, N rows of a call, D embedding dim.
"""

from typing import Any

import numba
import numpy as np
from numba import float32, int64, void

from harness.kernels.compiler import AHEAD, compiled_for
from harness.kernels.native import prefetch


@numba.njit(nogil=True, error_model="numpy")
def distance(left: Any, i: Any, right: Any, j: Any, dim: Any) -> Any:
    """The L2 distance of row i from row j over the first ``dim`` columns, float32; infinite where it is NaN.

    Squares are added up in four sums, of every fourth column: additions to a single sum would wait for each other.
    """
    sum_0 = sum_1 = sum_2 = sum_3 = float32(0)
    fours = dim - dim % 4
    for d in range(0, fours, 4):
        change = left[i, d] - right[j, d]
        sum_0 += change * change
        change = left[i, d + 1] - right[j, d + 1]
        sum_1 += change * change
        change = left[i, d + 2] - right[j, d + 2]
        sum_2 += change * change
        change = left[i, d + 3] - right[j, d + 3]
        sum_3 += change * change
    for d in range(fours, dim):
        change = left[i, d] - right[j, d]
        sum_0 += change * change
    norm = np.sqrt((sum_0 + sum_2) + (sum_1 + sum_3))
    return float32(np.inf) if np.isnan(norm) else norm


@compiled_for(float32[::1](float32[:, :], float32[:, :]))
def row_distances(left_ND: Any, right_ND: Any) -> Any:
    """The L2 distances between the rows of ``left_ND`` and the same rows of ``right_ND``: float32 (N,)."""
    num_rows, dim = left_ND.shape
    norms_N = np.empty(num_rows, np.float32)
    for n in range(num_rows):
        norms_N[n] = distance(left_ND, n, right_ND, n, dim)
    return norms_N


@compiled_for(void(float32[::1], int64[::1], float32[::1]))
def add_at(out_M: Any, rows_N: Any, values_N: Any) -> None:
    """Add ``values_N`` to ``out_M`` at ``rows_N``, which are distinct. Rows far apart in memory are prefetched."""
    num_rows = len(rows_N)
    for n in range(num_rows):
        if n + AHEAD < num_rows:
            prefetch(out_M.ctypes.data + rows_N[n + AHEAD] * 4)
        out_M[rows_N[n]] += values_N[n]
