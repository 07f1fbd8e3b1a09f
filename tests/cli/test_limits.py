"""Laws of commands that the system allows too little memory: one line that says what to do, and no traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.cli import limits, record_commands
from harness.core.errors import RankFailed
from tests.cli.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "train one.yaml",
    "train one.yaml engine=rpc",
    "grid grid.yaml",
    "plan cpr56",
    "table out",
    "data info data",
)


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("limit_mb", [100, 300])
def test_a_command_with_too_little_address_space_is_one_line(command: str, limit_mb: int) -> None:
    """Law: what the command needs, what it may have, and how to change that; no library is loaded, and none hangs."""
    program = f"ulimit -v {limit_mb}000; exec '{sys.executable}' '{ROOT}/run.py' {command}"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith("error: ulimit -v: expected at least ")
    assert line.endswith(f", got {limit_mb * 1000:,}; `ulimit -v unlimited` removes the limit")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Allocation failed (probably too large)."),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_ends_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Law: whichever library meets the end of memory; the line says what this process may have if that is limited."""
    monkeypatch.setattr(record_commands, "show", Mock(side_effect=error))
    words = str(error) or "MemoryError"
    result = cli("show", "out")
    assert (result.code, result.errors) == (2, [f"error: out of memory: {words}"])
    monkeypatch.setattr(limits, "_limit_bytes", lambda: 10**9)
    assert cli("show", "out").errors == [f"error: out of memory: {words} (ulimit -v is 976,562)"]
    failed = RankFailed(f"trainer0 raised {type(error).__name__}: {words}")
    monkeypatch.setattr(record_commands, "show", Mock(side_effect=failed))
    assert cli("show", "out").errors == [f"failed: {failed} (ulimit -v is 976,562)"]


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "x"), ImportError("no module"), RuntimeError("CUDA")])
def test_another_error_is_a_bug(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Law: it is raised, and shown with its traceback."""
    monkeypatch.setattr(record_commands, "show", Mock(side_effect=error))
    with pytest.raises(type(error)):
        cli("show", "out")
