"""Content files: a header, a payload and a checksum; written atomically, read once from start to end.

    magic (8 bytes) | format version (u32) | bytes of JSON (u32) | header checksum (u64) | JSON | payload

Numbers are little-endian. The JSON is padded with spaces so that the payload starts at a multiple of 4096. The header
checksum is the 64-bit XXH3 of all other header bytes: magic, version, length and JSON. A second XXH3 covers the whole
file. It is stored in the file's record, so a complete file of another save is detected too. Files are read and written,
never mapped: mapped pages would count as the reader's memory.
"""

import json
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from harness.core.errors import Damaged, StoreError
from harness.store.encoding import ENCODINGS, RAW
from harness.store.manifest import FORMAT_VERSION, FileKind, FileRecord, check_version, content_name, sequence_of
from harness.store.row_sources import CHUNK_BYTES, rows_in

MAGIC = b"CPRSTORE"
_PREFIX = struct.Struct("<8sII")
_HEADER_HASH = struct.Struct("<Q")
_HEADER_START = _PREFIX.size + _HEADER_HASH.size
_PAGE_BYTES = 4096  # a payload that starts on a page is written in whole pages


def numbered_paths(root: Path, prefix: str) -> list[tuple[int, Path]]:
    """Number and path of the descriptions ``PREFIX-NUMBER.json`` in ``root``, newest first; none if it is not there.

    Raises StoreError if the folder cannot be read: what it holds would be taken for absent.
    """
    try:
        names = [name for name in os.listdir(root) if name.startswith(f"{prefix}-") and name.endswith(".json")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{root}: cannot be read: {error.strerror}") from error
    return sorted(((number, root / name) for name in names if (number := sequence_of(name)) is not None), reverse=True)


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory as bytes, to be read from or written into. It must be contiguous, on the CPU."""
    assert tensor.is_contiguous(), "content files hold contiguous tensors"
    if tensor.numel() == 0:
        return memoryview(bytearray())
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # numpy has no such type
        tensor = tensor.view(torch.int16)
    return tensor.numpy().reshape(-1).view(np.uint8).data


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The inverse of ``dtype_name``."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise StoreError(f"expected the name of a torch dtype, got {name!r}")
    return dtype


def read_text(path: Path) -> str:
    """A text file as a whole; bytes that are no UTF-8 are replaced. Raises StoreError that names the file."""
    try:
        with open(path, "rb", opener=_open) as file:
            return (file.read() or b"").decode(errors="replace")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def _open(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """A file descriptor to read from. A FIFO is opened, and is empty, at once: nothing waits for its writer."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def fsync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HashingWriter:
    """Writes a content file front to back and hashes its bytes. Made by ``replacing``.

    ``fails_with``: the number of the system's error (errno) by which the first write fails; None: by none.
    """

    def __init__(self, handle: int, chunk_bytes: int, fails_with: int | None = None) -> None:
        self._handle = handle
        self._chunk_bytes = chunk_bytes
        self._fails_with = fails_with
        self._hash = xxhash.xxh3_64()
        self.num_bytes = 0

    def header(self, header: Mapping[str, Any]) -> None:
        """Write magic, version and header; must come first."""
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        text += b" " * (-(_HEADER_START + len(text)) % _PAGE_BYTES)
        prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(text))
        header_hash = _HEADER_HASH.pack(xxhash.xxh3_64_intdigest(prefix + text))
        self.write(memoryview(prefix + header_hash + text))

    def write(self, view: memoryview) -> None:
        """Append bytes. Raises ``OSError``, which ``replacing`` turns into a ``StoreError`` that names the file."""
        if self._fails_with is not None:
            raise OSError(self._fails_with, os.strerror(self._fails_with))
        for start in range(0, len(view), self._chunk_bytes):
            chunk = view[start : start + self._chunk_bytes]
            self._hash.update(chunk)
            self.num_bytes += len(chunk)
            while chunk:
                chunk = chunk[os.write(self._handle, chunk) :]

    @property
    def xxh3(self) -> str:
        """Checksum of all that was written so far, 16 hex digits."""
        return self._hash.hexdigest()


def temp_path(path: Path) -> Path:
    """A temporary path for ``path`` while it is being written, another one at each call; a killed writer leaves it.

    Two writers of one file never meet: one may be a process of a host that is cut off, and the other its replacement.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def replacing(
    path: Path, *, fsync: bool, chunk_bytes: int = CHUNK_BYTES, fails_with: int | None = None
) -> Iterator[HashingWriter]:
    """Write ``path`` atomically and durably: temporary file, fsync, rename, fsync of the folder.

    Raises StoreError if the disk failed; the temporary file is removed and no other file was changed.
    """
    temp = temp_path(path)
    try:
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            yield HashingWriter(handle, chunk_bytes, fails_with)
            if fsync:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temp, path)
        if fsync:
            fsync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}; earlier checkpoints are untouched") from error
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def write_content(
    root: Path,
    rank: str,
    kind: FileKind,
    sequence: int,
    *,
    step: int,
    header: Mapping[str, Any],
    payload: Callable[[HashingWriter], None],
    payload_bytes: int,
    num_rows: int,
    encoding: str = RAW,
    fsync: bool,
    chunk_bytes: int = CHUNK_BYTES,
    fails_with: int | None = None,
) -> FileRecord:
    """Write ``root/rank/kind-sequence.bin`` atomically and return its record.

    Raises StoreError if the disk failed, or the file exists: a manifest may name it, so it is never rewritten.
    """
    path = root / rank / content_name(kind, sequence)
    try:
        if not path.parent.is_dir():
            root.mkdir(exist_ok=True)  # not what is above it: where that is gone, a run has lost its folder
            path.parent.mkdir(exist_ok=True)
            if fsync:
                fsync_folder(root)
    except OSError as error:
        raise StoreError(f"{path.parent}: cannot be created: {error.strerror}") from error
    if path.exists():
        raise StoreError(f"{path}: expected a new file, but it exists; every save needs a new sequence number")
    with replacing(path, fsync=fsync, chunk_bytes=chunk_bytes, fails_with=fails_with) as writer:
        own = {"rank": rank, "kind": kind, "sequence": sequence, "applied_step": step}
        writer.header({**own, **header, **({} if encoding == RAW else {"encoding": encoding})})
        payload(writer)
    return FileRecord(
        path=f"{rank}/{path.name}",
        kind=kind,
        num_bytes=writer.num_bytes,
        payload_bytes=payload_bytes,
        xxh3=writer.xxh3,
        applied_step=step,
        num_rows=num_rows,
        encoding=encoding,
    )


class ContentReader(AbstractContextManager["ContentReader"]):
    """Reads the content file that ``record`` names, front to back, and checks it against the record.

    Every problem is a ``StoreError`` that names the file, ``Damaged`` if its bytes are to blame. The checksum is known
    only at the end: data is valid only after ``finish`` has returned.
    """

    def __init__(self, root: Path, record: FileRecord, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = root / record.path
        self.record = record
        if record.encoding not in ENCODINGS:
            raise StoreError(
                f"{self.path}: expected rows in encoding {' or '.join(sorted(ENCODINGS))}, got {record.encoding!r}; "
                "read the file with the version that wrote it"
            )
        self._codec = ENCODINGS[record.encoding]
        self._chunk_bytes = chunk_bytes
        self._hash = xxhash.xxh3_64()
        self._num_read = 0
        self._handle = -1
        try:
            self._handle = _open(self.path)
            size_bytes = os.fstat(self._handle).st_size
            if size_bytes != record.num_bytes:
                raise self.damage(f"expected {record.num_bytes} bytes, got {size_bytes}")
            self.header = self._read_header()
        except OSError as error:
            self.close()
            raise StoreError(f"{self.path}: cannot be read: {error.strerror}") from error
        except StoreError:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def damage(self, what: str) -> Damaged:
        """The error that the file is damaged, with the detail ``what``."""
        return Damaged(f"{self.path}: damaged: {what}")

    def read_into(self, view: memoryview) -> None:
        """Fill ``view`` with the next bytes of the file."""
        for start in range(0, len(view), self._chunk_bytes):
            chunk = view[start : start + self._chunk_bytes]
            filled = 0
            while filled < len(chunk):
                filled += (got := self._read_some(chunk[filled:]))
                if got == 0:
                    raise self.damage(f"expected {self.record.num_bytes} bytes, got {self._num_read + filled}")
            self._hash.update(chunk)
            self._num_read += len(chunk)

    def read_rows(self, rows_WD: Tensor) -> None:
        """Set contiguous ``rows_WD`` to the next rows of the file, decoded a chunk at a time."""
        for chunk_WD in rows_WD.split(rows_in(self._chunk_bytes, rows_WD)):
            self._codec.read_into(lambda values: self.read_into(bytes_of(values)), chunk_WD)

    def finish(self) -> None:
        """Read what is left and compare the checksum of the whole file with the record's."""
        scratch = memoryview(bytearray(min(self._chunk_bytes, self.record.num_bytes - self._num_read)))
        while left := self.record.num_bytes - self._num_read:
            self.read_into(scratch[:left])
        if (found := self._hash.hexdigest()) != self.record.xxh3:
            raise self.damage(f"expected checksum {self.record.xxh3}, got {found}")

    def _read_some(self, view: memoryview) -> int:
        try:
            return os.readv(self._handle, [view])
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _read_header(self) -> Mapping[str, Any]:
        start = bytearray(min(_HEADER_START, self.record.num_bytes))
        self.read_into(memoryview(start))
        if len(start) < _HEADER_START or not start.startswith(MAGIC):
            self.finish()  # damage explains a strange header better than its own words
            raise Damaged(f"{self.path}: expected a content file of a checkpoint, got another format")
        _, version, num_bytes = _PREFIX.unpack_from(start)
        if version != FORMAT_VERSION:
            self.finish()
            check_version(version, str(self.path))
        if num_bytes > self.record.num_bytes - _HEADER_START:
            raise self.damage(
                f"expected a header of at most {self.record.num_bytes - _HEADER_START} bytes, got {num_bytes}"
            )
        text = bytearray(num_bytes)
        self.read_into(memoryview(text))
        (header_hash,) = _HEADER_HASH.unpack_from(start, _PREFIX.size)
        if header_hash != xxhash.xxh3_64_intdigest(start[: _PREFIX.size] + text):
            raise self.damage("the checksum of its header differs")
        header = json.loads(text)
        if (found := (header["kind"], header["applied_step"])) != (self.record.kind, self.record.applied_step):
            raise Damaged(
                f"{self.path}: expected {self.record.kind} of step {self.record.applied_step}, as its manifest states, "
                f"got {found[0]} of step {found[1]}"
            )
        if (encoding := header.get("encoding", RAW)) != self.record.encoding:
            raise Damaged(
                f"{self.path}: expected rows in encoding {self.record.encoding!r}, as its manifest states, "
                f"got {encoding!r}"
            )
        return header


def verify(root: Path, record: FileRecord) -> None:
    """Read the whole file in bounded memory; raise ``StoreError`` naming it unless it matches ``record``."""
    with ContentReader(root, record) as reader:
        reader.finish()
