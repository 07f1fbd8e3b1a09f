"""Kinds of recovery: how the shard of a lost rank is restored, and what that costs.

A kind is a class, of which a run has one object. The charges of a recovery depend on the class attributes of its kind,
in a run, the simulator and the audit. The methods are hooks: the run calls them where a kind may have to prepare for a
later recovery. By default they are no-ops. The kind ``mirror`` has a module of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from harness.cluster.protocol import (
    Ask,
    BuildReplica,
    CopyShard,
    CountedRows,
    CountReplicaSaved,
    Initialise,
    LoadState,
    Push,
    Reply,
    Request,
    Restore,
    Save,
    WriteBack,
    exchanges_of,
    with_exchanges,
)
from harness.cluster.server import num_copied_bytes
from harness.core.lookup import BatchPlan
from harness.core.optimizers import RowOptimizer, row_width
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank, RecoveryPlan, buddy_of, owner_of, ps_index, ps_rank
from harness.core.pls import UpdateCounter
from harness.core.resumable import Resumable
from harness.core.strategies import Strategy
from harness.store import Manifest


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The constants of a run that kinds of recovery and the embedding client are built from.

    ``tracked``: the tracked tables. ``dim``: D, values of a row. ``optimizer``: the update rule of rows.
    ``has_counts``: whether shards count unsaved updates. ``count_updates``: counts the updates of a batch by rank.
    ``on_notice``: what ranks do that are told of their death (``cluster.on_notice``); ``none`` if none is told.
    """

    strategy: Strategy
    placement: Placement
    tracked: tuple[int, ...]
    dim: int
    optimizer: RowOptimizer
    learning_rate: float
    has_counts: bool
    count_updates: UpdateCounter
    on_notice: str = "none"

    @property
    def width(self) -> int:
        """X, the columns of a row: D values, then state of the optimizer."""
        return row_width(self.optimizer, self.dim)


@dataclass(frozen=True, kw_only=True)
class LostRanks:
    """The PS ranks that died in one failure, and the state of the run when that was detected.

    ``checkpoint``: the newest one. ``progress`` names the save of this checkpoint as the newest save. ``handed_over``:
    by lost rank, the request that loads the shard that it handed over before its death.
    """

    ranks: frozenset[Rank]
    progress: Progress
    checkpoint: Manifest | None
    handed_over: Mapping[Rank, LoadState] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """What was lost in one failure, and how it was restored.

    ``num_rows``: restored rows. ``load_s``, ``reschedule_s``: measured seconds.
    """

    plan: RecoveryPlan
    loss: LostRanks
    num_rows: int
    load_s: float
    reschedule_s: float


@dataclass(frozen=True, kw_only=True)
class UploadedRows:
    """Counts of the rows that a replacement gets from the trainer, since they are newer than in the checkpoint.

    ``num_bytes``: bytes of values and row ids. ``updates``: the unsaved updates of these rows, of all tables and of the
    tracked ones.
    """

    num_rows: int = 0
    num_bytes: int = 0
    updates: tuple[int, int] = (0, 0)


Serve = Callable[[Mapping[Rank, Request]], dict[Rank, Reply]]
"""Sends requests of a recovery and returns the replies. If a rank dies meanwhile it raises RankLost, which must not be
caught: the recovery then begins anew."""


class Recovery(Resumable):
    """One kind of recovery in one run; the base of all kinds.

    Attributes:
        wire_bytes: bytes that crossed the network for this kind so far, besides those of saves and loads.
        trainer_bytes: the most memory that this kind took at the trainer so far.
        uploaded: by rank, the counts of rows that :meth:`requests` last sent to its replacement from the trainer.
    """

    _state = ("wire_bytes", "trainer_bytes")

    rolls_back: ClassVar[bool] = False
    """Whether every rank and the trainer return to the newest checkpoint, and lost steps are repeated."""
    loses_updates: ClassVar[bool] = True
    """Whether a restored shard lacks updates since its last save, so that they count in the PLS."""
    reads_rows: ClassVar[bool] = False
    """Whether a restored shard is read from a checkpoint or a replica. The bytes of its rows then count as loaded."""
    reads_group: ClassVar[bool] = False
    """Whether as many shards are read for a restored one as its group has ranks (``Strategy.groups``)."""
    needs_checkpoint: ClassVar[bool] = False
    """Whether this kind can restore a shard only if there is a checkpoint."""
    needs_replicas: ClassVar[bool] = False
    """Whether each rank must hold a replica of the shard of the rank before it. All saves must then be full: the rows
    that another kind of save chooses are known to the shard's owner alone."""

    def __init__(self, run: RunFacts) -> None:
        self.run = run
        self.wire_bytes = self.trainer_bytes = 0
        self.uploaded: dict[Rank, UploadedRows] = {}

    @classmethod
    def facts(cls) -> dict[str, bool]:
        """The class attributes on which charges depend, by name, for the record."""
        facts = {"rolls_back": cls.rolls_back, "loses_updates": cls.loses_updates, "reads_rows": cls.reads_rows}
        return facts | ({"reads_group": True} if cls.reads_group else {})

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """The requests that restore the shards of ``ranks``, the ranks among ``loss.ranks`` that this kind restores.

        Each request must be answered by :class:`~harness.cluster.protocol.Restored`. The replacements of ``loss.ranks``
        have no rows yet. ``serve`` may be used to ask survivors first. The run fails if a rank of ``ranks`` has no
        request.
        """
        return {}

    def restored(self, loss: LostRanks, requests: Mapping[Rank, Request], serve: Serve) -> None:
        """Called when all ranks of a recovery have been restored. ``requests``: those of all kinds."""

    def forget(self) -> None:
        """Called when all trainers are about to die, or return to a checkpoint: drop what their memory holds."""

    def accompany(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Return ``requests``, which are about to be sent, with the additions of this kind."""
        return requests

    def received(self, requests: Mapping[Rank, Request], replies: Mapping[Rank, Reply]) -> Mapping[Rank, Reply]:
        """Return ``replies``, some or all of those to ``requests``, without what this kind had the ranks add."""
        return replies

    async def settle(self, ask: Ask, progress: Progress) -> None:
        """Called after a step that something is due after, when all ranks have its updates, and before what is due."""

    def begin_step(self, step: int, plan: BatchPlan, grads_ND: Tensor) -> None:
        """Called when the gradients of step ``step``, counted from 1, are about to be sent."""

    def finish_step(self, step: int) -> None:
        """Called when step ``step``, counted from 1, is finished."""

    async def prepare_save(self, ask: Ask, progress: Progress) -> Mapping[Rank, Tensor]:
        """Called before a save. Returns by rank the local flat rows held at the trainer: int64, ascending."""
        return {}

    def freeze(self, *, closes_interval: bool) -> None:
        """Called when the contents of a save are fixed; the save may be committed later, or never."""

    def committed(self) -> None:
        """Called when the save whose contents were fixed last is committed."""

    async def wrote_late(self, saves: Mapping[Rank, Save], ask: Ask, progress: Progress) -> None:
        """Called after replacements wrote their parts of a save in the background only at its commit.

        ``saves``: by rank, the requests for these parts.
        """

    def summary(self) -> dict[str, Any]:
        """The fields that this kind adds to the Finished event."""
        return {}


class Initial(Recovery):
    """``initial``: a lost shard is reset to its initial values."""

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        return {rank: Initialise(step=loss.progress.step) for rank in ranks}


class Checkpoint(Recovery):
    """``checkpoint``: a lost shard gets the newest saved version of each of its rows."""

    reads_rows = True
    needs_checkpoint = True

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        assert loss.checkpoint is not None
        return {
            rank: Restore(
                records=loss.checkpoint.newest_of(rank),
                step=loss.progress.step,
                resets_states=self.run.strategy.resets_states and self.loses_updates,
                newer=self.newer_rows(rank, loss.progress.step),
            )
            for rank in ranks
        }

    def newer_rows(self, rank: Rank, step: int) -> CountedRows | None:
        """Rows of ``rank`` after ``step`` steps that are newer than in the checkpoint; None if there are none."""
        return None


class Noticed(Checkpoint):
    """``notice``: as ``checkpoint``, of a rank that saved all its updated rows when it was told of its death.

    The state of the optimizer comes with the rows, so that nothing is lost.
    """

    loses_updates = False


class HandedOver(Recovery):
    """``handover``: a lost shard, with its tracker, is taken from the node to which it was copied before the death."""

    loses_updates = False
    reads_rows = True

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        return {rank: loss.handed_over[rank] for rank in ranks}


class Rollback(Recovery):
    """``rollback``: every rank and the trainer return to the newest checkpoint, and lost steps are repeated."""

    rolls_back = True
    loses_updates = False
    reads_rows = True
    needs_checkpoint = True

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """Requests to all ranks, survivors included, to read their rows from the newest checkpoint."""
        assert loss.checkpoint is not None
        all_ranks = [ps_rank(index) for index in range(self.run.placement.num_ps)]
        return {rank: Restore(records=loss.checkpoint.shards[rank], step=loss.checkpoint.step) for rank in all_ranks}


class Replication(Recovery):
    """``replica``: a lost shard is copied, with all its updates, from the replica at its buddy, the next rank.

    The trainer sends each push to the owner of the shard and to the owner's buddy. The second copy travels in a message
    that the buddy gets in any case. So replication costs the trainer as many bytes as the pushes, and no more messages.
    When all ranks have answered, all replicas are up to date. Shard and replica know their last applied step, so a
    message that is sent again after a death is applied once.

    Attributes:
        wire_bytes: bytes sent for replicas so far: pushes to buddies, and copies of whole shards to new replicas. A
            lost shard that is copied from its replica counts as loaded instead.
    """

    loses_updates = False
    reads_rows = True
    needs_replicas = True

    def summary(self) -> dict[str, Any]:
        return {"replica_bytes": self.wire_bytes}

    @property
    def _num_ps(self) -> int:
        return self.run.placement.num_ps

    def accompany(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Return ``requests``, in which each push is also in the exchange of the same turn with the buddy of its rank.

        A client divides the requests of all ranks into the same number of exchanges.
        """
        sent = dict(requests)
        for owner in requests:
            pushes = [exchange.push for exchange in exchanges_of(requests[owner])]
            if any(push is not None for push in pushes):
                buddy = buddy_of(owner, self._num_ps)
                pairs = zip(exchanges_of(requests[buddy]), pushes, strict=True)
                exchanges = [replace(own, replica=self._replica_push(push)) for own, push in pairs]
                sent[buddy] = with_exchanges(requests[buddy], exchanges)
        return sent

    def _replica_push(self, push: Push | WriteBack | None) -> Push | WriteBack | None:
        """``push`` as sent to a replica; the bytes of its tensors are added to ``wire_bytes``. None stays None.

        A :class:`WriteBack` goes without ``sampled`` and ``touched``, which only trackers read: a replica has none.
        """
        if isinstance(push, WriteBack):
            push = replace(push, sampled=(), touched=())
        if push is not None:
            self.wire_bytes += sum(value.nbytes for value in vars(push).values() if isinstance(value, Tensor))
        return push

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        return dict.fromkeys(ranks, CopyShard())

    def restored(self, loss: LostRanks, requests: Mapping[Rank, Request], serve: Serve) -> None:
        """Copy shards to replicas that new processes hold, and to replicas of shards that were restored elsewhere."""
        elsewhere = {rank for rank, request in requests.items() if not isinstance(request, CopyShard)}
        owners = {ps_rank(index): owner_of(ps_rank(index), self._num_ps) for index in range(self._num_ps)}
        copied = {rank: owner for rank, owner in owners.items() if rank in loss.ranks or owner in elsewhere}
        serve(dict.fromkeys(copied, BuildReplica()))
        num_rows = sum(self.run.placement.num_rows(ps_index(owner)) for owner in copied.values())
        self.wire_bytes += num_copied_bytes(num_rows, self.run.width, has_counts=self.run.has_counts)

    async def wrote_late(self, saves: Mapping[Rank, Save], ask: Ask, progress: Progress) -> None:
        """Have replicas count the same updates as saved as the replacements did, which wrote their present rows."""
        counts = {buddy_of(rank, self._num_ps): CountReplicaSaved(save=save) for rank, save in saves.items()}
        await ask(counts, progress)
