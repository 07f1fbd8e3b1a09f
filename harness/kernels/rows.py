"""Gather, scatter, sum and SGD step of embedding rows.

F tables, V vectors of a sample, N distinct rows of a batch, K rows of a request, M rows of a shard, S slots of a cache,
H rows that are held, P positions in an order of accesses, D embedding dim.
"""

from typing import Any

import numba
import numpy as np
from numba import float32, float64, int32, int64, void

from harness.kernels.compiler import AHEAD, compiled_for
from harness.kernels.native import prefetch


@compiled_for(
    [
        float32[:, ::1](float32[:, ::1], int64[::1], int64[::1], int64, int64),
        float64[:, ::1](float64[:, ::1], int64[::1], int64[::1], int64, int64),
    ]
)
def sum_runs(values_XD: Any, order_P: Any, starts_N: Any, num_tables: int, num_vectors: int) -> Any:
    """The sum of the values of each run of ``order_P``, added in its order: (N, D).

    ``order_P`` holds numbers of accesses; run n begins at position ``starts_N[n]``, the first at 0. ``values_XD`` holds
    V vectors for each sample, of which the last F, one for each table, belong to accesses: the value of access a is
    vector ``V - F + a % F`` of sample ``a // F``.
    """
    summed_ND = np.empty((len(starts_N), values_XD.shape[1]), values_XD.dtype)
    skipped = num_vectors - num_tables
    for n in range(len(starts_N)):
        end = starts_N[n + 1] if n + 1 < len(starts_N) else len(order_P)
        for p in range(starts_N[n], end):
            value = order_P[p] + (order_P[p] // num_tables + 1) * skipped
            if p == starts_N[n]:
                for d in range(values_XD.shape[1]):
                    summed_ND[n, d] = values_XD[value, d]
            else:
                for d in range(values_XD.shape[1]):
                    summed_ND[n, d] += values_XD[value, d]
    return summed_ND


NO_COUNTS = np.empty(0, np.int32)
"""For :func:`sgd_step`, where updates are not counted."""


@numba.njit(nogil=True)
def _sgd(value: Any, gradient: Any, learning_rate: Any) -> Any:
    """SGD on one value, float32: a product, then a difference, each rounded. Every update of a row goes by it."""
    return value - learning_rate * gradient


@compiled_for(void(float32[:, ::1], int64[::1], float32[:, ::1], float32, int32[::1], int32[::1]))
def sgd_step(  # noqa: PLR0917 - compiled functions take values by place
    rows_MD: Any, rows_N: Any, grads_ND: Any, learning_rate: float, pending_M: Any, counts_N: Any
) -> None:
    """One SGD step on distinct rows of a shard, in place; ``pending_M`` grows by ``counts_N``, unless it is empty.

    Rows lie far apart in memory, so they are prefetched.
    """
    num_rows, dim = len(rows_N), rows_MD.shape[1]
    counts = len(pending_M) > 0
    for n in range(num_rows):
        if n + AHEAD < num_rows:
            for line in range(0, dim, 16):
                prefetch(rows_MD.ctypes.data + (rows_N[n + AHEAD] * dim + line) * 4)
            if counts:
                prefetch(pending_M.ctypes.data + rows_N[n + AHEAD] * 4)
        row = rows_N[n]
        for d in range(dim):
            rows_MD[row, d] = _sgd(rows_MD[row, d], grads_ND[n, d], learning_rate)
        if counts:
            pending_M[row] += counts_N[n]


@compiled_for(float32[:, ::1](float32[:, ::1], int64[::1]))
def take_rows(rows_SD: Any, slots_K: Any) -> Any:
    """The rows of ``slots_K``, (K, D): torch's ``index_select``, on one thread."""
    num_rows, dim = len(slots_K), rows_SD.shape[1]
    taken_KD = np.empty((num_rows, dim), np.float32)
    for k in range(num_rows):
        if k + AHEAD < num_rows:
            for line in range(0, dim, 16):
                prefetch(rows_SD.ctypes.data + (slots_K[k + AHEAD] * dim + line) * 4)
        for d in range(dim):
            taken_KD[k, d] = rows_SD[slots_K[k], d]
    return taken_KD


@compiled_for(void(float32[:, ::1], int64[::1], float32[:, ::1]))
def put_rows(out_SD: Any, slots_K: Any, values_KD: Any) -> None:
    """Write rows to ``slots_K``: torch's ``index_copy_``, on one thread."""
    num_rows, dim = len(slots_K), out_SD.shape[1]
    for k in range(num_rows):
        if k + AHEAD < num_rows:
            for line in range(0, dim, 16):
                prefetch(out_SD.ctypes.data + (slots_K[k + AHEAD] * dim + line) * 4)
        for d in range(dim):
            out_SD[slots_K[k], d] = values_KD[k, d]


@compiled_for(void(float32[:, ::1], int64[::1], int64[::1], float32[:, ::1], float32[:, ::1], float32))
def sgd_step_shared(  # noqa: PLR0917 - compiled functions take values by place
    out_rows_HD: Any, keys_H: Any, keys_N: Any, rows_ND: Any, grads_ND: Any, learning_rate: float
) -> None:
    """For keys of both ``keys_H`` and ``keys_N`` (ascending): ``out_rows_HD`` gets row N after one SGD step.

    The same bits as :func:`sgd_step`.
    """
    n = 0
    for h in range(len(keys_H)):
        while n < len(keys_N) and keys_N[n] < keys_H[h]:
            n += 1
        if n < len(keys_N) and keys_N[n] == keys_H[h]:
            for d in range(rows_ND.shape[1]):
                out_rows_HD[h, d] = _sgd(rows_ND[n, d], grads_ND[n, d], learning_rate)
