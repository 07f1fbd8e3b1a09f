"""Temporary files and folders beside their target: locked while written, and removed later if left over.

A process that is killed cannot remove its temporary files, but its lock (flock) ends with it.
"""

import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from harness.core.errors import DataError
from harness.files import fsync_folder, try_lock

_log = logging.getLogger(__name__)


@contextmanager
def replacing(out: Path, kind: Literal["file", "folder"]) -> Iterator[Path]:
    """Yields a hidden, locked file or folder beside ``out``, renamed to it if the block succeeds, else removed.

    A file replaces an existing one. A folder replaces an empty one only. Missing parents of ``out`` are created. An
    OSError, also of the block, becomes a DataError.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        path, lock = _make_locked(out, kind)
        try:
            yield path
            path.rename(out)
        finally:
            _remove(path)
            os.close(lock)
        fsync_folder(out.parent)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error}); nothing is kept") from error


def _make_locked(out: Path, kind: Literal["file", "folder"]) -> tuple[Path, int]:
    while True:
        path = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        if kind == "folder":
            path.mkdir()
        else:
            path.open("xb").close()
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # removed before it was opened: a sweep finds it unlocked
        with suppress(OSError):  # a file system without locks: no sweep can find this one unlocked and remove it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)  # removed before it was locked


def sweep(out: Path) -> None:
    """Remove temporary files of ``out`` that killed processes left behind, and log each with its size."""
    out = Path(os.path.abspath(out))
    pattern = re.compile(rf"\.{re.escape(out.name)}\.\d+-[0-9a-f]+\.tmp")
    with suppress(OSError):  # no such folder, or not ours
        for path in sorted(out.parent.iterdir()):
            if pattern.fullmatch(path.name) and (size := _remove_unlocked(path)) is not None:
                _log.info("note: %s: removed (%.1f MB), which a process that was killed had left", path, size / 1e6)


def _remove_unlocked(path: Path) -> int | None:
    """Remove a temporary file or folder unless it is locked. Returns its size in bytes; None if it was not removed."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not try_lock(lock):
            return None
        files = [path, *path.rglob("*")]
        size = sum(file.lstat().st_size for file in files if not file.is_dir())
        _remove(path)
    except OSError:
        return None
    finally:
        os.close(lock)
    return None if path.exists() else size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
