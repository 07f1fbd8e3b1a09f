"""The launcher of a run: it starts, watches and ends the processes of ranks.

The table of launchers is in ``harness/run/assemble.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.cluster.group import Formation
from harness.config.model import ClusterConfig
from harness.core.errors import RunFailed
from harness.core.plans import HostMap, Rank
from harness.processes.forked import ForkedProcess, ForkServer, HostLost
from harness.processes.network import Entrance


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
    """Starts, watches and ends the processes of ranks, by a fork server on each host. Used by one thread.

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

    def spawn(self, context: RankContext, main: Main) -> ForkedProcess:
        """Start ``main(context)`` in a process on the host of the rank, which ends when the supervisor ends.

        A spare goes to the living host with the fewest processes. Raises RunFailed.
        """
        while True:
            server = self._server_of(context.rank)
            try:
                return server.fork(main, context)
            except HostLost:
                continue
            except RunFailed as error:
                raise RunFailed(f"{context.rank} could not be started: {error}; check memory and limits") from error

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

    def close(self) -> None:
        """Release the launcher's own resources. Called after all its processes have ended."""


END_S = 10.0
"""Longest time, in seconds, from SIGKILL to the end of a process."""
