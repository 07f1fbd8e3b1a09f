"""The first process of an emulated host. It is forked from one that has imported everything, and forks fork servers.

As a program, ``warm_host.py SOCKET``, the command that starts a fork server: it has the first process of the host fork
one with its own standard streams, and ends with it.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

NEW_MOUNTS, NEW_PROCESSES, NEW_NETWORK = 0x20000, 0x20000000, 0x40000000  # linux/sched.h
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE of linux/mount.h
_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    """Raise the OSError of a call of the C library."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter(pid: int) -> None:
    """Move this thread, and those that it starts, into the network of a process."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    check(_libc.setns(fd, NEW_NETWORK))
    os.close(fd)


def hold_bridge(report: Connection, path: str) -> None:
    """Main function of a process with a network of its own; ``path``: of the socket for orders.

    It reports an error, empty if there is none.
    """
    from harness.processes.parent_death import end_with_parent

    end_with_parent()
    if _unshared(NEW_NETWORK, report):
        _serve(path, report)


def hold_host(report: Connection, path: str) -> None:
    """Main function of a process whose child is the first one of a host; ``path``: of the socket for orders."""
    from harness.processes.parent_death import end_with_parent

    end_with_parent()
    if not _unshared(NEW_MOUNTS | NEW_PROCESSES | NEW_NETWORK, report):
        return
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent()
            check(_libc.mount(b"none", b"/", None, _PRIVATE, None))
            check(_libc.mount(b"proc", b"/proc", b"proc", 0, None))
            _serve(path, report)
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


def _unshared(flags: int, report: Connection) -> bool:
    """Enter new namespaces; False if that is not allowed, which is reported."""
    try:
        check(_libc.unshare(flags))
    except OSError as error:
        report.send(str(error))
        return False
    return True


def _serve(path: str, report: Connection) -> NoReturn:
    """Fork a fork server for each connection."""
    from harness.record.code import current_code
    from harness.run.fork_server import main

    current_code()  # inherited
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps, orphans too
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        report.send("")
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _be_a_fork_server(connection, main)
            connection.close()


def _be_a_fork_server(connection: socket.socket, main: Callable[[], None]) -> NoReturn:
    """``main`` with the streams that were sent; the connection ends with this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 2)
    for fd, stream in zip((0, 1), streams, strict=True):
        os.dup2(stream, fd)
        os.close(stream)
    os.dup2(1, 2)
    sys.stdin = os.fdopen(0, closefd=False)
    try:
        main()
    except SystemExit as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(1)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as host:
        host.connect(sys.argv[1])
        socket.send_fds(host, [b"1"], [0, 1])
        host.recv(1)
