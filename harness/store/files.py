"""The store that keeps checkpoints in files, in a folder that all ranks share.

    manifest-000012.json                             the newest whose files all verify is the checkpoint
    ps0/base-000010.bin  ps0/delta-000012.bin …      written by the PS ranks themselves
    trainer0/dense-000012.bin

A checkpoint exists once its manifest exists, which is written last. So a process may die at any point of a write.

A file of rows holds the int32 ids of chosen rows, ascending, then the rows of whole ranges, then the chosen rows. Its
header has the ranges (``[start, stop]``) and the number of chosen rows. A base is one range. Rows are stored in the
file's encoding (``harness.store.rows``).

Shapes: M rows of the shard, D columns of a row, K rows chosen, W rows of a chunk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.core.plans import Rank
from harness.core.resumable import State
from harness.files import fsync_folder, os_errors
from harness.store.background import in_background
from harness.store.contract import Store
from harness.store.format import (
    Content,
    HashingWriter,
    bytes_of,
    check_size,
    content_paths,
    dtype_name,
    numbered_paths,
    read_state,
    reading,
    remove_unfinished,
    write_content,
    write_state,
    write_text,
)
from harness.store.listing import load_manifest, read_checkpoint
from harness.store.manifest import RAW, FileKind, FileRecord, Manifest, WrongFormatVersion, content_name, without_writer
from harness.store.rows import ENCODINGS, Part, RowSource, empty_rows, split_parts


class FileStore(Store):
    """Checkpoints in files under ``root``. Rows are contiguous CPU tensors of any dtype.

    Old files are deleted in a thread, so that training does not wait: deletion takes 0.1 s per gigabyte. The thread
    ends before the next commit begins, and before :meth:`close` returns.

    Args:
        keep: how many of the newest manifests a commit keeps, with their files; at least 1. A kill may leave more.
        fsync: whether a commit survives a power failure, and not only a kill.
    """

    root: Path  # pyright: ignore[reportIncompatibleVariableOverride] - never None here

    def __init__(self, root: Path, *, keep: int = 2, fsync: bool = True) -> None:
        assert keep >= 1, "a commit keeps at least itself"
        super().__init__(root)
        self._keep = keep
        self._fsync = fsync
        self._dropping: Future[None] | None = None
        self._pinned: set[int] = set()  # sequences of manifests
        self._known: dict[str, Manifest] = {}  # by name, those that a commit has written or read

    def __reduce__(self) -> tuple[object, ...]:
        return partial(FileStore, self.root, keep=self._keep, fsync=self._fsync), ()

    # --- contents, in the process of the rank that writes them --------------------------------------------------------

    def write_base(self, rank: Rank, sequence: int, step: int, rows: RowSource, *, encoding: str = RAW) -> FileRecord:
        whole = [slice(0, len(rows.rows_MD))]
        return self._write("base", rank, sequence, step, rows=rows, parts=whole, encoding=encoding)

    def write_delta(
        self, rank: Rank, sequence: int, step: int, rows: RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        return self._write("delta", rank, sequence, step, rows=rows, parts=parts, encoding=encoding)

    def _write(
        self,
        kind: FileKind,
        rank: Rank,
        sequence: int,
        step: int,
        *,
        rows: RowSource,
        parts: Iterable[Part],
        encoding: str,
    ) -> FileRecord:
        like_MD, codec = rows.rows_MD, ENCODINGS[encoding]
        ranges, ids_K = split_parts(parts, len(like_MD))
        header = {
            "shape": like_MD.shape,
            "dtype": dtype_name(like_MD.dtype),
            "ranges": [(part.start, part.stop) for part in ranges],
            "num_chosen": len(ids_K),
        }

        def write(writer: HashingWriter) -> None:
            rows.begin()
            writer.write(bytes_of(ids_K))
            for part in (*ranges, ids_K):
                for chunk_WD in rows.read(part):
                    writer.write(bytes_of(codec.encode(chunk_WD)))

        return write_content(
            self.root,
            rank,
            kind,
            sequence,
            step=step,
            header=header,
            payload=write,
            num_rows=len(ids_K) + sum(part.stop - part.start for part in ranges),
            encoding=encoding,
            fsync=self._fsync,
        )

    def write_dense(
        self, rank: Rank, sequence: int, step: int, tensors: Mapping[str, Tensor], extra: State
    ) -> FileRecord:
        state = {"tensors": dict(tensors), "extra": extra}
        return write_state(self.root, rank, sequence, step, state, fsync=self._fsync, kind="dense")

    def read_rows(self, records: Sequence[FileRecord], rows_MD: Tensor) -> None:
        for record in records:
            with reading(self.root, record) as reader:
                found = _form(reader.header["shape"], reader.header["dtype"])
                if found != (expected := _form(rows_MD.shape, dtype_name(rows_MD.dtype))):
                    raise StoreError(f"{reader.path}: expected rows of a shard of {expected}, got {found}")
                _read(reader, rows_MD)

    def read_dense(self, record: FileRecord) -> dict[str, Tensor]:
        return read_state(self.root, record)["tensors"]

    def compact(self, records: Sequence[FileRecord], sequence: int) -> FileRecord:
        """See Store. Takes the memory of the shard once more. The old files stay until a commit deletes them."""
        with reading(self.root, records[0]) as base:
            rows_MD = torch.empty(base.header["shape"], dtype=getattr(torch, base.header["dtype"]))
        self.read_rows(records, rows_MD)
        rank, step = records[0].path.split("/")[0], records[-1].applied_step
        return self.write_base(rank, sequence, step, RowSource(rows_MD))

    def discard(self, rank: Rank, sequence: int) -> None:
        for kind in get_args(FileKind):
            (self.root / rank / content_name(kind, sequence)).unlink(missing_ok=True)

    # --- commits, in the supervisor's process -------------------------------------------------------------------------

    def open(self) -> None:
        """Create the folder, and remove incomplete files of killed writers.

        With ``fsync``, their commits then survive a loss of power.
        """
        with os_errors(f"{self.root}: cannot be used as a checkpoint folder"):
            self.root.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.root)
            if self._fsync:
                fsync_folder(self.root)  # a writer may have been killed between a manifest's rename and this

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the newest checkpoint, then begin to delete older ones.

        The newest ``keep`` manifests, those of :meth:`pin`, and all their files are kept. Raises StoreError if a file
        that ``manifest`` names and the one before it does not is missing or has another size, if its sequence number
        is not the highest, if an older manifest has another format version, or if the disk failed. The previous
        checkpoint then remains valid.
        """
        self._wait()
        older = dict(numbered_paths(self.root, "manifest"))
        if older and manifest.sequence <= max(older):
            raise StoreError(f"{self.root / manifest.name}: expected a sequence number above {max(older)}")
        kept = [manifest]
        for path in older.values():
            try:
                kept.append(self._known.get(path.name) or load_manifest(path))
            except WrongFormatVersion:
                raise
            except StoreError:
                continue  # unreadable, so nothing can need its files
        self._known = {each.name: each for each in kept}
        before = {record for each in kept[1:2] for record in each.files}
        for record in manifest.files:
            if record not in before:
                check_size(self.root / record.path, record)
        write_text(self.root / manifest.name, manifest.to_text(), fsync=self._fsync)
        kept = [*kept[: self._keep], *(each for each in kept[self._keep :] if each.sequence in self._pinned)]
        self._dropping = in_background("drop", partial(self._delete_stale, kept, manifest.sequence))

    def close(self) -> None:
        self._wait()
        with suppress(OSError):  # what is left of a killed rank does no harm
            remove_unfinished(self.root)

    def _wait(self) -> None:
        """Wait until old files are deleted."""
        dropping, self._dropping = self._dropping, None
        if dropping is not None:
            dropping.result()

    def pin(self, sequences: Iterable[int]) -> None:
        self._wait()
        self._pinned = set(sequences)

    def rewind(self, sequence: int | None) -> None:
        last = -1 if sequence is None else sequence
        with os_errors(f"{self.root}: later checkpoints cannot be removed"):
            for number, path in [*numbered_paths(self.root, "manifest"), *content_paths(self.root)]:  # newest first
                if number > last:
                    path.unlink(missing_ok=True)

    def check(self, sequence: int) -> None:
        read_checkpoint(self.root, sequence)

    def _delete_stale(self, kept: list[Manifest], newest_sequence: int) -> None:
        """Delete all manifests but ``kept``, and all files that these do not name, up to ``newest_sequence``."""
        names = {manifest.name for manifest in kept}
        named = {record.path for manifest in kept for record in manifest.files}
        # The commit stands whether or not the old files go; the next one tries again.
        with suppress(StoreError, FileNotFoundError):
            stale = [path for _, path in numbered_paths(self.root, "manifest") if path.name not in names]
            for number, path in content_paths(self.root):
                # A file above the newest sequence belongs to a save that is still to be committed.
                if number <= newest_sequence and f"{path.parent.name}/{path.name}" not in named:
                    stale.append(path)
            for path in stale:
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    # --- faults -------------------------------------------------------------------------------------------------------

    def edit_newest_file(self, rank: Rank, change: Callable[[bytes], bytes]) -> str | None:
        """See :meth:`harness.core.faults.FileFaults.edit_newest_file`."""
        if (record := self._newest_file(rank)) is None:
            return None
        path = self.root / record.path
        try:
            path.write_bytes(change(path.read_bytes()))
        except (OSError, IndexError) as error:  # IndexError: the file is shorter than recorded
            raise StoreError(f"{path}: cannot be changed: {error}") from error
        return without_writer(record.path)  # events name a file alike on every machine

    def flip_bit(self, rank: Rank, number: int) -> tuple[str, int] | None:
        if (record := self._newest_file(rank)) is None:
            return None
        place = (record.num_bytes - record.payload_bytes) * 8 + number % (record.payload_bytes * 8)
        flip = 1 << place % 8
        self.edit_newest_file(
            rank,
            lambda content: content[: place // 8] + bytes([content[place // 8] ^ flip]) + content[place // 8 + 1 :],
        )
        return without_writer(record.path), place

    def _newest_file(self, rank: Rank) -> FileRecord | None:
        """The record of the newest file with rows of ``rank``, a PS rank; None if there is none. Raises StoreError."""
        newest = next((path for _, path in numbered_paths(self.root, "manifest")), None)
        records = load_manifest(newest).shards[rank] if newest else ()
        return next((record for record in reversed(records) if record.payload_bytes), None)


def _read(reader: Content, rows_MD: Tensor) -> None:
    """Overwrite the rows of ``rows_MD`` that the file has."""
    ids_K = torch.empty(reader.header["num_chosen"], dtype=torch.int32)
    reader.read_into(bytes_of(ids_K))
    for start, stop in reader.header["ranges"]:
        reader.read_rows(rows_MD[start:stop])
    for ids_W in ids_K.split(RowSource(rows_MD).chunk_rows):
        chunk_WD = empty_rows(len(ids_W), rows_MD)
        reader.read_rows(chunk_WD)
        rows_MD.index_copy_(0, ids_W.long(), chunk_WD)


def _form(shape: Sequence[int], dtype: str) -> str:
    return f"{' x '.join(map(str, shape))} {dtype}"
