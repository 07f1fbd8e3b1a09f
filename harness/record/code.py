"""The content of ``env.json``: versions, git commit, machine, and the code that computed a result.

The code is kept as digests of source files, as they were loaded (``harness/sources.py``), and versions, so that results
of other code are recognised. The code of a run has

* all files of the package ``harness`` but those of ``_NO_RESULT``, whether the run imports them or not: the command
  that names a result, the process that computes it and the fork server of another host know it without an import;
* each own module that was imported when the plugins had been loaded, but for this project's: the plugins, and what they
  import, directly or not;
* the versions of Python, torch, numpy, numba, and of the distributions that those modules name objects or modules of.
  A constant that is imported from a distribution shows its distribution only if something else of it is imported too.

A process that was not forked from the one that named a result refuses to compute it unless its code is the same
(:func:`refuse_other_code`).
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import sources
from harness.config import plugins
from harness.core.errors import ConfigError, StoreError
from harness.files import read_json
from harness.record.rundir import RunDir

_ROOT = Path(sources.PACKAGE).parent
_NO_RESULT = (
    *("api.py", "cli/", "grid/", "jobs/", "planning/", "record/", "wandb/"),
    *(f"data/{name}.py" for name in ("criteo", "delimited", "facts", "law", "outputs", "prepare", "sources")),
    "data/synth.py",
    "run/export.py",
)
"""Files and folders of ``harness`` that decide no result: commands, records, plans, exports, preparation of data.

The digest of the data, which the name of a result holds too, says what their preparation made.
"""
_LIBRARIES = ("torch", "numpy", "numba")
_MAX_NAMED = 3  # files named in a difference


@dataclass(frozen=True)
class Code:
    """The code of a run or of a benchmark.

    ``versions``: of Python and distributions. ``sources``: digests of source files by path or, of a plugin, by the name
    that the user gave, or by the name of a module that it imports.
    """

    versions: Mapping[str, str]
    sources: Mapping[str, str]

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
            case {"versions": dict(versions), "sources": dict(sources)}:
                return cls(versions, sources)
            case _:
                return None

    def difference(self, other: "Code") -> str | None:
        """The differences of ``other`` in words: versions, and up to three files; None if there are none."""
        versions = [
            f"{name} {self.versions.get(name)} -> {other.versions.get(name)}"
            for name in dict.fromkeys([*self.versions, *other.versions])
            if self.versions.get(name) != other.versions.get(name)
        ]
        changed = sorted(
            path
            for path in self.sources.keys() | other.sources.keys()
            if self.sources.get(path) != other.sources.get(path)
        )
        named = changed[:_MAX_NAMED] + (
            [f"{len(changed) - _MAX_NAMED} more files"] if len(changed) > _MAX_NAMED else []
        )
        return ", ".join([*versions, *named]) or None


def current_code() -> Code:
    """The code of a run in this process and in those that are forked from it."""
    return _code_with(tuple(plugins.LOADED))


@cache
def _code_with(_plugins: tuple[str, ...]) -> Code:
    package = Path(sources.PACKAGE)
    files = {path.relative_to(package).as_posix(): path for path in sorted(package.rglob("*.py"))}
    found = {f"harness/{name}": file for name, file in files.items() if not name.startswith(_NO_RESULT)}
    digests = {name: sources.digest_of(file) for name, file in found.items()}
    return Code(_versions(plugins.DISTRIBUTIONS), digests | plugins.DIGESTS)


def refuse_other_code(expected: Code, who: str) -> None:
    """Raise ConfigError, which names ``who``, unless ``expected`` is the code of this process."""
    if difference := expected.difference(current_code()):
        raise ConfigError(
            f"{who}: expected the code that this command began with, which has changed since ({difference}); run the "
            "command again"
        )


def script_code() -> Code:
    """The code of the program that this process runs: all own modules that it has imported until now."""
    files = {Path(file).resolve() for file in sources.own_modules(of_project=True).values()}
    names = {os.path.relpath(file, _ROOT): file for file in sorted(files)}
    return Code(_versions(), {name: sources.digest_of(file) for name, file in names.items()})


def script_difference(kept: Code) -> str | None:
    """How the code of a program differs now from ``kept``, its :func:`script_code`, in words; None if it does not."""
    digests = {name: sources.digest_of(_ROOT / name) for name in kept.sources if (_ROOT / name).is_file()}
    return kept.difference(replace(kept, versions=_versions(), sources=digests))


def _versions(others: Sequence[str] = ()) -> dict[str, str]:
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: metadata.version(name) for name in (*_LIBRARIES, *others)}}


def code_of(run_dir: Path) -> Code | None:
    """The code that computed the run in ``run_dir``; None if its env.json does not say, or cannot be read."""
    with suppress(StoreError):
        return Code.of_json(read_json(RunDir(run_dir).env).get("code"))
    return None


def difference_of(run_dir: Path) -> str | None:
    """How the code that computed a run differs from the present code, in words; None if it is the same."""
    code = code_of(run_dir)
    return "code not known" if code is None else code.difference(current_code())


_PACKAGES = ("torch", "numpy", "numba", "wandb")
_THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_")


def utc_now() -> datetime:
    """The present time in UTC, as records have it."""
    return datetime.now(UTC)


def environment(
    *,
    num_threads: int,
    backend: str | None = None,
    data: Mapping[str, Any] | None = None,
    trace: Mapping[str, Any] | None = None,
    code: Code | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The content of env.json as plain JSON types; unknown is null.

    ``backend``: the dense network's. ``data``, ``trace``: facts about the click log and the failure trace. ``code``: by
    default that of a run. ``command``: by default sys.argv.
    """
    return {
        "time": utc_now().isoformat(timespec="seconds"),
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
