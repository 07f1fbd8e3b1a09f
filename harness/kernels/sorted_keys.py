"""Deduplication of the rows of a batch, and joins of sorted keys.

B batch, F tables, A = B*F accesses, N distinct rows of a batch, U distinct keys of a union, H held keys, R ranks,
O owners of rows, E edges, G blocks of keys.
"""

from typing import Any

import numba
import numpy as np
from numba import int32, int64
from numpy.typing import NDArray

from harness.kernels.compiler import compiled_for


@compiled_for(int64[::1](int32[:, ::1], int64[:, ::1], int64))
def words_to_sort(ids_BF: Any, origins_OF: Any, num_bits: int) -> Any:
    """A word for each access, (A,). Sorted words are in the order of rows; words of one row are in batch order.

    The upper bits are the key of the row, its position in the rank-major order: ``i // O + origins_OF[i % O, f]`` for
    row i of table f. The low ``num_bits`` bits, enough for A, are the number of the access.
    """
    num_samples, num_tables = ids_BF.shape
    num_owners = len(origins_OF)
    words_A = np.empty(num_samples * num_tables, np.int64)
    a = 0
    for b in range(num_samples):
        for f in range(num_tables):
            row = int64(ids_BF[b, f])
            local = row // num_owners
            words_A[a] = ((local + origins_OF[row - local * num_owners, f]) << num_bits) | a
            a += 1
    return words_A


@numba.njit(nogil=True)
def _num_distinct(words_A: Any, num_bits: Any) -> Any:
    """The number of distinct keys, the upper bits of sorted words."""
    num_keys, last = 0, int64(-1)
    for a in range(len(words_A)):
        key = words_A[a] >> num_bits
        num_keys += key != last
        last = key
    return num_keys


@compiled_for(
    "Tuple((int64[::1], int64[::1], int32[::1], boolean[::1], int64[::1], int64[::1], int64[::1], int64[::1]))"
    "(int64[::1], int64, boolean[::1], int64[::1])"
)
def deduplicate(words_A: Any, num_bits: int, sampled_B: Any, base_R: Any) -> Any:
    """From sorted :func:`words_to_sort`: keys_N, rows_N, counts_N, sampled_N, bounds_R, inverse_A, order_A, starts_N.

    ``base_R`` (R + 1): the first key of each rank, and the end of the last one. ``rows_N``: keys minus the first key of
    their rank. The others are fields of :class:`harness.core.lookup.BatchPlan`.
    """
    num_accesses = len(words_A)
    num_tables = num_accesses // len(sampled_B)
    number_mask = (1 << num_bits) - 1
    num_keys = _num_distinct(words_A, num_bits)
    keys_N, rows_N, starts_N = np.empty(num_keys, np.int64), np.empty(num_keys, np.int64), np.empty(num_keys, np.int64)
    counts_N, sampled_N = np.empty(num_keys, np.int32), np.empty(num_keys, np.bool_)
    inverse_A, order_A = np.empty(num_accesses, np.int64), np.empty(num_accesses, np.int64)
    bounds_R = np.empty(len(base_R), np.int64)
    n, rank, last = -1, 0, int64(-1)
    for a in range(num_accesses):
        key, access = words_A[a] >> num_bits, words_A[a] & number_mask
        if key != last:
            n += 1
            while rank < len(base_R) and key >= base_R[rank]:
                bounds_R[rank] = n
                rank += 1
            keys_N[n], rows_N[n], starts_N[n] = key, key - base_R[rank - 1], a
            counts_N[n], sampled_N[n] = 0, False
            last = key
        counts_N[n] += 1
        sampled_N[n] |= sampled_B[access // num_tables]
        inverse_A[access] = n
        order_A[a] = access
    bounds_R[rank:] = num_keys
    return keys_N, rows_N, counts_N, sampled_N, bounds_R, inverse_A, order_A, starts_N


@compiled_for(int64[::1](int64[::1], int32[::1], int64[::1]))
def sums_before(keys_N: Any, counts_N: Any, edges_E: Any) -> Any:
    """Sum of the counts of all keys below each edge, (E,). Edges and keys must ascend."""
    sums_E = np.empty(len(edges_E), np.int64)
    n, total = 0, int64(0)
    for e in range(len(edges_E)):
        while n < len(keys_N) and keys_N[n] < edges_E[e]:
            total += counts_N[n]
            n += 1
        sums_E[e] = total
    return sums_E


_BLOCK_BITS = 10  # of a key, its number in its block: what 33 million keys need then fits into a cache


def block_firsts(keys_K: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """Where in ``keys_K``, which ascend and are below ``end``, each block of consecutive keys begins and ends."""
    return np.searchsorted(keys_K, np.arange(0, end + (2 << _BLOCK_BITS), 1 << _BLOCK_BITS))


@compiled_for("Tuple((int64[::1], int64[::1]))(int64[::1], int64[::1], int64[::1])")
def shared(keys_K: Any, firsts_G: Any, keys_N: Any) -> Any:
    """The places of the keys that are in both lists, which ascend: in ``keys_K``, and in ``keys_N``.

    ``firsts_G``: of ``keys_K``, as of :func:`block_firsts`.
    """
    places_2N, num_shared = np.empty((2, len(keys_N)), np.int64), 0
    for n in range(len(keys_N)):
        key, block = keys_N[n], keys_N[n] >> _BLOCK_BITS
        k, end = firsts_G[block], firsts_G[block + 1]
        if k < end:  # a key that is d above the first is at most d places behind it, and just there without gaps
            last = min(end - 1, k + max(key - keys_K[k], 0))
            if keys_K[last] == key:
                k = last
            while k < last:
                middle = (k + last) >> 1
                if keys_K[middle] < key:
                    k = middle + 1
                else:
                    last = middle
            places_2N[0, num_shared], places_2N[1, num_shared] = k, n
            num_shared += int64(keys_K[k] == key)
    return places_2N[0, :num_shared], places_2N[1, :num_shared]


@compiled_for("Tuple((int64[::1], int32[::1], int64[::1], int64[::1]))(int64[::1], int64, int32[::1])")
def merge(words_A: Any, num_bits: int, counts_A: Any) -> Any:
    """The union of keys, from sorted words: upper bits a key, low ``num_bits`` bits the number of its access.

    Returns keys_U, the distinct keys; counts_U, the sums of ``counts_A`` over their accesses; inverse_A, the place in
    keys_U of each access's key; and firsts_U, the first access of each key.
    """
    number_mask = (1 << num_bits) - 1
    num_keys = _num_distinct(words_A, num_bits)
    keys_U, firsts_U = np.empty(num_keys, np.int64), np.empty(num_keys, np.int64)
    counts_U, inverse_A = np.zeros(num_keys, np.int32), np.empty(len(words_A), np.int64)
    u, last = -1, int64(-1)
    for a in range(len(words_A)):
        key, access = words_A[a] >> num_bits, words_A[a] & number_mask
        if key != last:
            u += 1
            keys_U[u], firsts_U[u] = key, access
            last = key
        counts_U[u] += counts_A[access]
        inverse_A[access] = u
    return keys_U, counts_U, inverse_A, firsts_U


@compiled_for(int64[::1](int64[::1], int64[::1]))
def places(keys_H: Any, keys_N: Any) -> Any:
    """``np.searchsorted(keys_H, keys_N)`` of two ascending arrays, in one pass through both.

    It takes a tenth of the time of NumPy's function.
    """
    places_N = np.empty(len(keys_N), np.int64)
    h = 0
    for n in range(len(keys_N)):
        while h < len(keys_H) and keys_H[h] < keys_N[n]:
            h += 1
        places_N[n] = h
    return places_N
