"""The check of a folder's records by their digest: made once, and again only if the file has changed since."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from harness.core.errors import DataError
from harness.data.records import META_NAME, RECORDS_NAME, Meta, Words, digest_of, map_records

VERIFIED_NAME = ".verified.json"
_BLOCK_ROWS = 1 << 16


def verify(folder: Path, meta: Meta) -> None:
    """Raise DataError unless the records have the digest of ``meta``.

    The whole file is read once; ``.verified.json`` beside it keeps the inode, size and times (ns) of the file that was
    verified. A later write to the file changes its ctime, which no user can set. Hashing takes about 0.1 s per gigabyte
    in memory. In a read-only folder nothing is kept, and every call reads the file.
    """
    status = (folder / RECORDS_NAME).stat()
    identity = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, meta.digest]
    if _remembered(folder) == identity:
        return
    digest = xxhash.xxh3_128()
    for _, block in blocks(folder, meta):
        digest.update(block.data)
    refuse_other(folder, meta, digest)
    with suppress(OSError):
        new = folder / f"{VERIFIED_NAME}.new"
        new.write_text(json.dumps(identity) + "\n")
        new.replace(folder / VERIFIED_NAME)


def blocks(folder: Path, meta: Meta) -> Iterator[tuple[int, Words]]:
    """Yields (row number of the first record, records as (B, C) int32), block by block."""
    records = map_records(folder, meta)
    for start in range(0, meta.num_rows, _BLOCK_ROWS):
        yield start, np.asarray(records[start : start + _BLOCK_ROWS])


def refuse_other(folder: Path, meta: Meta, digest: "xxhash.xxh3_128") -> None:
    """Raise DataError unless the digest of ``meta`` is that of data whose records were fed to ``digest``."""
    found = digest_of(digest, meta.num_dense, meta.cardinalities)
    if found != meta.digest:
        raise DataError(
            f"{folder / RECORDS_NAME}: damaged: expected digest {meta.digest} of {META_NAME}, got {found}; "
            "prepare the data again"
        )


def _remembered(folder: Path) -> object:
    try:
        return json.loads((folder / VERIFIED_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
