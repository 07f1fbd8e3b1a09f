"""The supervisor's side of engine ``rpc``: rank processes, the control channel, the rendezvous of generations."""

import os
import secrets
import signal
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from harness.cluster import control
from harness.cluster.launcher import Launcher, Main, RankContext, RankProcess
from harness.core.errors import ConfigError, HarnessError, RunFailed
from harness.core.events import Machine
from harness.core.plans import CHIEF, Rank, ps_rank

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


class World:
    """The processes of all ranks and their control connections. The :class:`Ranks` of engine ``rpc``.

    Args:
        launcher: starts the processes. Closed with the world.
        ps, trainer: what a PS rank and the trainer rank run.
        options: settings of the RPC world.
        host, port: where the control channel listens; port 0 lets the system choose.

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
    ) -> None:
        try:
            self._listener: socket.socket = control.listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"cluster.host, cluster.port: cannot listen on {host}:{port}: {error.strerror}; "
                "set cluster.port=0 to take a free port"
            ) from error
        self._host = host
        self.port: int = self._listener.getsockname()[1]
        self._launcher = launcher
        self._options = options
        self._authkey = secrets.token_bytes(32)
        self.names = (*(ps_rank(k) for k in range(num_ps)), CHIEF)
        self._jobs = {rank: trainer if rank == CHIEF else ps for rank in self.names}
        self._processes: dict[Rank, RankProcess] = {}
        self._connections: dict[Rank, Connection] = {}
        self._strangers: list[Connection] = []  # connections whose rank is not known yet
        self._generation = 0
        self._keys: dict[int, dict[str, bytes]] = defaultdict(dict)  # of the rendezvous, by generation
        self._waiting: list[tuple[Rank, int, str]] = []  # unanswered ``get``: rank, generation, key
        self._broken = -1  # the newest generation that a rank died in before it was complete

    @property
    def pids(self) -> dict[Rank, int]:
        """Process id of each rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def start(self) -> None:
        """Start all ranks into generation 0. Raises RunFailed."""
        for rank in self.names:
            self._spawn(rank)

    def _spawn(self, rank: Rank) -> None:
        context = RankContext(
            rank=rank,
            index=self.names.index(rank),
            num_ps=len(self.names) - 1,
            world_size=len(self.names),
            generation=self._generation,
            supervisor_pid=os.getpid(),
            host=self._host,
            port=self.port,
            authkey=self._authkey,
            options=self._options,
        )
        job = self._jobs[rank]
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

    def replace(self, ranks: Iterable[Rank], generation: int) -> Machine:
        """Start replacements and order the surviving PS ranks to join ``generation``.

        A rank that counts as lost but still runs (it did not answer in time) is killed first: two processes must never
        serve one shard. The trainer gets no order: it joins when its call of ``replace`` returns.
        """
        dead = list(ranks)
        old = {rank: self._processes[rank].pid for rank in dead}
        self.kill([rank for rank in dead if self._processes[rank].exitcode is None])
        for rank in dead:
            self._reap(rank)
        self._generation = generation
        for rank in dead:
            self._spawn(rank)
        for rank in self.names:
            if rank not in dead and rank != CHIEF:
                self._send(rank, "join", generation)
        self._keys = defaultdict(dict, {generation: self._keys[generation]})
        self._waiting = [entry for entry in self._waiting if entry[1] >= generation]
        replaced = {rank: [old[rank], self._processes[rank].pid] for rank in dead}
        return {"pids": self.pids, "replaced": replaced, "port": self.port}

    def serve(self, services: Services) -> None:
        """Serve the ranks until the trainer has finished.

        Besides ``services`` a trainer may call ``dead`` and ``absent``. Raises the error that the trainer reported,
        and RunFailed if it died.
        """
        services = {**services, "dead": self.dead, "absent": self.absent}
        while True:
            chief = self._processes[CHIEF]
            # The trainer finds the death of a PS rank by a request that fails. Only while a generation is being formed
            # must the supervisor report it, since no request can be sent yet.
            watched = self._launcher.watched(self._processes.values() if self._waiting else [chief])
            connections = [*self._connections.values(), *self._strangers]
            ready = wait([self._listener, *watched, *connections])
            if self._listener in ready:
                self._accept()
            for connection in connections:
                if connection in ready and self._receive(connection, services):
                    return
            if self._waiting and self.dead():
                self._broken = self._generation
                self._answer_waiting()
            if CHIEF not in self._connections and chief.exitcode is not None:
                raise RunFailed(
                    f"{CHIEF} (pid {chief.pid}) ended with exit code {chief.exitcode} before its job was done"
                )

    def dead(self) -> list[Rank]:
        """PS ranks whose process has ended."""
        return [rank for rank in self.names if rank != CHIEF and self._processes[rank].exitcode is not None]

    def absent(self) -> list[Rank]:
        """PS ranks that have not begun to join the present generation: dead or suspended."""
        here = self._keys[self._generation]
        # The first key that an agent publishes is its name, under its number.
        return [rank for k, rank in enumerate(self.names) if rank != CHIEF and f"names/{k}" not in here]

    def _accept(self) -> None:
        try:
            self._strangers.append(control.accept(self._listener, self._authkey))
        except (AuthenticationError, EOFError, OSError):
            return  # not a rank of this run, or one that died while it connected

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
            rank, _pid, generation = args
            self._connections[rank] = connection
            if generation != self._generation:
                self._send(rank, "join", self._generation)
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
            self._rendezvous(rank, kind, *args)
        return False

    def _answer(self, rank: Rank, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result, failure = method(*args), None
        except HarnessError as error:
            result, failure = None, error
        self._send(rank, "result", result, failure)

    def _rendezvous(self, rank: Rank, kind: str, generation: int, key: str, *values: bytes) -> None:
        keys = self._keys[generation]
        if kind == "get":
            self._waiting.append((rank, generation, key))
        elif kind == "set":
            keys[key] = values[0]
        else:
            expected, desired = values
            if keys.get(key, b"") == expected:
                keys[key] = desired
            self._send(rank, "value", generation, keys.get(key, expected))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer every ``get`` that can be answered."""
        self._waiting = [entry for entry in self._waiting if not self._answer_get(*entry)]

    def _answer_get(self, rank: Rank, generation: int, key: str) -> bool:
        if generation != self._generation or generation == self._broken:
            self._send(rank, "broken", generation)
        elif key in self._keys[generation]:
            self._send(rank, "value", generation, self._keys[generation][key])
        else:
            return False
        return True

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
        for rank in self.names:
            self._send(rank, "stop")
        for process in self._processes.values():
            process.join(_STOP_S)
            if process.exitcode is None:
                process.kill()
                process.join(_REAP_S)
        for connection in [*self._connections.values(), *self._strangers]:
            connection.close()
        self._listener.close()
        self._launcher.close()
