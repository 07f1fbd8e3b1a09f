"""Outputs that appear whole or not at all: written beside their target, and locked meanwhile (flock).

The lock of a process that is killed ends with it, so that what it left can be told from what another one is writing.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from harness.core.errors import DataError
from harness.files import fsync_folder, try_lock


@contextmanager
def replacing(out: Path, kind: Literal["file", "folder"]) -> Iterator[Path]:
    """Yields a hidden file or empty folder beside ``out``, renamed to it if the block succeeds, else removed.

    A file replaces an existing one. A folder replaces an empty one only. Missing parents of ``out`` are created.

    Raises DataError if ``out`` has no name (``.``), if another process is writing it, and for an OSError, also of the
    block.
    """
    if not out.name:
        raise DataError(f"{out}: expected the name of a {kind}, got the current folder, which cannot be replaced")
    path = out.with_name(f".{out.name}.unfinished")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if kind == "folder" else path.touch()
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks
                if not try_lock(lock):
                    raise DataError(f"{out}: another process is writing it; wait for it to end")
            try:
                for left in path.iterdir() if kind == "folder" else ():
                    left.unlink()
                yield path
                path.rename(out)
            except BaseException:
                shutil.rmtree(path, ignore_errors=True) if kind == "folder" else path.unlink(missing_ok=True)
                raise
        finally:
            os.close(lock)
        fsync_folder(out.parent)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error}); nothing is kept") from error
