"""Functions in processes of their own, forked from a process that has imported torch and the harness.

An import of both takes three seconds of processor; a fork takes a hundredth of one.
"""

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
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


def import_from(folder: Path, name: str) -> None:
    """Import module ``name``, which lies in ``folder``."""
    sys.path.insert(0, str(folder))
    importlib.import_module(name)
