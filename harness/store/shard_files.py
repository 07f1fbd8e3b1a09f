"""The content files of one PS rank: written directly from its rows, and read directly into them.

Shapes: N rows of the shard, D embedding dim, W rows of a window. Memory beyond the rows themselves: two chunks, 4 bytes
per chosen row, and in ``compact`` the row ids of one block per delta.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import Moved, StoreError
from harness.store.delta import DeltaCursor, plan_delta, segment_of, write_parts
from harness.store.encoding import ENCODINGS, RAW
from harness.store.format import (
    ContentReader,
    HashingWriter,
    discard,
    dtype_name,
    reading,
    write_content,
)
from harness.store.manifest import FileKind, FileRecord
from harness.store.row_sources import CHUNK_BYTES, Part, RowSource, empty_rows, rows_in

_MAX_BLOCK_ROWS = 1 << 14  # a compaction holds the ids of one block of every delta: 64 KiB each


class ShardStore:
    """Writes and reads the files of one shard under ``root/rank``. Used in the rank's process.

    A file counts only once a manifest names its record, so a rank may die at any point of a write. Rows are contiguous
    CPU tensors of any dtype; every method raises ``StoreError`` that names the file. No result depends on
    ``chunk_bytes``. ``check`` raises Moved if ``root`` is another folder by now: nothing is then written or removed
    there.
    """

    def __init__(
        self,
        root: Path,
        rank: str,
        *,
        fsync: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._rank = rank
        self._fsync = fsync
        self._chunk_bytes = chunk_bytes
        self._check = check
        self._fails_with: int | None = None

    def fail_next_write(self, number: int) -> None:
        """Make the next file fail at its first rows with the system's error ``number`` (errno), as a disk would."""
        self._fails_with = number

    def discard(self, sequence: int) -> None:
        """Remove this shard's files of save ``sequence``, which must never have been committed."""
        with suppress(Moved):
            self._check()
            discard(self._root, self._rank, sequence)

    def write_base(self, sequence: int, step: int, rows: Tensor | RowSource, *, encoding: str = RAW) -> FileRecord:
        """Write the whole shard as of ``step``."""
        source = _source(rows)
        whole = [slice(0, len(source.rows_MD))]
        return self._write("base", sequence, step, source=source, parts=whole, encoding=encoding)

    def write_delta(
        self, sequence: int, step: int, rows: Tensor | RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        """Write the rows that ``parts`` select, as of ``step``. They select no row twice, and may select none."""
        source = _source(rows)
        plan = plan_delta(parts, len(source.rows_MD))
        return self._write("delta", sequence, step, source=source, parts=plan, encoding=encoding)

    def _write(
        self, kind: FileKind, sequence: int, step: int, *, source: RowSource, parts: Sequence[Part], encoding: str
    ) -> FileRecord:
        """Write a file with the rows of ``parts``, which ascend."""
        self._check()
        fails_with, self._fails_with = self._fails_with, None
        like_ND, segments = source.rows_MD, [segment_of(part) for part in parts]
        block_rows = min(_MAX_BLOCK_ROWS, rows_in(self._chunk_bytes, like_ND))
        header: dict[str, Any] = {"shape": like_ND.shape, "dtype": dtype_name(like_ND.dtype)}
        if kind == "delta":
            header |= {"block_rows": block_rows, "segments": segments}

        def write(writer: HashingWriter) -> None:
            if fails_with is not None:
                raise OSError(fails_with, os.strerror(fails_with))
            write_parts(writer, parts, source, block_rows, ENCODINGS[encoding])

        return write_content(
            self._root,
            self._rank,
            kind,
            sequence,
            step=step,
            header=header,
            payload=write,
            num_rows=sum(num_rows for _, num_rows in segments),
            encoding=encoding,
            fsync=self._fsync,
        )

    def read_into(self, records: Sequence[FileRecord], rows_ND: Tensor) -> int:
        """Fill ``rows_ND`` with the newest saved version of every row; return the step of that state.

        ``records`` is a base and its deltas, oldest first. After an error the rows are part old, part new: read
        another checkpoint into them before use.
        """
        scratch_WD = empty_rows(rows_in(self._chunk_bytes, rows_ND) if len(records) > 1 else 0, rows_ND)
        for record in records:
            with reading(self._root, record) as reader:
                _check_form(reader, rows_ND)
                if record.kind == "base":
                    reader.read_rows(rows_ND)
                else:
                    DeltaCursor(reader, scratch_WD).fill(rows_ND, 0)
                reader.finish()
        return records[-1].applied_step

    def compact(self, records: Sequence[FileRecord], sequence: int) -> FileRecord:
        """Merge a base and its deltas on disk into a new base, of encoding ``raw``, that restores to the same rows.

        Memory holds only a window that moves over the shard, filled from every file in turn. The old files stay until a
        commit deletes them.
        """
        with ExitStack() as stack:
            readers = [stack.enter_context(reading(self._root, record)) for record in records]
            merged = _Merged(readers, self._chunk_bytes)
            return self.write_base(sequence, records[-1].applied_step, merged)


class _Merged(RowSource):
    """The rows that a base and its deltas restore, read side by side: ``readers`` has one reader for each file."""

    def __init__(self, readers: Sequence[ContentReader], chunk_bytes: int) -> None:
        super().__init__(_like(readers[0]))
        self._readers = readers
        self._chunk_rows = rows_in(chunk_bytes, self.rows_MD)
        for reader in readers:
            _check_form(reader, self.rows_MD)

    def read(self, part: Part) -> Iterator[Tensor]:
        """Yield all rows, in a window that moves over the shard; ``part`` is ignored."""
        base, *deltas = self._readers
        num_rows = len(self.rows_MD)
        window_WD, scratch_WD = (empty_rows(self._chunk_rows, self.rows_MD) for _ in range(2))
        cursors = [DeltaCursor(reader, scratch_WD) for reader in deltas]
        for first_row in range(0, num_rows, self._chunk_rows):
            rows_WD = window_WD[: num_rows - first_row]
            base.read_rows(rows_WD)
            for cursor in cursors:
                cursor.fill(rows_WD, first_row)
            yield rows_WD
        for reader in self._readers:
            reader.finish()


def _source(rows: Tensor | RowSource) -> RowSource:
    return RowSource(rows) if isinstance(rows, Tensor) else rows


def _like(reader: ContentReader) -> Tensor:
    """A tensor without memory, of the shape and dtype of the shard whose file is read."""
    return torch.empty(reader.header["shape"], dtype=getattr(torch, reader.header["dtype"]), device="meta")


def _check_form(reader: ContentReader, like_ND: Tensor) -> None:
    """Raise StoreError unless the file is of a shard like ``like_ND``."""
    if (found := _form(_like(reader))) != _form(like_ND):
        raise StoreError(f"{reader.path}: expected rows of a shard of {_form(like_ND)}, got {found}")


def _form(rows_ND: Tensor) -> str:
    """The shape and dtype of a tensor, in words."""
    return f"{' x '.join(map(str, rows_ND.shape))} {dtype_name(rows_ND.dtype)}"
