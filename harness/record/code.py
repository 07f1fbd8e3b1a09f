"""The content of ``env.json``: versions, git commit, machine, and the code that computed a result.

The code is kept as digests of its source files, so that results of other code are recognised. The files are those of
all modules that the run's main modules import, directly or not, by the import statements in the source texts.
"""

import ast
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType
from typing import Any

from harness.config import plugins
from harness.config.model import Config
from harness.core.errors import StoreError
from harness.files import read_json
from harness.record.rundir import RunDir

_ROOT = Path(__file__).resolve().parents[2]
_RUN = ("harness.run.assemble",)
ON_HOSTS = (*_RUN, "harness.hosts.launcher", "harness.hosts.agent", "harness.run.agent")
"""The main modules of a run on several hosts, those of its agents included."""
_BY_LAUNCHER = {"hosts": ON_HOSTS, "ray": (*ON_HOSTS, "harness.hosts.ray_launcher")}
_NOT_FOLLOWED = ("harness.record", "harness.wandb", "harness.hosts")
"""Packages whose modules count only if they are roots, or are imported by a module of the same package that counts.

What is written about a run decides no result, and other hosts' ranks are started by the launcher that the config names.
"""
_LIBRARIES = ("torch", "numpy", "numba")
_MAX_NAMED = 3  # files named in a difference


@dataclass(frozen=True)
class Code:
    """The code of a run.

    ``versions``: of Python, torch, numpy and numba. ``sources``: digests of source files, plugins included, by path;
    comments and docstrings do not enter them. ``roots``: the modules from which imports were followed.
    """

    versions: Mapping[str, str]
    sources: Mapping[str, str]
    roots: tuple[str, ...] = _RUN

    @property
    def fingerprint(self) -> str:
        """16 hex digits that differ where any version or source differs."""
        content = repr((sorted(self.versions.items()), sorted(self.sources.items())))
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The fields and the fingerprint as JSON values, for ``env.json``."""
        return {"fingerprint": self.fingerprint, **asdict(self)}

    @classmethod
    def of_json(cls, found: object) -> "Code | None":
        """The code that :meth:`to_json` wrote as ``found``; None for a value of another form."""
        match found:
            case {"versions": dict(versions), "sources": dict(sources), "roots": [*roots]}:
                return cls(versions, sources, tuple(map(str, roots)))
            case _:
                return None

    def difference(self, other: "Code") -> str | None:
        """The differences of ``other`` in words: versions, and up to three files; None if there are none.

        Files are not compared between versions of Python.
        """
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
            changed = []  # digests of compiled code depend on Python's version
        named = changed[:_MAX_NAMED] + (
            [f"{len(changed) - _MAX_NAMED} more files"] if len(changed) > _MAX_NAMED else []
        )
        return ", ".join([*versions, *named]) or None


def roots_of(config: Config) -> tuple[str, ...]:
    """The main modules of a run of ``config``, which depend on its launcher; its code is what they import."""
    return _BY_LAUNCHER.get(config.cluster.launcher, _RUN)


@cache
def current_code(roots: tuple[str, ...] = _RUN) -> Code:
    """The code of ``roots``, what they import, and loaded plugins, as read at the first call with these roots."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    versions |= {name: metadata.version(name) for name in _LIBRARIES}
    sources = {str(path.relative_to(_ROOT)): path for path in sorted(_closure(roots))} | plugins.LOADED
    return Code(versions, {name: _digest(path) for name, path in sources.items()}, roots)


def read_all_code() -> None:
    """Call :func:`current_code` for every launcher, so that processes forked later have the same digests."""
    for roots in (_RUN, *_BY_LAUNCHER.values()):
        current_code(roots)


def _closure(roots: Sequence[str]) -> set[Path]:
    """The files of ``roots``, of this repository's modules that they import, directly or not, and of their packages.

    Imports of ``_NOT_FOLLOWED`` are left out.
    """
    found: set[Path] = set()
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or path in found:
            continue
        found.add(path)
        package, _, _ = name.rpartition(".")
        waiting += [package] if package else []
        waiting += [other for other in _imports(path) if name.startswith(_package(other))]
    return found


def _package(name: str) -> str:
    """The package in ``_NOT_FOLLOWED`` that a module belongs to; empty if there is none."""
    return next((package for package in _NOT_FOLLOWED if f"{name}.".startswith(f"{package}.")), "")


@cache
def _file_of(name: str) -> Path | None:
    """The file of a module of this repository; None for any other name."""
    path = _ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """The modules that a file imports, also in functions, without imports for type checkers only."""
    return tuple(_imported(ast.parse(path.read_bytes())))


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield module
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise):
            for child in otherwise:
                yield from _imported(child)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _imported(child)


def code_of(run_dir: Path) -> Code | None:
    """The code that computed the run in ``run_dir``; None if its env.json does not say, or cannot be read."""
    with suppress(StoreError):
        return Code.of_json(read_json(RunDir(run_dir).env).get("code"))
    return None


def difference_of(run_dir: Path) -> str | None:
    """How the code that computed a finished run differs from the present code, in words; None if it is the same.

    Unknown code counts as different. Raises nothing for an env.json that cannot be read.
    """
    try:
        code = Code.of_json(read_json(RunDir(run_dir).env).get("code"))
    except StoreError as error:
        return f"code not known: {error}"
    return "code not recorded" if code is None else code.difference(current_code(code.roots))


@cache
def _digest(path: Path) -> str:
    """Digest (8 hex digits) of a file's compiled code, without comments, docstrings, assertions and line numbers."""
    compiled = compile(path.read_bytes(), "", "exec", optimize=2, dont_inherit=True)
    return hashlib.blake2b(repr(_content(compiled)).encode(), digest_size=4).hexdigest()


def _content(value: object) -> object:
    """The content of a code object or constant as plain values, equal in every process (sets are sorted)."""
    if isinstance(value, CodeType):
        names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        return (names, value.co_flags, value.co_code, value.co_exceptiontable, _content(value.co_consts))
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return tuple(map(_content, value)) if isinstance(value, tuple) else repr(value)


_PACKAGES = ("torch", "numpy", "numba", "wandb")
_THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_")


def utc_now() -> datetime:
    """The present time in UTC: the default of the argument ``now`` wherever a time is recorded."""
    return datetime.now(UTC)


def environment(
    *,
    num_threads: int,
    backend: str | None = None,
    data: Mapping[str, Any] | None = None,
    trace: Mapping[str, Any] | None = None,
    code: Code | None = None,
    command: Sequence[str] | None = None,
    now: Callable[[], datetime] = utc_now,
) -> dict[str, Any]:
    """The content of env.json as plain JSON types; unknown is null.

    ``backend``: the dense network's. ``data``, ``trace``: facts about the click log and the failure trace. ``code``: by
    default the code of runs with the default launcher. ``command``: by default sys.argv.
    """
    return {
        "time": now().isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv if command is None else command),
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "git": _git_state(),
        "code": (code or current_code()).to_json(),
        "num_threads": num_threads,
        "cpu": _cpu_name() or platform.processor() or None,
        "backend": backend,
        "data": data,
        "trace": trace,
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_THREAD_VARIABLES)},
        "num_cores": len(os.sched_getaffinity(0)),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "host": platform.node(),
    }


@cache
def _git_state() -> dict[str, Any] | None:
    """``{"commit": hex, "dirty": bool}`` of this checkout; None if there is none, or git fails.

    As of the first call in this process: later changes of the checkout are not in the code that it has loaded.
    """
    if not (_ROOT / ".git").exists():
        return None
    try:
        commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.strip(), "dirty": bool(changes.strip())}


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout


@cache
def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


@cache
def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
