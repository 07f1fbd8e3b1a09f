"""The local engine: shards are objects in this process, and a kill drops the object."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.cluster.effects import Channel
from harness.cluster.protocol import Cluster, Reply, Request, raise_failures
from harness.cluster.server import RankServer
from harness.cluster.supervisor import Ranks, Supervisor
from harness.core.errors import RankLost
from harness.core.events import Machine
from harness.core.plans import Rank, is_ps, is_trainer, ps_rank
from harness.processes.stop import StopRequest


class LocalRanks(Ranks):
    """The ranks of engine ``local``: each PS rank's server is an object in this process; trainers are only names.

    Attributes:
        dead_trainers: the killed trainers that do not take part again yet, and whether each has been replaced.
    """

    def __init__(self, num_ps: int, make_server: Callable[[Rank], RankServer], num_trainers: int = 1) -> None:
        self._make_server, self._num_trainers = make_server, num_trainers
        self.dead_trainers: dict[Rank, bool] = {}
        self._replaced_at_once: set[Rank] = set()  # dead trainers whose replacements already count as alive
        self.names = tuple(ps_rank(k) for k in range(num_ps))
        self.servers: dict[Rank, RankServer] = {}
        self.replace(self.names, step=0)

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """Drop the server of each PS rank and abandon its pending save; count each trainer as dead."""
        self.dead_trainers |= dict.fromkeys(filter(is_trainer, ranks), False)
        self._replaced_at_once -= {*ranks}
        for rank in ranks:
            if (server := self.servers.pop(rank, None)) is not None:
                server.close()
        return {rank: {"engine": "local"} for rank in ranks}

    def dead_trainers_after(self, ranks: Collection[Rank]) -> list[Rank]:
        dead = [*self.dead_trainers.keys() - self._replaced_at_once]
        return sorted(dead) if len(dead) == self._num_trainers else []

    def replace_all_trainers(self, ranks: Sequence[Rank]) -> None:
        """Count the trainers as alive for :meth:`dead_trainers_after`.

        The next request still raises RankLost for them, and for the PS ranks lost with them.
        """
        self._replaced_at_once = {*filter(is_trainer, ranks)}

    hang = kill  # a rank that answers nothing differs in no result from a dead one

    def close(self) -> None:
        self.kill(self.names)

    def replace(self, ranks: Collection[Rank], step: int) -> Machine:
        """Make new servers, with empty shards, for the PS ranks in ``ranks``.

        The trainers in it take part again after :meth:`LocalCluster.admit`, or at once if all trainers had died.
        """
        if len(self.dead_trainers) == self._num_trainers:
            self.dead_trainers, self._replaced_at_once = {}, set()
        else:
            self.dead_trainers |= dict.fromkeys(filter(is_trainer, ranks), True)
        for rank in filter(is_ps, ranks):
            self.servers[rank] = self._make_server(rank)
            self.servers[rank].reach = self._reach
        return {"engine": "local"}

    def _reach(self, rank: Rank, request: Request) -> Reply:
        """Serve a request that one rank sends to another. Raises RankLost."""
        server = self.servers.get(rank)
        reply = None if server is None else server.handle(request)
        if rank not in self.servers:
            raise RankLost([rank], {}, {rank: "dropped"})
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
        self.ranks = ranks.names
        self._seeks_dead = False  # whether a fault has killed ranks, so that all are checked

    def start(self, requests: Mapping[Rank, Request]) -> tuple[Mapping[Rank, Request], dict[Rank, Reply]]:
        servers = self._ranks.servers
        replies = {
            rank: servers[rank].handle(requests[rank]) for rank in self.ranks if rank in requests and rank in servers
        }
        return requests, replies

    def finish(self, underway: tuple[Mapping[Rank, Request], dict[Rank, Reply]]) -> dict[Rank, Reply]:
        requests, replies = underway
        raise_failures(replies.values())
        asked, self._seeks_dead = self.ranks if self._seeks_dead else requests, False
        self._raise_lost(asked, replies)
        return replies

    def _raise_lost(self, ranks: Collection[Rank], replies: Mapping[Rank, Reply]) -> None:
        """Raise RankLost if some of ``ranks`` were dropped, or trainers have died that were not replaced."""
        lost = [rank for rank in ranks if rank not in self._ranks.servers]
        lost += [rank for rank, is_replaced in self._ranks.dead_trainers.items() if not is_replaced]
        if lost:
            raise RankLost(lost, replies, dict.fromkeys(lost, "dropped"))

    def expect_losses(self) -> None:
        self._seeks_dead = True

    def replace(self, lost: Iterable[Rank]) -> None:
        self._raise_lost(self.ranks, {})

    @property
    def awaits_trainers(self) -> bool:
        return any(self._ranks.dead_trainers.values())

    def admit(self, state: Callable[[], Any]) -> None:
        """Count replaced trainers as alive. ``state`` is not called: trainers have no state of their own here."""
        self._ranks.dead_trainers = {rank: False for rank, is_in in self._ranks.dead_trainers.items() if not is_in}
