"""The code that computed a result, as digests: what tells a result of other code from one of the present code.

A run's config and data identify what was asked for; ``env.json`` records the code that answered.
"""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType
from typing import Any

from harness.config import plugins
from harness.core.errors import StoreError
from harness.record.files import read_json
from harness.record.rundir import RunDir

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOMS = (
    "client", "cluster", "config", "core", "data", "hosts", "kernels", "model", "processes", "recovery", "run", "store",
    "traces",
)  # fmt: skip
"""Folders of the package whose code decides results. The others start runs, plan them or describe them."""
_LIBRARIES = ("torch", "numpy", "numba")
_MAX_NAMED = 3  # files named in a difference


@dataclass(frozen=True)
class Code:
    """``versions`` of Python and of the libraries that compute; digests of source files by path, text aside."""

    versions: Mapping[str, str]
    sources: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """16 hex digits that differ where any version or source differs."""
        content = repr((sorted(self.versions.items()), sorted(self.sources.items())))
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """For ``env.json``."""
        return {"fingerprint": self.fingerprint, **asdict(self)}

    @classmethod
    def of_json(cls, found: object) -> "Code | None":
        """The inverse of :meth:`to_json`; None for anything else."""
        match found:
            case {"versions": dict(versions), "sources": dict(sources)}:
                return cls(versions, sources)
            case _:
                return None

    def difference(self, other: "Code") -> str | None:
        """What ``other`` has otherwise, in words; None if they are equal."""
        versions = [
            f"{name} {self.versions.get(name)} -> {version}"
            for name, version in other.versions.items()
            if self.versions.get(name) != version
        ]
        changed = sorted(
            path
            for path in self.sources.keys() | other.sources.keys()
            if self.sources.get(path) != other.sources.get(path)
        )
        if self.versions.get("python") != other.versions.get("python"):
            changed = []  # a digest is of compiled code, which depends on Python's version
        named = changed[:_MAX_NAMED] + (
            [f"{len(changed) - _MAX_NAMED} more files"] if len(changed) > _MAX_NAMED else []
        )
        return ", ".join([*versions, *named]) or None


@cache
def current_code() -> Code:
    """The code of this process, plugins included, when it was first asked for."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    versions |= {name: metadata.version(name) for name in _LIBRARIES}
    files = sorted(path for room in _ROOMS for path in (_PACKAGE / room).rglob("*.py"))
    sources = {str(path.relative_to(_PACKAGE.parent)): path for path in files} | plugins.LOADED
    return Code(versions, {name: _digest(path) for name, path in sources.items()})


def code_of(run_dir: Path) -> Code | None:
    """The code that computed the run in ``run_dir``; None where its env.json does not say."""
    try:
        return Code.of_json(read_json(RunDir(run_dir).env).get("code"))
    except StoreError:
        return None


def difference_of(run_dir: Path) -> str | None:
    """How the code that computed a finished run differs from the present code, in words; None if it is the same."""
    try:
        code = Code.of_json(read_json(RunDir(run_dir).env).get("code"))
    except StoreError as error:
        return f"code not known: {error}"
    return "code not recorded" if code is None else code.difference(current_code())


def _digest(path: Path) -> str:
    """Of the file's compiled code without docstrings: comments, text and the numbers of lines change no result."""
    compiled = compile(path.read_bytes(), "", "exec", optimize=2, dont_inherit=True)
    return hashlib.blake2b(repr(_content(compiled)).encode(), digest_size=4).hexdigest()


def _content(value: object) -> object:
    """What a constant of compiled code holds, in an order that is the same in every process."""
    if isinstance(value, CodeType):
        names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        return (names, value.co_flags, value.co_code, value.co_exceptiontable, _content(value.co_consts))
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return tuple(map(_content, value)) if isinstance(value, tuple) else repr(value)
