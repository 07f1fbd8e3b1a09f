"""Requests, replies and the ``Cluster`` protocol, which maps requests by rank to replies by rank.

Requests and replies are plain data that can be pickled. N rows of a request, D embedding dim, X columns of a row: D
values, then state of the optimizer.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from harness.core.errors import HarnessError
from harness.core.plans import Progress, Rank, SavePlan
from harness.core.shard import SavedCounts
from harness.core.shares import Share
from harness.store import FileRecord

NO_ROWS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Push:
    """Gradients of step ``step`` (counted from 1) for distinct rows; a push that is sent again is not applied again.

    ``rows_N`` (int64) are local flat rows of the shard, ascending; ``grads_ND`` float32. ``counts_N`` (int32): how many
    samples touched each row; ``sampled_N`` (bool): whether one of these samples is in the sub-sample.
    """

    step: int
    rows_N: Tensor
    grads_ND: Tensor
    counts_N: Tensor
    sampled_N: Tensor
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class WriteBack:
    """Rows that the trainer updated, as of step ``step``; a message that is sent again is not applied again.

    ``rows_N`` (int64, distinct) now have ``values_ND`` (float32, (N, X)). ``counts_N`` (int32) are the updates of each
    row since it was last written back.

    ``sampled``, where the tracker ``needs_samples``: ``(step, rows_N)`` in order, for each step since the last message
    in which sub-sampled inputs touched rows of this shard, and these rows (int64, ascending, distinct). ``touched``,
    where it ``needs_touches``: ``(step, rows_N, counts_N)`` in order, for each step since the last message that updated
    rows of this shard, all these rows and how many samples touched each (int32). ``moved``, where it ``needs_norms``:
    the same with the L2 norm of each row's change (float32) in place of the count. Empty otherwise.
    """

    step: int
    rows_N: Tensor
    values_ND: Tensor
    counts_N: Tensor
    sampled: tuple[tuple[int, Tensor], ...] = ()
    touched: tuple[tuple[int, Tensor, Tensor], ...] = ()
    moved: tuple[tuple[int, Tensor, Tensor], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One message: apply ``push``, then look up ``pull_N`` (int64 local flat rows, possibly rows of the push).

    Reply: the rows looked up, float32 (N, X); None without a lookup. A lookup changes no tracker and no counter.
    ``replica``: a push to apply to the replica that this rank holds, or changes of rows for the parity that it holds
    (``Parity.apply``). Where ranks hold parities, the reply to a push that was not applied before ends, after the rows
    looked up, with the changes of the push's rows: the XOR of their bits before and after, float32 too.
    """

    push: Push | WriteBack | None = None
    pull_N: Tensor | None = None
    replica: Push | WriteBack | None = None


@dataclass(frozen=True)
class Several:
    """Several messages to one rank, served one at a time, in any order. Reply: the tuple of their replies, in order."""

    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class CountedRows:
    """Local flat rows (int64, ascending), their values (float32), and their counts of unsaved updates (int32)."""

    rows_N: Tensor
    values_ND: Tensor
    unsaved_N: Tensor


@dataclass(frozen=True)
class OnShard:
    """Call ``function(shard, *arguments)``, of a module that each rank can import. Reply: its result.

    With ``restores`` the function sets every row, its count and the applied step, as Initialise does, and returns
    :class:`Restored`. The rank abandons a pending save before the call, and resets its tracker after it. Without
    ``restores`` the function must change nothing.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    restores: bool = False


@dataclass(frozen=True, kw_only=True)
class Initialise:
    """Set every row of the shard, and of a replica that the rank holds, to its initial value.

    ``step`` steps count as applied. Reply: :class:`Restored`.
    """

    step: int


@dataclass(frozen=True, kw_only=True)
class Restore:
    """Read the newest saved version of every row, then overwrite rows by the trainer's ``newer`` ones.

    ``records``: files of this shard, oldest first. ``step`` steps count as applied. ``resets_states``: the optimizer's
    state columns of the rows read are set to their initial value. Reply: :class:`Restored`.
    """

    records: tuple[FileRecord, ...]
    step: int
    resets_states: bool = False
    newer: CountedRows | None = None


@dataclass(frozen=True)
class CopyShard:
    """Restore the shard, with its counts and applied step, from the replica at its buddy. Reply: :class:`Restored`."""


@dataclass(frozen=True)
class RestoreFromParity:
    """Restore the shard from its group's parity and other shards. Reply: :class:`Restored`.

    ``step`` steps count as applied, and ``unsaved_updates`` as unsaved, ``unsaved_tracked`` of them in tracked tables.
    """

    step: int
    unsaved_updates: int
    unsaved_tracked: int


@dataclass(frozen=True, kw_only=True)
class BuildReplica:
    """Build the replica or the parity that the rank holds from the present shards of its owners. Reply: None.

    ``number``: of the last message of changes that the shards of a parity contain.
    """

    number: int = 0


@dataclass(frozen=True, kw_only=True)
class ReadShard:
    """Request of one PS rank to another for the local flat rows ``first <= row < stop``. Reply: :class:`ShardRows`.

    ``is_replica``: rows of the replica or the parity that the other rank holds, not of the shard that it owns.
    """

    is_replica: bool
    first: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """Reply to ReadShard: the rows (float32, (N, X)), and the facts of the whole shard that a copy needs.

    ``pending_N``: the rows' counts of unsaved updates (int32); None if the shard does not count them. ``saved_counts``:
    the updates that its last save counted as saved.
    """

    rows_NX: Tensor
    pending_N: Tensor | None
    applied_step: int
    saved_counts: SavedCounts


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Reply to a request that sets every row of a shard: their number."""

    num_rows: int


@dataclass(frozen=True, kw_only=True)
class Save:
    """Carry out ``plan`` on the shard as of ``step``: write its part of the save into files numbered ``sequence``.

    ``records`` are the shard's files in the last checkpoint. ``mirrored_N`` (int64, ascending): rows that the trainer's
    mirror holds. ``faults``: numbers of planned faults by which a first write fails; a rank knows which of them are its
    own.

    ``mode``: ``now`` writes before the reply, :class:`Written`. ``begin`` fixes the contents and writes them in the
    background; its reply is None. ``finish`` waits for these files; its reply is :class:`Written`. A rank that is asked
    to finish and has begun nothing is a replacement: it saves its rows as of now.

    ``most_rows``: the rank is told of its death, and saves at most so many rows with unsaved updates, whatever the plan
    says (``harness.store.kinds.NoticeSave``); None otherwise.
    """

    plan: SavePlan
    sequence: int
    step: int
    records: tuple[FileRecord, ...]
    mirrored_N: Tensor = NO_ROWS
    faults: tuple[int, ...] = ()
    mode: Literal["now", "begin", "finish"] = "now"
    most_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class CountReplicaSaved:
    """Count all updates in the replica as saved by ``save``, whose files hold the owner's present rows. Reply: None."""

    save: Save


@dataclass(frozen=True, kw_only=True)
class Written:
    """Reply to Save: the files of one shard's part of a save, which are on disk.

    Attributes:
        records: files that restore the shard, oldest first.
        payload_bytes: bytes that the cost model counts for the save: encoded rows, and the ids of chosen rows.
        num_rows: rows written.
        persisted_updates, persisted_tracked: updates that this save persists, of all tables and of the tracked ones;
            None if the shard does not count updates.
        compacted: whether older files were merged into a new base.
        waited_s: how long steps waited for a save in the background.
        is_late: the rank replaces one that died during the save; its rows are as of its reply, not of the save's step.
        faults: numbers of the planned faults by which the first write failed; the rank then wrote its part again.
        failed_s: from the start of that write to its failure.
    """

    records: tuple[FileRecord, ...]
    payload_bytes: int
    num_rows: int
    persisted_updates: int | None
    persisted_tracked: int | None
    compacted: bool
    waited_s: float = 0.0
    is_late: bool = False
    faults: tuple[int, ...] = ()
    failed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WriteState:
    """Write the state of this rank, as of now, for resume point ``number`` in folder ``root``. Changes nothing else.

    Reply: the file's FileRecord. Not to be sent while a save is under way.
    """

    root: Path
    number: int


@dataclass(frozen=True, kw_only=True)
class LoadState:
    """Load the rank's state from ``file`` in folder ``root``; sent in place of Initialise. Reply: :class:`Restored`."""

    root: Path
    file: FileRecord


@dataclass(frozen=True)
class Compute:
    """Request to a compute rank: forward and backward of a share. Reply: its part of the batch (P, W), float32.

    ``share``: None where the trainer computes the whole batch itself; the reply is then None.
    """

    share: Share | None = None


Request = (
    Exchange
    | Several
    | OnShard
    | Initialise
    | Restore
    | CopyShard
    | RestoreFromParity
    | BuildReplica
    | ReadShard
    | Save
    | CountReplicaSaved
    | WriteState
    | LoadState
    | Compute
)
Reply = Any


def with_exchanges(request: Request, exchanges: Sequence[Exchange]) -> Request:
    """A request like ``request``, with these exchanges in place of its :func:`exchanges_of`."""
    return Several(tuple(exchanges)) if isinstance(request, Several) else exchanges[0]


def exchanges_of(request: Request | None) -> tuple[Exchange, ...]:
    """The :class:`Exchange` messages in ``request``: itself, its parts, or none."""
    if isinstance(request, Several):
        return request.exchanges
    return (request,) if isinstance(request, Exchange) else ()


@dataclass(frozen=True)
class Failure:
    """Reply of a rank whose code raised an exception. It is a value, so it is never mistaken for a dead rank."""

    error: HarnessError


def no_op() -> None:
    """Do nothing. Called on a rank over RPC, it shows whether the rank answers."""


class Cluster(Protocol):
    """The interface through which the trainer calls the PS ranks and the compute ranks of a run.

    Attributes:
        overlaps: whether requests are served while the caller works between :meth:`start` and :meth:`finish`. If not,
            ``start`` serves them itself, and compute ranks compute nothing.
        ranks: all PS ranks, in order.
        compute_ranks: all compute ranks, in order.
    """

    overlaps: bool
    ranks: tuple[Rank, ...]
    compute_ranks: tuple[Rank, ...]

    def call(self, requests: Mapping[Rank, Request]) -> dict[Rank, Reply]:
        """Serve every request and wait for all; returns and raises as :meth:`finish`."""
        return self.finish(self.start(requests))

    def start(self, requests: Mapping[Rank, Request]) -> Any:
        """Send every request and do not wait. The result is the argument of :meth:`finish`."""
        ...

    def finish(self, underway: Any) -> dict[Rank, Reply]:
        """Wait for requests that were started; the replies are sorted by rank.

        Raises:
            RankLost: ranks that were asked are dead. It names all ranks that are dead, is raised after all living ranks
                have answered, and carries their replies, except if a living rank reports that it could not reach a dead
                one.
            HarnessError: a rank's code raised an exception.
        """
        ...

    def expect_losses(self) -> None:
        """Announce that a planned fault is about to kill ranks, or has killed the former trainer.

        The requests to PS ranks in flight, or else the next ones, raise RankLost even if all of them are answered. A
        :class:`Compute` request does not: the number of compute ranks does not change when the death of a PS rank is
        found.
        """
        ...

    def replace(self, lost: Iterable[Rank]) -> None:
        """Connect with the replacements of ``lost``, which the supervisor has started (``SupervisorClient.replace``).

        A replacement may be a survivor that serves ``lost`` too (``cluster.on_loss: shrink``). Their shards hold
        nothing until they are restored or initialised. Raises RankLost if more ranks have died.
        """
        ...

    def move(self) -> None:
        """Have new processes of ranks that return take their shards over from the survivors.

        To be called with no request in flight, after the supervisor has started them. Nothing of a shard changes; one
        that does not arrive is lost, and the next request finds its rank dead. By default a no-op: where a shard is
        served changes no result.
        """


Ask = Callable[[Mapping[Rank, Request], Progress], Awaitable[dict[Rank, Reply]]]
"""A call of the PS ranks, to be awaited in the step loop: ``Requests.ask``."""


def raise_failures(replies: Iterable[Reply]) -> None:
    """Raise the error of the first :class:`Failure` among ``replies``, also within the reply to :class:`Several`."""
    for reply in replies:
        for part in reply if isinstance(reply, tuple) else (reply,):
            if isinstance(part, Failure):
                raise part.error
