"""Reader of click logs, plain or gzip, which hashes a file and cuts it into whole lines; sidecars of synthetic logs."""

import gzip
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, cast

import xxhash
from pydantic import BaseModel, ValidationError

from harness.config.words import mistakes_of
from harness.core.errors import DataError
from harness.data.records import Source, Synthetic
from harness.files import write_text

Progress = Callable[[int, int], None]
"""A progress callback, called with (done, total): bytes on disk, rows, or parts of the work."""

SUFFIX = ".synth.json"

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 16  # the longest valid row is below 500 bytes; a file without line ends is no click log
_GZIP_MAGIC = b"\x1f\x8b"
_HEAD_BYTES = 1 << 20  # of text, by which the rows of a file are estimated; two that begin with equal ones are one

_KIND_BYTES = 4096
_TAR = rb".{257}ustar"
_KINDS = (  # what a file that is no log begins with, its kind, and what to do; {} is its path
    (_TAR, "a tar archive", "`tar -xf {}` unpacks it"),
    (_GZIP_MAGIC, "a gzip file", ""),
    (rb"PK\x03\x04", "a zip archive", "`unzip {}` unpacks it"),
    (rb"BZh\d1AY&SY", "a bzip2 file", "`bunzip2 -k {}` unpacks it"),
    (rb"\xfd7zXZ", "an xz file", "`unxz -k {}` unpacks it"),
    (rb"\(\xb5/\xfd", "a zstd file", "`unzstd {}` unpacks it"),
    (rb"7z\xbc\xaf", "a 7z archive", "`7z x {}` unpacks it"),
    (rb"PAR1\x15", "a Parquet file", "pandas' read_parquet and to_csv write it as text, for --format csv"),
    (rb"\xff\xfe|\xfe\xff", "text in UTF-16", "`iconv -f UTF-16 -t UTF-8 {} > NEW` converts it"),
    (rb"version https://git-lfs", "a pointer of Git LFS", "`git lfs pull` in its folder gets the file"),
    (rb"\s*<(!|html)", "a web page", "download the log again"),
    (rb".*\0", "a binary file", "if it was a table, write it as text, for --format csv"),
)


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one source. ``text`` ends with a newline. ``first_line``: its first line's number, from 1."""

    text: bytes
    first_line: int


class SourceReader:
    """Reader of one source file: its lines in chunks, and its size and hash.

    ``advance`` is called with the number of bytes on disk of each read.
    """

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        self._path, self._advance = path, advance
        self._hash, self._num_bytes = xxhash.xxh3_64(), 0

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """All lines, in chunks of about ``chunk_bytes`` of text.

        Raises:
            DataError: the file cannot be read, is damaged gzip or no text, or has a line longer than any row.
        """
        with _reading(self._path), self._path.open("rb") as self._file:
            packed = self._file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            self._file.seek(0)
            read = gzip.GzipFile(fileobj=cast(IO[bytes], self), mode="rb").read if packed else self.read
            yield from self._lines(read, chunk_bytes, packed)

    def whole(self) -> Source:
        """:meth:`source` of the file, read without decoding. Raises DataError if it cannot be read."""
        with _reading(self._path), self._path.open("rb") as self._file:
            while self.read(CHUNK_BYTES):
                pass
        return self.source()

    def source(self) -> Source:
        """The name, size and hash of the file; valid after the last chunk was read."""
        return Source(name=self._path.name, num_bytes=self._num_bytes, xxh3=self._hash.hexdigest())

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the open file, as GzipFile asks for them."""
        data = self._file.read(size)
        self._hash.update(data)
        self._num_bytes += len(data)
        self._advance(len(data))
        return data

    def _lines(self, read: Callable[[int], bytes], chunk_bytes: int, packed: bool) -> Iterator[Chunk]:
        first_line, rest = 1, b""
        while piece := read(chunk_bytes):
            if first_line == 1 and not rest:
                _refuse_no_text(self._path, piece[:_KIND_BYTES], packed)
            text = rest + piece
            cut = text.rfind(b"\n") + 1
            rest, num_lines = text[cut:], text.count(b"\n", 0, cut)
            if len(rest) > MAX_LINE_BYTES:
                where = f"{self._path}:{first_line + num_lines}"
                raise DataError(f"{where}: expected a row and its line end, got over {MAX_LINE_BYTES} bytes")
            if cut:
                yield Chunk(text[:cut], first_line)
            first_line += num_lines
        if rest:
            yield Chunk(rest + b"\n", first_line)


def _refuse_no_text(path: Path, head: bytes, packed: bool) -> None:
    """Raise DataError, which names the kind and the next command, if a log begins as no text does."""
    for pattern, kind, command in _KINDS:
        if re.match(pattern, head, re.DOTALL):
            is_twice = packed and pattern is not _TAR  # tar reads gzip itself
            found = f"{kind} within gzip" if is_twice else kind
            then = ("`gzip -cd {} > NEW` unpacks it" if is_twice else command).format(shlex.quote(str(path)))
            raise DataError(f"{path}: {found}, expected text, plain or gzip; {then}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """An error of reading ``path`` in the block becomes a DataError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def total_bytes(paths: list[Path]) -> int:
    """Size of all sources on disk. Raises DataError for a source that is not a file."""
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    return sum(path.stat().st_size for path in paths)


def by_numbers(paths: Sequence[Path]) -> list[Path]:
    """Logs of one folder whose names differ in numbers alone, in the order of these numbers: day_9 before day_10.

    Raises DataError if a log is there twice, or the names tell no order. ``.gz`` at the end of a name does not count.
    """
    parts = {path: re.split(r"([0-9]+)", path.name.removesuffix(".gz")) for path in paths}
    texts = {path: (path.parent, parts[path][::2]) for path in paths}
    numbers = {path: [int(number) for number in parts[path][1::2]] for path in paths}
    ordered = sorted(paths, key=lambda path: (numbers[path], path))
    for one, other in pairwise(ordered):
        if one.resolve() == other.resolve():
            raise _twice(one, other)
        if texts[one] != texts[other] or numbers[one] == numbers[other]:
            raise DataError(
                f"{one}, {other}: numbers in these names do not tell which rows are earlier; leave one out, or give "
                "--order given: all files in the order of the command line"
            )
    return ordered


def survey(paths: Sequence[Path], decoder: Callable[[Path], Callable[[Chunk], object]]) -> int:
    """Number of rows of all logs, estimated by the first megabytes of each, which its decoder decodes.

    Raises DataError for a beginning that is no text or not in the format, and for two logs that begin alike, packed or
    not.
    """
    num_rows, seen = 0, dict[bytes, Path]()
    for path in paths:
        reader = SourceReader(path, lambda _: None)
        decode, text = decoder(path), b""
        for chunk in islice(reader.chunks(_HEAD_BYTES), 2):
            decode(chunk)
            text += chunk.text
        num_rows += text.count(b"\n") * path.stat().st_size // max(reader.source().num_bytes, 1)
        other = seen.setdefault(text.replace(b"\r\n", b"\n")[:_HEAD_BYTES] or bytes(path), path)
        if other != path or paths.count(path) > 1:
            raise _twice(path, other)
    return num_rows


def _twice(path: Path, other: Path) -> DataError:
    return DataError(f"{path}: begins with the same rows as {other}, which would be taken twice; leave one out")


class Sidecar(BaseModel):
    """The content of ``log.tsv.synth.json``: size and XXH3 (64 bits) of ``log.tsv``, and how it was made.

    Criteo's text format has no place for this. A sidecar is valid only for a log with the size and hash in it.
    """

    num_bytes: int
    xxh3: str
    synthetic: Synthetic


def write_sidecar(content: Path, log: Path, made: Synthetic) -> None:
    """Write the sidecar of ``log``, whose bytes ``content`` holds. Raises DataError, StoreError."""
    source = SourceReader(content, lambda _: None).whole()
    sidecar = Sidecar(num_bytes=source.num_bytes, xxh3=source.xxh3, synthetic=made)
    write_text(log.with_name(log.name + SUFFIX), sidecar.model_dump_json(indent=1) + "\n")


def read_sidecar(log: Path, source: Source) -> Synthetic | None:
    """How the synthetic ``log`` was made; None unless its sidecar has the size and hash in ``source``, the log's own.

    Raises DataError for a sidecar that cannot be read.
    """
    path = log.with_name(log.name + SUFFIX)
    try:
        found = Sidecar.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        got = error.strerror if isinstance(error, OSError) else mistakes_of(error)[0]
        raise DataError(f"{path}: expected what `run.py data synth` wrote, got {got}; remove it") from error
    return found.synthetic if (found.num_bytes, found.xxh3) == (source.num_bytes, source.xxh3) else None
