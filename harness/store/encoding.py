"""Encodings of row values in content files: one class and one entry in :data:`ENCODINGS` for each.

The record of a file names its encoding, so files of one shard may differ in it. W rows of a chunk, D columns of a row.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from harness.store.rows import row_bytes_of


class RowEncoding(Protocol):
    """Turns rows into bytes and back. A row takes the same number of bytes whatever its values."""

    def row_bytes(self, like_MD: Tensor) -> int:
        """Bytes of one encoded row of a shard like ``like_MD``; a save is charged this for each row."""
        ...

    def encode(self, rows_WD: Tensor) -> Tensor:
        """Memory of ``W * row_bytes`` bytes, any dtype, contiguous; may be ``rows_WD`` itself."""
        ...

    def read_into(self, fill: Callable[[Tensor], None], rows_WD: Tensor) -> None:
        """Set ``rows_WD`` to the next W rows of a file; ``fill`` sets a contiguous tensor to the file's next bytes."""
        ...


class Raw:
    """The encoding that stores rows as they are in memory: exact, and without a copy in either direction."""

    def row_bytes(self, like_MD: Tensor) -> int:
        """Bytes of one row in memory."""
        return row_bytes_of(like_MD)

    def encode(self, rows_WD: Tensor) -> Tensor:
        """The given rows, without a copy."""
        return rows_WD

    def read_into(self, fill: Callable[[Tensor], None], rows_WD: Tensor) -> None:
        """Read the file's next bytes directly into the rows."""
        fill(rows_WD)


RAW = "raw"
ENCODINGS: dict[str, RowEncoding] = {RAW: Raw()}
"""Encodings by the name in records and headers."""
