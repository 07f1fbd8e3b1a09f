"""The local engine: shards are objects in this process, and a kill drops the object."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.cluster.compute import ComputeServer
from harness.cluster.members import Members
from harness.cluster.protocol import Cluster, Reply, Request, raise_failures
from harness.cluster.server import RankServer
from harness.cluster.supervisor import Ranks, Supervisor
from harness.cluster.supervisor_client import Channel
from harness.core.errors import RankLost
from harness.core.events import Machine
from harness.core.plans import CHIEF, Rank, all_ranks, is_compute, is_ps
from harness.processes.stop import StopRequest


class LocalRanks(Ranks):
    """The ranks of engine ``local``: the server of each PS rank is an object in this process."""

    def __init__(self, num_ps: int, make_server: Callable[[Rank], RankServer], num_trainers: int = 1) -> None:
        self._make_server = make_server
        self.members = Members()
        self.names = tuple(rank for rank in all_ranks(num_ps, num_trainers) if rank != CHIEF)
        self.servers: dict[Rank, RankServer | ComputeServer] = {}
        self.replace(self.names, step=0)

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """Drop the server of each rank and abandon its pending save."""
        for rank in ranks:
            self.members.lose(rank, "dropped")
            if (server := self.servers.pop(rank, None)) is not None:
                server.close()
        return {rank: {"engine": "local"} for rank in ranks}

    def give_back(self, nodes: Sequence[Rank]) -> dict[Rank, Machine]:
        """Do nothing: which node hosts a shard decides only which shards die together."""
        return {rank: {"engine": "local"} for rank in nodes}

    hang = kill  # a rank that answers nothing differs in no result from a dead one

    def replace_chief(self, ranks: Sequence[Rank]) -> None:
        """Do nothing: this process goes on as the new trainer, and the next request finds ``ranks``."""

    def close(self) -> None:
        self.kill([*self.servers])

    def replace(self, ranks: Collection[Rank], step: int) -> Machine:
        """Make new servers for ``ranks``; a PS rank's shard is empty."""
        for rank in ranks:
            if is_compute(rank):
                self.servers[rank] = ComputeServer(rank, None)
            elif rank != CHIEF:
                self.servers[rank] = server = self._make_server(rank)
                server.reach = self._reach
        return {"engine": "local"}

    def _reach(self, rank: Rank, request: Request) -> Reply:
        """Serve a request that one rank sends to another. Raises RankLost."""
        server = self.servers.get(rank)
        reply = None if server is None else server.handle(request)
        if rank not in self.servers:
            raise RankLost([rank], replies={}, detail={rank: "dropped"})
        return reply


@dataclass(frozen=True)
class LocalChannel(Channel):
    """The channel of engine ``local``: the supervisor is an object in this process."""

    supervisor: Supervisor
    stop: StopRequest | None

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self.supervisor, name)(*args)

    def tell(self, name: str, **values: Any) -> None:
        getattr(self.supervisor, name)(**values)

    def is_stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set


class LocalCluster(Cluster):
    """Calls servers one after the other, in rank order."""

    overlaps = False

    def __init__(self, ranks: LocalRanks) -> None:
        self._ranks = ranks
        self.ranks = tuple(filter(is_ps, ranks.names))
        self.compute_ranks = tuple(filter(is_compute, ranks.names))
        self._expects_losses = False

    def start(self, requests: Mapping[Rank, Request]) -> tuple[Mapping[Rank, Request], dict[Rank, Reply]]:
        servers = self._ranks.servers
        asked = [rank for rank in self._ranks.names if rank in requests and rank in servers]
        return requests, {rank: servers[rank].handle(requests[rank]) for rank in asked}

    def finish(self, underway: tuple[Mapping[Rank, Request], dict[Rank, Reply]]) -> dict[Rank, Reply]:
        """See Cluster. After :meth:`expect_losses` the next requests to PS ranks find all dead ranks, asked or not."""
        requests, replies = underway
        raise_failures(replies.values())
        finds_all = self._expects_losses and not any(map(is_compute, requests))
        self._expects_losses = self._expects_losses and not finds_all
        lost = self._ranks.members.lost
        if lost and (finds_all or not lost.keys().isdisjoint(requests)):
            raise RankLost(lost, replies, detail=lost)
        return replies

    def expect_losses(self) -> None:
        self._expects_losses = True

    def replace(self, lost: Iterable[Rank]) -> None:
        if again := self._ranks.members.lost:
            raise RankLost(again, replies={}, detail=again)
