"""Criteo's text format.

A row is 40 tab-separated columns without a header: label (0 or 1), 13 integers I1..I13, 26 categories C1..C26 of 1 to 8
hexadecimal digits. Empty is missing and reads as 0, as in DLRM's preprocessing. Lines end with LF or CRLF; the last
line may have no line end. The Kaggle and the Terabyte logs share this format.

Shapes: R rows of a chunk, I = 13 integers, F = 26 categories.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import DataError
from harness.data.records import NO_LABELS, NUM_COLUMNS, NUM_DENSE, NUM_TABLES, OTHER_COLUMNS
from harness.kernels.parsing import decode_criteo

FIRST_CATEGORY = 1 + NUM_DENSE
MAX_INTEGER_DIGITS = 16

_LABEL = re.compile(rb"[01]\Z")
_INTEGER = re.compile(rb"(-?[0-9]{1,%d})?\Z" % MAX_INTEGER_DIGITS)
_HEX = re.compile(rb"[0-9a-fA-F]{0,8}\Z")


MAX_INTEGER = 99_999_999
_INTEGER_DIGITS = 8
_BLANK = 0  # no byte of a row
_TAB, _LF, _MINUS, _ZERO = b"\t\n-0"
_HEX_OF_BYTE = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype="<u2")


@dataclass(frozen=True)
class Rows:
    """Decoded rows, in file order; a missing value is 0."""

    labels_R: NDArray[np.uint8]
    integers_RI: NDArray[np.int64]
    categories_RF: NDArray[np.uint32]


def parse_rows(text: bytes, *, name: str, first_line: int) -> Rows:
    """Decode ``text``, whole lines in Criteo's format. Its last character is a newline.

    ``name`` and ``first_line`` (counted from 1): the file of the text and the number of its first line, for errors.

    Raises:
        DataError: ``name:line: ...`` for the first row that is not in the format, with the column and what it holds.
    """
    num_rows = text.count(b"\n")
    labels_R = np.empty(num_rows, dtype=np.uint8)
    integers_RI = np.empty((num_rows, NUM_DENSE), dtype=np.int64)
    categories_RF = np.empty((num_rows, NUM_TABLES), dtype=np.uint32)
    buffer = np.frombuffer(text, dtype=np.uint8)
    if not decode_criteo(buffer, MAX_INTEGER_DIGITS, labels_R, integers_RI, categories_RF):
        raise _explain(text, name, first_line)
    return Rows(labels_R, integers_RI, categories_RF)


def _explain(text: bytes, name: str, first_line: int) -> DataError:
    """The DataError for the first malformed row. It may be slow, since the command fails then."""
    for line, row in enumerate(text.removesuffix(b"\n").split(b"\n"), start=first_line):
        columns = row.removesuffix(b"\r").split(b"\t")
        if mistake := _mistake(columns):
            hint = "" if line > 1 else NO_LABELS if len(columns) == NUM_COLUMNS - 1 else OTHER_COLUMNS
            return DataError(f"{name}:{line}: {mistake}{hint}")
    raise AssertionError("parse_rows: the fast decoder rejected rows that the slow one accepts (a bug)")


def _mistake(columns: list[bytes]) -> str:
    """What is wrong with a row; empty if nothing is."""
    if len(columns) != NUM_COLUMNS:
        return f"{len(columns)} columns, expected {NUM_COLUMNS} separated by tabs"
    for index, value in enumerate(columns):
        shown = repr(value[:32].decode("utf-8", "backslashreplace"))
        if index == 0:
            if not _LABEL.match(value):
                return f"bad label {shown}, expected 0 or 1"
        elif index < FIRST_CATEGORY:
            if not _INTEGER.match(value):
                return f"I{index}: bad integer {shown}, expected up to {MAX_INTEGER_DIGITS} digits"
        elif not _HEX.match(value):
            return f"C{index - NUM_DENSE}: bad hex {shown}, expected up to 8 hexadecimal digits"
    return ""


def format_rows(
    labels_R: NDArray[np.bool_],
    integers_RI: NDArray[np.int64],
    integers_missing_RI: NDArray[np.bool_],
    categories_RF: NDArray[np.uint32],
    categories_missing_RF: NDArray[np.bool_],
) -> bytes:
    """The rows as lines, missing values empty, categories as 8 hexadecimal digits. |integers| <= 99,999,999.

    Fields are written at full width in a byte matrix; then all blanks are removed.
    """
    num_rows = len(labels_R)
    label = np.empty((num_rows, 2), dtype=np.uint8)
    label[:, 0] = labels_R
    label[:, 0] += _ZERO
    label[:, 1] = _TAB

    integers = np.empty((num_rows, NUM_DENSE, 1 + _INTEGER_DIGITS + 1), dtype=np.uint8)
    integers[..., 0] = np.where(integers_RI < 0, _MINUS, _BLANK)
    rest = np.abs(integers_RI).astype(np.uint32)
    assert rest.max(initial=0) <= MAX_INTEGER
    for place in range(_INTEGER_DIGITS, 0, -1):
        digit = (rest % 10).astype(np.uint8) + np.uint8(_ZERO)
        # A leading zero is a blank, except the only digit of a zero.
        integers[..., place] = digit if place == _INTEGER_DIGITS else np.where(rest > 0, digit, _BLANK)
        rest //= 10
    integers[integers_missing_RI] = _BLANK
    integers[..., -1] = _TAB

    categories = np.empty((num_rows, NUM_TABLES, 9), dtype=np.uint8)
    bytes_RF4 = categories_RF.astype(">u4").view(np.uint8).reshape(num_rows, NUM_TABLES, 4)
    categories[..., :8] = _HEX_OF_BYTE[bytes_RF4].view(np.uint8)
    categories[categories_missing_RF] = _BLANK
    categories[..., 8] = _TAB
    categories[:, -1, 8] = _LF

    parts = label, integers.reshape(num_rows, -1), categories.reshape(num_rows, -1)
    text = np.concatenate(parts, axis=1).reshape(-1)
    return text[text != _BLANK].tobytes()
