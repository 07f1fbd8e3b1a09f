"""A rank's end of the control channel."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from harness.cluster import group
from harness.cluster.formation import Formation
from harness.cluster.launcher import RankContext
from harness.cluster.mesh import TrainerAddress, Verdict
from harness.core.plans import Rank, rank_order
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
        self._order: tuple[Rank, Formation] | None = None  # that came while a generation was formed
        self._poll = select.poll()  # a tenth of the time of Connection.poll, as it is asked at every step
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self.entrance: Callable[[], TrainerAddress | None] = lambda: None  # where other trainers find this one
        self.entrances: dict[int, TrainerAddress] = {}  # of the trainers of the present generation, by number
        self._has_spares = False
        self._is_stopping = False
        self._step = self._num_finished = 0
        self.is_waiting = False  # for another trainer
        self.dead: dict[int, str] = {}  # numbers of trainers, and how they ended
        self.number: int | None = None  # of calls that another trainer may repeat
        formation = rank_context.formation
        self.send("hello", rank_context.rank, os.getpid(), formation and formation.generation)

    def fileno(self) -> int:
        """A file descriptor that is readable when :meth:`hear` has something to do."""
        return self._connection.fileno()

    def own_address(self) -> str:
        """The address of this machine by which it reaches the supervisor."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as sock:
            return sock.getsockname()[0]

    def send(self, *message: Any) -> None:
        """Send a message without waiting for a reply."""
        with self._sending:
            self._connection.send(message)

    def advanced(self, step: int) -> None:
        """Count one more finished action, after ``step`` finished steps, for the next message ``alive``."""
        self._step = step
        self._num_finished += 1

    def begin_beats(self, every_s: float) -> None:
        """From now on tell the supervisor, from another thread, that this process runs, and what it has finished.

        A trainer that waits for another one has nothing to finish.
        """
        threading.Thread(target=self._beat, args=(every_s,), name="beats", daemon=True).start()

    def _beat(self, every_s: float) -> None:
        with suppress(OSError):  # the supervisor has ended
            while True:
                self.send("alive", self._step, self._num_finished, self.is_waiting)
                time.sleep(every_s)

    def order(self) -> tuple[Rank, Formation]:
        """Wait without limit for the order to join a generation. Returns own rank and the formation. Raises Stopped."""
        order, self._order = self._order or self._await("join")[1:], None
        return order

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the supervisor and wait for its result."""
        return self._answer_to("call", name, args, self.number)

    def ask(self, name: str, *args: Any) -> Any:
        """Call a method of the world and wait for its result."""
        return self._answer_to("ask", name, args)

    def tell(self, name: str, **values: Any) -> None:
        """Have a method of the supervisor called, after all calls before; do not wait."""
        self.send("tell", name, values, self.number)

    def number_calls(self, number: int) -> None:
        """Calls from now on belong to the action of this number; the supervisor carries out each one once."""
        self.number = number

    def mourn(self, num_calls: int, values: Mapping[int, bytes]) -> Verdict | None:
        """See :class:`harness.cluster.mesh.Notices`."""
        return self._answer_to("mourn", num_calls, values)

    def _answer_to(self, *message: Any) -> Any:
        self.send(*message)
        _, value, error = self._await("result")
        if error is not None:
            raise error
        return value

    def await_trainers(self) -> Formation:
        """Wait until the processes that replace dead trainers are there; the generation in which they take part."""
        self.is_waiting = True
        formation = self._answer_to("admit")
        self.is_waiting = False
        return formation

    def join(self, rank: Rank, formation: Formation) -> None:
        """Leave the present world and join the next one as ``rank``. Raises WorldBroken."""
        group.leave()
        meet = partial(self._meet, formation.generation)
        self._world = group.join(rank, formation, meet=meet, options=self.rank_context.options)
        give_up_silent_hosts(self.rank_context)

    def take_spares(self) -> bool:
        """Whether the supervisor has said, since the last call, that all spares are connected. Does not wait."""
        self.hear()
        has_spares, self._has_spares = self._has_spares, False
        return has_spares

    def is_stopping(self) -> bool:
        """Whether the supervisor has said that the run is to stop at a boundary. Does not wait."""
        self.hear()
        return self._is_stopping

    def hear(self) -> None:
        """Take the notices that have come. Between requests nothing else comes but the order to end."""
        while self._poll.poll(0):
            self._next()

    def _meet(self, generation: int, address: bytes) -> dict[Rank, bytes]:
        """See :data:`harness.cluster.group.Meet`."""
        self.send("publish", generation, (address, self.entrance()))
        while True:
            kind, *values = self._await("addresses", "broken", "join")
            if kind == "join":
                self._order = values[0], values[1]
            elif values[0] != generation:
                continue  # a late answer about an abandoned generation
            elif kind == "addresses":
                entrances = {rank: entrance for rank, (_, entrance) in values[1].items() if entrance is not None}
                self.entrances = {rank_order(rank)[1]: entrance for rank, entrance in entrances.items()}
                for number, (*_, has_met) in self.entrances.items():
                    if not has_met:
                        self.dead.pop(number, None)  # that was the one before
                return {rank: address for rank, (address, _) in values[1].items()}
            raise group.WorldBroken(
                f"generation {generation} of the RPC world was abandoned: a rank died before all had joined"
            )

    def _await(self, *kinds: str) -> control.Message:
        """The next message of one of ``kinds``; others are answers about generations that were abandoned."""
        while (message := self._next()) is None or message[0] not in kinds:
            pass
        return message

    def _next(self) -> control.Message | None:
        """The next message; None if it is a notice, which is noted. Raises Stopped at the order to end."""
        message = self._connection.recv()
        match message[0]:
            case "stop":
                raise Stopped
            case "spares":
                self._has_spares = True
            case "bereaved":
                self.dead[message[1]] = message[2]
            case "halt":
                self._is_stopping = True
            case _:
                return message
        return None


def give_up_silent_hosts(rank_context: RankContext) -> None:
    """Let requests fail that a host does not answer because it is cut off, where ranks are on several hosts.

    Half the deadline after which the supervisor counts such a host as lost, as its own agent does. To be called again
    when this process has connected to another rank.
    """
    if rank_context.dead_after_s is not None:
        give_up_all_after(rank_context.dead_after_s * LEASE_FRAC)
