"""How processes of ours are started: forked, in milliseconds, from a server that has imported what they need."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NoReturn

from harness.cluster.leash import hold_leash

_ROOT = Path(__file__).resolve().parents[2]
_PRELOAD = ["torch", "harness.run.assemble"]


def fork_server() -> ForkServerContext:
    """The context to start processes with, its fork server running.

    The server, and so every process it forks, finds this package from whatever folder the command was given, dies with
    this process, and has SIGINT blocked: Ctrl-C on a terminal reaches the process that the user started, which decides.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.cluster.leash_parent", *_PRELOAD])
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so it must not start below
    with _import_path(), _interrupts_blocked():
        forkserver.ensure_running()
    return context


def own_fork_server() -> None:
    """:func:`nest_fork_server`, where that can be: for a command that is about to start processes.

    It cannot where this process has not imported all that a fork server has, where another thread of Python's runs, or
    where there is a fork server. Then :func:`fork_server` does as ever.
    """
    server: Any = forkserver._forkserver
    has_all = all(module in sys.modules for module in _PRELOAD)
    if has_all and threading.active_count() == 1 and server._forkserver_pid is None:
        nest_fork_server()


def nest_fork_server() -> None:
    """Fork a fork server from this process, which has imported all that is needed and has done little else.

    :func:`fork_server` then finds it running. A fresh one would import everything again, 1.5 s of it. It has this
    process's standard streams and no other open file, has SIGINT blocked, and dies with this process. To be called
    while no thread but a leash's runs: a fork takes over one thread alone, and every lock as it is.

    This is ``ForkServer.ensure_running`` of Python 3.11 with a fork in the place of a new interpreter.
    """
    server: Any = forkserver._forkserver
    owner = os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"{util.get_temp_dir()}/forkserver-{owner}"  # in a folder for this user alone, removed at the end
        listener.bind(address)
        listener.listen()
        alive_r, alive_w = os.pipe()
        with _interrupts_blocked():
            pid = os.fork()
            if pid == 0:
                _serve_forks(owner, listener.fileno(), alive_r)
    os.close(alive_r)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid


def _serve_forks(owner: int, listener_fd: int, alive_fd: int) -> NoReturn:
    """All that the nested fork server does; never returns into what was forked."""
    try:
        kept = {0, 1, 2, listener_fd, alive_fd}
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
            with suppress(OSError):  # the one that listed them
                os.close(fd)
        hold_leash(owner)
        forkserver.main(listener_fd, alive_fd, [])
    except SystemExit:
        os._exit(0)  # nobody is left to fork for
    finally:
        os._exit(1)


@contextmanager
def _import_path() -> Iterator[None]:
    """The fork server of Python 3.11 does not take over sys.path; the environment tells it where this package is."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
