"""Row selections of a save, and the sources from which a writer reads the rows.

Shapes: M rows of the shard, D embedding dim, K rows chosen, W rows of a chunk.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Bytes processed at a time: large enough that calls cost little, small enough to be hashed while in cache."""


@dataclass(frozen=True)
class RowRange:
    """All rows ``start <= row < stop``, for example of a small table; written without ids."""

    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Rows that a tracker chose: distinct local row ids (K,), int32 or int64, in any order."""

    ids_K: Tensor


Part = RowRange | ChosenRows


class RowSource(Protocol):
    """The source of the rows of a save. A writer reads each row once, in ascending order."""

    @property
    def rows_MD(self) -> Tensor:
        """The rows of the shard in memory. Use only shape and dtype: values may be newer than those of the save."""
        ...

    def read(self, part: Part) -> Iterator[Tensor]:
        """The rows (W, D) of ``part``, whose ids ascend, in chunks; each is valid until the next one is read."""
        ...

    def release(self) -> None:
        """End of reading: free what the source holds."""
        ...


class StillRows:
    """A source of rows that do not change while they are written."""

    def __init__(self, rows_MD: Tensor, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.rows_MD = rows_MD
        self._chunk_WD = empty_rows(min(rows_in(chunk_bytes, rows_MD), len(rows_MD)), rows_MD)

    def read(self, part: Part) -> Iterator[Tensor]:
        """The rows in chunks: a range as views of the memory, chosen rows as copies."""
        if isinstance(part, RowRange):
            yield self.rows_MD[part.start : part.stop]
            return
        for ids_W in part.ids_K.split(max(1, len(self._chunk_WD))):
            yield torch.index_select(self.rows_MD, 0, ids_W, out=self._chunk_WD[: len(ids_W)])

    def release(self) -> None:
        """A no-op: this source holds no buffer."""


def row_bytes_of(rows_MD: Tensor) -> int:
    """Bytes of one row."""
    return math.prod(rows_MD.shape[1:]) * rows_MD.itemsize


def rows_in(num_bytes: int, rows_MD: Tensor) -> int:
    """Number of rows that fit into ``num_bytes``; at least one."""
    return max(1, num_bytes // max(1, row_bytes_of(rows_MD)))


def empty_rows(num_rows: int, like_MD: Tensor) -> Tensor:
    """Uninitialised memory for ``num_rows`` rows like those of ``like_MD``."""
    return torch.empty((num_rows, *like_MD.shape[1:]), dtype=like_MD.dtype)
