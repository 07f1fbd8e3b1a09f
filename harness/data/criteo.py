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
from harness.data.records import NUM_COLUMNS, NUM_DENSE, NUM_TABLES
from harness.kernels import tsv

FIRST_CATEGORY = 1 + NUM_DENSE
MAX_INTEGER_DIGITS = 16

_LABEL = re.compile(rb"[01]\Z")
_INTEGER = re.compile(rb"(-?[0-9]{1,%d})?\Z" % MAX_INTEGER_DIGITS)
_HEX = re.compile(rb"[0-9a-fA-F]{0,8}\Z")


@dataclass(frozen=True)
class Rows:
    """Decoded rows, in file order; a missing value is 0."""

    labels_R: NDArray[np.uint8]
    integers_RI: NDArray[np.int64]
    categories_RF: NDArray[np.uint32]


def parse_rows(text: bytes, *, name: str, first_line: int) -> Rows:
    """Decode whole lines.

    ``text`` ends with a newline. ``name`` and ``first_line`` (counted from 1) are its file and line, for errors.

    Raises:
        DataError: ``name:line: ...`` for the first row that is not in the format, with the column and what it holds.
    """
    rows = _decode(text)
    if rows is None:
        raise _explain(text, name, first_line)
    return rows


def _decode(text: bytes) -> Rows | None:
    """The decoded rows, or None if any of them is malformed."""
    num_rows = text.count(b"\n")
    labels_R = np.empty(num_rows, dtype=np.uint8)
    integers_RI = np.empty((num_rows, NUM_DENSE), dtype=np.int64)
    categories_RF = np.empty((num_rows, NUM_TABLES), dtype=np.uint32)
    buffer = np.frombuffer(text, dtype=np.uint8)
    is_sound = tsv.decode(buffer, MAX_INTEGER_DIGITS, labels_R, integers_RI, categories_RF)
    return Rows(labels_R, integers_RI, categories_RF) if is_sound else None


def _explain(text: bytes, name: str, first_line: int) -> DataError:
    """The DataError for the first malformed row. Slow, row by row, since it runs only before the program fails."""
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
    raise AssertionError("parse_rows: the fast decoder rejected rows that the slow one accepts (a bug)")
