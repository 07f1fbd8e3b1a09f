"""A disk that loses what was not synced: a process ends at any of its calls, and power may end with it."""

import builtins
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Loss = Literal["kill", "late names", "early names"]
"""What a crash takes. ``kill``: nothing that was written. ``late names``: content that was not synced, and changes of
names in folders that were not. ``early names``: content that was not synced; all names are as they were last."""

LOSSES: tuple[Loss, ...] = ("kill", "late names", "early names")


class Ended(Exception):
    """The process ends here."""


@dataclass(eq=False)
class _File:
    """``synced``: its content when it was last synced. ``last``: when its name was removed."""

    synced: bytes | None = None
    last: bytes = b""


@dataclass(eq=False)
class _Folder:
    """Its names as they are, and as they were when it was last synced."""

    live: "dict[str, _File | _Folder]" = field(default_factory=dict)
    synced: "dict[str, _File | _Folder]" = field(default_factory=dict)


class Disk:
    """Carries out calls that change files below ``root``; before each one, and last, ``before_call`` is called.

    What is there at first is synced. Knows of each file what of its content, and of each folder which of its names, a
    loss of power leaves. A write to a buffered stream is not a call of its own: its file is changed when it is synced.
    """

    def __init__(self, root: Path, before_call: Callable[[], None]) -> None:
        self.root = root
        self.num_calls = 0
        self._seen: dict[Loss, tuple[object, object]] = {}
        self._before_call = before_call
        self._top = _found(root)
        self._originals: dict[tuple[Any, str], Callable[..., Any]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of the system's calls."""
        replaced: list[tuple[Any, str, Callable[..., Any]]] = [
            (os, "open", self._open),
            (os, "write", self._write),
            (os, "fsync", self._fsync),
            (os, "replace", self._rename),
            (os, "rename", self._rename),
            (os, "truncate", self._truncate),
            (shutil, "rmtree", self._rmtree),
            (io, "open", self._open_stream),
            (builtins, "open", self._open_stream),
            (Path, "unlink", _method(self._unlink)),
            (Path, "mkdir", _method(self._mkdir)),
            (Path, "rmdir", _method(self._rmdir)),
        ]
        self._originals = {(where, name): getattr(where, name) for where, name, _ in replaced}
        try:
            for where, name, new in replaced:
                setattr(where, name, new)
            yield
            self._before_call()
        finally:
            for (where, name), original in self._originals.items():
                setattr(where, name, original)

    def left(self, folder: Path, losses: Iterable[Loss] = LOSSES, *, expected: object = None) -> Iterator[Path]:
        """The files as the next process finds them after each loss, one after another in ``folder``.

        A loss that leaves what it left when this was asked last, of the same ``expected``, is passed over.
        """
        for loss in losses:
            seen = _stamps(self.root) if loss == "kill" else self._files(loss)
            if self._seen.get(loss) != (expected, seen):
                self._seen[loss] = (expected, seen)
                yield self.after(loss, folder)

    def after(self, loss: Loss, folder: Path) -> Path:
        """The files as the next process finds them, in ``folder``; a file that was not synced keeps a half."""
        if loss == "kill":
            return self.root
        if folder.exists():
            self._originals.get((shutil, "rmtree"), shutil.rmtree)(folder)
        os.makedirs(folder)
        for path, content in self._files(loss).items():  # a folder comes before what it holds
            if content is None:
                os.mkdir(folder / path)
            else:
                (folder / path).write_bytes(content)
        return folder

    def _files(self, loss: Loss) -> dict[Path, bytes | None]:
        """What a loss of power leaves, by path; None for a folder."""
        found: dict[Path, bytes | None] = {}
        for path, node in _walk(self._top, Path(), "live" if loss == "early names" else "synced"):
            if isinstance(node, _Folder):
                found[path] = None
            elif node.synced is None:
                whole = self._content(node)
                found[path] = whole[: len(whole) // 2]
            else:
                found[path] = node.synced
        return found

    def _content(self, file: _File) -> bytes:
        path = next((path for path, node in _walk(self._top, self.root) if node is file), None)
        return file.last if path is None else path.read_bytes()

    def _call(self) -> None:
        self._before_call()
        self.num_calls += 1

    def _folder(self, path: Path) -> _Folder:
        node: _File | _Folder = self._top
        for name in path.relative_to(self.root).parts:
            assert isinstance(node, _Folder)
            node = node.live[name]
        assert isinstance(node, _Folder)
        return node

    def _created(self, path: Path) -> None:
        self._folder(path.parent).live[path.name] = _File()

    def _open(self, path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & os.O_CREAT:
            self._call()
            self._created(Path(path))
        return self._originals[os, "open"](path, flags, *mode, **options)

    def _open_stream(self, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wx") and not isinstance(path, int) and Path(path).is_relative_to(self.root):
            self._call()
            self._created(Path(path))
        return self._originals[io, "open"](path, mode, *args, **options)

    def _write(self, handle: int, data: Any) -> int:
        self._call()
        return self._originals[os, "write"](handle, data)

    def _fsync(self, handle: int) -> None:
        self._call()
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            folder = self._folder(path)
            folder.synced = dict(folder.live)
            return
        file = self._folder(path.parent).live[path.name]
        assert isinstance(file, _File)
        file.synced = path.read_bytes()

    def _rename(self, source: Any, target: Any) -> None:
        self._call()
        source, target = Path(source), Path(target)
        self._forget(target)
        self._originals[os, "rename"](source, target)
        self._folder(target.parent).live[target.name] = self._folder(source.parent).live.pop(source.name)

    def _truncate(self, path: Any, length: int) -> None:
        """Of a file that was synced, a loss of power leaves all, until it is synced again."""
        self._call()
        self._originals[os, "truncate"](path, length)

    def _rmtree(self, path: Any, ignore_errors: bool = False) -> None:
        """A call for each file and folder, and no error for what is not there if they are ignored."""
        folder = Path(path)
        if ignore_errors and not folder.exists():
            return
        for each in sorted(folder.iterdir()):
            self._rmtree(each) if each.is_dir() else self._unlink(each)
        self._rmdir(folder)

    def _rmdir(self, path: Path) -> None:
        self._call()
        self._originals[Path, "rmdir"](path)
        del self._folder(path.parent).live[path.name]

    def _unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._call()
        self._forget(path)
        self._originals[Path, "unlink"](path, missing_ok=missing_ok)

    def _forget(self, path: Path) -> None:
        node = self._folder(path.parent).live.pop(path.name, None)
        if isinstance(node, _File):
            node.last = path.read_bytes()

    def _mkdir(self, path: Path, *args: Any, **options: Any) -> None:
        if path.is_dir() or not path.is_relative_to(self.root):
            return self._originals[Path, "mkdir"](path, *args, **options)
        self._call()
        self._originals[Path, "mkdir"](path, *args, **options)
        self._folder(path.parent).live[path.name] = _Folder()
        return None


def _found(path: Path) -> _Folder:
    """A folder as it is on disk, synced with all that is in it."""
    live = {each.name: _found(each) if each.is_dir() else _File(each.read_bytes()) for each in path.iterdir()}
    return _Folder(live, dict(live))


def _stamps(root: Path) -> dict[Path, tuple[int, int, int]]:
    """What changes with each change of a file, by path."""
    found = ((path, path.stat()) for path in root.rglob("*"))
    return {path: (stamp.st_ino, stamp.st_size, stamp.st_mtime_ns) for path, stamp in found}


def _walk(
    folder: _Folder, path: Path, names: Literal["live", "synced"] = "live"
) -> Iterator[tuple[Path, _File | _Folder]]:
    """Everything that is below a folder, by its path."""
    for name, node in getattr(folder, names).items():
        yield path / name, node
        if isinstance(node, _Folder):
            yield from _walk(node, path / name, names)


def _method(call: Callable[..., None]) -> Callable[..., None]:
    """As a method of Path, which a bound method cannot be."""

    def method(path: Path, *args: Any, **options: Any) -> None:
        call(path, *args, **options)

    return method
