"""The supervisor's end of the control channel: the connections of ranks, and new ones whose rank is unknown."""

import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from harness.core.plans import Rank
from harness.processes import control


class Connections:
    """The control connections of all ranks. A connection that has ended is dropped.

    A connection on which a message stalls halfway for ``timeout_s`` is dropped too; its rank is then in ``stuck``.
    """

    def __init__(self, listener: socket.socket, authkey: bytes, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self.stuck: set[Rank | None] = set()
        self._handshakes = control.Handshakes(authkey)
        self._ranks: dict[Connection, Rank | None] = {}  # None: not known yet
        self._ignored: set[Connection] = set()

    def __contains__(self, rank: Rank) -> bool:
        """Whether ``rank`` is connected."""
        return rank in self._ranks.values()

    def waited(self) -> list[Any]:
        """Objects for ``multiprocessing.connection.wait``; ready when :meth:`received` has something to do."""
        return [self._listener, self._handshakes.ended, *(self._ranks.keys() - self._ignored)]

    def received(self, ready: Collection[Any]) -> Iterator[tuple[Connection, Rank | None, control.Message]]:
        """Accept new connections, and yield each connection in ``ready``, its rank if known, and its message."""
        connections = [*(self._ranks.keys() - self._ignored)]
        if self._listener in ready:
            with suppress(OSError):  # the caller has closed the connection
                self._handshakes.begin(self._listener)
        for connection in self._handshakes.take():
            control.limit(connection, self._timeout_s)
            self._ranks[connection] = None
        for connection in connections:
            if connection in ready:
                try:
                    message = connection.recv()
                except (EOFError, OSError) as error:
                    if isinstance(error, BlockingIOError):
                        self.stuck.add(self._ranks[connection])
                    self.forget(connection)
                else:
                    yield connection, self._ranks[connection], message

    def admit(self, connection: Connection, rank: Rank) -> None:
        """Register ``connection`` as the connection of ``rank``."""
        self._ranks[connection] = rank

    def send(self, rank: Rank, *message: Any) -> None:
        """Send a message. A no-op for a rank that is not connected: it has ended, or its "hello" will be answered."""
        for connection in self._of(rank):
            try:
                connection.send(message)
            except OSError:
                self.forget(connection)

    def ignore(self, ranks: Collection[Rank]) -> None:
        """Ignore all further messages of ``ranks``, which are cut off the network; their connections stay open.

        They receive no packet, but packets that they have sent would still arrive, some of them seconds later.
        """
        self._ignored |= {connection for rank in ranks for connection in self._of(rank)}

    def rename(self, old: Rank, new: Rank) -> None:
        """Register the connection of ``old`` as the connection of ``new``."""
        for connection in self._of(old):
            self._ranks[connection] = new

    def drop(self, ranks: Collection[Rank]) -> None:
        """Close the connections of ``ranks``, where there are any."""
        for connection, rank in [*self._ranks.items()]:
            if rank in ranks:
                self.forget(connection)

    def _of(self, rank: Rank) -> list[Connection]:
        """The connection of ``rank``, if there is one."""
        return [connection for connection, known in self._ranks.items() if known == rank]

    def forget(self, connection: Connection) -> None:
        """Close a connection, whether or not its rank is known."""
        self._ranks.pop(connection, None)
        self._ignored.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close everything, the listener included."""
        for connection in self._ranks:
            connection.close()
        self._handshakes.close()
        self._listener.close()
