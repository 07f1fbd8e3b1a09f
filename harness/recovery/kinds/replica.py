"""Replicas of shards: the trainer sends each push to the owner of the shard and to its buddy, the next rank.

The push to the buddy travels in the message that the buddy gets in any case, so replication costs the trainer as many
bytes as the pushes, and no further message. When all ranks have answered, all replicas are up to date. Each rank knows
the step that it has applied, so a message that is sent again after a death is applied once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from harness.cluster.protocol import (
    Ask,
    CopyShard,
    CountReplicaSaved,
    Push,
    Request,
    Save,
    Several,
    WriteBack,
    exchanges_of,
)
from harness.cluster.server import num_copied_bytes
from harness.core.plans import Progress, Rank, buddy_of, owner_of, ps_index, ps_rank
from harness.recovery.kinds.base import LostRanks, Recovery, Serve


class Replication(Recovery):
    """``replica``: a lost shard is copied, with all its updates, from the replica at its buddy.

    Attributes:
        wire_bytes: bytes of replicas sent so far: pushes to buddies, and copies of whole shards to new replicas. A
            shard that comes from its replica counts as loaded.
    """

    loses_updates = False
    reads_rows = True
    needs_replicas = True

    def summary(self) -> dict[str, Any]:
        """The bytes that replicas took on the wire."""
        return {"replica_bytes": self.wire_bytes}

    @property
    def _num_ps(self) -> int:
        return self.run.placement.num_ps

    def accompany(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Return ``requests`` with the push to each rank added to the message to its buddy."""
        for rank, request in requests.items():
            has_push = any(exchange.push is not None for exchange in exchanges_of(request))
            assert not has_push or buddy_of(rank, self._num_ps) in requests, "pushes go to all ranks at once"
        return {rank: self._with_replica(request, requests, rank) for rank, request in requests.items()}

    def _with_replica(self, request: Request, requests: Mapping[Rank, Request], rank: Rank) -> Request:
        others = exchanges_of(requests.get(owner_of(rank, self._num_ps)))
        if not any(exchange.push is not None for exchange in others):
            return request
        pairs = zip(exchanges_of(request), others, strict=True)
        exchanges = tuple(replace(own, replica=self._counted(other.push)) for own, other in pairs)
        return Several(exchanges) if isinstance(request, Several) else exchanges[0]

    def _counted(self, push: Push | WriteBack | None) -> Push | WriteBack | None:
        """The push without the parts that only a tracker needs; adds its bytes to ``wire_bytes``."""
        if isinstance(push, WriteBack):
            push = replace(push, sampled=(), touched=())
        if push is not None:
            self.wire_bytes += sum(value.nbytes for value in vars(push).values() if isinstance(value, Tensor))
        return push

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Have ``ranks`` copy their shards from their buddies."""
        return dict.fromkeys(ranks, CopyShard(from_replica=True))

    def restored(self, loss: LostRanks, requests: Mapping[Rank, Request], serve: Serve) -> None:
        """Copy replicas again that are held by new processes, or whose shards were not restored from a replica."""
        elsewhere = {rank for rank, request in requests.items() if not isinstance(request, CopyShard)}
        owners = {ps_rank(index): owner_of(ps_rank(index), self._num_ps) for index in range(self._num_ps)}
        copied = {rank: owner for rank, owner in owners.items() if rank in loss.ranks or owner in elsewhere}
        serve(dict.fromkeys(copied, CopyShard(from_replica=False)))
        self.wire_bytes += sum(self._copied_bytes(owner) for owner in copied.values())

    def _copied_bytes(self, rank: Rank) -> int:
        """Bytes of a copy of the shard of ``rank``."""
        num_rows = self.run.placement.num_rows(ps_index(rank))
        return num_copied_bytes(num_rows, self.run.width, has_counts=self.run.has_counts)

    def wrote_late(self, saves: Mapping[Rank, Save], ask: Ask, progress: Progress) -> None:
        """Have replicas count updates since the save's step as saved, as the replacements did when they wrote late."""
        ask({buddy_of(rank, self._num_ps): CountReplicaSaved(save=save) for rank, save in saves.items()}, progress)
