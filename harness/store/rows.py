"""Which rows of a shard a save writes, and where the writer gets them from.

Shapes: M rows of the shard, D embedding dim, K rows chosen, W rows of a chunk.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Bytes handled at a time: large enough to hide the calls, small enough to be hashed while still in cache."""


@dataclass(frozen=True)
class RowRange:
    """Rows ``start <= row < stop``, written whole: a small table. Needs no ids."""

    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Rows that a tracker chose: unique local row ids, ``K``, int32 or int64, in any order."""

    ids_K: Tensor


Part = RowRange | ChosenRows


class RowSource(Protocol):
    """Where a writer gets rows from. It asks for ascending rows, for each of them once."""

    @property
    def rows_MD(self) -> Tensor:
        """The shard's memory: it tells shape and dtype, and not always the values to write."""
        ...

    def read(self, part: Part) -> Iterator[Tensor]:
        """The rows (W, D) of ``part``, whose ids ascend, in chunks that are good until the next is asked for."""
        ...

    def release(self) -> None:
        """Nothing more will be read."""
        ...


class StillRows:
    """Rows that do not change while they are written."""

    def __init__(self, rows_MD: Tensor, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.rows_MD = rows_MD
        self._chunk_WD = empty_rows(min(rows_in(chunk_bytes, rows_MD), len(rows_MD)), rows_MD)

    def read(self, part: Part) -> Iterator[Tensor]:
        """A range is a view of the memory itself; chosen rows are gathered."""
        if isinstance(part, RowRange):
            yield self.rows_MD[part.start : part.stop]
            return
        for ids_W in part.ids_K.split(max(1, len(self._chunk_WD))):
            yield torch.index_select(self.rows_MD, 0, ids_W, out=self._chunk_WD[: len(ids_W)])

    def release(self) -> None:
        """Nothing is held."""


def row_bytes_of(rows_MD: Tensor) -> int:
    """Bytes of one row."""
    return math.prod(rows_MD.shape[1:]) * rows_MD.itemsize


def rows_in(num_bytes: int, rows_MD: Tensor) -> int:
    """How many rows fit into ``num_bytes``; at least one."""
    return max(1, num_bytes // max(1, row_bytes_of(rows_MD)))


def empty_rows(num_rows: int, like_MD: Tensor) -> Tensor:
    """Memory for so many rows."""
    return torch.empty((num_rows, *like_MD.shape[1:]), dtype=like_MD.dtype)
