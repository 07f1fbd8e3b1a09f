"""The code of a PS rank, on both engines: a server of requests on one shard."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import xxhash
from torch import Tensor

from harness.cluster.protocol import (
    BuildReplica,
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
    WriteBack,
    WriteState,
)
from harness.cluster.replicas import (
    Parity,
    Reach,
    Replica,
    apply,
    bits_of,
    copy_shard,
    count_unsaved,
    read_shard,
    read_xor,
)
from harness.cluster.saver import Saver
from harness.core.errors import HarnessError, RankFailed
from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import Placement
from harness.core.plans import ParityGroups, Rank, buddy_of, ps_index
from harness.core.resumable import Resumable
from harness.core.shard import Shard
from harness.core.shares import ShareTrainer
from harness.core.trackers import TRACKERS, TrackerSpec
from harness.store import Store, read_state, write_state
from harness.store.format import bytes_of
from harness.store.initial import InitialModel


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


def num_copied_bytes(num_rows: int, width: int, *, has_counts: bool) -> int:
    """Bytes of rows and counts that travel when a shard of ``num_rows`` rows of ``width`` values is copied."""
    return num_rows * torch.float32.itemsize * (width + has_counts)


class RankServer(Resumable):
    """A PS rank: one shard, its tracker and its files, and what it holds of other ranks' shards.

    Attributes:
        reach: sends a request to another PS rank. Set by the engine.
        replica: what the rank holds of other shards; None: nothing.
    """

    reach: Reach
    _state = ("shard", "_tracker", "replica", "_held_by_store")

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
        self._tracked = spec.tracker.tables
        self.replica: Replica | Parity | None = None
        self._groups = spec.groups
        if spec.keeps_replica:
            self.replica = Replica(rank, make_shard, self._tracked, spec.placement.num_ps)
        elif spec.groups is not None and (members := spec.groups.members.get(rank)):
            self.replica = Parity(members, make_shard)
        self._tracker = make_tracker(self.shard, spec.tracker)
        self._fill: Callable[[Shard], object] = spec.initial.fill if spec.initial else lambda shard: None
        self._fsync = spec.fsync
        self._store, self._held_by_store = spec.store, spec.store.held(rank)
        self._saver = Saver(
            rank=rank,
            shard=self.shard,
            tracker=self._tracker,
            tracked=self._tracked,
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
            case OnShard() | Initialise() | Restore() | CopyShard() | RestoreFromParity():
                reply = self._set_rows(request)
            case BuildReplica(number=number):
                self._held.build(number, self.reach)
            case ReadShard():
                reply = read_shard(request, self._held.shard if request.is_replica else self.shard)
            case Save():
                if self.replica is not None and request.mode != "finish":
                    self.replica.count_saved(request)  # at the same request as its owner, which reports the updates
                reply = self._saver.save(request)
            case CountReplicaSaved():
                self._held.count_saved(request.save)
            case WriteState(root=root, number=number):
                step = self.shard.applied_step
                reply = write_state(root, self.rank, number, step, self.state(), fsync=self._fsync)
            case LoadState():
                self.load(read_state(request.root, request.file))
                reply = self._restored
        return reply

    @property
    def _held(self) -> Replica | Parity:
        assert self.replica is not None, "this rank holds no replica and no parity"
        return self.replica

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
                self.shard.initialise(applied_step=request.step)
                self._fill(self.shard)
                if self.replica is not None:
                    self.replica.initialise(self._fill)
            case Restore(newer=newer):
                self._store.read_rows(request.records, self.shard.rows_MD)
                if request.resets_states:
                    self.shard.reset_states()
                self.shard.reset_counts(applied_step=request.step)
            case CopyShard():
                buddy = buddy_of(self.rank, self.shard.placement.num_ps)
                copy_shard(self.shard, buddy, self.reach, is_replica=True)
            case RestoreFromParity():
                assert self._groups is not None, "a rank of a group"
                holder, needed = self._groups.holder_of[self.rank], sorted(self._groups.needed_for(self.rank))
                read_xor({each: each == holder for each in needed}, bits_of(self.shard.rows_MD), self.reach)
                self.shard.reset_counts(applied_step=request.step)
                count_unsaved(self.shard, request, self._tracked)
        self._tracker.reset()
        if newer is not None:
            self.shard.put(newer.rows_N, newer.values_ND, newer.unsaved_N)
        return reply

    def _exchange(self, request: Exchange) -> Tensor | None:
        """Apply the pushes of a message, then look its rows up: (N, X); None without a lookup.

        Where ranks hold parities, the changes of the rows that were pushed come behind the rows looked up.
        """
        changes_NX = None
        match request.push:
            case Push() as push:
                changes_NX = self._push(push)
            case WriteBack() as written:
                changes_NX = self._write_back(written)
        if request.replica is not None:
            self._held.apply(request.replica)
        if request.pull_N is None:
            return changes_NX
        rows_PX = self.shard.gather(request.pull_N)
        return rows_PX if changes_NX is None else torch.cat((rows_PX, changes_NX))

    def _push(self, push: Push) -> Tensor | None:
        """Apply the gradients of a step, and tell the tracker of it.

        Returns the XOR of the rows' bits before and after, for a parity: float32 (N, X). None if the ranks hold no
        parities, or if the push was applied before.
        """
        tracker, num_rows = self._tracker, len(push.rows_N)
        norms_N = torch.empty(num_rows) if tracker.needs_norms and tracker.mass_M is None else None
        changes_NX = torch.empty((num_rows, self.shard.rows_MD.shape[1])) if self._groups else None
        gradients = (push.step, push.rows_N, push.grads_ND, push.counts_N, push.learning_rate)
        if not self.shard.apply(*gradients, norms_N=norms_N, mass_M=tracker.mass_M, changes_NX=changes_NX):
            return None  # sent again, so that rows and tracker have it
        if num_rows:
            if tracker.needs_touches:
                tracker.touched(push.step, push.rows_N, push.counts_N)
            if norms_N is not None:
                tracker.moved(push.step, push.rows_N, norms_N)
            if tracker.needs_samples:
                tracker.sampled(push.step, push.rows_N, push.sampled_N)
        return changes_NX

    def _write_back(self, written: WriteBack) -> Tensor | None:
        """Write rows, then tell the tracker of all steps since the last message, in order. Returns as :meth:`_push`."""
        changes_NX = None
        if self._groups is not None:
            changes_NX = self.shard.gather(written.rows_N)
            bits_of(changes_NX).bitwise_xor_(bits_of(written.values_ND))
        if not apply(self.shard, written):
            return None
        ones = ((step, rows_N, torch.ones(len(rows_N), dtype=torch.bool)) for step, rows_N in written.sampled)
        tracker = self._tracker
        found = ((tracker.touched, written.touched), (tracker.moved, written.moved), (tracker.sampled, ones))
        calls = [(method, update) for method, updates in found for update in updates]
        for method, update in sorted(calls, key=lambda call: call[1][0]):  # as from a client that sends every step
            method(*update)
        return changes_NX


def digest_of_rows(shard: Shard) -> str:
    """The xxh3 of all rows, state of the optimizer included, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(bytes_of(shard.rows_MD))
