"""Selection of the largest of many numbers, by digits of their bits.

M numbers, K chosen; V = 2^11 values of a digit, and one more.
"""

from typing import Any

import numba
import numpy as np
from numba import int64, uint32

from harness.kernels.compiler import compiled_for

_BITS = 11  # of a digit: four histograms fill two thirds of a first-level cache


@numba.njit(nogil=True, error_model="numpy")
def _threshold(keys_M: Any, num_rows: Any, shift: Any) -> Any:
    """The last of the ``num_rows`` largest keys below ``2^shift``, and how many of these keys are equal to it.

    From the highest digit on, a histogram of the keys with the digits found so far gives the next one. Neighbours are
    counted in different histograms: many keys are equal, and additions to one count wait for each other.
    """
    prefix = int64(0)
    while shift > 0:
        above, shift = shift, max(shift - _BITS, 0)
        counts_4V, last = np.zeros((4, (1 << _BITS) + 1), np.int32), (int64(1) << (above - shift)) - 1
        for m in range(len(keys_M)):
            key = int64(keys_M[m])
            counts_4V[m & 3, ((key >> shift) & last) if key >> above == prefix else 1 << _BITS] += 1
        counts_V, digit = counts_4V.sum(0), last
        while counts_V[digit] < num_rows:
            num_rows -= counts_V[digit]
            digit -= 1
        prefix = (prefix << (above - shift)) | digit
    return prefix, num_rows


@compiled_for([int64[::1](uint32[::1], int64), int64[::1](int64[::1], int64)])
def largest(keys_M: Any, num_rows: int) -> Any:
    """Places (int64, ascending) of the at most ``num_rows`` largest keys above 0; ties go to the lower place."""
    num_keys, num_large = int64(0), int64(0)
    for m in range(len(keys_M)):
        num_keys += int64(int64(keys_M[m]) > 0)
        num_large += int64(int64(keys_M[m]) >> _BITS > 0)
    threshold, num_tied = int64(0), int64(0)
    if num_keys > num_rows:
        num_keys = num_rows
        if num_large < num_rows:  # counts, as a rule
            threshold, num_tied = _threshold(keys_M, num_rows - num_large, _BITS)
        else:
            threshold, num_tied = _threshold(keys_M, num_rows, min(8 * keys_M.itemsize, 63))
    places_K, k, m = np.empty(num_keys + 1, np.int64), 0, 0  # with room for one that is not kept
    while num_tied > 0:
        key = int64(keys_M[m])
        places_K[k] = m
        k += int64(key >= threshold)
        num_tied -= int64(key == threshold)
        m += 1
    for n in range(m, len(keys_M)):
        places_K[k] = n
        k += int64(int64(keys_M[n]) > threshold)
    return places_K[:num_keys]
