"""A private network for the ranks of a run: a namespace whose loopback device no process outside can reach.

TensorPipe has no authentication, and torch's remote calls are pickles: any client of a rank's port runs code in it.
In a network namespace of their own (``man 7 network_namespaces``) the ranks have a loopback device to themselves. Root
may make a namespace directly; other users make it within a user namespace that maps only their own user id (``man 7
user_namespaces``), if the system allows that. The supervisor stays outside, and accepts connections by a listening
socket that was made inside, since a socket belongs to the namespace in which it was made.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from harness.core.errors import RunFailed
from harness.processes import control
from harness.processes.forked import HostLost
from harness.processes.spawn import fork_server

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENOSPC, errno.EUSERS)  # of `man 2 unshare`
_TEXT_BYTES = 1024
_START_S = 20.0  # within which a process makes the namespace
_REAP_S = 10.0  # between SIGKILL and the end of a process


class NoPrivateNetwork(Exception):
    """The system does not let this user make a network namespace; the message says why."""


@dataclass(frozen=True)
class Entrance:
    """The paths of the namespaces to enter. They are valid in processes of this user while the supervisor lives."""

    paths: tuple[str, ...]

    def enter(self) -> None:
        """Move this process into the namespace. To be called before it starts a thread. Raises OSError."""
        fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in self.paths]  # inside the first, none can be opened
        for fd, path in zip(fds, self.paths, strict=True):
            try:
                _check(_libc.setns(fd, 0), path)
            finally:
                os.close(fd)


class PrivateNetwork:
    """A network namespace, and a socket that listens in it at ``host`` and ``port``.

    Raises NoPrivateNetwork where the system allows none, RunFailed if it cannot be made for another reason.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            said, fds = _run_make(host, port)
        except (OSError, HostLost) as error:
            raise RunFailed(f"no private network could be made: {error}") from error
        number, _, words = said.partition(" ")
        if number in map(str, _REFUSALS):
            raise NoPrivateNetwork(words)
        if not fds:
            raise RunFailed(f"no private network could be made: {words or 'the process that was to make it ended'}")
        listener, *self._namespaces = fds
        self.listener = socket.socket(fileno=listener)
        self.listener.setblocking(False)
        self.entrance = Entrance(tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in self._namespaces))

    def close(self) -> None:
        """Let go of the namespaces, which end with the last process in them. The caller closes ``listener``."""
        for fd in self._namespaces:
            with suppress(OSError):
                os.close(fd)


def _run_make(host: str, port: int) -> tuple[str, list[int]]:
    """Run :func:`make` in a new process, which ends before this returns. Returns the text and the descriptors it sends.

    Raises RunFailed if no answer comes in time, HarnessError or OSError if the process could not be started.
    """
    ours, theirs = Pipe()
    with ours:
        with theirs:
            forked = fork_server().fork(make, theirs, host, port)
        try:
            with socket.socket(fileno=os.dup(ours.fileno())) as channel:
                channel.settimeout(_START_S)
                said, fds, _, _ = socket.recv_fds(channel, _TEXT_BYTES, 3)
        except TimeoutError as error:
            raise RunFailed(
                f"no private network could be made: process {forked.pid}, which was to make it, gave no answer within "
                f"{_START_S:g} s, and was killed"
            ) from error
        finally:
            forked.kill()  # it has done its work, or is late
            forked.join(_REAP_S)
    return said.decode(errors="replace"), fds


def make(connection: Connection, host: str, port: int) -> None:
    """Main function of the process that makes the network: enters new namespaces, listens there, and sends the result.

    It sends file descriptors of the listening socket and the namespaces, or the number of an error and its words;
    nothing if the receiver has ended.
    """
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=os.dup(connection.fileno())) as channel:
        try:
            names = _unshare()
            _raise_loopback()
            listener = control.listen(host, port)
            fds = [listener.fileno(), *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in names)]
        except OSError as error:
            channel.send(f"{error.errno} {error}".encode()[:_TEXT_BYTES])
        else:
            socket.send_fds(channel, [b"made"], fds)


def _unshare() -> tuple[str, ...]:
    """Enter a new network namespace, in a new user namespace if need be. Their names ("user", "net"), outer first."""
    if _libc.unshare(_CLONE_NEWNET) == 0:
        return ("net",)
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return ("user", "net")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
