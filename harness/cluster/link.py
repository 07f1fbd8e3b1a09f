"""A rank's end of the control channel."""

import os
import select
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from harness.cluster import group
from harness.cluster.formation import Place
from harness.cluster.launcher import RankContext
from harness.processes import control
from harness.processes.sockets import LEASE_FRAC, give_up_all_after


class Stopped(Exception):
    """The supervisor ordered this rank to end."""


class ControlLink:
    """A rank's end of the control channel; a trainer's :class:`harness.cluster.effects.Channel`.

    Used by the rank's main thread alone.

    It waits for the supervisor without limit: the supervisor may be stopped, and go on. It ends with the supervisor.
    """

    def __init__(self, rank_context: RankContext) -> None:
        self.rank_context = rank_context
        self._sending = threading.Lock()
        options = rank_context.options
        self._connection: Connection = control.connect(
            options.host, rank_context.port, rank_context.authkey, options.join_timeout_s
        )
        self._world: object = None  # keeps a generation's store alive
        self._orders: list[control.Message] = []
        self._poll = select.poll()  # a tenth of the time of Connection.poll, as it is asked at every step
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self._has_spares = False
        self._is_stopping = False
        self._step = self._num_finished = 0
        place = rank_context.place
        self.send("hello", rank_context.rank, os.getpid(), place and place.generation)

    def send(self, *message: Any) -> None:
        """Send a message without waiting for a reply."""
        with self._sending:
            self._connection.send(message)

    def advanced(self, step: int) -> None:
        """Something was finished, after ``step`` finished steps: the next beat says so."""
        self._step = step
        self._num_finished += 1

    def begin_beats(self, every_s: float) -> None:
        """From now on tell the supervisor, from another thread, that this process runs, and what it has finished."""
        threading.Thread(target=self._beat, args=(every_s,), name="beats", daemon=True).start()

    def _beat(self, every_s: float) -> None:
        with suppress(OSError):  # the supervisor has ended
            while True:
                self.send("alive", self._step, self._num_finished)
                time.sleep(every_s)

    def order(self) -> control.Message:
        """Wait without limit for the next order of the supervisor, and return it."""
        return self._orders.pop(0) if self._orders else self._receive()

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the supervisor and wait for its result."""
        return self._answer_to("call", name, args)

    def ask(self, name: str, *args: Any) -> Any:
        """Call a method of the world and wait for its result."""
        return self._answer_to("ask", name, args)

    def tell(self, name: str, **values: Any) -> None:
        """Have a method of the supervisor called, after all calls before; do not wait."""
        self.send("tell", name, values)

    def _answer_to(self, *message: Any) -> Any:
        self.send(*message)
        message = self._receive()
        while message[0] in ("addresses", "broken"):  # late answers about an abandoned generation
            message = self._receive()
        if message[0] == "stop":
            raise Stopped
        kind, value, error = message
        assert kind == "result", kind
        if error is not None:
            raise error
        return value

    def join(self, place: Place) -> None:
        """Leave the present world and take ``place`` in the next one. Raises WorldBroken."""
        group.leave()
        self._world = group.join(
            place,
            publish=partial(self.send, "publish", place.generation),
            addresses=partial(self._addresses, place.generation),
            options=self.rank_context.options,
        )
        self.give_up_silent_hosts()

    def give_up_silent_hosts(self) -> None:
        """Let requests fail that a host does not answer because it is cut off, where ranks are on several hosts.

        Half the deadline after which the supervisor counts such a host as lost, as its own agent does. To be called
        again when this process has connected to another rank.
        """
        if (dead_after_s := self.rank_context.dead_after_s) is not None:
            give_up_all_after(dead_after_s * LEASE_FRAC)

    def take_spares(self) -> bool:
        """Whether the supervisor has said, since the last call, that all spares are connected. Does not wait."""
        self._hear()
        has_spares, self._has_spares = self._has_spares, False
        return has_spares

    def is_stopping(self) -> bool:
        """Whether the supervisor has said that the run is to stop at a boundary. Does not wait."""
        self._hear()
        return self._is_stopping

    def _hear(self) -> None:
        """Take the notices that have come. Between requests nothing else comes but the order to end."""
        while self._poll.poll(0):
            message = self._connection.recv()
            if not self._is_notice(message) and message[0] == "stop":
                raise Stopped

    def _is_notice(self, message: control.Message) -> bool:
        """Whether ``message`` is a notice, which is then noted, and no answer or order."""
        if message[0] == "spares":
            self._has_spares = True
        elif message[0] == "halt":
            self._is_stopping = True
        else:
            return False
        return True

    def _receive(self) -> control.Message:
        """The next message that is no notice."""
        while self._is_notice(message := self._connection.recv()):
            pass
        return message

    def _addresses(self, generation: int) -> dict[str, bytes]:
        """The addresses of all members by worker, when all are there. Raises WorldBroken."""
        self.send("await_all", generation)
        while True:
            message = self._connection.recv()
            if self._is_notice(message):
                continue
            if message[0] not in ("addresses", "broken"):
                self._orders.append(message)
            elif message[1] != generation:
                continue  # a late answer about an abandoned generation
            elif message[0] == "addresses":
                return message[2]
            raise group.WorldBroken(
                f"generation {generation} of the RPC world was abandoned: a rank died before all had joined"
            )
