"""The content files of one PS rank: written directly from its rows, and read directly into them.

Shapes: N rows of the shard, D embedding dim, W rows of a window. Memory beyond the rows themselves: two chunks, 4 bytes
per chosen row, and in ``compact`` the row ids of one block per delta.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import Moved, StoreError
from harness.store.delta import DeltaCursor, plan_delta, write_payload, write_rows
from harness.store.encoding import ENCODINGS, RAW
from harness.store.format import ContentReader, HashingWriter, bytes_of, dtype_name, dtype_of, write_content
from harness.store.manifest import FileKind, FileRecord, chain_problem, content_name
from harness.store.row_sources import CHUNK_BYTES, Part, RowRange, RowSource, StillRows, empty_rows, rows_in

_MAX_BLOCK_ROWS = 1 << 14  # a compaction holds the ids of one block of every delta: 64 KiB each


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
        num_rows, codec = len(source.rows_MD), ENCODINGS[encoding]
        return self._write(
            "base",
            sequence,
            step=step,
            header=_header_of(source.rows_MD),
            payload=lambda writer: write_rows(writer, source, RowRange(0, num_rows), codec),
            payload_bytes=num_rows * codec.row_bytes(source.rows_MD),
            num_rows=num_rows,
            encoding=encoding,
        )

    def write_delta(
        self, sequence: int, step: int, rows: Tensor | RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        """Write the rows that ``parts`` name, as of ``step``; no row may be named twice, and there may be none."""
        source = self._source(rows)
        codec = ENCODINGS[encoding]
        plan = plan_delta(parts, len(source.rows_MD))
        block_rows = min(_MAX_BLOCK_ROWS, rows_in(self._chunk_bytes, source.rows_MD))
        segments = [(segment.start, segment.num_rows) for segment in plan.segments]
        return self._write(
            "delta",
            sequence,
            step=step,
            header=_header_of(source.rows_MD) | {"block_rows": block_rows, "segments": segments},
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
        scratch_WD = empty_rows(rows_in(self._chunk_bytes, rows_ND) if len(records) > 1 else 0, rows_ND)
        for record in records:
            with self._open(record, rows_ND) as reader:
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
            like_ND = _like(base.header)
            deltas = [stack.enter_context(self._open(record, like_ND)) for record in records[1:]]
            return self._write(
                "base",
                sequence,
                step=records[-1].applied_step,
                header=_header_of(like_ND),
                payload=lambda writer: self._merge(writer, like_ND, base, deltas),
                payload_bytes=like_ND.nbytes,
                num_rows=len(like_ND),
            )

    def _merge(
        self, writer: HashingWriter, like_ND: Tensor, base: ContentReader, deltas: Sequence[ContentReader]
    ) -> None:
        chunk_rows = rows_in(self._chunk_bytes, like_ND)
        window_WD, scratch_WD = empty_rows(chunk_rows, like_ND), empty_rows(chunk_rows, like_ND)
        cursors = [DeltaCursor(reader, scratch_WD) for reader in deltas]
        for first_row in range(0, len(like_ND), chunk_rows):
            rows_WD = window_WD[: len(like_ND) - first_row]
            base.read_rows(rows_WD)
            for cursor in cursors:
                cursor.fill(rows_WD, first_row)
            writer.write(bytes_of(rows_WD))
        for reader in (base, *deltas):
            reader.finish()

    def _open(self, record: FileRecord, like_ND: Tensor | None) -> ContentReader:
        reader = ContentReader(self._root, record, chunk_bytes=self._chunk_bytes)
        if like_ND is not None and (found := _form(_like(reader.header))) != _form(like_ND):
            reader.close()
            raise StoreError(f"{reader.path}: expected rows of a shard of {_form(like_ND)}, got {found}")
        return reader

    def _source(self, rows: Tensor | RowSource) -> RowSource:
        return StillRows(rows, chunk_bytes=self._chunk_bytes) if isinstance(rows, Tensor) else rows

    def _check_chain(self, records: Sequence[FileRecord]) -> None:
        if problem := chain_problem(records):
            raise StoreError(f"{self._root / self._rank}: {problem}")


def _header_of(rows_ND: Tensor) -> dict[str, Any]:
    """Shape and dtype of a shard's rows, as headers carry them."""
    return {"shape": rows_ND.shape, "dtype": dtype_name(rows_ND.dtype)}


def _like(header: Mapping[str, Any]) -> Tensor:
    """A tensor without memory, of the shape and dtype of the shard whose file has this ``header``."""
    return torch.empty(header["shape"], dtype=dtype_of(header["dtype"]), device="meta")


def _form(rows_ND: Tensor) -> str:
    """Shape and dtype in words."""
    return f"{' x '.join(map(str, rows_ND.shape))} {dtype_name(rows_ND.dtype)}"
