"""Cuts a process off the network from outside: it runs on, its connections stay open, and no packet reaches it.

Each TCP socket of the process is told to drop every packet, by a duplicate of its file descriptor (``man 2
pidfd_getfd``). That needs no privileges but those of a debugger: the process is a descendant of this one, and of the
same user. Unix sockets and pipes are no network, and stay as they are.

What drops packets is a filter (``man 7 socket``, SO_ATTACH_FILTER). Recent kernels allow it for TCP to privileged users
only; others get a lower bound of 255 on the packets' time to live (``man 7 ip``, IP_MINTTL), where Linux sends 64.

A connection that a listening socket accepts later drops packets too. A socket that the process opens later does not.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from harness.core.errors import HarnessError
from harness.processes.pidfd import Pidfd

_PIDFD_GETFD = 438  # asm-generic/unistd.h: the same on all machines
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # linux/bpf_common.h: BPF_RET | BPF_K, 0 bytes of the packet are kept
_IP_MINTTL, _IPV6_MINHOPCOUNT, _MOST_HOPS = 21, 73, 255  # linux/in.h, linux/in6.h
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_GONE = (errno.ESRCH, errno.EBADF)  # the process has ended, or has closed the file


class CannotCutOff(HarnessError):
    """The system denies access to the sockets of another process; the message says why, in one line."""


def cut_off(process: Pidfd) -> int:
    """Cut all present TCP sockets of a process off the network. Returns their number: 0 if it has ended.

    To be called while the process is stopped, so that it opens no socket meanwhile. Raises CannotCutOff.
    """
    num_sockets = 0
    for sock in _tcp_sockets(process):
        with sock:
            _drop_all(sock)
        num_sockets += 1
    return num_sockets


def problem(process: Pidfd) -> str | None:
    """Why :func:`cut_off` would fail for a process that has a TCP socket, in one line; None if it would not."""
    try:
        with socket.socket() as own:
            _drop_all(own)
        for sock in _tcp_sockets(process):
            sock.close()
    except CannotCutOff as error:
        return str(error)
    return None


def _drop_all(sock: socket.socket) -> None:
    """Drop every packet that comes for ``sock``. Raises CannotCutOff."""
    try:
        try:
            drop_by_filter(sock)
        except PermissionError:
            drop_by_hops(sock)
    except OSError as error:
        raise CannotCutOff(f"setsockopt: {error.strerror}") from error


def drop_by_filter(sock: socket.socket) -> None:
    """Drop every packet that comes for ``sock``, by a filter. Raises OSError."""
    instruction = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))  # struct sock_fprog
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def drop_by_hops(sock: socket.socket) -> None:
    """Drop every packet for ``sock`` with a time to live below 255, which is all of them. Raises OSError."""
    sock.setsockopt(socket.IPPROTO_IP, _IP_MINTTL, _MOST_HOPS)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MINHOPCOUNT, _MOST_HOPS)


def _tcp_sockets(process: Pidfd) -> Iterator[socket.socket]:
    """A duplicate of each TCP socket of a process; the caller closes it. Raises CannotCutOff."""
    folder = f"/proc/{process.pid}/fd"
    try:
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                if not os.readlink(f"{folder}/{name}").startswith("socket:"):
                    continue
                sock = socket.socket(fileno=_duplicate(process.fd, int(name)))
                if sock.family in _FAMILIES and sock.type == socket.SOCK_STREAM:
                    yield sock
                else:
                    sock.close()
    except OSError as error:
        if not process.has_ended():  # until it is reaped, its files are root's
            raise CannotCutOff(f"{folder}: {error.strerror}") from error


def _duplicate(pidfd: int, fd: int) -> int:
    """A file descriptor of this process for one of another. Raises CannotCutOff; FileNotFoundError if it is gone."""
    duplicate = _libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    if duplicate >= 0:
        return duplicate
    number = ctypes.get_errno()
    if number in _GONE:
        raise FileNotFoundError(number, os.strerror(number))
    raise CannotCutOff(f"pidfd_getfd: {os.strerror(number)}")


_libc = ctypes.CDLL(None, use_errno=True)
