"""The code of a PS rank, on both engines: a server of requests on one shard, and the replica of another rank's shard.

A replica gets the same pushes in the same order as the owner's shard, so it has the same rows, state columns, counts of
unsaved updates and applied step. A save sets the counts of the saved rows to 0 in both. A replica has no tracker.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import xxhash
from torch import Tensor

from harness.cluster.parity import Parity, Reach, bits_of, read_parts, restore_from_parity
from harness.cluster.protocol import (
    BuildParity,
    CopyShard,
    CountReplicaSaved,
    Exchange,
    Failure,
    Initialise,
    LoadState,
    OnShard,
    Push,
    ReadShard,
    Reply,
    Request,
    Restore,
    Restored,
    RestoreFromParity,
    Save,
    Several,
    ShardRows,
    WriteBack,
    WriteState,
)
from harness.cluster.saver import Saver
from harness.core.errors import HarnessError, RankFailed
from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import Placement
from harness.core.plans import ParityGroups, Rank, buddy_of, owner_of, ps_index
from harness.core.resumable import Resumable
from harness.core.shard import Shard
from harness.core.shares import ShareTrainer
from harness.core.trackers import TRACKERS, TrackerSpec
from harness.store import Store, read_state, write_state
from harness.store.format import bytes_of
from harness.store.initial import InitialModel
from harness.store.kinds import whole


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The parameters of a PS rank or a compute rank; can be pickled.

    ``groups``: of ranks whose shards have a parity; None: no rank holds one.

    ``fsync``: whether files of resume points are synced to disk. ``write_faults``: by rank, by number of a planned
    fault, the system's error (errno) with which its write fails. ``make_share_trainer``: makes what computes shares on
    a compute rank. ``initial``: the initial values of rows; None: those that follow from the seed.
    """

    placement: Placement
    embedding_dim: int
    seed: int
    optimizer: str = "sgd"
    tracker: TrackerSpec
    counts_updates: bool
    store: Store
    fsync: bool
    save_buffer_bytes: int
    keeps_replica: bool = False
    groups: ParityGroups | None = None
    write_faults: Mapping[Rank, Mapping[int, int]] = field(default_factory=dict)
    make_share_trainer: Callable[[], ShareTrainer] | None = None
    initial: InitialModel | None = None


def apply(shard: Shard, push: Push | WriteBack) -> bool:
    """Apply what the trainer sent to a shard or its replica; False, and no change, if it was applied before."""
    if isinstance(push, WriteBack):
        return shard.write(push.step, push.rows_N, push.values_ND, push.counts_N)
    return shard.apply(push.step, push.rows_N, push.grads_ND, push.counts_N, push.learning_rate)


class Replica(Resumable):
    """The replica that ``rank`` holds of the shard of its owner, the rank before it."""

    _state = ("shard",)

    def __init__(self, rank: Rank, make_shard: Callable[[int], Shard], tracked: tuple[int, ...], num_ps: int) -> None:
        self.owner = owner_of(rank, num_ps)
        self.shard = make_shard(ps_index(self.owner))
        self._tracked = tracked

    def count_saved(self, save: Save) -> None:
        """Count all updates in the replica as saved, as the owner does for its part of ``save``."""
        kind = save.plan.kind
        assert kind == "full", f"a strategy with replicas makes full saves only, got {kind}"
        self.shard.mark_saved(save.sequence, whole(self.shard), tracked=self._tracked)


def copy_shard(shard: Shard, source: Rank, reach: Reach, *, is_replica: bool) -> None:
    """Overwrite ``shard`` with the rows, the counts of unsaved updates and the applied step that ``source`` has.

    ``source`` sends its own shard or, with ``is_replica``, its replica of this shard; the totals of the last save
    (``Shard.saved_counts``) come along. Raises RankLost, or the HarnessError with which ``source`` replied.
    """
    (num_rows, width), first = shard.rows_MD.shape, 0
    for read in read_parts(source, num_rows, width, reach, is_replica=is_replica):
        part = slice(first, first := first + len(read.rows_NX))
        shard.rows_MD[part] = read.rows_NX
        if shard.pending_M is not None:
            assert read.pending_N is not None, "all ranks count updates, or none"
            shard.pending_M[part] = read.pending_N
        shard.saved_counts, shard.applied_step = read.saved_counts, read.applied_step


def read_shard(request: ReadShard, shard: Shard) -> ShardRows:
    """The rows of ``shard`` that another rank asks for, as copies. Changes nothing."""
    part = slice(request.first, request.stop)
    return ShardRows(
        rows_NX=shard.rows_MD[part].clone(),  # of a slice, torch's rpc might send the whole shard
        pending_N=None if shard.pending_M is None else shard.pending_M[part].clone(),
        applied_step=shard.applied_step,
        saved_counts=shard.saved_counts,
    )


def num_copied_bytes(num_rows: int, width: int, *, has_counts: bool) -> int:
    """Bytes of rows and counts that travel when a shard of ``num_rows`` rows of ``width`` values is copied."""
    return num_rows * torch.float32.itemsize * (width + has_counts)


class RankServer(Resumable):
    """A PS rank: one shard, its tracker and its files, and the replica of another rank's shard if ranks keep any.

    Attributes:
        reach: sends a request to another PS rank. Set by the engine.
    """

    reach: Reach
    _state = ("shard", "_tracker", "replica", "parity", "_held_by_store")

    def __init__(self, spec: RankSpec, rank: Rank) -> None:
        self.rank = rank
        make_tracker = TRACKERS[spec.tracker.kind]
        make_shard = partial(
            Shard,
            spec.placement,
            dim=spec.embedding_dim,
            seed=spec.seed,
            counts_updates=spec.counts_updates or make_tracker.needs_counts,
            optimizer=OPTIMIZERS[spec.optimizer],
        )
        self.shard: Shard = make_shard(ps_index(rank))
        num_ps, tracked = spec.placement.num_ps, spec.tracker.tables
        self.replica = Replica(rank, make_shard, tracked, num_ps) if spec.keeps_replica else None
        self.parity: Parity | None = None
        self._tells_changes = spec.groups is not None  # of the rows of a push, for the parity
        if spec.groups is not None and (members := spec.groups.members.get(rank)):
            self.parity = Parity(members, self.shard.rows_MD.shape[1], make_shard)
        self._tracker = make_tracker(self.shard, spec.tracker)
        self._fsync, self._initial = spec.fsync, spec.initial
        self._store, self._held_by_store = spec.store, spec.store.held(rank)
        self._saver = Saver(
            rank=rank,
            shard=self.shard,
            tracker=self._tracker,
            tracked=spec.tracker.tables,
            store=self._store,
            buffer_bytes=spec.save_buffer_bytes,
            write_faults=spec.write_faults.get(rank, {}),
        )

    def handle(self, request: Request) -> Reply:
        """Serve one request and return the reply; an exception is returned as a :class:`Failure`."""
        try:
            return self._serve(request)
        except HarnessError as error:
            return Failure(error)
        except Exception:  # noqa: BLE001 - the boundary of a rank: the caller must hear of any bug, as a value
            return Failure(RankFailed(f"{self.rank} failed at {type(request).__name__}:\n{traceback.format_exc()}"))

    def close(self) -> None:
        self._saver.abandon()

    def _serve(self, request: Request) -> Reply:
        reply: Reply = None
        match request:
            case Exchange():
                reply = self._exchange(request)
            case Several():
                reply = tuple(self.handle(exchange) for exchange in request.exchanges)
            case OnShard(restores=False):
                reply = request.function(self.shard, *request.arguments)
            case OnShard() | Initialise() | Restore() | CopyShard(from_replica=True) | RestoreFromParity():
                reply = self._set_rows(request)
            case CopyShard():
                held = self._held_replica
                copy_shard(held.shard, held.owner, self.reach, is_replica=False)
                reply = Restored(num_rows=len(held.shard.rows_MD))
            case BuildParity(number=number):
                assert self.parity is not None, "this rank holds a parity"
                self.parity.build(number, self.reach)
            case ReadShard():
                reply = self._read(request)
            case Save():
                if self.replica is not None and request.mode != "finish":
                    self.replica.count_saved(request)  # at the same request as its owner, which reports the updates
                reply = self._saver.save(request)
            case CountReplicaSaved():
                self._held_replica.count_saved(request.save)
            case WriteState(root=root, number=number):
                step = self.shard.applied_step
                reply = write_state(root, self.rank, number, step, self.state(), fsync=self._fsync)
            case LoadState():
                self.load(read_state(request.root, request.file))
                reply = self._restored
        return reply

    @property
    def _held_replica(self) -> Replica:
        assert self.replica is not None, "this rank holds no replica"
        return self.replica

    def _read(self, request: ReadShard) -> ShardRows:
        if request.is_replica and self.parity is not None:
            return self.parity.read(request)
        return read_shard(request, self._held_replica.shard if request.is_replica else self.shard)

    @property
    def _restored(self) -> Restored:
        return Restored(num_rows=len(self.shard.rows_MD))

    def _set_rows(self, request: OnShard | Initialise | Restore | CopyShard | RestoreFromParity) -> Reply:
        """Set every row of the shard. Abandons a pending save before, and resets the tracker."""
        self._saver.abandon()
        reply, newer = self._restored, None
        match request:
            case OnShard():
                reply = request.function(self.shard, *request.arguments)
            case Initialise():
                for shard in (self.shard, *([] if self.replica is None else [self.replica.shard])):
                    shard.initialise(applied_step=request.step)
                    self._fill(shard)
                if self.parity is not None:
                    self.parity.initialise(self._fill)
            case Restore(newer=newer):
                self._store.read_rows(request.records, self.shard.rows_MD)
                if request.resets_states:
                    self.shard.reset_states()
                self.shard.reset_counts(applied_step=request.step)
            case CopyShard():
                buddy = buddy_of(self.rank, self.shard.placement.num_ps)
                copy_shard(self.shard, buddy, self.reach, is_replica=True)
            case RestoreFromParity():
                restore_from_parity(self.shard, request, self.reach)
        self._tracker.reset()
        if newer is not None:
            self.shard.put(newer.rows_N, newer.values_ND, newer.unsaved_N)
        return reply

    def _fill(self, shard: Shard) -> None:
        """Set the rows of a shard with initial values that the run takes from a checkpoint, if it does."""
        if self._initial is not None:
            self._initial.fill(shard)

    def _exchange(self, request: Exchange) -> Tensor | None:
        """Apply the pushes of a message, then look its rows up: (N, X); None without a lookup.

        Where ranks hold parities, the changes of the rows that were pushed come behind the rows looked up.
        """
        changes_NX = None
        if request.push is not None:
            changes_NX = self._apply_push(request.push)
        if request.replica is not None and self.parity is not None:
            assert isinstance(request.replica, Push)
            self.parity.add(request.replica)
        elif request.replica is not None:
            apply(self._held_replica.shard, request.replica)
        rows_NX = None if request.pull_N is None else self.shard.gather(request.pull_N)
        both = [part_NX for part_NX in (rows_NX, changes_NX) if part_NX is not None]
        return torch.cat(both) if len(both) == 2 else both[0] if both else None

    def _apply_push(self, push: Push | WriteBack) -> Tensor | None:
        """Apply ``push``. Returns the XOR of its rows' bits before and after, for a parity: float32 (N, X).

        Returns None if the ranks hold no parities, or if the push was applied before.
        """
        step, changes_NX = self.shard.applied_step, None
        if isinstance(push, WriteBack):
            if self._tells_changes:
                changes_NX = self.shard.gather(push.rows_N)
                bits_of(changes_NX).bitwise_xor_(bits_of(push.values_ND))
            self._write_back(push)
        else:
            if self._tells_changes:
                changes_NX = torch.empty((len(push.rows_N), self.shard.rows_MD.shape[1]))
            self._push(push, changes_NX)
        return None if self.shard.applied_step == step else changes_NX

    def _push(self, push: Push, changes_NX: Tensor | None) -> None:
        """Apply the gradients of a step, and tell the tracker of it. ``changes_NX``: as of ``RowOptimizer.step``."""
        tracker, num_rows = self._tracker, len(push.rows_N)
        norms_N = torch.empty(num_rows) if tracker.needs_norms and tracker.mass_M is None else None
        gradients = (push.step, push.rows_N, push.grads_ND, push.counts_N, push.learning_rate)
        is_new = self.shard.apply(*gradients, norms_N=norms_N, mass_M=tracker.mass_M, changes_NX=changes_NX)
        if not is_new or not num_rows:
            return  # sent again, so that rows and tracker have it; or nothing to track
        if tracker.needs_touches:
            tracker.touched(push.step, push.rows_N, push.counts_N)
        if norms_N is not None:
            tracker.moved(push.step, push.rows_N, norms_N)
        if tracker.needs_samples:
            tracker.sampled(push.step, push.rows_N, push.sampled_N)

    def _write_back(self, written: WriteBack) -> None:
        """Write rows, then tell the tracker of all steps since the last message, in order."""
        if not apply(self.shard, written):
            return
        ones = ((step, rows_N, torch.ones(len(rows_N), dtype=torch.bool)) for step, rows_N in written.sampled)
        tracker = self._tracker
        found = ((tracker.touched, written.touched), (tracker.moved, written.moved), (tracker.sampled, ones))
        calls = [(method, update) for method, updates in found for update in updates]
        for method, update in sorted(calls, key=lambda call: call[1][0]):  # as from a client that sends every step
            method(*update)


def digest_of_rows(shard: Shard) -> str:
    """The xxh3 of all rows, state of the optimizer included, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(bytes_of(shard.rows_MD))
