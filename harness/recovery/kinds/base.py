"""A kind of recovery: how the shard of a lost rank is restored, and what that costs.

An object of a kind belongs to one run. Charges depend on its class attributes, in a run, the simulator and the audit.
Its other methods are hooks, which the run calls where a kind may have to prepare for a later recovery; by default they
are no-ops.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from harness.cluster.protocol import Ask, Reply, Request, Save
from harness.core.lookup import BatchPlan
from harness.core.optimizers import RowOptimizer, row_width
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank
from harness.core.pls import UpdateCounter
from harness.core.resumable import Resumable
from harness.core.strategy import Strategy
from harness.store import Manifest


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The constants of a run that kinds of recovery and the embedding client are built from.

    ``dim``: D, values of a row; ``optimizer``: of the PS ranks. ``has_counts``: shards count unsaved updates.
    ``count_updates`` counts updates as the ledger does.
    """

    strategy: Strategy
    placement: Placement
    tracked: tuple[int, ...]
    dim: int
    optimizer: RowOptimizer
    learning_rate: float
    has_counts: bool
    count_updates: UpdateCounter

    @property
    def width(self) -> int:
        """X, columns of a row: D values, then state of the optimizer."""
        return row_width(self.optimizer, self.dim)


@dataclass(frozen=True, kw_only=True)
class LostRanks:
    """The PS ranks that died in one failure, and the state of the run when that was detected.

    ``progress`` holds the newest committed save, which is that of ``checkpoint``.
    """

    ranks: frozenset[Rank]
    progress: Progress
    checkpoint: Manifest | None


@dataclass(frozen=True, kw_only=True)
class UploadedRows:
    """Counts of the rows that a replacement gets from the trainer, which are newer than those of the checkpoint.

    ``num_bytes``: values and row ids. ``updates``: unsaved updates in these rows, of all tables and of the tracked
    tables.
    """

    num_rows: int = 0
    num_bytes: int = 0
    updates: tuple[int, int] = (0, 0)


Serve = Callable[[Mapping[Rank, Request]], dict[Rank, Reply]]
"""Serves requests of a recovery, in which ranks may die again: RankLost, and the recovery begins anew."""


class Recovery(Resumable):
    """One kind of recovery in one run; the base of all kinds.

    Attributes:
        wire_bytes: bytes that crossed the network for this kind so far, besides those of saves and loads.
        trainer_bytes: the most memory that this kind took at the trainer so far.
        uploaded: by rank, the rows that the last requests sent to it besides those of the checkpoint.
    """

    _state = ("wire_bytes", "trainer_bytes")

    rolls_back: ClassVar[bool] = False
    """Whether every rank and the trainer return to the newest checkpoint, and lost steps are repeated."""
    loses_updates: ClassVar[bool] = True
    """Whether a restored shard lacks the updates since its last save, so that they count in the PLS."""
    reads_rows: ClassVar[bool] = False
    """Whether each row of a restored shard is read once, from a checkpoint or a replica: the bytes of the load."""
    needs_checkpoint: ClassVar[bool] = False
    """Whether there must be a checkpoint."""
    needs_replicas: ClassVar[bool] = False
    """Whether each rank holds a replica of the shard of the rank before it. All saves must then be full: which rows
    another save chose is known to the owner alone."""

    def __init__(self, run: RunFacts) -> None:
        self.run = run
        self.wire_bytes = self.trainer_bytes = 0
        self.uploaded: dict[Rank, UploadedRows] = {}

    @classmethod
    def facts(cls) -> dict[str, bool]:
        """The class attributes that charges depend on, by name, for the record."""
        return {"rolls_back": cls.rolls_back, "loses_updates": cls.loses_updates, "reads_rows": cls.reads_rows}

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """The requests that restore the shards of ``ranks``, the ranks among ``loss.ranks`` that this kind restores.

        Each is answered by :class:`~harness.cluster.protocol.Restored`. The replacements of ``loss.ranks`` hold nothing
        yet. ``serve`` asks the survivors first, where that is needed. A rank without a request ends the run with one
        line.
        """
        return {}

    def restored(self, loss: LostRanks, requests: Mapping[Rank, Request], serve: Serve) -> None:
        """Called when all ranks of a recovery have been restored by ``requests``, of this kind and of others."""

    def rolled_back(self) -> None:
        """Called when the trainer has returned to a checkpoint."""

    def accompany(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Return ``requests``, which are about to be sent, with what this kind adds to them."""
        return requests

    def lose_trainers(self) -> None:
        """Called when all trainers are about to die: whatever this kind holds in their memory is then lost."""

    def begin_step(self, step: int, plan: BatchPlan, grads_ND: Tensor) -> None:
        """Called when the gradients of step ``step``, counted from 1, are about to be sent."""

    def reach(self, step: int) -> None:
        """Called when ``step`` steps are finished."""

    def prepare_save(self, ask: Ask, progress: Progress) -> Mapping[Rank, Tensor]:
        """Called before a save. Returns the local flat rows that this kind can restore itself: int64, ascending."""
        return {}

    def freeze(self, *, closes_interval: bool) -> None:
        """Called when the contents of a save are fixed; the save may be committed later."""

    def committed(self) -> None:
        """Called when the save whose contents were fixed last is committed."""

    def wrote_late(self, saves: Mapping[Rank, Save], ask: Ask, progress: Progress) -> None:
        """Called after replacements wrote their parts of a save as of its commit. ``saves``: requests by rank."""

    def summary(self) -> dict[str, Any]:
        """The fields that this kind adds to the Finished event."""
        return {}
