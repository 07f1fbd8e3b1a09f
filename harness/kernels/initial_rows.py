"""Initial values of embedding rows. K rows of a table on a shard, X columns of a row: D values, then state."""

from typing import Any

import numba
from numba import float32, int32, int64, uint64, void

from harness.kernels.compiler import compiled_for
from harness.kernels.splitmix import word

_word = numba.njit(nogil=True)(word)


@compiled_for(void(uint64, uint64, uint64, float32, int64, float32[:, ::1]))
def draw_rows(key: int, first: int, stride: int, bound: float, dim: int, out_KX: Any) -> None:  # noqa: PLR0917
    """Set the first ``dim`` columns of each row to U(-bound, bound).

    Row k is row ``first + k * stride`` of its table. The value of column d follows from the 24 highest bits of the word
    of ``key`` whose number is that row * ``dim`` + d.
    """
    for k in range(len(out_KX)):
        number = (uint64(k) * stride + first) * uint64(dim)
        for d in range(dim):
            unit = float32(int32(_word(key, number + uint64(d)) >> uint64(40))) * float32(2.0**-23)  # exact
            out_KX[k, d] = (unit - float32(1.0)) * bound
