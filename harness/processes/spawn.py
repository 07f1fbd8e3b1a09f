"""The fork server of this process, from which processes are forked in milliseconds because its imports are done."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection

from harness.config.plugins import LOADED
from harness.processes.child import search_path
from harness.processes.fork_server import Settings, serve_alone
from harness.processes.forked import ANSWER_S, ForkServer
from harness.processes.parent_death import INTERRUPTS, end_with_parent
from harness.processes.pidfd import Pidfd

PROGRAM = ("-P", "-m", "harness.run.fork_server")
"""Arguments of Python that start a fork server."""
_IMPORTED = ["torch", "harness.run.assemble"]

_current: tuple[int, ForkServer] | None = None  # this process, and its server


def fork_server() -> ForkServer:
    """The fork server of this process; a new one if there is none that lives.

    It dies with this process. Processes that it forks find this package from any working folder, and have the signals
    of ``INTERRUPTS`` blocked: the process that the user started handles them. Raises OSError.
    """
    return _living() or _set_current(*_start(), is_new=True)


def fork_own_server() -> bool:
    """Fork a fork server from this process, if that is safe; returns whether it has done so.

    A new program would import everything again, which takes 1.5 s. The server has this process's standard streams, and
    no other open file of it. False, and a no-op, if there is a server already, if this process has not imported all
    that one imports, or if another Python thread runs: a fork copies only one thread, and locks in their present state.
    """
    has_all = all(module in sys.modules for module in _IMPORTED)
    if not has_all or threading.active_count() > 1 or _living() is not None:
        return False
    owner, (ours, theirs) = os.getpid(), socket.socketpair()
    with _interrupts_blocked(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: libraries have threads
        gc.freeze()  # or a collection on either side copies the pages of all that was imported
        if (pid := os.fork()) == 0:
            end_with_parent(owner)
            serve_alone(Connection(theirs.detach()))
    theirs.close()
    _set_current(ours, pid, is_new=False)
    return True


def _living() -> ForkServer | None:
    """The fork server of this process, if there is one and it lives."""
    if _current is None or _current[0] != os.getpid():  # that of the process from which this one was forked
        return None
    _current[1].hear()
    return None if _current[1].lost else _current[1]


def _set_current(ours: socket.socket, pid: int, *, is_new: bool) -> ForkServer:
    """Make the server ``pid`` at the other end of ``ours`` the one of this process."""
    global _current  # noqa: PLW0603 - one for each process
    connection, name = Connection(ours.detach()), socket.gethostname()
    server = ForkServer(connection, pid, name, ANSWER_S, process=Pidfd(pid), is_new=is_new)
    _current = os.getpid(), server
    return server


def _start() -> tuple[socket.socket, int]:
    """Start the program of a fork server. Returns this process's end of the connection, and the program's pid."""
    is_main = threading.current_thread() is threading.main_thread()
    settings = Settings(path=sys.path, plugins=[*LOADED], owner=os.getpid() if is_main else None)
    ours, theirs = socket.socketpair()
    with theirs, _interrupts_blocked():
        environment = {**os.environ, "PYTHONPATH": search_path()}
        program = subprocess.Popen([sys.executable, *PROGRAM], stdin=theirs.fileno(), env=environment)
    program.returncode = 0  # its end is seen by its connection
    ours.sendall(json.dumps(asdict(settings)).encode() + b"\n")
    return ours, program.pid


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
