"""Processes of tests: forked from one that has imported torch and the harness, and watched and stopped by their pid.

An import of both takes three seconds of processor; a fork takes a hundredth of one.
"""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from harness.processes.parent_death import end_with_parent
from harness.processes.spawn import fork_server

PATIENCE_S = 110
_NOBODY = 65534


def forked(body: Callable[[], object]) -> int:
    """The pid of a copy of this process that runs ``body`` and ends, with code 1 and a traceback if it raises.

    It ends with the thread that called this too: it holds the pipes of a pytest worker, and nobody notices that a
    worker is gone while they are open.
    """
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        end_with_parent()
        if os.getppid() == parent:
            body()
        code = 0
    except BaseException:  # noqa: BLE001 - the copy must not go on with what its parent does
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def as_nobody(attack: Callable[[], Iterable[str]]) -> list[str]:
    """What ``attack`` says in a process of another user; root alone can ask."""

    def be_nobody() -> None:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        end_with_parent()  # again: a change of the user undoes it
        os.write(writing, "\n".join(attack()).encode()[:60_000])

    reading, writing = os.pipe()
    child = forked(be_nobody)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = said.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    return lines


def said_by(body: Callable[..., object], *arguments: object) -> str:
    """What ``body(*arguments)`` writes to stdout and stderr in a process of its own, which must end well."""
    done = ran(body, *arguments, is_merged=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def ran(
    body: Callable[..., object],
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    is_merged: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """What ``subprocess.run`` says of a program, of ``body(*arguments)`` in a process of its own.

    It starts in ``folder``, with this process's variables and those of ``environment``, no signal blocked and Python's
    own way of starting processes. ``is_merged``: what it writes to either stream is in both.
    """
    variables = {**os.environ, **(environment or {})}
    with tempfile.TemporaryDirectory() as name:
        said = [Path(name) / stream for stream in ("stdout", "stdout" if is_merged else "stderr")]
        process = fork_server().fork(_be_a_program, body, arguments, said, folder, variables)
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"it did not end: {said[1].read_text()}")
        return subprocess.CompletedProcess([], process.exitcode, *(file.read_text() for file in said))


def _be_a_program(
    body: Callable[..., object],
    arguments: tuple[object, ...],
    said: list[Path],
    folder: Path | None,
    variables: Mapping[str, str],
) -> None:
    for stream, path in enumerate(said, start=1):
        with path.open("ab") as file:
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(variables)
    if folder is not None:
        os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    multiprocessing.set_start_method(None, force=True)
    body(*arguments)


def import_from(folder: Path, name: str) -> None:
    """Import module ``name``, which lies in ``folder``."""
    sys.path.insert(0, str(folder))
    importlib.import_module(name)


def alive(pid: int) -> bool:
    """Whether a process runs or is stopped, and is no zombie."""
    return _state(Path(f"/proc/{pid}")) not in "ZX"


def ends(pid: int) -> bool:
    """Whether a process has ended, or does so soon."""
    return _comes(lambda: not alive(pid))


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until no thread of the process runs.

    The signal alone is a request: a thread that is on a core, or next to be, goes on, and may answer a message first.
    """
    os.kill(pid, signal.SIGSTOP)
    await_stop(pid)


def await_stop(pid: int) -> None:
    assert _comes(lambda: is_stopped(pid)), f"process {pid} did not stop"


def is_stopped(pid: int) -> bool:
    """Whether no thread of the process runs."""
    return all(_state(task) in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir())


def _comes(condition: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + 60.0
    while not condition():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.001)
    return True


def _state(task: Path) -> str:
    """A letter of ``man 5 proc``; "X" for what has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
