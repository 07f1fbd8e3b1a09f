"""Replicas of shards at the next rank, as the trainer keeps them: every push goes to the owner and to its buddy.

The trainer, and not the owner, sends the push to the buddy, in the message that the buddy gets anyway. When all ranks
have answered, all replicas have it. A message that is sent again after a death is applied where it is missing, and
nowhere twice, by its step. It costs the trainer as many bytes as the pushes, and no message.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from harness.cluster.protocol import CopyReplica, Exchange, Push, Request, Several, WriteBack
from harness.cluster.replica import num_copied_bytes
from harness.core.placement import Placement
from harness.core.plans import Rank, RecoveryPlan, buddy_of, owner_of, ps_index
from harness.core.resumable import Resumable


@dataclass(frozen=True, kw_only=True)
class ShardSizes:
    """Rows of each shard, values of a row with its state columns, and whether updates are counted."""

    placement: Placement
    width: int
    has_counts: bool

    def of(self, rank: Rank) -> int:
        """Bytes of a copy of the shard of ``rank``."""
        num_rows = self.placement.num_rows(ps_index(rank))
        return num_copied_bytes(num_rows, self.width, has_counts=self.has_counts)


class Replication(Resumable):
    """Adds pushes for replicas to requests, plans the copies of a recovery, and counts the bytes of both.

    Attributes:
        num_bytes: bytes of replicas sent so far: pushes to buddies, and copies of whole shards to new replicas. A
            shard that comes from its replica counts as loaded.
    """

    _state = ("num_bytes",)

    def __init__(self, sizes: ShardSizes) -> None:
        self._sizes = sizes
        self._num_ps = sizes.placement.num_ps
        self.num_bytes = 0

    def mirrored(self, requests: Mapping[Rank, Request]) -> dict[Rank, Request]:
        """``requests`` with the push to each rank added to the message to its buddy."""
        mirrored = {rank: self._with_replica(request, requests, rank) for rank, request in requests.items()}
        for rank, request in requests.items():
            has_push = any(exchange.push is not None for exchange in _exchanges(request))
            assert not has_push or buddy_of(rank, self._num_ps) in requests, "pushes go to all ranks at once"
        return mirrored

    def _with_replica(self, request: Request, requests: Mapping[Rank, Request], rank: Rank) -> Request:
        others = _exchanges(requests.get(owner_of(rank, self._num_ps)))
        if not any(exchange.push is not None for exchange in others):
            return request
        pairs = zip(_exchanges(request), others, strict=True)
        exchanges = tuple(replace(own, replica=self._counted(other.push)) for own, other in pairs)
        return Several(exchanges) if isinstance(request, Several) else exchanges[0]

    def _counted(self, push: Push | WriteBack | None) -> Push | WriteBack | None:
        """The push as the replica needs it, without what only a tracker needs; its bytes are counted."""
        if isinstance(push, WriteBack):
            push = replace(push, sampled=(), touched=())
        self.num_bytes += sum(value.nbytes for value in vars(push).values() if isinstance(value, Tensor)) if push else 0
        return push

    def copies(self, plan: RecoveryPlan, casualties: Iterable[Rank]) -> dict[Rank, Request]:
        """Requests after which every replica is whole: of new processes, and of shards that came from elsewhere."""
        lost = frozenset(casualties)
        ranks = [f"ps{k}" for k in range(self._num_ps)]
        restored = frozenset(ranks) if plan.rollback else plan.ranks - plan.replicated
        holders = [rank for rank in ranks if rank in lost or owner_of(rank, self._num_ps) in restored]
        return {rank: CopyReplica() for rank in holders}

    def copied(self, copies: Iterable[Rank]) -> None:
        """Count the bytes of replicas that the ranks of ``copies`` have copied from their owners."""
        self.num_bytes += sum(self._sizes.of(owner_of(rank, self._num_ps)) for rank in copies)


def _exchanges(request: Request | None) -> tuple[Exchange, ...]:
    if isinstance(request, Several):
        return request.exchanges
    return (request,) if isinstance(request, Exchange) else ()
