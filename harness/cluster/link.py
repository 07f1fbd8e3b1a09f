"""The ends of the control channel (``harness/processes/control.py``): a rank's, and the supervisor's."""

import os
import select
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from harness.cluster import group
from harness.cluster.group import Formation
from harness.cluster.launcher import RankContext
from harness.config.model import ClusterConfig
from harness.core.errors import RunFailed
from harness.core.plans import Rank
from harness.processes import control
from harness.processes.control import interface_of, limit_silence_of_all

_GIVE_UP_FRAC = 0.5  # the part of ``cluster.dead_after_s`` after which a rank gives a connection up


class Stopped(Exception):
    """The supervisor ordered this rank to end."""


class ControlLink:
    """A rank's end of the control channel. For a trainer it is the :class:`harness.cluster.supervisor_client.Channel`.

    Used by the rank's main thread; a thread of its own sends heartbeats. It has no deadline for the supervisor, which
    may be stopped and continued. Every method that waits for a message raises Stopped at the order to end, and EOFError
    or OSError once the supervisor has ended.
    """

    def __init__(self, rank_context: RankContext) -> None:
        self.rank_context = rank_context
        self._sending = threading.Lock()
        options = rank_context.options
        self._connection: Connection = control.connect(
            options.host, rank_context.port, rank_context.authkey, options.join_timeout_s
        )
        self._options = options if rank_context.dead_after_s is None else self._with_interface(options)
        self._world: object = None  # keeps a generation's store alive
        self._order: tuple[Rank, Formation] | None = None  # an order received while a generation was being formed
        self._poll = select.poll()  # a tenth of the time of Connection.poll, as it is asked at every step
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self._has_spares = False
        self._halts_at_boundary = False
        self._step = self._num_finished = 0
        formation = rank_context.formation
        self.send("hello", rank_context.rank, rank_context.number, formation and formation.generation)

    def _with_interface(self, options: ClusterConfig) -> ClusterConfig:
        """``options`` with the interface of this host by which it reaches the supervisor."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as sock:
            address = sock.getsockname()[0]
        if (interface := interface_of(address)) is None:
            raise RunFailed(f"cluster.host: no interface here has {address}, by which this host reaches {options.host}")
        return options.model_copy(update={"interface": interface})

    def send(self, *message: Any) -> None:
        """Send a message without waiting for a reply."""
        with self._sending:
            self._connection.send(message)

    def advanced(self, step: int) -> None:
        self._step = step
        self._num_finished += 1

    def start_heartbeats(self, every_s: float) -> None:
        """Report every ``every_s`` seconds, from a thread, that this trainer runs and what it has finished."""
        threading.Thread(target=self._send_heartbeats, args=(every_s,), name="heartbeats", daemon=True).start()

    def _send_heartbeats(self, every_s: float) -> None:
        with suppress(OSError):  # the supervisor has ended
            while True:
                self.send("alive", self._step, self._num_finished)
                time.sleep(every_s)

    def order(self) -> tuple[Rank, Formation]:
        """Wait without limit for the order to join a generation. Returns this rank's name in it, and the formation."""
        order, self._order = self._order or self._await("join")[1:], None
        return order

    def call(self, name: str, *args: Any) -> Any:
        return self._answer_to("call", name, args)

    def ask(self, name: str, *args: Any) -> Any:
        """Call a method of :class:`harness.cluster.world.World` and wait for its result. Raises its HarnessError."""
        return self._answer_to("ask", name, args)

    def tell(self, name: str, **values: Any) -> None:
        self.send("tell", name, values)

    def _answer_to(self, *message: Any) -> Any:
        self.send(*message)
        _, value, error = self._await("result")
        if error is not None:
            raise error
        return value

    def join(self, rank: Rank, formation: Formation) -> None:
        """Leave the present world, if any, and join the world of ``formation`` as ``rank``. Raises WorldBroken."""
        group.leave()
        meet = partial(self._meet, formation.generation)
        self._world = group.join(rank, formation, meet=meet, options=self._options)
        limit_silence_of_hosts(self.rank_context)

    def take_spares(self) -> bool:
        """Whether the supervisor has said, since the last call, that all spares are connected. Does not wait."""
        self.hear()
        has_spares, self._has_spares = self._has_spares, False
        return has_spares

    def is_stopping(self) -> bool:
        self.hear()
        return self._halts_at_boundary

    def hear(self) -> None:
        """Handle the notices that have arrived, without waiting. Raises Stopped at the order to end.

        Any other message is dropped, so this must not be called while an answer of the supervisor is awaited.
        """
        while self._poll.poll(0):
            self._next()

    def _meet(self, generation: int, address: bytes) -> dict[Rank, bytes]:
        """Send this rank's ``address`` to the supervisor; returns those of all ranks of the generation, by rank.

        Raises WorldBroken.
        """
        self.send("publish", generation, address)
        while True:
            kind, *values = self._await("addresses", "broken", "join")
            if kind == "join":
                self._order = values[0], values[1]  # for :meth:`order`; this generation was abandoned
            elif values[0] != generation:
                continue  # a late answer about an abandoned generation
            elif kind == "addresses":
                return values[1]
            raise group.WorldBroken(
                f"generation {generation} of the RPC world was abandoned: a rank died before all had joined"
            )

    def _await(self, *kinds: str) -> control.Message:
        """The next message of one of ``kinds``; skips others, which are answers about abandoned generations."""
        while (message := self._next()) is None or message[0] not in kinds:
            pass
        return message

    def _next(self) -> control.Message | None:
        """Wait for a message and return it; None if it was a notice, which is noted here. Raises Stopped at "stop"."""
        message = self._connection.recv()
        match message[0]:
            case "stop":  # end now
                raise Stopped
            case "spares":  # all spares are connected
                self._has_spares = True
            case "halt":  # end at the next boundary, after a resume point
                self._halts_at_boundary = True
            case _:
                return message
        return None


def limit_silence_of_hosts(rank_context: RankContext) -> None:
    """Let the connections that this process has now end if the other host is silent for half of ``dead_after_s``.

    Requests to it then fail before the supervisor counts the host as lost, after the whole of ``dead_after_s``. To be
    called again after this process has connected to another rank. A no-op without other hosts.
    """
    if rank_context.dead_after_s is not None:
        limit_silence_of_all(rank_context.dead_after_s * _GIVE_UP_FRAC)


class Connections:
    """The control connections of all ranks. A connection that has ended is dropped.

    A connection on which a message makes no progress for ``timeout_s`` is dropped too. If the message was an incoming
    one, its rank is then in ``stuck``.
    """

    def __init__(self, listener: socket.socket, authkey: bytes, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self.stuck: set[Rank | None] = set()
        self._handshakes = control.Handshakes(authkey)
        self._ranks: dict[Connection, Rank | None] = {}  # None: not known yet

    def __contains__(self, rank: Rank) -> bool:
        return rank in self._ranks.values()

    def waited(self) -> list[Any]:
        """Objects for ``multiprocessing.connection.wait``; ready when :meth:`received` has something to do."""
        return [self._listener, self._handshakes.ended, *self._ranks]

    def received(self, ready: Collection[Any]) -> Iterator[tuple[Connection, Rank | None, control.Message]]:
        """Accept new connections, and yield a message of each connection in ``ready``.

        A message comes with its connection, and with the rank, which is None before :meth:`admit`.
        """
        connections = [*self._ranks]
        if self._listener in ready:
            with suppress(OSError):  # the caller has closed the connection
                self._handshakes.begin(self._listener)
        for connection in self._handshakes.take():
            control.limit_stalls(connection, self._timeout_s)
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
        self._ranks[connection] = rank

    def send(self, rank: Rank, *message: Any) -> None:
        """Send a message. A no-op for a rank that is not connected: it has ended, or its "hello" will be answered."""
        for connection in self._of(rank):
            try:
                connection.send(message)
            except OSError:
                self.forget(connection)

    def rename(self, old: Rank, new: Rank) -> None:
        for connection in self._of(old):
            self._ranks[connection] = new

    def drop(self, ranks: Collection[Rank]) -> None:
        """Close the connections of ``ranks``, where there are any."""
        for connection, rank in [*self._ranks.items()]:
            if rank in ranks:
                self.forget(connection)

    def _of(self, rank: Rank) -> list[Connection]:
        return [connection for connection, known in self._ranks.items() if known == rank]

    def forget(self, connection: Connection) -> None:
        """Close a connection, whether or not its rank is known."""
        self._ranks.pop(connection, None)
        connection.close()

    def close(self) -> None:
        """Close everything, the listener included."""
        for connection in self._ranks:
            connection.close()
        self._handshakes.close()
        self._listener.close()
