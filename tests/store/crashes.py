"""A disk that loses what was not synced: a process ends at any of its calls, and power may end with it."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

Loss = Literal["kill", "late names", "early names"]
"""What a crash takes. ``kill``: nothing that was written. ``late names``: content that was not synced, and changes of
names in folders that were not. ``early names``: content that was not synced; all names are as they were last."""

LOSSES: tuple[Loss, ...] = ("kill", "late names", "early names")


class Disk:
    """Carries out calls that change files below ``root``; before each one, and last, ``before_call`` is called.

    Knows of each file what of its content, and of each folder which of its names, a loss of power leaves.
    """

    def __init__(self, root: Path, before_call: Callable[[], None]) -> None:
        self.root = root
        self.num_calls = 0
        self._before_call = before_call
        self._new = count()
        self._live: dict[Path, int] = {}  # files by name
        self._last: dict[int, bytes] = {}  # content of files that are gone
        self._synced: dict[int, bytes] = {}
        self._names: dict[Path, dict[Path, int]] = {root: {}}  # of folders, when they were last synced
        self._folders = {root}  # whose own names were synced

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of the system's calls."""
        replaced: list[tuple[Any, str, Callable[..., Any]]] = [
            (os, "open", self._open),
            (os, "write", self._write),
            (os, "fsync", self._fsync),
            (os, "replace", self._replace),
            (Path, "unlink", _method(self._unlink)),
            (Path, "mkdir", _method(self._mkdir)),
        ]
        originals = [getattr(where, name) for where, name, _ in replaced]
        self._os_open, self._os_write, self._os_fsync, self._os_replace, self._os_unlink, self._os_mkdir = originals
        try:
            for where, name, new in replaced:
                setattr(where, name, new)
            yield
            self._before_call()
        finally:
            for (where, name, _), original in zip(replaced, originals, strict=True):
                setattr(where, name, original)

    def after(self, loss: Loss, folder: Path) -> Path:
        """The files as the next process finds them, in ``folder``; a file that was not synced keeps a half."""
        if loss == "kill":
            return self.root
        if folder.exists():
            shutil.rmtree(folder)
        for name, number in self._found(loss).items():
            path = folder / name.relative_to(self.root)
            os.makedirs(path.parent, exist_ok=True)
            path.write_bytes(self._left(number, name))
        os.makedirs(folder, exist_ok=True)
        return folder

    def _found(self, loss: Loss) -> dict[Path, int]:
        if loss == "early names":
            return self._live
        folders = {root: names for root, names in self._names.items() if root in self._folders}
        return {name: number for names in folders.values() for name, number in names.items()}

    def _left(self, number: int, name: Path) -> bytes:
        if number in self._synced:
            return self._synced[number]
        whole = self._last[number] if number in self._last else name.read_bytes()
        return whole[: len(whole) // 2]

    def _call(self) -> None:
        self._before_call()
        self.num_calls += 1

    def _open(self, path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & os.O_CREAT:
            path = Path(path)
            self._call()
            if path not in self._live or flags & os.O_TRUNC:
                self._live[path] = next(self._new)
        return self._os_open(path, flags, *mode, **options)

    def _write(self, handle: int, data: Any) -> int:
        self._call()
        return self._os_write(handle, data)

    def _fsync(self, handle: int) -> None:
        self._call()
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            self._names[path] = {name: number for name, number in self._live.items() if name.parent == path}
            self._folders |= {each for each in path.iterdir() if each.is_dir()}
        else:
            self._synced[self._live[path]] = path.read_bytes()

    def _replace(self, source: Any, target: Any) -> None:
        self._call()
        source, target = Path(source), Path(target)
        self._forget(target)
        self._os_replace(source, target)
        self._live[target] = self._live.pop(source)

    def _unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._call()
        self._forget(path)
        self._os_unlink(path, missing_ok=missing_ok)

    def _forget(self, path: Path) -> None:
        number = self._live.pop(path, None)
        if number is not None:
            self._last[number] = path.read_bytes()

    def _mkdir(self, path: Path, **options: Any) -> None:
        self._call()
        self._os_mkdir(path, **options)


def _method(call: Callable[..., None]) -> Callable[..., None]:
    """As a method of Path, which a bound method cannot be."""

    def method(path: Path, **options: Any) -> None:
        call(path, **options)

    return method
