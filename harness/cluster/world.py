"""The rpc engine, as its supervisor sees it: processes, the control channel, and nothing of torch."""

import os
import secrets
import signal
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from harness.cluster import control
from harness.core.errors import ConfigError, HarnessError, RunFailed
from harness.core.events import Machine
from harness.core.plans import Rank, ps_rank

CHIEF: Rank = "trainer0"
_REAP_S = 10.0


class World:
    """Rank processes and their control connections; launcher of the supervisor.

    Args:
        start: makes the (unstarted) process of a rank, given ``(rank, index, generation, port, authkey)``.
        host, port: where the control channel listens; port 0 lets the system choose.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """

    def __init__(
        self, num_ps: int, start: Callable[[Rank, int, int, int, bytes], BaseProcess], *, host: str, port: int
    ) -> None:
        try:
            self._listener: socket.socket = control.listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"cluster.host, cluster.port: cannot listen on {host}:{port}: {error.strerror}; "
                "cluster.port=0 takes a free port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._start = start
        self._authkey = secrets.token_bytes(32)
        self.names = (*(ps_rank(k) for k in range(num_ps)), CHIEF)
        self._processes: dict[Rank, BaseProcess] = {}
        self._connections: dict[Rank, Connection] = {}
        self._strangers: list[Connection] = []
        self._generation = 0
        self._keys: dict[int, dict[str, bytes]] = defaultdict(dict)
        self._waiting: list[tuple[Rank, int, str]] = []
        self._broken = -1  # the newest generation that somebody died in before it was complete

    @property
    def pids(self) -> dict[Rank, int]:
        """The process of each rank."""
        return {rank: process.pid or 0 for rank, process in self._processes.items()}

    def start(self) -> None:
        """Start all ranks into generation 0."""
        for rank in self.names:
            self._spawn(rank)

    def _spawn(self, rank: Rank) -> None:
        process = self._start(rank, self.names.index(rank), self._generation, self.port, self._authkey)
        try:
            process.start()
        except (OSError, EOFError) as error:  # the fork server could not fork, and is gone
            raise RunFailed(f"{rank} could not be started: {error}; out of processes or memory?") from error
        self._processes[rank] = process

    def kill(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """SIGKILL by pid, all of them, then reap; the wait status is part of the answer."""
        pids = {rank: self._processes[rank].pid or 0 for rank in ranks}
        for pid in pids.values():
            with suppress(ProcessLookupError):  # somebody else was faster; the wait status tells how it ended
                os.kill(pid, signal.SIGKILL)
        number = int(signal.SIGKILL)
        return {rank: {"pid": pid, "signal": number, "exitcode": self._reap(rank)} for rank, pid in pids.items()}

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
        """Start replacements and call the surviving PS ranks into ``generation``.

        A rank that was given up but still lives (it did not answer in time) is killed first: two must never serve one
        shard. The trainer is not called: it asked, and joins when it has its answer.
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

    def serve(self, desk: Mapping[str, Callable[..., Any]]) -> None:
        """Serve the ranks until the trainer has finished.

        ``desk`` holds what a trainer may call, by name. Raises what the trainer failed with; RunFailed if it died.
        """
        while True:
            chief = self._processes[CHIEF]
            # Deaths of PS ranks are for the trainer to find, by a failing request; only a world in the making needs to
            # be told of them, since nobody could call anybody in it.
            sentinels = (
                [process.sentinel for process in self._processes.values()] if self._waiting else [chief.sentinel]
            )
            ready = wait([self._listener, *sentinels, *self._connections.values(), *self._strangers])
            if self._listener in ready:
                self._accept()
            for connection in ready:
                if isinstance(connection, Connection) and self._receive(connection, desk):
                    return
            if self._waiting and self.dead():
                self._broken = self._generation
                self._waiting = [entry for entry in self._waiting if not self._tell(*entry)]
            if chief.sentinel in ready and CHIEF not in self._connections:
                raise RunFailed(
                    f"{CHIEF} (pid {chief.pid}) ended with exit code {chief.exitcode} before its job was done"
                )

    def dead(self) -> list[Rank]:
        """PS ranks whose process has ended."""
        return [rank for rank in self.names if rank != CHIEF and self._processes[rank].exitcode is not None]

    def absent(self) -> list[Rank]:
        """PS ranks that have not come to the present generation: dead, or mute."""
        here = self._keys[self._generation]
        # What an agent publishes first is its name, under its number.
        return [rank for k, rank in enumerate(self.names) if rank != CHIEF and f"names/{k}" not in here]

    def _accept(self) -> None:
        try:
            self._strangers.append(control.accept(self._listener, self._authkey))
        except (AuthenticationError, EOFError, OSError):
            return  # a stranger, or a rank that died while it called

    def _receive(self, connection: Connection, desk: Mapping[str, Callable[..., Any]]) -> bool:
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
            desk[args[0]](**args[1])
        elif kind == "call":
            self._answer(rank, desk[args[0]], args[1])
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
        self._waiting = [entry for entry in self._waiting if not self._tell(*entry)]

    def _tell(self, rank: Rank, generation: int, key: str) -> bool:
        """Answer a ``get`` if it can be answered."""
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
            return  # it has not said hello yet, or is dead: it will be found dead by whoever needs it
        try:
            connection.send(message)
        except OSError:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._strangers = [known for known in self._strangers if known is not connection]
        self._connections = {rank: known for rank, known in self._connections.items() if known is not connection}
        connection.close()

    def close(self) -> None:
        """Ask every rank to stop; kill and reap those that do not within two seconds."""
        for rank in self.names:
            self._send(rank, "stop")
        for process in self._processes.values():
            process.join(2.0)
            if process.exitcode is None:
                assert process.pid is not None
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                process.join(_REAP_S)
        for connection in [*self._connections.values(), *self._strangers]:
            connection.close()
        self._listener.close()
