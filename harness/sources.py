"""The importer, which notes the digest of each source as it is loaded: what runs is what is recorded.

This holds for all modules of this package, and for all others that belong neither to the standard library nor to an
installed distribution. They are called own modules here. ``import harness`` installs the importer. It guarantees:

* A source has one digest in a process and in all that are forked from it: of the bytes that were compiled or, if the
  digest was asked for before the import, of the bytes read then. An import of other bytes is refused in one line.
* Bytecode runs only if it was made from these bytes, whatever the time stamp of the source: the cached files are
  checked hash-based pycs (PEP 552), which every other program checks too.
* While a run trains (:func:`fix_modules`), no own module outside of this project is imported whose digest is not known.

``harness/__init__.py`` and this file are imported before the importer is there. Their bytecode is replaced at once, and
their digests are read right after.
"""

import hashlib
import marshal
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGE = os.path.dirname(os.path.realpath(__file__))
"""The folder of the package ``harness``."""

_PROJECT = {"__main__", "__mp_main__", "analysis", "benchmarks", "harness", "run", "tests"}
_STANDARD_LIBRARY = os.path.realpath(os.path.dirname(os.__file__))
_CHECKED = MAGIC_NUMBER + (0b11).to_bytes(4, "little")  # the head of a checked hash-based pyc

_loaded: dict[str, str] = {}  # digests by path, of the bytes that the importer compiled
_known: dict[str, str] = {}  # those that were asked for, which no later import may change
_is_fixed = False


def digest_of(path: str | Path) -> str:
    """Digest (16 hex digits) of a source: as it was loaded or, if it was not, as it is now. Raises OSError.

    From now on no process forked from this one imports other bytes from there.
    """
    path = os.path.realpath(path)
    if path not in _known:
        _known[path] = _loaded.get(path) or _digest(Path(path).read_bytes())
    return _known[path]


def own_modules(*, of_project: bool) -> dict[str, str]:
    """The files of all own modules that this process has imported, by the module's name.

    ``of_project``: also those of this project, with the program itself; else only others, as plugins import them.
    """
    files = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in [*sys.modules.items()]}
    return {
        name: file
        for name, file in files.items()
        if isinstance(file, str) and _is_own(file) and os.path.isfile(file) and (of_project or not _is_of_project(name))
    }


def with_place(words: str, trace: str) -> str:
    """``words`` with the file and line of the innermost call of ``trace``, a traceback; of own modules, if it has some.

    Own modules are here those outside of this package, such as plugins. Without a call ``words`` are unchanged.
    """
    calls = re.findall(r'^ *File "(.+\.py)", line (\d+)', trace, re.MULTILINE)
    own = [call for call in calls if _is_own(call[0]) and not os.path.realpath(call[0]).startswith(PACKAGE + os.sep)]
    place = "".join(f"{os.path.basename(file)}, line {line}" for file, line in (own or calls)[-1:])
    return words if place in words else f"{words} ({place})"


def fix_modules() -> None:
    """Refuse from now on, here and in all processes forked from this one, own modules that no digest is known of."""
    global _is_fixed  # noqa: PLW0603 - one for each process
    _is_fixed = True


@contextmanager
def modules_fixed() -> Iterator[None]:
    """:func:`fix_modules` for the time of the block."""
    global _is_fixed  # noqa: PLW0603 - one for each process
    before, _is_fixed = _is_fixed, True
    try:
        yield
    finally:
        _is_fixed = before


class Loader(SourceFileLoader):
    """Loads a module from the bytes whose digest it notes. Importing the module raises ConfigError if it is refused."""

    def get_code(self, fullname: str) -> CodeType:  # pyright: ignore[reportIncompatibleMethodOverride]
        content = self.get_data(self.path)
        _note(fullname, self.path, _digest(content))
        head = _CHECKED + source_hash(content)
        cached = cache_from_source(self.path)
        with suppress(OSError, EOFError, ValueError, TypeError):  # missing, or damaged
            if (kept := self.get_data(cached)).startswith(head):
                return marshal.loads(memoryview(kept)[len(head) :])
        code: CodeType = self.source_to_code(content, self.path)
        if not sys.dont_write_bytecode:
            self.set_data(cached, head + marshal.dumps(code))  # a no-op where that cannot be written
        return code


def _note(name: str, file: str, digest: str) -> None:
    path = os.path.realpath(file)
    known = _known.get(path)
    if known not in (None, digest):
        _refuse(f"{file}: was changed after this command had read it; run the command again")
    if known is None and _is_fixed and not _is_of_project(name):
        _refuse(
            f"plugins: {file}: expected to be imported with the plugin, got an import while the run is under way: it "
            "would not be part of the code that the result names; import it at the plugin's top"
        )
    _loaded[path] = digest


_plain: Any = super(SourceFileLoader, SourceFileLoader).get_code


def _get_code(loader: Any, fullname: str) -> CodeType | None:
    """The code of a module that Python loads, or any finder, or a plugin by its path: if it is own, by ``Loader``."""
    return (Loader.get_code if _is_own(loader.path) else _plain)(loader, fullname)


def install() -> None:
    """Let own modules be loaded as :class:`Loader` does from now on, whatever finds them."""
    kind: Any = SourceFileLoader
    kind.get_code = _get_code
    for name in ("harness", __name__):
        Loader(name, str(sys.modules[name].__file__)).get_code(name)


def _is_own(path: str) -> bool:
    parts = (path := os.path.realpath(path)).split(os.sep)
    is_installed = path.startswith(_STANDARD_LIBRARY + os.sep) or {"site-packages", "dist-packages"} & {*parts}
    return path.startswith(PACKAGE + os.sep) or not is_installed


def _is_of_project(name: str) -> bool:
    return name.partition(".")[0] in _PROJECT


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _refuse(message: str) -> None:
    from harness.core.errors import ConfigError  # noqa: PLC0415 - this file is imported before any other

    raise ConfigError(message)
