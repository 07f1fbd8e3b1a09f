"""The content files of one PS rank: written directly from its rows, and read directly into them.

Shapes: N rows of the shard, D embedding dim, W rows of a window. Memory beyond the rows themselves: two chunks, 4 bytes
per chosen row, and in ``compact`` the row ids of one block per delta.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from harness.core.errors import Moved, StoreError
from harness.store.delta import DeltaCursor, plan_delta, write_payload, write_rows
from harness.store.encoding import ENCODINGS, RAW
from harness.store.format import (
    ContentReader,
    HashingWriter,
    bytes_of,
    dtype_name,
    dtype_of,
    write_content,
)
from harness.store.manifest import FileKind, FileRecord, chain_problem, content_name
from harness.store.row_sources import CHUNK_BYTES, Part, RowRange, RowSource, StillRows

_MAX_BLOCK_ROWS = 1 << 14  # a compaction holds the ids of one block of every delta: 64 KiB each


@dataclass(frozen=True)
class _Layout:
    """Shape and dtype of a shard's rows, as headers carry them."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, rows_ND: Tensor) -> Self:
        return cls(tuple(rows_ND.shape), rows_ND.dtype)

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Self:
        return cls(tuple(header["shape"]), dtype_of(header["dtype"]))

    def to_header(self) -> dict[str, Any]:
        return {"shape": self.shape, "dtype": dtype_name(self.dtype)}

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def window(self, num_rows: int) -> Tensor:
        return torch.empty((num_rows, *self.shape[1:]), dtype=self.dtype)

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape))} {dtype_name(self.dtype)}"


class ShardStore:
    """Writes and reads the files of one shard under ``root/rank``. Used in the rank's process.

    A file counts only once a manifest names its record, so a rank may die at any point of a write. Rows are
    contiguous CPU tensors of any dtype; every method raises ``StoreError`` that names the file. No result
    depends on ``chunk_bytes``. ``check`` raises Moved if ``root`` is another folder by now: nothing is then written or
    removed there.
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
        self._check = check
        self._rank = rank
        self._write_content = partial(write_content, root, rank, fsync=fsync, chunk_bytes=chunk_bytes)
        self._chunk_bytes = chunk_bytes
        self._fails_with: int | None = None

    def fail_next_write(self, number: int) -> None:
        """Have the first write of the next file fail with the system's error ``number`` (errno), as a disk would."""
        self._fails_with = number

    def _write(self, kind: FileKind, sequence: int, **values: Any) -> FileRecord:
        self._check()
        fails_with, self._fails_with = self._fails_with, None
        return self._write_content(kind, sequence, **values, fails_with=fails_with)

    def discard(self, sequence: int) -> None:
        """Remove this shard's files of the save ``sequence``. Only for saves that were never committed."""
        kinds: tuple[FileKind, ...] = ("base", "delta")
        with suppress(Moved):
            self._check()
            for kind in kinds:
                (self._root / self._rank / content_name(kind, sequence)).unlink(missing_ok=True)

    def write_base(self, sequence: int, step: int, rows: Tensor | RowSource, *, encoding: str = RAW) -> FileRecord:
        """Write the whole shard as of ``step``."""
        source = self._source(rows)
        layout, codec = _Layout.of(source.rows_MD), ENCODINGS[encoding]
        return self._write(
            "base",
            sequence,
            step=step,
            header=layout.to_header(),
            payload=lambda writer: write_rows(writer, source, RowRange(0, layout.num_rows), codec),
            payload_bytes=layout.num_rows * codec.row_bytes(source.rows_MD),
            num_rows=layout.num_rows,
            encoding=encoding,
        )

    def write_delta(
        self, sequence: int, step: int, rows: Tensor | RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        """Write the rows that ``parts`` name, as of ``step``; no row may be named twice, and there may be none."""
        source = self._source(rows)
        layout, codec = _Layout.of(source.rows_MD), ENCODINGS[encoding]
        plan = plan_delta(parts, layout.num_rows)
        block_rows = min(_MAX_BLOCK_ROWS, self._chunk_rows(layout))
        segments = [(segment.start, segment.num_rows) for segment in plan.segments]
        return self._write(
            "delta",
            sequence,
            step=step,
            header=layout.to_header() | {"block_rows": block_rows, "segments": segments},
            payload=lambda writer: write_payload(writer, plan, source, block_rows, codec),
            payload_bytes=plan.payload_bytes(codec.row_bytes(source.rows_MD)),
            num_rows=plan.num_rows,
            encoding=encoding,
        )

    def read_into(self, records: Sequence[FileRecord], rows_ND: Tensor) -> int:
        """Fill ``rows_ND`` with the newest saved version of every row; return the step of that state.

        ``records`` is a base and its deltas, oldest first. After an error the rows are part old, part new: read
        another checkpoint into them before use.
        """
        self._check_chain(records)
        layout = _Layout.of(rows_ND)
        scratch_WD = layout.window(self._chunk_rows(layout)) if len(records) > 1 else layout.window(0)
        for record in records:
            with self._open(record, layout) as reader:
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
        self._check_chain(records)
        with ExitStack() as stack:
            base = stack.enter_context(self._open(records[0], None))
            layout = _Layout.from_header(base.header)
            deltas = [stack.enter_context(self._open(record, layout)) for record in records[1:]]
            return self._write(
                "base",
                sequence,
                step=records[-1].applied_step,
                header=layout.to_header(),
                payload=lambda writer: self._merge(writer, layout, base, deltas),
                payload_bytes=layout.num_rows * layout.row_bytes,
                num_rows=layout.num_rows,
            )

    def _merge(
        self, writer: HashingWriter, layout: _Layout, base: ContentReader, deltas: Sequence[ContentReader]
    ) -> None:
        chunk_rows = self._chunk_rows(layout)
        window_WD, scratch_WD = layout.window(chunk_rows), layout.window(chunk_rows)
        cursors = [DeltaCursor(reader, scratch_WD) for reader in deltas]
        for first_row in range(0, layout.num_rows, chunk_rows):
            rows_WD = window_WD[: layout.num_rows - first_row]
            base.read_rows(rows_WD)
            for cursor in cursors:
                cursor.fill(rows_WD, first_row)
            writer.write(bytes_of(rows_WD))
        for reader in (base, *deltas):
            reader.finish()

    def _open(self, record: FileRecord, layout: _Layout | None) -> ContentReader:
        reader = ContentReader(self._root, record, chunk_bytes=self._chunk_bytes)
        if layout is not None and (found := _Layout.from_header(reader.header)) != layout:
            reader.close()
            raise StoreError(f"{reader.path}: expected rows of a shard of {layout}, got {found}")
        return reader

    def _source(self, rows: Tensor | RowSource) -> RowSource:
        return StillRows(rows, chunk_bytes=self._chunk_bytes) if isinstance(rows, Tensor) else rows

    def _check_chain(self, records: Sequence[FileRecord]) -> None:
        if problem := chain_problem(records):
            raise StoreError(f"{self._root / self._rank}: {problem}")

    def _chunk_rows(self, layout: _Layout) -> int:
        return max(1, self._chunk_bytes // max(1, layout.row_bytes))
