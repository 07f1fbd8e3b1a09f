"""Parsing of click logs, and numbering of their categories.

Categories of delimited text are known by their XXH64 (Collet, the xxHash specification 0.1.1), with seed 0.

Shapes: R rows, X bytes, C columns of the file, I integers or dense features, F categories or tables, M words for a
missing value, N values, S slots of a hash table.
"""

from typing import Any

import numba
import numpy as np
from numba import float64, int64, uint64

from harness.kernels.compiler import compiled_for
from harness.kernels.native import load_1, load_4, load_8, prefetch

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


SKIPPED, INTEGER, HEX, LABEL, DENSE, TEXT = range(6)
"""Kinds of columns of a file; INTEGER and HEX are those of Criteo's format."""
MAX_INTEGER_DIGITS, _MAX_HEX_DIGITS = 16, 8

EMPTY = 0xEF46DB3751D8E999
"""XXH64 of no bytes: the value of a missing category."""

_EMPTY = np.uint64(EMPTY)
_QUOTE, _LF, _CR, _DOT, _MINUS, _PLUS, _ZERO, _E, _e = b'"\n\r.-+0Ee'
_MOST_DIGITS = 19  # that a uint64 holds
_MOST_POWER = 400  # beyond the exponents of doubles; larger ones are cut
_TENS = np.array([10.0**power for power in range(23)])  # exact
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads runs of values as well as random ones
_32 = np.uint64(32)
_AHEAD = 8  # values whose slots are prefetched
_HEX_DIGITS = b"0123456789abcdefABCDEF"
_HEX = np.full(256, -1, dtype=np.int8)
"""Value of a hexadecimal digit by its byte; -1: none."""
_HEX[list(_HEX_DIGITS)] = [int(chr(digit), 16) for digit in _HEX_DIGITS]


@numba.njit(nogil=True)
def _digit(text_X: Any, x: Any) -> Any:
    return int64(text_X[x]) - _ZERO


@numba.njit(nogil=True)
def _exponent(text_X: Any, first: Any, end: Any) -> Any:
    """The exponent that begins at ``first`` with an e or E, and the position after it; 0 and ``first`` without one."""
    if first == end or (text_X[first] != _E and text_X[first] != _e):
        return 0, first
    x = first + 1
    is_negative = x < end and text_X[x] == _MINUS
    x += is_negative or (x < end and text_X[x] == _PLUS)
    exponent, start = 0, x
    while x < end and 0 <= _digit(text_X, x) <= 9:
        exponent = min(exponent * 10 + _digit(text_X, x), 1 << 20)
        x += 1
    if x == start:
        return 0, first
    return (-exponent if is_negative else exponent), x


@numba.njit(nogil=True)
def decimal(text_X: Any, first: Any, end: Any) -> Any:
    """The decimal number in the bytes [first, end), float64, and whether they are one within the range of float32.

    The result is the nearest double for up to 15 digits of which the last stands for 10^-22 to 10^22. Otherwise it may
    be a few units in the last place of a double away, which a float32 does not show.
    """
    x = first
    is_negative = x < end and text_X[x] == _MINUS
    x += is_negative or (x < end and text_X[x] == _PLUS)
    digits, num_digits, power, has_any, is_fraction = uint64(0), 0, 0, False, False
    while x < end:
        digit = _digit(text_X, x)
        if 0 <= digit <= 9:
            has_any = True
            if num_digits < _MOST_DIGITS:
                digits = digits * uint64(10) + uint64(digit)
                num_digits += digits > 0
                power -= is_fraction
            else:
                power += not is_fraction
        elif text_X[x] == _DOT and not is_fraction:
            is_fraction = True
        else:
            break
        x += 1
    exponent, x = _exponent(text_X, x, end)
    if not has_any or x != end:
        return 0.0, False
    value, power = float64(digits), max(min(power + exponent, _MOST_POWER), -_MOST_POWER)
    while power > 0:
        value *= _TENS[min(power, 22)]
        power -= min(power, 22)
    while power < 0:
        value /= _TENS[min(-power, 22)]
        power += min(-power, 22)
    return -value if is_negative else value, value <= _FLOAT32_MAX


@numba.njit(nogil=True)
def _unquoted(text_X: Any, first: Any, end: Any) -> Any:
    """The bytes [first, end) of a quoted field, two quotes as one."""
    out_Y = np.empty(end - first, np.uint8)
    y = 0
    while first < end:
        out_Y[y] = text_X[first]
        first += 2 if text_X[first] == _QUOTE else 1
        y += 1
    return out_Y[:y]


@numba.njit(nogil=True)
def _integer(text_X: Any, x: Any) -> Any:
    """The integer that begins at ``x``, 0 without a digit; the position after it; and whether it is one, or no byte."""
    start, is_negative, value = x, text_X[x] == _MINUS, int64(0)
    x += is_negative
    first, digit = x, _digit(text_X, x)
    while 0 <= digit <= 9:
        value = value * 10 + digit
        x += 1
        digit = _digit(text_X, x)
    return -value if is_negative else value, x, x == start or 0 < x - first <= MAX_INTEGER_DIGITS


@numba.njit(nogil=True)
def _hexadecimal(text_X: Any, x: Any) -> Any:
    """The same of a number of up to 8 hexadecimal digits, uint64."""
    start, value, digit = x, uint64(0), int64(_HEX[text_X[x]])
    while digit >= 0:
        value = (value << uint64(4)) | uint64(digit)
        x += 1
        digit = int64(_HEX[text_X[x]])
    return value, x, x - start <= _MAX_HEX_DIGITS


@numba.njit(nogil=True)
def _field(text_X: Any, x: Any, separator: Any, quote: Any, is_last: Any) -> Any:
    """The field that begins at ``x``: its bytes [first, end), without the quotes around it; the position after it.

    The fourth value is the number of quotes that stand for themselves, the fifth whether quotes match in the line.
    """
    first, num_quotes = x, 0
    if text_X[x] != quote:
        while text_X[x] != separator and text_X[x] != _LF:
            x += 1
        return first, x - (is_last and x > first and text_X[x - 1] == _CR), x, num_quotes, True
    first += 1
    x += 1
    while text_X[x] != quote or text_X[x + 1] == quote:
        if text_X[x] == _LF:
            return first, x, x, num_quotes, False
        num_quotes += text_X[x] == quote
        x += 2 if text_X[x] == quote else 1
    return first, x, x + 1 + (is_last and text_X[x + 1] == _CR), num_quotes, True


@numba.njit(nogil=True)
def _hashed(text_X: Any, first: Any, end: Any, num_quotes: Any) -> Any:
    """XXH64 of the text in the bytes [first, end) of a field."""
    if num_quotes:
        plain_Y = _unquoted(text_X, first, end)
        return xxh64(plain_Y.ctypes.data, len(plain_Y))
    return xxh64(text_X.ctypes.data + first, end - first)


@compiled_for(
    'UniTuple(int64, 2)(Array(uint8, 1, "C", readonly=True), uint8, int64, int8[::1], int64[::1], uint64[::1], '
    "uint8[::1], float64[:, ::1], uint64[:, ::1])"
)
def decode_rows(  # noqa: PLR0912, PLR0917 - one pass over the bytes; compiled functions take values by place
    text_X: Any,
    separator: Any,
    quote: Any,
    kinds_C: Any,
    places_C: Any,
    missing_M: Any,
    out_labels_R: Any,
    out_dense_RI: Any,
    out_values_FR: Any,
) -> Any:
    """Parse rows of a click log. Returns row and column of the first malformed field; (R, 0) without one.

    ``text_X`` contains R newlines, the last one at its end. ``quote``: the byte around fields; -1: none. ``kinds_C``:
    the kind of each column. ``places_C``: its feature or table. ``missing_M``: XXH64 of words that stand for a missing
    value, besides the empty one. Texts become the XXH64 of their bytes. A missing number is 0, a missing text
    :data:`EMPTY`.
    """
    num_columns = len(kinds_C)
    x = 0
    for r in range(len(out_labels_R)):
        for c in range(num_columns):
            kind, place, is_last, num_quotes, is_sound = kinds_C[c], places_C[c], c == num_columns - 1, 0, True
            first = end = x
            if kind == INTEGER:
                out_dense_RI[r, place], x, is_sound = _integer(text_X, x)
                x += is_last and text_X[x] == _CR
            elif kind == HEX:
                out_values_FR[place, r], x, is_sound = _hexadecimal(text_X, x)
                x += is_last and text_X[x] == _CR
            else:
                first, end, x, num_quotes, is_sound = _field(text_X, x, separator, quote, is_last)
            if not is_sound or text_X[x] != (_LF if is_last else separator):
                return r, c
            x += 1
            if kind < LABEL:
                continue
            is_missing, hashed = end == first, _EMPTY
            if not is_missing and (kind == TEXT or (kind == DENSE and len(missing_M))):
                hashed = _hashed(text_X, first, end, num_quotes)
                for m in range(len(missing_M)):
                    is_missing |= missing_M[m] == hashed
            if kind == LABEL:
                is_sound = end == first + 1 and 0 <= _digit(text_X, first) <= 1
                out_labels_R[r] = _digit(text_X, first)
            elif kind == TEXT:
                out_values_FR[place, r] = _EMPTY if is_missing else hashed
            elif is_missing:
                out_dense_RI[r, place] = 0.0
            else:
                out_dense_RI[r, place], is_sound = decimal(text_X, first, end)
            if not is_sound:
                return r, c
    return len(out_labels_R), 0


@compiled_for("UniTuple(int64, 2)(uint64[::1], int64, uint64[::1], int32[::1], int64, int64, int32[::1])")
def number_words(  # noqa: PLR0917 - compiled functions take values by place
    words_N: Any, start: int, words_S: Any, ids_S: Any, num_ids: int, most_ids: int, out_ids_N: Any
) -> Any:
    """Find the ids of the words from ``start`` on, as ``harness.data.prepare`` defines them; new words get new ids.

    Returns the position after the last numbered word, and the number of distinct ids, ``num_ids`` of which existed
    before. The hash table, ``words_S`` and ``ids_S`` (id + 1; 0: empty), is updated in place. Numbering stops before a
    new word that would need more than ``most_ids`` ids, of which there must be fewer than slots.
    """
    num_slots = uint64(len(words_S))
    for n in range(start, len(words_N)):
        if n + _AHEAD < len(words_N):
            ahead = (((words_N[n + _AHEAD] * _GOLDEN) >> _32) * num_slots) >> _32
            prefetch(words_S.ctypes.data + ahead * uint64(8))
            prefetch(ids_S.ctypes.data + ahead * uint64(4))
        word = words_N[n]
        place = (((word * _GOLDEN) >> _32) * num_slots) >> _32
        while ids_S[place] != 0 and words_S[place] != word:
            place += uint64(1)
            if place == num_slots:
                place = uint64(0)
        if ids_S[place] == 0:
            if num_ids == most_ids:
                return n, num_ids
            num_ids += 1
            words_S[place], ids_S[place] = word, num_ids
        out_ids_N[n] = ids_S[place] - 1
    return len(words_N), num_ids


@compiled_for("void(uint64[::1], int32[::1], uint64[::1], int32[::1])")
def move_words(words_S: Any, ids_S: Any, out_words_S: Any, out_ids_S: Any) -> None:
    """Copy a hash table of :func:`number_words` into an empty one with more slots."""
    num_slots = uint64(len(out_words_S))
    for s in range(len(words_S)):
        if ids_S[s] != 0:
            place = (((words_S[s] * _GOLDEN) >> _32) * num_slots) >> _32
            while out_ids_S[place] != 0:
                place += uint64(1)
                if place == num_slots:
                    place = uint64(0)
            out_words_S[place], out_ids_S[place] = words_S[s], ids_S[s]
