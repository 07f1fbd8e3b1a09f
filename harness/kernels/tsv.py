"""Parsing of click logs and numbering of their categories.

Shapes: R rows, X bytes, I = 13 integers, F = 26 categories, N values, S slots of a hash table.
"""

from typing import Any

import numpy as np
from numba import uint64

from harness.kernels.compiler import compiled_for

_TAB, _LF, _CR, _MINUS, _ZERO = b"\t\n\r-0"
_MAX_HEX_DIGITS = 8
_DIGITS = b"0123456789abcdefABCDEF"
_HEX = np.full(256, -1, dtype=np.int8)
"""Value of a hexadecimal digit by its byte; -1: none."""
_HEX[list(_DIGITS)] = [int(chr(digit), 16) for digit in _DIGITS]
_FIBONACCI = np.uint64(0x9E3779B1)  # 2**32 / golden ratio: spreads runs of values as well as random ones
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@compiled_for('boolean(Array(uint8, 1, "C", readonly=True), int64, uint8[::1], int64[:, ::1], uint32[:, ::1])')
def decode(text_X: Any, max_digits: int, out_labels_R: Any, out_integers_RI: Any, out_categories_RF: Any) -> Any:
    """Parse rows of ``harness.data.criteo``'s format. Returns False if one of them is malformed.

    ``text_X`` contains R newlines, the last one at its end. ``max_digits``: the largest number of digits of an integer.
    """
    num_integers, num_categories = out_integers_RI.shape[1], out_categories_RF.shape[1]
    x = 0
    for r in range(len(out_labels_R)):
        if (text_X[x] != _ZERO and text_X[x] != _ZERO + 1) or text_X[x + 1] != _TAB:
            return False
        out_labels_R[r] = text_X[x] - _ZERO
        x += 2
        for i in range(num_integers):
            is_negative = text_X[x] == _MINUS
            x += is_negative
            first = x
            value = np.int64(0)
            digit = np.int64(text_X[x]) - _ZERO
            while 0 <= digit <= 9:
                value = value * 10 + digit
                x += 1
                digit = np.int64(text_X[x]) - _ZERO
            if text_X[x] != _TAB or x - first > max_digits or (is_negative and x == first):
                return False
            out_integers_RI[r, i] = -value if is_negative else value
            x += 1
        for f in range(num_categories):
            first = x
            bits = np.uint32(0)
            digit = np.int64(_HEX[text_X[x]])
            while digit >= 0:
                bits = np.uint32((bits << 4) | digit)
                x += 1
                digit = np.int64(_HEX[text_X[x]])
            if x - first > _MAX_HEX_DIGITS:
                return False
            is_last = f == num_categories - 1
            if is_last and text_X[x] == _CR:
                x += 1
            if text_X[x] != (_LF if is_last else _TAB):
                return False
            out_categories_RF[r, f] = bits
            x += 1
    return x == len(text_X)


@compiled_for("UniTuple(int64, 2)(uint32[::1], int64, uint64[::1], int64, int64, int32[::1])")
def number(  # noqa: PLR0917 - compiled functions take values by place
    values_N: Any, start: int, slots_S: Any, num_ids: int, most_ids: int, out_ids_N: Any
) -> Any:
    """Replace the values from ``start`` on by ids, as ``harness.data.numbering`` defines them.

    Returns the position after the last numbered value, and the number of distinct ids. ``slots_S`` is the hash table
    from values to ids; it is updated in place. Numbering stops before a new value that would need more than
    ``most_ids`` ids. ``most_ids`` must be less than the number of slots.
    """
    num_slots = uint64(len(slots_S))
    for n in range(start, len(values_N)):
        value = uint64(values_N[n])
        place = (((value * _FIBONACCI) & _LOW) * num_slots) >> _32
        slot = slots_S[place]
        while slot != 0 and slot >> _32 != value:
            place += uint64(1)
            if place == num_slots:
                place = uint64(0)
            slot = slots_S[place]
        if slot == 0:
            if num_ids == most_ids:
                return n, num_ids
            num_ids += 1
            slot = (value << _32) | uint64(num_ids)
            slots_S[place] = slot
        out_ids_N[n] = np.int64(slot & _LOW) - 1
    return len(values_N), num_ids


@compiled_for("void(uint64[::1], uint64[::1])")
def move(slots_S: Any, out_slots_S: Any) -> None:
    """Copy a hash table into an empty one with more slots."""
    num_slots = uint64(len(out_slots_S))
    for slot in slots_S:
        if slot != 0:
            place = ((((slot >> _32) * _FIBONACCI) & _LOW) * num_slots) >> _32
            while out_slots_S[place] != 0:
                place += uint64(1)
                if place == num_slots:
                    place = uint64(0)
            out_slots_S[place] = slot
