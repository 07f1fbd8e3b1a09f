"""Distances of rows, in a compiled loop. The plain twin is ``tests.core.test_trackers.plain_distances``.

N rows, D columns.
"""

import numpy as np
from numba import float32
from numpy.typing import NDArray

from harness.kernels.compiler import compiled_for


@compiled_for(float32[::1](float32[:, :], float32[:, :]))
def row_distances(left_ND: NDArray[np.float32], right_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """The L2 distance of each row of ``left_ND`` from that of ``right_ND``: float32 (N,); infinite where it is NaN.

    Squares are summed in pairs, columns d and d + D // 2 first.
    """
    num_rows, dim = left_ND.shape
    norms_N, squares_D = np.empty(num_rows, np.float32), np.empty(dim, np.float32)
    for row in range(num_rows):
        for column in range(dim):
            difference = left_ND[row, column] - right_ND[row, column]
            squares_D[column] = difference * difference
        width = dim
        while width > 1:
            half = width // 2
            for column in range(half):
                squares_D[column] += squares_D[half + column]
            if width % 2:
                squares_D[0] += squares_D[width - 1]
            width = half
        norm = np.sqrt(squares_D[0])
        norms_N[row] = np.inf if np.isnan(norm) else norm
    return norms_N
