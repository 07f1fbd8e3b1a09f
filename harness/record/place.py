"""A file or folder that must stay where it is while a run writes to it."""

from pathlib import Path

from harness.core.errors import Moved, StoreError


class Place:
    """The name of a file or folder, and what it leads to now. Raises OSError if that is nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = _identity(path)

    def check(self) -> None:
        """Raises Moved if the name leads to something else, or to nothing; StoreError if the system does not say."""
        try:
            found = _identity(self._path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be read: {error.strerror}") from error
        if found != self._identity:
            now = "nothing is there" if found is None else "another one is there"
            raise Moved(f"{self._path}: moved or removed during the run; {now}, and what was written went with it")


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
