"""Files that appear whole or not at all, errors that name a file, folders held open."""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import HELD, ConfigError, StoreError, shown

_log = logging.getLogger(__name__)

_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFSOCK: "socket"}


def expanded(path: Path | str) -> str:
    """A path as a user wrote it, with ``~``, ``~user``, ``$NAME`` and ``${NAME}`` replaced as a shell replaces them.

    Raises ConfigError for an unknown user or an unset variable, so that no folder gets the name ``~`` or ``$NAME``.
    """
    text = os.path.expandvars(os.path.expanduser(path))
    if found := re.match(r"~[^/]*", text):
        raise ConfigError(f"{path}: expected a user of this machine, got {found[0]}; ./{found[0]} is a file's name")
    if found := re.search(r"\$(\w+|\{[^}]*\})", text):
        raise ConfigError(f"{path}: expected an environment variable that is set, got {found[0]}")
    return text


@contextmanager
def os_errors(what: str, then: str = "") -> Iterator[None]:
    """An OSError of the block becomes a StoreError ``WHAT: REASON``, followed by ``then``."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror}{then}") from error


@contextmanager
def store_errors(file: Path, action: Literal["read", "written"]) -> Iterator[None]:
    """An OSError of the block becomes a StoreError ``FILE: cannot be ACTION: REASON``.

    Before a read, a FIFO, device or socket raises StoreError too: a FIFO waits for its writer, and a device may have
    no end.
    """
    with os_errors(f"{file}: cannot be {action}"):
        if action == "read" and file.exists() and (what := _SPECIAL.get(stat.S_IFMT(file.stat().st_mode))):
            raise StoreError(f"{file}: cannot be read: expected a file, got a {what}")
        yield


def read_file(file: Path) -> bytes:
    """The content of a file. Raises StoreError, which names the file."""
    with store_errors(file, "read"):
        return file.read_bytes()


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises StoreError, which names the file, also for any other JSON value."""
    content = read_file(file)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise StoreError(f"{file}: expected a JSON object, got {type(values).__name__}")
    return values


def new_digest(content: bytes = b"") -> hashlib.blake2b:
    """The hash for files of a record (blake2b, 16 bytes), fed with ``content`` so far."""
    return hashlib.blake2b(content, digest_size=16)


def in_repository(path: Path) -> str:
    """``; did you mean FILE?`` if the folder of this package's repository has the missing file ``path``, else empty."""
    there = Path(__file__).resolve().parents[1] / path
    return f"; did you mean {there}?" if there.is_file() and not path.is_absolute() else ""


def digest_of(file: Path) -> str:
    """The hash :func:`new_digest` of a file's content, in hexadecimal. Raises StoreError."""
    return new_digest(read_file(file)).hexdigest()


def write_text(file: Path, text: str) -> None:
    """Write ``file`` as :func:`replace_text` does. Raises StoreError, which names the file."""
    with store_errors(file, "written"):
        replace_text(file, text)


def replace_text(file: Path, text: str) -> None:
    """Write ``file`` durably and atomically: temporary file, fsync, rename, fsync of the folder. Raises OSError.

    A character that UTF-8 lacks, as in a path that is no text, is written as its code (``\\udcff``).
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(file.parent)


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, durably; a no-op if it exists. Raises StoreError."""
    with store_errors(folder, "written"):
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            fsync_folder(each.parent)


def free_bytes(path: Path) -> int:
    """Free bytes of the disk on which ``path`` is or would be. Raises OSError."""
    return shutil.disk_usage(next(each for each in (path, *path.absolute().parents) if each.exists())).free


def fsync_folder(folder: Path) -> None:
    """Force the names in ``folder`` to disk: a file that was synced is found after a loss of power only with its name.

    Raises OSError.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(file: int) -> bool:
    """Lock the open ``file`` for this process alone (flock). False if another process has the lock or removed the file.

    Raises OSError, for example on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0


_LEAST = 64  # more descriptors than a rank has when it starts: a folder has the same one in all processes of a run
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Open ``folder``, which is made if need be, and yield a path that leads to it wherever it is moved meanwhile.

    The path is valid in this process, and in those that call :func:`hold_also`. Messages of errors name ``folder``
    instead. If the folder is elsewhere at the end, one line says where. A path that is held already is yielded as it
    is. Raises StoreError.
    """
    if shown(folder) != str(folder):
        yield folder
        return
    make_folder(folder)
    with os_errors(f"{folder}: cannot be read"):
        opened = os.open(folder, _FLAGS)
        handle = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _LEAST)
        os.close(opened)
    HELD[handle], path = str(folder), Path(f"/proc/self/fd/{handle}")
    try:
        yield path
    except OSError as error:
        error.filename = error.filename and shown(error.filename)
        raise
    finally:
        with suppress(OSError):  # the system does not say
            if os.fstat(handle).st_nlink and (now := os.readlink(path)) != os.path.realpath(folder):
                _log.warning("note: %s: moved while it was in use; what was written is in %s", folder, now)
        del HELD[handle]
        os.close(handle)


def hold_also(folders: Mapping[int, str], pid: int | None = None) -> None:
    """Hold the folders that another process holds, ``HELD`` there, by the same descriptors: its paths are valid here.

    ``pid``: the process; None if it is on another machine, and the folders are to be opened by their own paths. Raises
    OSError.
    """
    for number, folder in folders.items():
        opened = os.open(folder if pid is None else f"/proc/{pid}/fd/{number}", _FLAGS)
        os.dup2(opened, number, inheritable=False)
        os.close(opened)
        HELD[number] = folder
