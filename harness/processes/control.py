"""The control channel: one TCP connection from each rank to the supervisor.

It outlives the generations of the RPC world. It carries the rendezvous of the next generation, the orders to join it or
to stop, and the calls that the trainer makes to the supervisor. A rank that loses the connection ends. Fork servers of
other hosts connect with the supervisor by the same functions, the one of this machine by a Unix socket.

Messages are tuples, the kind first:

    rank -> supervisor      ("hello", rank, number, generation) ("publish", generation, address)
    trainer -> supervisor   ("call", method, args)              ("tell", method, values)
                            ("ask", method, args), of the world
                            ("finished",)                       ("failed", error)
                            ("alive", step, number), at regular intervals: the number of finished steps, and of all
                            finished actions
    supervisor -> rank      ("join", rank, formation)           ("stop",)
                            ("addresses", generation, {rank: address})                  ("broken", generation)
    supervisor -> trainer   ("result", value, error)
                            ("spares",): all spares are connected
                            ("halt",): stop at the next boundary, with a resume point
"""

import fcntl
import os
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from ctypes import addressof
from ctypes import c_char as ctypes_char
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

Message = tuple[Any, ...]

HANDSHAKE_S = 10.0
"""Seconds for which a handshake may make no progress."""
_SIOCGIFCONF = 0x8912  # linux/sockios.h
_IFREQ = struct.Struct("16s2x2x4s16x")  # linux/if.h on 64-bit machines: name, family, port, IPv4 address
_MOST_INTERFACES = 256
_LAST_ACK = struct.Struct("56xI")  # tcpi_last_ack_recv of linux/tcp.h


def listen(host: str, port: int) -> socket.socket:
    """A listening socket whose ``accept`` does not wait. Raises OSError, for example if ``cluster.port`` is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=128)
    listener.setblocking(False)  # the peer may have closed its connection before accept
    return listener


class Handshakes:
    """Handshakes of new connections, each in a thread of its own: a client that says nothing delays no rank.

    A connection whose handshake makes no progress for ``timeout_s`` is closed.

    Attributes:
        ended: an object to wait for. It is readable while :meth:`take` has connections to return.
    """

    def __init__(self, authkey: bytes, timeout_s: float = HANDSHAKE_S) -> None:
        self._authkey, self._timeout_s = authkey, timeout_s
        self._done: deque[Connection] = deque()
        self.ended, self._notice = Pipe(duplex=False)

    def begin(self, listener: socket.socket) -> None:
        """Accept a connection and begin its handshake. Raises OSError."""
        connection = _wrap(listener.accept()[0])
        limit_stalls(connection, self._timeout_s)
        try:
            threading.Thread(target=self._authenticate, args=(connection,), name="handshake", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            connection.close()

    def take(self) -> list[Connection]:
        """The connections that have authenticated with the key since the last call."""
        found: list[Connection] = []
        while self.ended.poll():
            self.ended.recv_bytes()
            found.append(self._done.popleft())
        return found

    def close(self) -> None:
        """Close the authenticated connections that :meth:`take` has not returned, and ``ended``."""
        for connection in self._done:
            connection.close()
        self.ended.close()

    def _authenticate(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self._authkey)
            answer_challenge(connection, self._authkey)
        except (AuthenticationError, EOFError, OSError):  # not a rank of this run, or one that died while it connected
            connection.close()
            return
        self._done.append(connection)
        with suppress(OSError):  # closed meanwhile
            self._notice.send_bytes(b"1")


def limit_stalls(connection: Connection, timeout_s: float) -> None:
    """Let sending and receiving fail with BlockingIOError if a begun message makes no progress for ``timeout_s``.

    Waiting for a message to begin, by ``wait`` or ``poll``, is not limited.
    """
    seconds, fraction = divmod(timeout_s, 1.0)
    timeval = struct.pack("ll", int(seconds), int(1e6 * fraction))
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, timeval)


def connect(host: str, port: int, authkey: bytes, timeout_s: float) -> Connection:
    """Connect to a listening process of the run, and authenticate both ways.

    Raises AuthenticationError if the keys differ, EOFError or OSError if there is no connection within ``timeout_s``.
    """
    connection = _wrap(socket.create_connection((host, port), timeout=timeout_s))
    answer_challenge(connection, authkey)
    deliver_challenge(connection, authkey)
    return connection


def _wrap(sock: socket.socket) -> Connection:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(sock.detach())


def limit_silence(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end a connection whose peer has not answered for ``seconds``, idle or with data in flight.

    Set on a listening socket, it holds for every connection that the socket accepts later.
    """
    probe_s = max(1, int(seconds / 4))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * seconds))


def silent_s(connection: Connection) -> float:
    """Seconds since the kernel of the other end last acknowledged data or answered a probe of :func:`limit_silence`.

    0 on a Unix socket, whose two ends have one kernel. Raises OSError if the connection is closed.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        if sock.family == socket.AF_UNIX:
            return 0.0
        (milliseconds,) = _LAST_ACK.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK.size))
    return 1e-3 * milliseconds


def limit_silence_of_all(seconds: float) -> None:
    """:func:`limit_silence` for all TCP sockets of this process, since TensorPipe gives no access to its sockets."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                        limit_silence(sock, seconds)


def interface_of(address: str) -> str | None:
    """The network interface of this machine with the IP address ``address``; None if none has it. Raises OSError."""
    if ":" in address:
        return _interface_of_6(socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex())
    wanted, buffer = socket.inet_aton(address), bytearray(_MOST_INTERFACES * _IFREQ.size)
    memory = (ctypes_char * len(buffer)).from_buffer(buffer)
    request = struct.pack("iP", len(buffer), addressof(memory))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        (num_bytes,) = struct.unpack_from("i", fcntl.ioctl(any_socket, _SIOCGIFCONF, request))
    for name, found in _IFREQ.iter_unpack(buffer[:num_bytes]):
        if found == wanted:
            return name.rstrip(b"\0").decode().partition(":")[0]  # an alias is named eth0:1
    return None


def _interface_of_6(digits: str) -> str | None:
    table = Path("/proc/net/if_inet6")
    lines = table.read_text().splitlines() if table.exists() else []
    return next((line.split()[5] for line in lines if line.startswith(digits)), None)
