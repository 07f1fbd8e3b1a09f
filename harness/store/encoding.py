"""Encodings of row values in content files: one class and one entry in :data:`ENCODINGS` for each.

The record of a file names its encoding, so files of one shard may differ in it. W rows of a chunk, D columns of a row.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.store.row_sources import row_bytes_of


class RowEncoding:
    """Turns rows into bytes and back. This class keeps them as in memory: exact, and without a copy.

    The number of bytes of a row does not depend on its values.
    """

    def row_bytes(self, like_MD: Tensor) -> int:
        """Bytes of one encoded row of a shard like ``like_MD``; the price of a save depends on it."""
        return row_bytes_of(like_MD)

    def encode(self, rows_WD: Tensor) -> Tensor:
        """Return ``W * row_bytes`` bytes of contiguous memory, of any dtype; may be ``rows_WD`` itself."""
        return rows_WD

    def read_into(self, fill: Callable[[Tensor], None], rows_WD: Tensor) -> None:
        """Set ``rows_WD`` to the next W rows of a file; ``fill`` sets a contiguous tensor to the file's next bytes."""
        fill(rows_WD)


class Quantised(RowEncoding):
    """The encoding of a row as ``bits`` a value, with a float32 scale and offset of its own (as in Check-N-Run).

    Asymmetric and uniform: the offset is the row's least value, the scale its range / ``2**bits - 1``. A value is read
    back as ``offset + scale * q`` for the nearest q, so its error is at most half of the scale, and rounding in
    float32. A row of equal values is exact. Each operation is rounded by itself, so every machine computes the same
    bits. State columns of an optimizer would share the scale of the values: a run with both is refused.
    """

    def __init__(self, bits: int) -> None:
        assert bits in (2, 4, 8), "values share a byte evenly"
        self._bits = bits
        self._levels = 2**bits - 1
        self._shifts = torch.arange(0, 8, bits, dtype=torch.uint8)

    def row_bytes(self, like_MD: Tensor) -> int:
        """Bytes of an encoded row: scale and offset (8 bytes), then the values, rounded up to whole bytes."""
        return 8 + -(-like_MD.shape[1] * self._bits // 8)

    def encode(self, rows_WD: Tensor) -> Tensor:
        """uint8 (W, row_bytes): scale, offset, then the values, the first in the lowest bits."""
        num_rows, dim = rows_WD.shape
        offset_W1 = rows_WD.amin(1, keepdim=True)
        scale_W1 = (rows_WD.amax(1, keepdim=True) - offset_W1) / self._levels
        steps_WD = (rows_WD - offset_W1) / torch.where(scale_W1 > 0, scale_W1, 1.0)
        num_bytes, per_byte = self.row_bytes(rows_WD) - 8, len(self._shifts)
        padded = torch.zeros((num_rows, num_bytes * per_byte), dtype=torch.uint8)
        padded[:, :dim] = steps_WD.round_().clamp_(0, self._levels)
        packed = (padded.view(num_rows, num_bytes, per_byte) << self._shifts).sum(2, dtype=torch.uint8)
        return torch.cat([torch.cat([scale_W1, offset_W1], 1).view(torch.uint8), packed], 1)

    def read_into(self, fill: Callable[[Tensor], None], rows_WD: Tensor) -> None:
        num_rows, dim = rows_WD.shape
        encoded = torch.empty((num_rows, self.row_bytes(rows_WD)), dtype=torch.uint8)
        fill(encoded)
        head_W2 = torch.empty((num_rows, 2))
        head_W2.view(torch.uint8).copy_(encoded[:, :8])
        values = ((encoded[:, 8:, None] >> self._shifts) & self._levels).flatten(1)
        rows_WD.copy_(values[:, :dim]).mul_(head_W2[:, :1]).add_(head_W2[:, 1:])


RAW = "raw"
ENCODINGS: dict[str, RowEncoding] = {
    RAW: RowEncoding(),
    "uint8": Quantised(8),
    "uint4": Quantised(4),
    "uint2": Quantised(2),
}
"""Encodings by the name in records and headers."""
