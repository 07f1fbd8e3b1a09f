"""Content files: a header and a payload, with checksums; written atomically, verified before they are read.

    magic (8 bytes) | format version (u32) | bytes of JSON (u32) | JSON | payload

Numbers are little-endian. The JSON is padded with spaces so that the payload starts at a multiple of 4096. The file's
record has the 64-bit XXH3 of all of it. It is checked before anything is read, so a complete file of another save is
detected too. Files are read and written, never mapped: mapped pages would count as the reader's memory.

A file of plain data (``harness.core.resumable``) is a state of a resume point or the dense network's file. It has the
data in its header as JSON, in which ``{"#": k}`` stands for array number k, from 0. Its payload is the arrays, one
after another. Nothing in a file is executed.
"""

# ruff: noqa: PLC0415 - checkpoints are verified by commands without torch, which takes a second to import

import json
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from harness.core.errors import Damaged, StoreError
from harness.core.resumable import State
from harness.files import fsync_folder, os_errors, store_errors
from harness.store.manifest import (
    CHUNK_BYTES,
    FORMAT_VERSION,
    RAW,
    FileKind,
    FileRecord,
    check_version,
    content_name,
    sequence_of,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAGIC = b"CPRSTORE"
_PREFIX = struct.Struct("<8sII")
_PAGE_BYTES = 4096  # a payload that starts on a page is written in whole pages


def numbered_paths(root: Path, prefix: str) -> list[tuple[int, Path]]:
    """Number and path of each file ``PREFIX-NUMBER.json`` in ``root``, newest first; none if there is no folder.

    Raises StoreError if the folder cannot be read, since its files would otherwise count as absent.
    """
    names: list[str] = []
    with os_errors(f"{root}: cannot be read"), suppress(FileNotFoundError):
        names = os.listdir(root)
    named = [root / name for name in names if name.startswith(f"{prefix}-") and name.endswith(".json")]
    return sorted(_numbered(named), reverse=True)


def content_paths(root: Path) -> list[tuple[int, Path]]:
    """Number and path of each content file of any rank in ``root``, in no order."""
    return _numbered(root.glob("*/*.bin"))


def _numbered(paths: Iterable[Path]) -> list[tuple[int, Path]]:
    return [(number, path) for path in paths if (number := sequence_of(path.name)) is not None]


def remove_unfinished(root: Path) -> None:
    """Remove the temporary files of killed writers in ``root`` and its folders of ranks. Raises OSError."""
    for temp in [*root.glob(".*.tmp"), *root.glob("*/.*.tmp")]:
        temp.unlink(missing_ok=True)


def bytes_of(tensor: "Tensor") -> memoryview:
    """The memory of ``tensor`` as bytes, to be read or written in place. It must be contiguous, on the CPU."""
    import torch

    assert tensor.is_contiguous(), "content files hold contiguous tensors"
    if tensor.numel() == 0:
        return memoryview(bytearray())
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # numpy has no such type
        tensor = tensor.view(torch.int16)
    return tensor.numpy().reshape(-1).view(np.uint8).data


def dtype_name(dtype: "torch.dtype") -> str:
    """``float32`` for ``torch.float32``; ``getattr(torch, name)`` is the inverse."""
    return str(dtype).removeprefix("torch.")


def write_text(path: Path, text: str, *, fsync: bool) -> None:
    """Write a text file as :func:`replacing` does."""
    with replacing(path, fsync=fsync) as writer:
        writer.write(memoryview(text.encode()))


class HashingWriter:
    """Writes a file front to back and hashes its bytes. Made by ``replacing``."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._hash = xxhash.xxh3_64()
        self.num_bytes = 0

    def header(self, header: Mapping[str, Any]) -> None:
        """Write the header of a content file, padded to whole pages. Must come first."""
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        text += b" " * (-(_PREFIX.size + len(text)) % _PAGE_BYTES)
        self.write(memoryview(_PREFIX.pack(MAGIC, FORMAT_VERSION, len(text)) + text))

    def write(self, view: memoryview) -> None:
        """Append bytes. Raises OSError, which ``replacing`` turns into a StoreError that names the file."""
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            self._hash.update(chunk)
            self.num_bytes += len(chunk)
            while chunk:
                chunk = chunk[os.write(self._handle, chunk) :]

    @property
    def xxh3(self) -> str:
        """The 64-bit XXH3 of everything written so far, 16 hex digits."""
        return self._hash.hexdigest()


@contextmanager
def replacing(path: Path, *, fsync: bool) -> Iterator[HashingWriter]:
    """A context in which to write ``path`` atomically; with ``fsync`` the file survives a power failure too.

    The bytes go to a temporary file, which then replaces ``path``. An exception in the block removes the temporary file
    and leaves ``path`` as it was. An OSError, in the block or of this function, becomes a StoreError. If only the final
    fsync of the folder fails, ``path`` is already replaced.

    A killed writer leaves its temporary file. The name of that file is always new, since two processes may write one
    ``path``: a rank on a host that is cut off, and its replacement.
    """
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os_errors(f"{path}: cannot be written", "; earlier checkpoints are untouched"):
            handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                yield HashingWriter(handle)
                if fsync:
                    os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temp, path)
            if fsync:
                fsync_folder(path.parent)
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
    num_rows: int = 0,
    encoding: str = RAW,
    fsync: bool,
) -> FileRecord:
    """Write ``root/rank/kind-sequence.bin`` as :func:`replacing` does, and return its record.

    ``payload`` writes what follows the header. Raises StoreError if the disk failed or ``root`` cannot be created, and
    if the file exists: a manifest may name it, so it is never rewritten.
    """
    path = root / rank / content_name(kind, sequence)
    if not path.parent.is_dir():
        with os_errors(f"{path.parent}: cannot be created"):
            root.mkdir(exist_ok=True)  # not what is above it: where that is gone, a run has lost its folder
            path.parent.mkdir(exist_ok=True)
            if fsync:
                fsync_folder(root)
    if path.exists():
        raise StoreError(f"{path}: expected a new file, but it exists; every save needs a new sequence number")
    with replacing(path, fsync=fsync) as writer:
        writer.header({"rank": rank, "kind": kind, "sequence": sequence, "applied_step": step, **header})
        header_bytes = writer.num_bytes
        payload(writer)
    return FileRecord(
        path=f"{rank}/{path.name}",
        kind=kind,
        num_bytes=writer.num_bytes,
        payload_bytes=writer.num_bytes - header_bytes,
        xxh3=writer.xxh3,
        applied_step=step,
        num_rows=num_rows,
        encoding=encoding,
    )


@contextmanager
def reading(root: Path, record: FileRecord) -> Iterator["Content"]:
    """A context with the content file that ``record`` names. All of it has passed its checksum, so it is as written.

    Raises StoreError that names the file: Damaged if bytes are wrong, WrongFormatVersion if another version wrote it.
    """
    path = root / record.path
    with store_errors(path, "read"), path.open("rb") as file:
        check_size(path, record)
        hasher = xxhash.xxh3_64()
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
        if (found := hasher.hexdigest()) != record.xxh3:
            raise Damaged(f"{path}: damaged: expected checksum {record.xxh3}, got {found}")
        file.seek(0)
        yield Content(path, record, file)


class Content:
    """Reads a content file front to back. ``header``: the JSON of its header."""

    def __init__(self, path: Path, record: FileRecord, file: BufferedReader) -> None:
        self.path = path
        self.record = record
        self._file = file
        start = file.read(_PREFIX.size)
        if len(start) < _PREFIX.size or not start.startswith(MAGIC):
            raise Damaged(f"{path}: expected a content file of a checkpoint, got another format")
        _, version, num_bytes = _PREFIX.unpack(start)
        check_version(version, str(path))
        self.header: Mapping[str, Any] = json.loads(file.read(num_bytes))

    def read_into(self, view: memoryview) -> None:
        """Fill ``view`` with the next bytes of the file."""
        if self._file.readinto(view) < len(view):
            raise Damaged(f"{self.path}: damaged: it became shorter")

    def read_rows(self, rows_WD: "Tensor") -> None:
        """Set ``rows_WD`` (contiguous) to the next W rows of the file, decoded a chunk at a time."""
        from harness.store.rows import ENCODINGS, rows_in

        if (encoding := self.record.encoding) not in ENCODINGS:
            raise StoreError(
                f"{self.path}: expected rows in encoding {' or '.join(sorted(ENCODINGS))}, got {encoding!r}; "
                "read the file with the version that wrote it"
            )
        for chunk_WD in rows_WD.split(rows_in(CHUNK_BYTES, rows_WD)):
            ENCODINGS[encoding].read_into(lambda values: self.read_into(bytes_of(values)), chunk_WD)


def check_size(path: Path, record: FileRecord) -> None:
    """Raise StoreError unless the file of ``record``, at ``path``, is there with all its bytes."""
    with os_errors(f"{path}: cannot be read"):
        num_bytes = path.stat().st_size
    if num_bytes != record.num_bytes:
        raise Damaged(f"{path}: damaged: expected {record.num_bytes} bytes, got {num_bytes}")


def verify(root: Path, records: Iterable[FileRecord]) -> None:
    """Read all files of ``records`` in bounded memory. Raises StoreError that names the first with other content."""
    for record in records:
        with reading(root, record):
            pass


_ARRAY = "#"  # the only key of a mapping that stands for an array
_NUMPY, _TORCH = "numpy", "torch"


def write_state(
    root: Path, rank: str, number: int, step: int, state: State, *, fsync: bool, kind: FileKind = "state"
) -> FileRecord:
    """Write ``state``, as of ``step``, to ``root/rank/kind-number.bin``, and return the file's record.

    Raises StoreError as :func:`write_content` does, and for a value that is not plain data.
    """
    arrays: list[tuple[str, Tensor]] = []
    plain = _to_json(state, arrays, f"state of {rank}")

    def write_arrays(writer: HashingWriter) -> None:
        for _, tensor in arrays:
            writer.write(bytes_of(tensor))

    return write_content(
        root,
        rank,
        kind,
        number,
        step=step,
        header={
            "arrays": [(of, dtype_name(tensor.dtype), tuple(tensor.shape)) for of, tensor in arrays],
            "state": plain,
        },
        payload=write_arrays,
        fsync=fsync,
    )


def read_state(root: Path, record: FileRecord) -> State:
    """The state that :func:`write_state` wrote; tensors are on the CPU. Raises StoreError that names the file."""
    import torch

    with reading(root, record) as reader:
        arrays: list[Any] = []
        for of, dtype, shape in reader.header["arrays"]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            reader.read_into(bytes_of(tensor))
            arrays.append(tensor.numpy() if of == _NUMPY else tensor)
        return _from_json(reader.header["state"], arrays)


def _to_json(value: Any, arrays: "list[tuple[str, Tensor]]", where: str) -> Any:
    """``value`` as JSON; its arrays are appended to ``arrays``, each with its origin, and stand there as numbers."""
    import torch
    from torch import Tensor

    match value:
        case None | bool() | str():
            return value
        case Tensor():
            arrays.append((_TORCH, value.detach().cpu().contiguous()))
        case np.ndarray():
            arrays.append((_NUMPY, torch.from_numpy(np.ascontiguousarray(value))))
        case list():
            return [_to_json(each, arrays, f"{where}[{place}]") for place, each in enumerate(value)]
        case dict() if all(isinstance(key, str) for key in value) and value.keys() != {_ARRAY}:
            return {key: _to_json(each, arrays, f"{where}.{key}") for key, each in value.items()}
        case int() | float() if not isinstance(value, np.generic):
            return value
        case _:
            raise StoreError(f"{where}: expected plain data (harness.core.resumable), got {type(value).__name__}")
    return {_ARRAY: len(arrays) - 1}


def _from_json(value: Any, arrays: list[Any]) -> Any:
    if isinstance(value, list):
        return [_from_json(each, arrays) for each in value]
    if isinstance(value, Mapping):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _from_json(each, arrays) for key, each in value.items()}
    return value
