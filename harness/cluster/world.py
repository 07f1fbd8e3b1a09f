"""The supervisor's side of engine ``rpc``: rank processes, spares, the control channel, generations of the RPC world.

A spare is a PS process without a shard. Spares that are members of the present generation take over the names of dead
ranks without a new one. Then the run goes on, and once it has reported a further step new spares are started. When
these are connected, the trainer asks for a generation that has them as members, between two requests.
"""

import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from harness.cluster import control
from harness.cluster.launcher import Launcher, Main, Place, RankContext, RankProcess
from harness.cluster.network import PrivateNetwork
from harness.cluster.rendezvous import Rendezvous
from harness.core.errors import ConfigError, HarnessError, RunFailed
from harness.core.events import Machine
from harness.core.plans import CHIEF, Rank, is_ps, ps_rank, spare_name

if TYPE_CHECKING:
    from harness.cluster.group import GroupOptions

_REAP_S = 10.0  # between SIGKILL and the end of a process
_STOP_S = 2.0  # between the order to stop and SIGKILL

Services = Mapping[str, Callable[..., Any]]
"""Functions in the supervisor's process that a trainer may call, by name."""


@dataclass(frozen=True)
class RankJob:
    """The job of a rank's process: it runs ``main(context, work)``."""

    main: Main
    work: Any


@dataclass(frozen=True, kw_only=True)
class Formation:
    """A generation of the RPC world as the trainer sees it; can be pickled.

    Attributes:
        members: in the order of their indexes: PS ranks, the trainer, spares.
        takeovers: spares that serve under the names of PS ranks since the generation was formed, by PS rank.
        keeps_spares: whether missing spares are started, and announced to the trainer.
    """

    generation: int
    members: tuple[Rank, ...]
    takeovers: Mapping[Rank, Rank]
    keeps_spares: bool

    def place(self, rank: Rank) -> Place:
        """The place of a member."""
        return Place(self.generation, rank, self.members.index(rank), len(self.members))


class World:
    """The processes of all ranks and their control connections. The :class:`Ranks` of engine ``rpc``.

    Args:
        launcher: starts the processes. Closed with the world.
        ps, trainer: what a PS rank and the trainer rank run. A spare runs what a PS rank runs.
        options: settings of the RPC world.
        host, port: where the control channel listens; port 0 lets the system choose.
        num_spares: spares that are kept.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """

    def __init__(
        self,
        num_ps: int,
        launcher: Launcher,
        *,
        ps: RankJob,
        trainer: RankJob,
        options: "GroupOptions",
        host: str,
        port: int,
        num_spares: int = 0,
        network: PrivateNetwork | None = None,
    ) -> None:
        try:
            self._listener: socket.socket = control.listen(host, port) if network is None else network.listener
        except OSError as error:
            raise ConfigError(
                f"cluster.host, cluster.port: cannot listen on {host}:{port}: {error.strerror}; "
                "set cluster.port=0 to take a free port"
            ) from error
        self._host = host
        self._network = network
        self.port: int = self._listener.getsockname()[1]
        self._launcher = launcher
        self._options = options
        self._authkey = secrets.token_bytes(32)
        self.names = (*(ps_rank(k) for k in range(num_ps)), CHIEF)
        self._num_spares = num_spares
        self._num_named = 0  # spares so far; a name is never used again
        self._spares: list[Rank] = []
        self._spares += self._new_spares()
        self._ps, self._trainer = ps, trainer
        self._processes: dict[Rank, RankProcess] = {}
        self._connections: dict[Rank, Connection] = {}
        self._handshakes = control.Handshakes(self._authkey)
        self._strangers: list[Connection] = []  # connections whose rank is not known yet
        self._formation = Formation(
            generation=0, members=(*self.names, *self._spares), takeovers={}, keeps_spares=num_spares > 0
        )
        self._is_formed = False  # whether the trainer has joined the present generation
        self._refill_after: int | None = None  # step after which missing spares are started
        self._rendezvous = Rendezvous(self._send)

    @property
    def network_words(self) -> str:
        """Who can reach the ranks, for the record."""
        return "open" if self._network is None else "private"

    @property
    def pids(self) -> dict[Rank, int]:
        """Process id of each rank and spare."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def start(self) -> None:
        """Start all ranks and spares into generation 0. Raises RunFailed."""
        for rank in self._formation.members:
            self._spawn(rank, self._formation.place(rank))

    def _spawn(self, rank: Rank, place: Place | None) -> None:
        context = RankContext(
            rank=rank,
            place=place,
            num_ps=len(self.names) - 1,
            supervisor_pid=os.getpid(),
            host=self._host,
            port=self.port,
            authkey=self._authkey,
            options=self._options,
            entrance=self._network and self._network.entrance,
        )
        job = self._trainer if rank == CHIEF else self._ps
        self._processes[rank] = self._launcher.spawn(context, job.main, job.work)

    def kill(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Send SIGKILL to all of ``ranks``, then reap them; returns each one's pid, signal and wait status."""
        for rank in ranks:
            self._processes[rank].kill()
        number = int(signal.SIGKILL)
        return {
            rank: {"pid": self._processes[rank].pid, "signal": number, "exitcode": self._reap(rank)} for rank in ranks
        }

    def _reap(self, rank: Rank) -> int:
        process = self._processes[rank]
        process.join(_REAP_S)
        if process.exitcode is None:
            raise RunFailed(f"{rank} (pid {process.pid}) did not end within {_REAP_S:g} s of SIGKILL")
        connection = self._connections.pop(rank, None)
        if connection is not None:
            connection.close()
        return process.exitcode

    # --- generations ------------------------------------------------------------------------------------------------

    def replace(self, ranks: Iterable[Rank]) -> Machine:
        """Give the names of dead ranks to spares or new processes.

        If the present generation has a spare for each, these take over, and the generation stays. Otherwise a new one
        begins, with what spares there are, new processes for the rest, and the survivors. The trainer gets no order:
        its call of ``replace`` returns the formation, and it joins that.

        A rank that counts as lost but still runs (it did not answer in time) is killed first: two processes must never
        serve one shard.
        """
        dead = list(ranks)
        old = {rank: self._processes[rank].pid for rank in dead}
        self.kill([rank for rank in dead if self._processes[rank].exitcode is None])
        for rank in dead:
            self._reap(rank)
        spares = self._ready_spares()
        members = [spare for spare in spares if spare in self._formation.members] if self._is_formed else []
        if len(members) >= len(dead):
            takeovers = dict(zip(dead, members, strict=False))
            self._formation = replace(self._formation, takeovers={**self._formation.takeovers, **takeovers})
            for rank, spare in takeovers.items():
                self._rename(spare, rank)
        else:
            takeovers = dict(zip(dead, spares, strict=False))
            for rank, spare in takeovers.items():
                self._rename(spare, rank)
            self._begin_generation([rank for rank in dead if rank not in takeovers])
        replaced = {rank: [old[rank], self._processes[rank].pid] for rank in dead}
        return {"pids": self.pids, "replaced": replaced, "spares": takeovers, "port": self.port}

    def _rename(self, spare: Rank, rank: Rank) -> None:
        """From now on the process of ``spare`` is that of ``rank``."""
        self._spares.remove(spare)
        self._processes[rank] = self._processes.pop(spare)
        self._connections[rank] = self._connections.pop(spare)

    def _begin_generation(self, fresh: Sequence[Rank] = ()) -> None:
        """Order all PS ranks and connected spares to join the next generation; start ``fresh`` ranks into it."""
        members = (*self.names, *self._ready_spares())
        generation = self._formation.generation + 1
        self._formation = replace(self._formation, generation=generation, members=members, takeovers={})
        self._is_formed = False
        for rank in fresh:
            self._spawn(rank, self._formation.place(rank))
        for rank in members:
            if rank not in fresh and rank != CHIEF:
                self._send(rank, "join", self._formation.place(rank))
        self._rendezvous.begin(self._formation.generation)

    def regroup(self) -> Formation:
        """Begin a generation whose members are all ranks and connected spares, if that is not the present one."""
        if set(self._formation.members) != {*self.names, *self._ready_spares()}:
            self._begin_generation()
        return self._formation

    def formed(self, generation: int) -> None:
        """Record that the trainer has joined ``generation``: all members are up."""
        self._is_formed = generation == self._formation.generation

    def dead(self) -> list[Rank]:
        """PS ranks whose process has ended."""
        return [rank for rank in self.names if rank != CHIEF and self._processes[rank].exitcode is not None]

    def absent(self) -> list[Rank]:
        """PS ranks that have not begun to join the present generation: dead or suspended. Such spares are ended."""
        absent = [rank for k, rank in enumerate(self._formation.members) if not self._rendezvous.has_begun(k)]
        self.kill([rank for rank in absent if rank in self._spares])
        return [rank for rank in absent if is_ps(rank)]

    # --- spares -----------------------------------------------------------------------------------------------------

    def _ready_spares(self) -> list[Rank]:
        """Spares that live and are connected."""
        self._forget_dead_spares()
        return [spare for spare in self._spares if spare in self._connections]

    def _forget_dead_spares(self) -> bool:
        """Reap spares that have ended; whether one of them was a member of the present generation."""
        dead = [spare for spare in self._spares if self._processes[spare].exitcode is not None]
        for spare in dead:
            self._reap(spare)
            self._spares.remove(spare)
            del self._processes[spare]
        return any(spare in self._formation.members for spare in dead)

    def _new_spares(self) -> list[Rank]:
        """Names for the spares that are missing."""
        first, self._num_named = self._num_named, self._num_named + self._num_spares - len(self._spares)
        return [spare_name(k) for k in range(first, self._num_named)]

    def _refill(self, step: int) -> None:
        """Start missing spares once the run has got further than it was at the last failure."""
        if self._refill_after is not None and step > self._refill_after:
            self._refill_after = None
            self._forget_dead_spares()
            for spare in self._new_spares():
                self._spawn(spare, None)
                self._spares.append(spare)

    def _announce_spares(self) -> None:
        """Tell the trainer when all spares are connected."""
        if all(spare in self._connections for spare in self._spares):
            self._send(CHIEF, "spares")

    # --- serving ----------------------------------------------------------------------------------------------------

    def serve(self, services: Services) -> None:
        """Serve the ranks until the trainer has finished.

        Besides ``services`` a trainer may call what :meth:`_own_services` adds. Raises the error that the trainer
        reported, and RunFailed if it died.
        """
        services = {**services, **self._own_services(services)}
        while True:
            chief = self._processes[CHIEF]
            # The trainer finds the death of a PS rank by a request that fails. Only while a generation is being formed
            # must the supervisor report it, since no request can be sent yet.
            watched = self._launcher.watched(self._processes.values() if self._rendezvous.is_awaited else [chief])
            connections = [*self._connections.values(), *self._strangers]
            ready = wait([self._listener, self._handshakes.ended, *watched, *connections])
            if self._listener in ready:
                with suppress(OSError):  # it has hung up
                    self._handshakes.begin(self._listener)
            self._strangers += self._handshakes.take()
            for connection in connections:
                if connection in ready and self._receive(connection, services):
                    return
            if self._rendezvous.is_awaited and (self._forget_dead_spares() or self.dead()):
                self._rendezvous.abandon()
            if CHIEF not in self._connections and chief.exitcode is not None:
                raise RunFailed(
                    f"{CHIEF} (pid {chief.pid}) ended with exit code {chief.exitcode} before its job was done"
                )

    def _own_services(self, services: Services) -> Services:
        """Functions about processes and generations, and two of ``services`` that change them."""

        def replace_ranks(lost: Mapping[Rank, str], step: int, *args: Any) -> Formation:
            services["replace"](lost, step, *args)
            self._refill_after = step if len(self._spares) < self._num_spares else None
            return self._formation

        def status(**values: Any) -> None:
            services["status"](**values)
            self._refill(values.get("step", 0))

        own = {"dead": self.dead, "absent": self.absent, "regroup": self.regroup, "formed": self.formed}
        return {**own, "formation": lambda: self._formation, "replace": replace_ranks, "status": status}

    def _receive(self, connection: Connection, services: Services) -> bool:
        """Handle one message; True if the trainer has finished."""
        try:
            message = connection.recv()
        except (EOFError, OSError):
            self._forget(connection)
            return False
        kind, *args = message
        if kind == "hello":
            self._strangers.remove(connection)
            self._greet(connection, *args)
            return False
        rank = next(rank for rank, known in self._connections.items() if known is connection)
        if kind == "finished":
            return True
        if kind == "failed":
            raise args[0]
        if kind == "tell":
            services[args[0]](**args[1])
        elif kind == "call":
            self._answer(rank, services[args[0]], args[1])
        else:
            self._rendezvous.handle(rank, kind, *args)
        return False

    def _greet(self, connection: Connection, rank: Rank, _pid: int, generation: int | None) -> None:
        """A rank has connected; it joins ``generation`` now, or waits for an order if that is None."""
        self._connections[rank] = connection
        if generation is None:
            self._announce_spares()
        elif generation != self._formation.generation:
            self._send(rank, "join", self._formation.place(rank))

    def _answer(self, rank: Rank, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result, failure = method(*args), None
        except HarnessError as error:
            result, failure = None, error
        self._send(rank, "result", result, failure)

    def _send(self, rank: Rank, *message: Any) -> None:
        connection = self._connections.get(rank)
        if connection is None:
            return  # not connected yet: "hello" will get the order; or dead: a request to it will fail
        try:
            connection.send(message)
        except OSError:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._strangers = [known for known in self._strangers if known is not connection]
        self._connections = {rank: known for rank, known in self._connections.items() if known is not connection}
        connection.close()

    def close(self) -> None:
        """Order every rank to stop; kill and reap those that have not ended two seconds later."""
        for rank in self._processes:
            self._send(rank, "stop")
        for process in self._processes.values():
            process.join(_STOP_S)
            if process.exitcode is None:
                process.kill()
                process.join(_REAP_S)
        for connection in [*self._connections.values(), *self._strangers]:
            connection.close()
        self._handshakes.close()
        self._listener.close()
        if self._network is not None:
            self._network.close()
        self._launcher.close()
