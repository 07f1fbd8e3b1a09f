"""The content files of one PS rank: written directly from its rows, and read directly into them.

Shapes: N rows of the shard, D columns of a row, K rows chosen, W rows of a window onto the shard. Memory beyond the
rows themselves: two chunks, 4 bytes per chosen row, and in ``compact`` the row ids of one block per delta.

A base has all rows. A delta has some rows in ascending order of row id, and is read in one pass without an index. The
payload of a delta is a list of segments, which the header lists as ``[start, num_rows]``. A segment with a ``start`` is
a whole range of rows without ids. A segment with a ``start`` of null is chosen rows, in blocks of at most
``block_rows``: the int32 ids of a block, then its rows. Rows are stored in the file's encoding
(``harness.store.rows``).

A window that moves over the shard from its first row to its last can be filled from any number of deltas at once, each
read front to back. In a restore the window is the whole shard; a compaction moves a small one.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.errors import StoreError
from harness.store.format import (
    ContentReader,
    HashingWriter,
    bytes_of,
    discard,
    dtype_name,
    reading,
    write_content,
)
from harness.store.manifest import CHUNK_BYTES, RAW, FileKind, FileRecord
from harness.store.rows import ENCODINGS, Part, RowEncoding, RowSource, empty_rows, rows_in

ROW_ID_BYTES = 4

Segment = tuple[int | None, int]
"""A part of a delta's payload: the first row of a range, or None for chosen rows; and the number of rows."""


def plan_delta(parts: Iterable[Part], num_shard_rows: int) -> list[Part]:
    """Order ``parts`` by rows, for one pass over the shard. No row may be in two parts.

    Ranges that follow each other without a gap become one range. All chosen rows between two ranges become one part,
    int32, ascending. Takes 4 bytes of memory per chosen row.
    """
    assert num_shard_rows <= np.iinfo(np.int32).max, "row ids are int32"
    parts = tuple(parts)
    ranges = sorted((part.start, part.stop) for part in parts if isinstance(part, slice))
    chosen = [part.numpy() for part in parts if isinstance(part, Tensor)]
    ids_K = np.concatenate(chosen, dtype=np.int32, casting="unsafe") if chosen else np.empty(0, np.int32)
    ids_K.sort()
    assert not len(ids_K) or (ids_K[0] >= 0 and ids_K[-1] < num_shard_rows), "a chosen row outside the shard"
    assert (ids_K[1:] > ids_K[:-1]).all(), "a row chosen twice"
    plan: list[Part] = []
    cut, first, last_stop = 0, 0, 0
    for start, stop in ranges:
        assert last_stop <= start <= stop <= num_shard_rows, "ranges overlap or leave the shard"
        split, after = np.searchsorted(ids_K, [start, stop]).tolist()
        assert split == after, "a chosen row lies in a range that is written whole"
        if plan and split == cut and start == last_stop:
            plan[-1] = slice(first, stop)
        else:
            first = start
            plan += [torch.from_numpy(ids_K[cut:split]), slice(start, stop)]
        cut, last_stop = split, stop
    plan.append(torch.from_numpy(ids_K[cut:]))
    return [part for part in plan if segment_of(part)[1]]


def segment_of(part: Part) -> Segment:
    """The entry of ``part`` in the header's list ``segments``."""
    return (part.start, part.stop - part.start) if isinstance(part, slice) else (None, len(part))


def write_parts(
    writer: HashingWriter, parts: Iterable[Part], rows: RowSource, block_rows: int, codec: RowEncoding
) -> None:
    """Write the rows of ``parts``, which ascend. Chosen rows are written in blocks, each of ids and then rows."""
    for part in parts:
        for block in [part] if isinstance(part, slice) else part.split(block_rows):
            if isinstance(block, Tensor):
                writer.write(bytes_of(block))
            for chunk_WD in rows.read(block):
                writer.write(bytes_of(codec.encode(chunk_WD)))


class DeltaCursor:
    """Reads a delta front to back into a window that moves over the shard in ascending order.

    Holds the ids of one block at a time. ``scratch_WD``: memory of at least one row, which cursors that are used in
    turn may share. Construction reads the first ids, and raises StoreError for damaged content.
    """

    def __init__(self, reader: ContentReader, scratch_WD: Tensor) -> None:
        self._reader = reader
        self._scratch_WD = scratch_WD
        self._blocks = _blocks(reader.header["segments"], reader.header["block_rows"])
        self._start: int | None = None  # of what is left of a range; None: a block of chosen rows
        self._ids_B: NDArray[np.int32] = np.empty(0, np.int32)  # of what is left of a block of chosen rows
        self._num_left = 0
        self._last_row = -1
        self._next_block()

    def fill(self, window_WD: Tensor, first_row: int) -> None:
        """Overwrite the rows of ``window_WD``, the shard from ``first_row`` on, that the delta contains.

        Raises StoreError for damage that shows in the file's length or row ids. The reader's ``finish`` finds other
        damage.
        """
        while self._num_left:
            if self._start is None:
                self._num_left -= self._fill_chosen(window_WD, first_row)
            else:
                num_rows = max(0, min(self._num_left, first_row + len(window_WD) - self._start))
                offset = self._start - first_row
                if num_rows:
                    self._reader.read_rows(window_WD[offset : offset + num_rows])
                self._start += num_rows
                self._num_left -= num_rows
            if self._num_left:
                return  # the remaining rows lie beyond the window
            self._next_block()

    def _fill_chosen(self, window_WD: Tensor, first_row: int) -> int:
        num_rows = int(np.searchsorted(self._ids_B, first_row + len(window_WD)))
        window_ids, self._ids_B = self._ids_B[:num_rows], self._ids_B[num_rows:]
        for start in range(0, num_rows, len(self._scratch_WD)):
            ids = torch.from_numpy(window_ids[start : start + len(self._scratch_WD)].astype(np.int64)) - first_row
            rows_WD = self._scratch_WD[: len(ids)]
            self._reader.read_rows(rows_WD)
            window_WD.index_copy_(0, ids, rows_WD)
        return num_rows

    def _next_block(self) -> None:
        self._start, self._num_left = next(self._blocks, (None, 0))
        if self._start is not None:
            self._last_row = self._start + self._num_left - 1
        elif self._num_left:
            self._ids_B = np.empty(self._num_left, np.int32)
            self._reader.read_into(bytes_of(torch.from_numpy(self._ids_B)))
            # Checked before use: the checksum comes too late for a row id that was damaged. One beyond the shard needs
            # no check, no window reaches it.
            if self._ids_B[0] <= self._last_row or (self._ids_B[1:] <= self._ids_B[:-1]).any():
                raise self._reader.damage("expected row ids in ascending order, got a smaller one")
            self._last_row = int(self._ids_B[-1])


def _blocks(segments: Sequence[Segment], block_rows: int) -> Iterator[Segment]:
    """The segments of the file, with chosen rows in blocks of ``block_rows``, as they were written."""
    for start, num_rows in segments:
        block = num_rows if start is not None else block_rows
        for done in range(0, num_rows, block):
            yield start, min(block, num_rows - done)


_MAX_BLOCK_ROWS = 1 << 14  # a compaction holds the ids of one block of every delta: 64 KiB each


class ShardStore:
    """Writes and reads the files of one shard under ``root/rank``. Used in the rank's process.

    A file counts only once a manifest names its record, so a rank may die at any point of a write. Rows are contiguous
    CPU tensors of any dtype. Methods that write or read a file raise StoreError that names it. No rows that are
    restored depend on ``chunk_bytes``.
    """

    def __init__(
        self,
        root: Path,
        rank: str,
        *,
        fsync: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._root = root
        self._rank = rank
        self._fsync = fsync
        self._chunk_bytes = chunk_bytes
        self._fails_with: int | None = None

    def fail_next_write(self, number: int) -> None:
        """Make the next write of a file fail before its first row with the system's error ``number`` (errno)."""
        self._fails_with = number

    def discard(self, sequence: int) -> None:
        """Remove this shard's files of save ``sequence``, which must never have been committed. Raises OSError."""
        discard(self._root, self._rank, sequence)

    def write_base(self, sequence: int, step: int, rows: Tensor | RowSource, *, encoding: str = RAW) -> FileRecord:
        """Write the whole shard as of ``step``, and return the file's record."""
        source = _source(rows)
        whole = [slice(0, len(source.rows_MD))]
        return self._write("base", sequence, step, source=source, parts=whole, encoding=encoding)

    def write_delta(
        self, sequence: int, step: int, rows: Tensor | RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        """Write the rows that ``parts`` select, as of ``step``, and return the file's record.

        ``parts`` may select no row twice. They may select none at all.
        """
        source = _source(rows)
        plan = plan_delta(parts, len(source.rows_MD))
        return self._write("delta", sequence, step, source=source, parts=plan, encoding=encoding)

    def _write(
        self, kind: FileKind, sequence: int, step: int, *, source: RowSource, parts: Sequence[Part], encoding: str
    ) -> FileRecord:
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
        """Fill ``rows_ND`` with the newest saved version of every row; returns the step as of which the last file is.

        ``records`` are a base and its deltas, oldest first. After an error some rows are overwritten and some are not,
        so another checkpoint must be read into them before use.
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
        """Merge a base and its deltas on disk into a new base in the raw encoding, which restores to the same rows.

        Memory holds only a window that moves over the shard, filled from every file in turn. The old files stay until a
        commit deletes them.
        """
        with ExitStack() as stack:
            readers = [stack.enter_context(reading(self._root, record)) for record in records]
            merged = _Merged(readers, self._chunk_bytes)
            return self.write_base(sequence, records[-1].applied_step, merged)


class _Merged(RowSource):
    """The rows that a base and its deltas restore. ``readers``: one for each file, base first."""

    def __init__(self, readers: Sequence[ContentReader], chunk_bytes: int) -> None:
        super().__init__(_like(readers[0]))
        self._readers = readers
        self._chunk_rows = rows_in(chunk_bytes, self.rows_MD)
        for reader in readers:
            _check_form(reader, self.rows_MD)

    def read(self, part: Part) -> Iterator[Tensor]:
        """Yield all rows, in a window that moves over the shard. ``part`` is ignored. Raises StoreError."""
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
    """A tensor without memory that has the shape and dtype of the shard whose file is read."""
    return torch.empty(reader.header["shape"], dtype=getattr(torch, reader.header["dtype"]), device="meta")


def _check_form(reader: ContentReader, like_ND: Tensor) -> None:
    """Raise StoreError unless the file's shard has the shape and dtype of ``like_ND``."""
    if (found := _form(_like(reader))) != _form(like_ND):
        raise StoreError(f"{reader.path}: expected rows of a shard of {_form(like_ND)}, got {found}")


def _form(rows_ND: Tensor) -> str:
    return f"{' x '.join(map(str, rows_ND.shape))} {dtype_name(rows_ND.dtype)}"
