"""The supervisor's end of the control channel: a connection for each rank, and those whose rank is not known yet."""

import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from harness.core.plans import Rank
from harness.processes import control


class Connections:
    """The control connections of all ranks. A connection that has ended is forgotten, and not waited for again.

    So is one on which a message that has begun does not go on for ``timeout_s``: its rank is among the ``stuck``.
    """

    def __init__(self, listener: socket.socket, authkey: bytes, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self.stuck: set[Rank] = set()
        self._handshakes = control.Handshakes(authkey)
        self._strangers: list[Connection] = []  # connections whose rank is not known yet
        self._known: dict[Rank, Connection] = {}

    def __contains__(self, rank: Rank) -> bool:
        """Whether ``rank`` is connected."""
        return rank in self._known

    def waited(self) -> list[Any]:
        """Objects for ``multiprocessing.connection.wait``."""
        return [self._listener, self._handshakes.ended, *self._known.values(), *self._strangers]

    def received(self, ready: Collection[Any]) -> Iterator[tuple[Connection, control.Message]]:
        """Let new connections in, and yield the message of each connection in ``ready``."""
        connections = [*self._known.values(), *self._strangers]
        if self._listener in ready:
            with suppress(OSError):  # it has hung up
                self._handshakes.begin(self._listener)
        for connection in self._handshakes.take():
            control.limit(connection, self._timeout_s)
            self._strangers.append(connection)
        for connection in connections:
            if connection in ready:
                try:
                    message = connection.recv()
                except (EOFError, OSError) as error:
                    if isinstance(error, BlockingIOError):
                        self.stuck |= {rank for rank, known in self._known.items() if known is connection}
                    self.forget(connection)
                else:
                    yield connection, message

    def rank_of(self, connection: Connection) -> Rank:
        """The rank that ``connection`` was admitted for."""
        return next(rank for rank, known in self._known.items() if known is connection)

    def admit(self, connection: Connection, rank: Rank) -> None:
        """From now on ``connection`` is that of ``rank``."""
        self._strangers.remove(connection)
        self._known[rank] = connection

    def send(self, rank: Rank, *message: Any) -> None:
        """Send a message. A no-op for a rank that is not connected: it has ended, or its "hello" will be answered."""
        connection = self._known.get(rank)
        if connection is not None:
            try:
                connection.send(message)
            except OSError:
                self.forget(connection)

    def rename(self, old: Rank, new: Rank) -> None:
        """The connection of ``old`` is that of ``new`` from now on."""
        self._known[new] = self._known.pop(old)

    def drop(self, rank: Rank) -> None:
        """Close the connection of ``rank``, if there is one."""
        connection = self._known.get(rank)
        if connection is not None:
            self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """Close a connection, whether it was admitted for a rank or not."""
        self._strangers = [known for known in self._strangers if known is not connection]
        self._known = {rank: known for rank, known in self._known.items() if known is not connection}
        connection.close()

    def close(self) -> None:
        """Close everything, the listener included."""
        for connection in [*self._known.values(), *self._strangers]:
            connection.close()
        self._handshakes.close()
        self._listener.close()
