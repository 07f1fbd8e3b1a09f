"""Row selections of a save, and the source from which a writer reads the rows.

Shapes: M rows of the shard, D embedding dim, K rows chosen, W rows of a chunk.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Bytes processed at a time: large enough that calls cost little, small enough to be hashed while in cache."""

Part = Tensor | slice
"""Rows that a tracker chose: distinct local row ids (K,), int32 or int64, in any order; or all rows from a start to a
stop, for example of a small table, which are written without ids."""


class RowSource:
    """Gives a writer the rows of a save in blocks. This class reads a shard that does not change during the save.

    Each row is read once, in ascending order. ``rows_MD``: the rows of the shard in memory. A writer uses only its
    shape and dtype, since with a subclass its values may be newer than those of the save.
    """

    def __init__(self, rows_MD: Tensor) -> None:
        self.rows_MD = rows_MD

    def read(self, part: Part) -> Iterator[Tensor]:
        """The rows (W, D) of ``part``, whose ids ascend, in chunks; each is valid until the next one is read.

        This class gives one chunk: for a range a view of the memory, for chosen rows a copy.
        """
        yield self.rows_MD[part] if isinstance(part, slice) else self.rows_MD.index_select(0, part)

    def release(self) -> None:
        """Free what the source holds, after the last :meth:`read`."""


def row_bytes_of(rows_MD: Tensor) -> int:
    """Bytes of one row of ``rows_MD``."""
    return math.prod(rows_MD.shape[1:]) * rows_MD.itemsize


def rows_in(num_bytes: int, rows_MD: Tensor) -> int:
    """Number of rows that fit into ``num_bytes``; at least one."""
    return max(1, num_bytes // max(1, row_bytes_of(rows_MD)))


def empty_rows(num_rows: int, like_MD: Tensor) -> Tensor:
    """Uninitialised memory for ``num_rows`` rows of the width and dtype of ``like_MD``."""
    return torch.empty((num_rows, *like_MD.shape[1:]), dtype=like_MD.dtype)
