"""A file or folder that must stay where it is while a run or a grid writes to it."""

import os
from collections.abc import Callable
from pathlib import Path

from harness.core.errors import Moved, StoreError


class Place:
    """The name of a file or folder, and what it leads to now; if that is nothing, what it leads to when first asked.

    It is asked before anything is removed or written under the name. What it leads to is held open, so that the system
    gives its number to nothing else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._take()

    def check(self) -> None:
        """Raises Moved if the name leads to something else, or to nothing; StoreError if the system does not say."""
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
