"""Writer of Criteo's text format (``harness.data.delimited``).

Shapes: R rows, I = 13 integers, F = 26 categories.
"""

import numpy as np
from numpy.typing import NDArray

from harness.data.records import NUM_DENSE, NUM_TABLES

MAX_INTEGER = 99_999_999
_INTEGER_DIGITS = 8
_BLANK = 0  # no byte of a row
_TAB, _LF, _MINUS, _ZERO = b"\t\n-0"
_HEX_OF_BYTE = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype="<u2")


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
