"""The control channel: one TCP connection from each rank to the supervisor.

It outlives the generations of the RPC world. It carries the rendezvous of the next world, the orders to join it or to
stop, and a trainer's calls of the supervisor. ``spares`` tells a trainer that all spares are connected. A rank that
loses the connection ends.

Messages are tuples, the kind first:

    rank -> supervisor   ("hello", rank, pid, generation)    ("set", generation, key, value)
                         ("get", generation, key)
                         ("compare_set", generation, key, expected, desired)
                         ("call", method, args)      ("tell", method, values)            ("finished",) ("failed", error)
    supervisor -> rank   ("join", place)             ("stop",)                           ("spares",)
                         ("value", generation, bytes)                    ("broken", generation)
                         ("result", value, error)
"""

import socket
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

Message = tuple[Any, ...]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError, for example if ``cluster.port`` is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def accept(listener: socket.socket, authkey: bytes) -> Connection:
    """The next connection, after it has authenticated with ``authkey``.

    Raises AuthenticationError, OSError, EOFError.
    """
    sock, _ = listener.accept()
    connection = _wrap(sock)
    deliver_challenge(connection, authkey)
    answer_challenge(connection, authkey)
    return connection


def connect(host: str, port: int, authkey: bytes, timeout_s: float) -> Connection:
    """A rank's end of the channel."""
    connection = _wrap(socket.create_connection((host, port), timeout=timeout_s))
    answer_challenge(connection, authkey)
    deliver_challenge(connection, authkey)
    return connection


def _wrap(sock: socket.socket) -> Connection:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(sock.detach())
