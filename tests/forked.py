"""Functions in processes of their own, forked from a process that has imported torch and the harness.

An import of both takes three seconds of processor; a fork takes a hundredth of one.
"""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.processes.leash import end_with_parent, hold_leash
from harness.processes.spawn import fork_server

PATIENCE_S = 110


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


def said_by(body: Callable[..., object], *arguments: object) -> str:
    """What ``body(*arguments)`` writes to stdout and stderr in a process of its own, which must end well."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        process = fork_server().Process(target=_carry_out, args=(body, arguments, said, os.getpid()))
        process.start()
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode == 0, said.read_text()
        return said.read_text()


def _carry_out(body: Callable[..., object], arguments: tuple[object, ...], said: Path, owner: int) -> None:
    hold_leash(owner)
    with said.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    body(*arguments)
    sys.stdout.flush()


def ran(
    body: Callable[..., object],
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """What ``subprocess.run`` says of a program, of ``body(*arguments)`` in a process of its own.

    It starts in ``folder``, with this process's variables and those of ``environment``, no signal blocked and Python's
    own way of starting processes.
    """
    variables = {**os.environ, **(environment or {})}
    with tempfile.TemporaryDirectory() as name:
        said = [Path(name) / stream for stream in ("stdout", "stderr")]
        process = fork_server().Process(target=_be_a_program, args=(body, arguments, said, folder, variables))
        process.start()
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
    end_with_parent()  # the fork server, which ends with the owner: a leash would be a thread, and programs have one
    for stream, path in enumerate(said, start=1):
        with path.open("wb") as file:
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
