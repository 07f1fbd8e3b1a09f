"""The content of ``env.json``: versions, git commit, machine, and other facts that a run's figures depend on."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.record.code import Code, current_code

_PACKAGES = ("torch", "numpy", "numba", "wandb")
_THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_")
_ROOT = Path(__file__).resolve().parents[2]


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
        "cpu": _cpu_info("model name") or platform.processor() or None,
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
    """``{"commit": hex, "dirty": bool}`` of this checkout; None where there is none.

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
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _cpu_info(key: str) -> str | None:
    """A value of the first processor in /proc/cpuinfo; None where it is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)
