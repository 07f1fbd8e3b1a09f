"""Row selections of a save, the source from which a writer reads the rows, and the encodings of rows in files.

The record of a file names its encoding, so the files of one shard may have different ones.

Shapes: M rows of the shard, D columns of a row, K rows chosen, W rows of a chunk.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from harness.store.manifest import CHUNK_BYTES, RAW

ROW_ID_BYTES = 4

Part = Tensor | slice
"""Rows to write: distinct local row ids (K,), int32 or int64, in any order, or a range of rows. A range, for example a
small table, is written without ids."""


class RowSource:
    """The source from which a writer reads the rows of a save; here a shard that does not change during the save.

    A writer reads each row at most once. ``rows_MD``: the rows of the shard. A writer uses only its shape and dtype:
    with a subclass its values may be newer than those of the save.
    """

    def __init__(self, rows_MD: Tensor) -> None:
        self.rows_MD = rows_MD
        self.chunk_rows = rows_in(CHUNK_BYTES, rows_MD)

    def begin(self) -> None:
        """Called once before the first :meth:`read`."""

    def read(self, part: Part) -> Iterator[Tensor]:
        """The rows of ``part``, whose ids ascend, in chunks (W, D). A chunk is valid until the next one is read."""
        for chunk in self.chunks(part):
            yield self.rows_MD[chunk] if isinstance(chunk, slice) else self.rows_MD.index_select(0, chunk)

    def chunks(self, part: Part) -> Iterator[Part]:
        """``part`` in pieces of at most ``chunk_rows`` rows."""
        if isinstance(part, Tensor):
            yield from (ids_W for ids_W in part.split(self.chunk_rows) if len(ids_W))
            return
        for start in range(part.start, part.stop, self.chunk_rows):
            yield slice(start, min(start + self.chunk_rows, part.stop))

    def release(self) -> None:
        """Free the memory of the source, after the last :meth:`read` or instead of it."""


class FailingSource(RowSource):
    """A source with which a write fails before its first row, by the system's error ``number`` (errno)."""

    def __init__(self, rows_MD: Tensor, number: int) -> None:
        super().__init__(rows_MD)
        self._number = number

    def begin(self) -> None:
        """Raise the OSError."""
        raise OSError(self._number, os.strerror(self._number))


def split_parts(parts: Iterable[Part], num_shard_rows: int) -> tuple[list[slice], Tensor]:
    """The ranges in ``parts``, ascending, and all chosen rows, int32, ascending. No row may be in two parts.

    Ranges that follow each other without a gap become one range. Takes 4 bytes of memory per chosen row.
    """
    assert num_shard_rows <= np.iinfo(np.int32).max, "row ids are int32"
    parts = tuple(parts)
    chosen = [part.numpy() for part in parts if isinstance(part, Tensor)]
    ids_K = np.concatenate(chosen, dtype=np.int32, casting="unsafe") if chosen else np.empty(0, np.int32)
    ids_K.sort()
    assert not len(ids_K) or (ids_K[0] >= 0 and ids_K[-1] < num_shard_rows), "a chosen row outside the shard"
    assert (ids_K[1:] > ids_K[:-1]).all(), "a row chosen twice"
    ranges: list[slice] = []
    for start, stop in sorted((part.start, part.stop) for part in parts if isinstance(part, slice)):
        assert (ranges[-1].stop if ranges else 0) <= start <= stop <= num_shard_rows, (
            "ranges overlap or leave the shard"
        )
        first, after = np.searchsorted(ids_K, [start, stop])
        assert first == after, "a chosen row lies in a range that is written whole"
        if ranges and ranges[-1].stop == start:
            ranges[-1] = slice(ranges[-1].start, stop)
        elif start < stop:
            ranges.append(slice(start, stop))
    return ranges, torch.from_numpy(ids_K)


def row_bytes_of(rows_MD: Tensor) -> int:
    return math.prod(rows_MD.shape[1:]) * rows_MD.itemsize


def rows_in(num_bytes: int, rows_MD: Tensor) -> int:
    """Number of rows like those of ``rows_MD`` that fit into ``num_bytes``; at least one."""
    return max(1, num_bytes // max(1, row_bytes_of(rows_MD)))


def empty_rows(num_rows: int, like_MD: Tensor) -> Tensor:
    """Uninitialised memory for ``num_rows`` rows of the width and dtype of ``like_MD``."""
    return torch.empty((num_rows, *like_MD.shape[1:]), dtype=like_MD.dtype)


class RowEncoding:
    """Turns rows into bytes and back. This class keeps them as in memory: exact, and without a copy.

    The number of bytes of a row does not depend on its values.
    """

    def row_bytes(self, like_MD: Tensor) -> int:
        """Bytes of one encoded row of a shard like ``like_MD``; the price of a save depends on it."""
        return row_bytes_of(like_MD)

    def encode(self, rows_WD: Tensor) -> Tensor:
        """The encoded rows: W * ``row_bytes`` bytes of contiguous memory, of any dtype; may be ``rows_WD`` itself."""
        return rows_WD

    def read_into(self, fill: Callable[[Tensor], None], rows_WD: Tensor) -> None:
        """Set ``rows_WD`` to the next W rows of a file. ``fill`` sets a contiguous tensor to the file's next bytes."""
        fill(rows_WD)

    def round_into(self, rows_WD: Tensor, out_WD: Tensor) -> None:
        """Set ``out_WD`` to ``rows_WD`` as they are once they were encoded and read back."""

        def fill(encoded: Tensor) -> None:
            encoded.copy_(self.encode(rows_WD))

        self.read_into(fill, out_WD)


class Quantised(RowEncoding):
    """Encodes each value of a row in ``bits`` bits, with a float32 scale and offset for each row (as in Check-N-Run).

    The quantisation is asymmetric and uniform: the offset is the row's least value, the scale is (largest - least) /
    (2**bits - 1). A value is read back as ``offset + scale * q`` for the nearest q. So its error is at most half of the
    scale, beside rounding in float32. A row of equal values is exact. Each operation is rounded by itself, so every
    machine computes the same bits. Optimizer state in the row would share the scale of the values, so a configuration
    with both is refused.
    """

    def __init__(self, bits: int) -> None:
        assert bits in (2, 4, 8), "values share a byte evenly"
        self._bits = bits
        self._levels = 2**bits - 1
        self._shifts = torch.arange(0, 8, bits, dtype=torch.uint8)

    def row_bytes(self, like_MD: Tensor) -> int:
        """8 bytes for scale and offset, and the bytes of the values, rounded up to whole bytes."""
        return 8 + -(-like_MD.shape[1] * self._bits // 8)

    def encode(self, rows_WD: Tensor) -> Tensor:
        """uint8 (W, row_bytes): scale, offset, then the values, the first value of a byte in its lowest bits."""
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


ENCODINGS: dict[str, RowEncoding] = {
    RAW: RowEncoding(),
    "uint8": Quantised(8),
    "uint4": Quantised(4),
    "uint2": Quantised(2),
}
"""Encodings, by their name in records and headers."""
