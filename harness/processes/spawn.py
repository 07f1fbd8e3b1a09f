"""Start of the fork server, from which processes are forked in milliseconds because its imports are done."""

import gc
import inspect
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from typing import Any, NoReturn

from harness.config.plugins import LOADED, PRELOAD_VARIABLE
from harness.core.errors import RunFailed
from harness.processes.child import search_path
from harness.processes.leash import (
    ENDS_WITH_PARENT_VARIABLE,
    INTERRUPTS,
    end_quietly_without_orders,
    end_with_parent,
    hold_leash,
)

_PRELOAD = ["torch", "harness.run.assemble"]


def fork_server() -> ForkServerContext:
    """The multiprocessing context for starting processes; its fork server is running.

    The server dies with this process. The server and the processes that it forks find this package from any working
    folder, and have the signals of ``INTERRUPTS`` blocked: the process that the user started handles them.

    Raises RunFailed if the server cannot be started.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.processes.leash_parent", "harness.config.preloaded_plugins", *_PRELOAD])
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so it must not start below
    try:
        with _environment(), _interrupts_blocked():
            forkserver.ensure_running()
    except OSError as error:  # the path of a socket may have 107 characters
        raise RunFailed(f"no fork server could be started in {tempfile.gettempdir()} (TMPDIR): {error}") from error
    return context


def can_nest() -> bool:
    """Whether :func:`nest_fork_server` can replace the fork server of this Python version.

    :func:`nest_fork_server` sets private attributes of ``multiprocessing.forkserver`` of Python 3.11 to 3.13. False if
    the attributes or the arguments of the server's main function differ (3.14 added a key shared with clients); then
    only public functions start processes.
    """
    server = getattr(forkserver, "_forkserver", None)
    if set(getattr(server, "__dict__", ())) != _SERVER_ATTRIBUTES:
        return False
    return tuple(inspect.signature(forkserver.main).parameters) == _MAIN_PARAMETERS


_SERVER_ATTRIBUTES = {
    "_forkserver_address",
    "_forkserver_alive_fd",
    "_forkserver_pid",
    "_inherited_fds",
    "_lock",
    "_preload_modules",
}
_MAIN_PARAMETERS = ("listener_fd", "alive_r", "preload", "main_path", "sys_path")


def own_fork_server() -> bool:
    """Call :func:`nest_fork_server` if that is safe; returns whether it has made a fork server.

    False, and a no-op, if this process has not imported all that a fork server imports, if another Python thread runs,
    or where :func:`nest_fork_server` does nothing.
    """
    has_all = all(module in sys.modules for module in _PRELOAD)
    return has_all and threading.active_count() == 1 and nest_fork_server()


def nest_fork_server() -> bool:
    """Fork a fork server from this process, whose imports are done.

    :func:`fork_server` then finds it running. A new one would import everything again, which takes 1.5 s. The nested
    server has this process's standard streams, no other open file of it, and ``INTERRUPTS`` blocked. It dies with this
    process. To be called while no thread but a leash's runs: a fork copies only one thread, and locks in their present
    state.

    Returns True. Returns False, and does nothing, where :func:`can_nest` is False or there is a fork server already.
    This is ``ForkServer.ensure_running`` of Python 3.11, with a fork instead of a new interpreter.
    """
    if not can_nest():
        return False
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        return False
    owner = os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        address = _listen_without_a_name(listener)
        alive_r, alive_w = os.pipe()
        with _interrupts_blocked(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: the leash's thread runs
            gc.freeze()  # or a collection on either side copies the pages of all that was imported
            pid = os.fork()
            if pid == 0:
                _serve_forks(owner, listener.fileno(), alive_r)
    os.close(alive_r)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid
    return True


def _listen_without_a_name(listener: socket.socket) -> str:
    """Let ``listener`` listen at a Unix socket whose file is unlinked at once; return a path by which it is reached.

    No file is left behind, however this process ends: the path is in /proc, of a descriptor that holds the file open
    (``man 2 open``, O_PATH). A path has at most 107 characters (``man 7 unix``), so a descriptor names the folder too.
    """
    folder = tempfile.mkdtemp(prefix="cpr-harness-")  # for this user alone
    opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        file = f"/proc/self/fd/{opened}/fork-server"
        listener.bind(file)
        try:
            held = os.open(file, os.O_PATH | os.O_CLOEXEC)
        finally:
            os.unlink(file)
    finally:
        os.close(opened)
        os.rmdir(folder)
    listener.listen()
    return f"/proc/{os.getpid()}/fd/{held}"


def _serve_forks(owner: int, listener_fd: int, alive_fd: int) -> NoReturn:
    """The main function of the nested fork server. It ends the process, and never returns to its caller."""
    try:
        kept = {0, 1, 2, listener_fd, alive_fd}
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
            with suppress(OSError):  # of the listing itself, closed by now
                os.close(fd)
        for number in signal.valid_signals():  # handlers of the command line are for the process that the user started
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        end_with_parent()  # also while it is stopped, when a leash would not
        hold_leash(owner)
        end_quietly_without_orders()
        forkserver.main(listener_fd, alive_fd, [])
    except SystemExit:
        os._exit(0)  # all processes that could send it requests have ended
    finally:
        os._exit(1)


@contextmanager
def _environment() -> Iterator[None]:
    """Set environment variables for a fork server that is started within the block.

    They are PYTHONPATH, as Python 3.11's server does not inherit sys.path; the plugins to load; and whether the thread
    that starts it is the main one, which lives as long as this process.
    """
    before = os.environ.copy()
    os.environ["PYTHONPATH"] = search_path()
    os.environ[PRELOAD_VARIABLE] = "\n".join(LOADED)
    os.environ[ENDS_WITH_PARENT_VARIABLE] = "1" if threading.current_thread() is threading.main_thread() else ""
    try:
        yield
    finally:
        for name in ("PYTHONPATH", PRELOAD_VARIABLE, ENDS_WITH_PARENT_VARIABLE):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
