"""XXH64 (Collet, the xxHash specification 0.1.1) with seed 0, of bytes at an address."""

from typing import Any

import numba
import numpy as np
from numba import uint64

from harness.kernels.native import load_1, load_4, load_8

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@numba.njit(nogil=True)
def _rotated(word: Any, bits: Any) -> Any:
    return (word << uint64(bits)) | (word >> uint64(64 - bits))


@numba.njit(nogil=True)
def _round(total: Any, lane: Any) -> Any:
    return _rotated(total + lane * _P2, 31) * _P1


@numba.njit(nogil=True)
def xxh64(address: Any, num_bytes: Any) -> Any:
    """The hash of ``num_bytes`` bytes from ``address`` on: uint64."""
    here, end = address, address + num_bytes
    if num_bytes >= 32:
        a, b, c, d = _P1 + _P2, _P2, uint64(0), uint64(0) - _P1
        while here + 32 <= end:
            a = _round(a, load_8(here))
            b = _round(b, load_8(here + 8))
            c = _round(c, load_8(here + 16))
            d = _round(d, load_8(here + 24))
            here += 32
        total = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        for lane in (a, b, c, d):
            total = (total ^ _round(uint64(0), lane)) * _P1 + _P4
    else:
        total = _P5
    total += uint64(num_bytes)
    while here + 8 <= end:
        total = _rotated(total ^ _round(uint64(0), load_8(here)), 27) * _P1 + _P4
        here += 8
    if here + 4 <= end:
        total = _rotated(total ^ load_4(here) * _P1, 23) * _P2 + _P3
        here += 4
    while here < end:
        total = _rotated(total ^ load_1(here) * _P5, 11) * _P1
        here += 1
    total = (total ^ (total >> uint64(33))) * _P2
    total = (total ^ (total >> uint64(29))) * _P3
    return total ^ (total >> uint64(32))
