"""Criteo's text format, decoded many rows at a time by numpy.

A row is 40 tab-separated columns without a header: label (0 or 1), 13 integers I1..I13, 26 categories C1..C26 of 1 to 8
hexadecimal digits. Empty is missing and reads as 0, as in DLRM's preprocessing. Lines end with LF or CRLF, the last one
need not. The Kaggle and the Terabyte logs are alike in this.

Decoding relies on short fields: the 8 bytes that end where a field ends are read as one word, what lies before the
field is blanked, and pairs of characters are looked up in a table of 65,536 entries.

Shapes: R rows of a chunk, I = 13 integers, F = 26 categories.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import DataError
from harness.data.records import NUM_COLUMNS, NUM_DENSE

FIRST_CATEGORY = 1 + NUM_DENSE
MAX_INTEGER_DIGITS = 16

_PAD = b"\0" * 16  # so that the window of 16 bytes before the first field exists
_TAB, _LF, _CR, _MINUS = b"\t\n\r-"
_ZEROS = np.uint64(0x3030303030303030)
# The last n of the 8 bytes of a little-endian word, n = 0..8.
_KEEP = np.array([0, *(((1 << 8 * n) - 1) << 8 * (8 - n) for n in range(1, 9))], dtype=np.uint64)
_BLANK = ~_KEEP & _ZEROS
_LABEL = re.compile(rb"[01]\Z")
_INTEGER = re.compile(rb"(-?[0-9]{1,%d})?\Z" % MAX_INTEGER_DIGITS)
_HEX = re.compile(rb"[0-9a-fA-F]{0,8}\Z")


@dataclass(frozen=True)
class Rows:
    """Decoded rows, in order; missing is 0."""

    labels_R: NDArray[np.uint8]
    integers_RI: NDArray[np.int64]
    categories_RF: NDArray[np.uint32]


def _pair_table(alphabet: bytes, base: int) -> NDArray[np.int16]:
    """Value of two digits, by their two bytes read as a little-endian uint16; -1 where one of them is no digit."""
    digits = np.full(256, -1, dtype=np.int16)
    for character in alphabet:
        digits[character] = int(chr(character), base)
    high, low = digits[None, :], digits[:, None]
    return np.where((high >= 0) & (low >= 0), high * base + low, -1).astype(np.int16).reshape(-1)


_HEX_PAIRS = _pair_table(b"0123456789abcdefABCDEF", 16)
_DECIMAL_PAIRS = _pair_table(b"0123456789", 10)
_PLACES = np.array([1_000_000, 10_000, 100, 1], dtype=np.int32)


def parse_rows(text: bytes, *, name: str, first_line: int) -> Rows:
    """Decode whole lines.

    ``text`` ends with a newline. ``name`` and ``first_line`` (counted from 1) say where it comes from.

    Raises:
        DataError: ``name:line: ...`` for the first row that is not in the format, with the column and what it holds.
    """
    rows = _decode(text)
    if rows is None:
        raise _explain(text, name, first_line)
    return rows


def _decode(text: bytes) -> Rows | None:
    """The rows, or None if any of them is bad."""
    buffer = np.frombuffer(_PAD + text, dtype=np.uint8)
    ends = np.flatnonzero(buffer[len(_PAD) :] <= _LF)  # bytes below a tab appear in no valid row
    if len(ends) % NUM_COLUMNS:
        return None
    ends += len(_PAD)
    ends_RC = ends.reshape(-1, NUM_COLUMNS)
    separators_RC = buffer[ends_RC]
    if (separators_RC[:, :-1] != _TAB).any() or (separators_RC[:, -1] != _LF).any():
        return None
    lengths_RC = np.diff(ends, prepend=len(_PAD) - 1).reshape(-1, NUM_COLUMNS) - 1
    crlf_R = buffer[ends_RC[:, -1] - 1] == _CR
    ends_RC[:, -1] -= crlf_R
    lengths_RC[:, -1] -= crlf_R

    labels_R = buffer[ends_RC[:, 0] - 1] - np.uint8(ord("0"))
    integers = _integers(buffer, ends_RC[:, 1:FIRST_CATEGORY], lengths_RC[:, 1:FIRST_CATEGORY])
    categories = _categories(buffer, ends_RC[:, FIRST_CATEGORY:], lengths_RC[:, FIRST_CATEGORY:])
    if integers is None or categories is None or (labels_R > 1).any() or (lengths_RC[:, 0] != 1).any():
        return None
    return Rows(labels_R, integers, categories)


def _pairs(
    buffer: NDArray[np.uint8], ends: NDArray[np.int64], lengths: NDArray[np.int64], table: NDArray[np.int16]
) -> NDArray[np.int16]:
    """Fields of at most 8 characters, zero-filled on the left, as four pairs of digits: (..., 4), -1 for a bad pair."""
    words = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))[ends - 8]
    words &= _KEEP[lengths]
    words |= _BLANK[lengths]
    return table[words.view("<u2").reshape(*ends.shape, 4)]


def _categories(
    buffer: NDArray[np.uint8], ends_RF: NDArray[np.int64], lengths_RF: NDArray[np.int64]
) -> NDArray[np.uint32] | None:
    """Hexadecimal fields, or None if one is bad."""
    if lengths_RF.max() > 8:
        return None
    pairs_RF4 = _pairs(buffer, ends_RF, lengths_RF, _HEX_PAIRS)
    if pairs_RF4.min() < 0:
        return None
    return pairs_RF4.astype(np.uint8).view(">u4")[..., 0].astype(np.uint32)


def _integers(
    buffer: NDArray[np.uint8], ends_RI: NDArray[np.int64], lengths_RI: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Decimal fields with an optional minus sign, or None if one is bad."""
    negative_RI = (buffer[ends_RI - lengths_RI] == _MINUS) & (lengths_RI > 0)
    digits_RI = lengths_RI - negative_RI
    if digits_RI.max() > MAX_INTEGER_DIGITS or (negative_RI & (digits_RI == 0)).any():
        return None
    pairs_RI4 = _pairs(buffer, ends_RI, np.minimum(digits_RI, 8), _DECIMAL_PAIRS)
    if pairs_RI4.min() < 0:
        return None
    values_RI = (pairs_RI4 @ _PLACES).astype(np.int64)
    long = np.nonzero(digits_RI > 8)  # rare: the digits above the eighth, in a window of their own
    if len(long[0]):
        pairs_L4 = _pairs(buffer, ends_RI[long] - 8, digits_RI[long] - 8, _DECIMAL_PAIRS)
        if pairs_L4.min() < 0:
            return None
        values_RI[long] += (pairs_L4 @ _PLACES).astype(np.int64) * 10**8
    np.negative(values_RI, out=values_RI, where=negative_RI)
    return values_RI


def _explain(text: bytes, name: str, first_line: int) -> DataError:
    """What is wrong with the first bad row. Slow, row by row: it runs once, before everything ends."""
    for line, row in enumerate(text.removesuffix(b"\n").split(b"\n"), start=first_line):
        columns = row.removesuffix(b"\r").split(b"\t")
        if len(columns) != NUM_COLUMNS:
            return DataError(f"{name}:{line}: {len(columns)} columns, expected {NUM_COLUMNS}")
        for index, value in enumerate(columns):
            shown = repr(value[:32].decode("utf-8", "backslashreplace"))
            if index == 0:
                if not _LABEL.match(value):
                    return DataError(f"{name}:{line}: bad label {shown}, expected 0 or 1")
            elif index < FIRST_CATEGORY:
                if not _INTEGER.match(value):
                    return DataError(
                        f"{name}:{line}: I{index}: bad integer {shown}, expected up to {MAX_INTEGER_DIGITS} digits"
                    )
            elif not _HEX.match(value):
                column = f"C{index - NUM_DENSE}"
                return DataError(f"{name}:{line}: {column}: bad hex {shown}, expected up to 8 hexadecimal digits")
    raise AssertionError("the fast decoder refused rows that the slow one accepts")
