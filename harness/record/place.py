"""A check that a file or folder is still the same one, before a run or a grid writes to it or removes it."""

import os
from collections.abc import Callable
from pathlib import Path

from harness.core.errors import Moved, StoreError


class Place:
    """A path and the file or folder that it named when this object was made, or at the first :meth:`check` if later.

    To be checked before anything is written or removed under the path. The file is held open, so that its inode number
    is not given to another one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._take()

    def check(self) -> None:
        """Raises Moved if the path now names another file or none; StoreError if the system does not say."""
        if self._handle < 0:
            self._take()
            return
        try:
            found = _identity(os.stat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be read: {error.strerror}") from error
        if found != _identity(os.fstat(self._handle)):
            now = "nothing is there" if found is None else "another one is there"
            raise Moved(f"{self._path}: moved or removed during the run; {now}, and what was written went with it")

    @property
    def is_own(self) -> bool:
        """Whether :meth:`check` raises nothing."""
        try:
            self.check()
        except StoreError:
            return False
        return True

    def _take(self) -> None:
        try:
            self._handle = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be read: {error.strerror}") from error

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound: modules end before objects do
        if self._handle >= 0:
            close(self._handle)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
