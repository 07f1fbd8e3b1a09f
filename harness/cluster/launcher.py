"""The launcher of a run: it starts, watches, stops, kills and reaps the processes of ranks.

The table of launchers is in ``harness/run/assemble.py``.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.cluster.group import Formation
from harness.config.model import ClusterConfig
from harness.core.errors import RunFailed
from harness.core.events import Machine
from harness.core.plans import HostMap, Rank
from harness.processes.forked import ForkedProcess, ForkServer, HostLost
from harness.processes.network import Entrance

END_S = 10.0
"""Longest time, in seconds, from SIGKILL to the end of a process."""
_LOOK_S = 0.0005  # between two checks whether a process has stopped
_STOP_S = 2.0  # from the order to stop to SIGKILL
_DYING_S = 0.1  # longest time from the end of connections to that of their processes


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The parameters with which the process of a rank starts; can be pickled.

    Attributes:
        rank: its name at the start; a spare may later take over the name of a dead rank.
        formation: the first generation to join; None for a process that waits for an order.
        number: of the process among all that the supervisor has started.
        supervisor_pid: the supervisor, if it is on the rank's machine.
        port, authkey: of the supervisor's control channel, on ``options.host``.
        dead_after_s: seconds of silence after which another host counts as lost; None if all ranks are on one machine.
        entrance: to the private network of the ranks; None without one.
        held: the folders that the supervisor holds, and so the rank (``harness.files.hold_also``).
    """

    rank: Rank
    formation: Formation | None
    number: int
    supervisor_pid: int | None
    port: int
    authkey: bytes
    options: ClusterConfig
    dead_after_s: float | None = None
    entrance: Entrance | None = None
    held: Mapping[int, str] = field(default_factory=dict)


Main = Callable[[RankContext], None]
"""Main function of a rank's process. It can be pickled."""


class Launcher:
    """The processes of ranks and spares by rank, started by a fork server on each host. Used by one thread.

    Args:
        servers: of this machine alone, or of all hosts in the order of ``cluster.hosts``.
        hosts: which host each rank is on; None: all processes are on this machine.
        dead_after_s: seconds of silence after which another host is lost; None: there is no other host.
    """

    def __init__(
        self, servers: Sequence[ForkServer], hosts: HostMap | None = None, dead_after_s: float | None = None
    ) -> None:
        self._servers, self._hosts = servers, hosts
        self.dead_after_s = dead_after_s
        self._by_rank: dict[Rank, ForkedProcess] = {}

    def __getitem__(self, rank: Rank) -> ForkedProcess:
        return self._by_rank[rank]

    @property
    def pids(self) -> dict[Rank, int]:
        return {rank: process.pid for rank, process in self._by_rank.items()}

    @property
    def hosts(self) -> dict[Rank, str]:
        """Host of each rank and spare; empty if all processes are on this machine."""
        return {rank: process.host for rank, process in self._by_rank.items() if process.host is not None}

    def spawn(self, context: RankContext, main: Main) -> None:
        """Start ``main(context)`` in a process on the host of the rank, which ends when the supervisor ends.

        A spare goes to the living host with the fewest processes. Raises RunFailed.
        """
        while True:
            server = self._server_of(context.rank)
            try:
                self._by_rank[context.rank] = server.fork(main, context)
            except HostLost:
                continue
            except RunFailed as error:
                raise RunFailed(f"{context.rank} could not be started: {error}; check memory and limits") from error
            return

    def _server_of(self, rank: Rank) -> ForkServer:
        """The server of the rank's host, once ranks of lost hosts have moved; without a host, the emptiest one."""
        lost = self.lost_hosts()
        living = [server for server in self._servers if server.lost is None]
        if not living:
            words = "; ".join(f"{host}: {why}" for host, why in lost.items())
            raise RunFailed(f"{rank} could not be started: all hosts were lost ({words})")
        if self._hosts is not None:
            for host, server in enumerate(self._servers):
                if server.lost is not None:
                    self._hosts.lose(host)
            if rank in self._hosts:
                return self._servers[self._hosts[rank]]
        return min(living, key=lambda server: server.num_running)

    def lost_hosts(self) -> dict[str, str]:
        """The lost hosts, whose processes all count as ended, and the reason for each."""
        for server in self._servers:
            server.hear()
        return {server.host: server.lost for server in self._servers if server.lost is not None}

    @property
    def on_lost_hosts(self) -> dict[Rank, str]:
        """All ranks and spares whose host was lost, and why each ended, in words."""
        if not self.lost_hosts():
            return {}
        return {
            rank: f"its host {process.server.host} was lost: {process.server.lost}"
            for rank, process in self._by_rank.items()
            if process.server.lost is not None
        }

    def end_hosts(self, hosts: Sequence[int]) -> None:
        """Kill all processes of the run on ``hosts``, indices into ``cluster.hosts``, which are lost then.

        A no-op if all processes are on this machine: its hosts are names, and the caller kills their ranks itself.
        Raises RunFailed.
        """
        if self._hosts is not None:
            for host in hosts:
                self._hosts.lose(host)
                self._servers[host].end_all(END_S)

    def watched(self) -> list[Any]:
        """Objects for ``multiprocessing.connection.wait``; one is ready when a process has ended or a host is lost."""
        return [server for server in self._servers if server.lost is None]

    def await_ends(self, ranks: Iterable[Rank], within_s: float = _DYING_S) -> None:
        """Wait ``within_s`` for the ends of all ``ranks``, and of a host that gives no answer until it is lost."""
        ends_s = time.monotonic() + within_s
        for rank in ranks:
            if rank in self._by_rank:
                self[rank].join(max(0.0, ends_s - time.monotonic()))

    def has_ended(self, rank: Rank) -> bool:
        """Whether the process of ``rank`` has ended, or was forgotten after its end."""
        return rank not in self._by_rank or self[rank].exitcode is not None

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """Kill all processes on ``hosts`` (:meth:`end_hosts`), and ``ranks``, and reap them.

        Returns, by rank, pid, signal, exit code and host, if any. Raises RunFailed if a process has not ended ten
        seconds later.
        """
        self.end_hosts(hosts)
        for rank in ranks:
            self[rank].kill()
        return {rank: self._reap(rank) for rank in ranks}

    def _reap(self, rank: Rank) -> Machine:
        process = self[rank]
        process.join(END_S)
        if process.exitcode is None:
            raise RunFailed(f"{rank} (pid {process.pid}) did not end within {END_S:g} s of SIGKILL")
        host = {} if process.host is None else {"host": process.host}
        return {"pid": process.pid, "signal": int(signal.SIGKILL), "exitcode": process.exitcode, **host}

    def hang(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Send SIGSTOP to ``ranks``, and wait until no thread of them runs. Returns each one's pid and signal.

        A process that still runs gets the signal again, since something else may have continued it. Raises RunFailed if
        one runs after ``END_S`` seconds.
        """
        running, ends_s = [*ranks], time.monotonic() + END_S
        while True:
            for rank in running:
                self[rank].pause()
            if not (running := [rank for rank in running if not self[rank].is_paused]):
                return {rank: {"pid": self[rank].pid, "signal": int(signal.SIGSTOP)} for rank in ranks}
            if time.monotonic() > ends_s:
                raise RunFailed(f"{running[0]} (pid {self[running[0]].pid}) did not stop within {END_S:g} s of SIGSTOP")
            time.sleep(_LOOK_S)

    def end(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Reap all of ``ranks``; kill those that do not end within 0.1 s. Returns pid and action of each one killed."""
        self.await_ends(ranks)
        killed = self.kill([rank for rank in ranks if not self.has_ended(rank)])
        return {rank: {"pid": machine["pid"], "action": "killed"} for rank, machine in killed.items()}

    def rename(self, old: Rank, new: Rank) -> None:
        self._by_rank[new] = self._by_rank.pop(old)

    def share(self, hosted: Mapping[Rank, Rank]) -> None:
        """Let ranks share a process: by rank in ``hosted``, the rank whose process serves it too."""
        for rank, node in hosted.items():
            self._by_rank[rank] = self._by_rank[node]

    def forget(self, rank: Rank) -> None:
        del self._by_rank[rank]

    def close(self) -> None:
        """Wait ``_STOP_S`` for processes that were ordered to stop; kill the others, and wait ``END_S`` for them."""
        self.await_ends(self._by_rank, _STOP_S)
        for process in self._by_rank.values():
            process.kill()
        self.await_ends(self._by_rank, END_S)  # one that still lives then is left: it ends when the kernel lets it
