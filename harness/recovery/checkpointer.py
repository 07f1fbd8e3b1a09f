"""Saving: PS ranks write their shards, the trainer the dense network, and the supervisor the manifest.

A save begins at a boundary. It is committed there or, with ``save.mode=async``, at the next boundary at which an action
is due. The checkpoint exists when the supervisor has written its manifest, and not before.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from harness.cluster.protocol import NO_ROWS, Save, Written
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.plans import CHIEF, Progress, Rank, SavePlan, Tier
from harness.core.resumable import Resumable
from harness.recovery.accounting import Accounting
from harness.recovery.injections import Injections
from harness.recovery.interrupts import Interrupts
from harness.recovery.recoveries import Recoveries
from harness.recovery.requests import Requests
from harness.store import FileRecord, Manifest, Store, in_background


@dataclass(kw_only=True, eq=False)
class Checkpointer(Resumable):
    """Begins saves and commits them. One save is under way at a time.

    Attributes:
        newest: the manifest of the newest checkpoint, which a failure may have lost since; None before the first.
        saving: the position of the run when the save under way began; None without one.

    Args:
        in_background: whether training goes on while a save is written.
        dense_state: gives the dense parameters and the state of their optimizer by name.
        dense_optimizer: the optimizer's name, recorded in the file of the dense network.
    """

    _state = ("newest", "_held_by_store", "_lost")
    _state_types = (Manifest, FileRecord)

    requests: Requests
    ranks: tuple[Rank, ...]
    supervisor: SupervisorClient
    store: Store
    accounting: Accounting
    recoveries: Recoveries
    injections: Injections
    interrupts: Interrupts
    config_hash: str
    in_background: bool
    dense_state: Callable[[], Mapping[str, Tensor]]
    dense_optimizer: str

    def __post_init__(self) -> None:
        self._held_by_store = self.store.held(CHIEF)
        self.newest: Manifest | None = None
        self._lost: list[int] = []  # sequences of checkpoints, since the newest was committed
        self.saving: Progress | None = None
        self._dense: Future[FileRecord] | None = None  # the dense network's part of the save under way
        self._requests: Mapping[Rank, Save] = {}  # that began the save under way
        self._stall_s = 0.0  # seconds that training stood still for it so far

    @property
    def _sequence(self) -> int:
        """The number of the save under way, or of the next one."""
        return self.newest.sequence + 1 if self.newest else 0

    @property
    def _left(self) -> tuple[Manifest, ...]:
        """The newest checkpoint of each tier that no failure has lost, newest first."""
        held = () if self.newest is None else (self.newest, *self.newest.others)
        return tuple(each for each in held if each.sequence not in self._lost)

    @property
    def newest_left(self) -> Manifest | None:
        """The newest checkpoint that no failure has lost."""
        return next(iter(self._left), None)

    def lose(self, tiers: Collection[Tier]) -> Manifest | None:
        """Note that the checkpoints in ``tiers`` are lost, so that none is read again; returns the newest left."""
        self._lost += [each.sequence for each in self._left if each.tier in tiers]
        return self.newest_left

    def give_up(self) -> None:
        """Abandon the save under way, if any: wait for its thread, then discard the dense network's part."""
        dense, self.saving, self._dense = self._dense, None, None
        if dense is not None:
            wait([dense])
            self.store.discard(CHIEF, self._sequence)

    async def save(self, plan: SavePlan, progress: Progress) -> None:
        """Write and commit a checkpoint or, in the background, begin one.

        Raises StoreError if the disk failed.
        """
        assert self.saving is None, "one save at a time"
        began_s = self.supervisor.clock()
        self.supervisor.status(phase="save")
        mirrored = await self.recoveries.prepare_save(self.requests.ask, progress)
        newest = self.newest
        self._requests = {
            rank: Save(
                plan=plan,
                sequence=self._sequence,
                step=progress.step,
                records=newest.newest_of(rank) if newest else (),
                mirrored_N=mirrored.get(rank, NO_ROWS),
                faults=self.injections.write_faults,
                mode="begin" if self.in_background else "now",
            )
            for rank in self.ranks
        }
        written: dict[Rank, Written] = await (wait := self.requests.ask(self._requests, progress))
        while progress.step:  # the first save costs nothing
            with self.requests.held(wait.sent):
                is_struck = await self.interrupts.strikes_save(written, progress, plan.tier)
            if not is_struck and len(wait.sent.replies) == len(self._requests):
                break
            written = await self.requests.ask_again(wait.sent, progress)
        self.accounting.freeze()
        for kind in self.recoveries:
            kind.freeze(closes_interval=plan.closes_interval)
        self.saving, self._dense = progress, in_background("save", self._dense_writer(progress))
        self._stall_s = self.supervisor.clock() - began_s
        if not self.in_background:
            self._commit(written, began_s)
        self.supervisor.status(phase="train")

    async def finish_pending(self, progress: Progress) -> None:
        """Wait for the save under way, if any, and commit it. Raises as :meth:`save`."""
        if self.saving is None:
            return
        began_s = self.supervisor.clock() - self._stall_s
        self.supervisor.status(phase="save")
        requests = {rank: replace(request, mode="finish") for rank, request in self._requests.items()}
        written: dict[Rank, Written] = await self.requests.ask(requests, progress)
        self._commit(written, began_s)
        if late := {rank: requests[rank] for rank, reply in written.items() if reply.is_late}:
            for kind in self.recoveries:
                await kind.wrote_late(late, self.requests.ask, progress)
        self.supervisor.status(phase="train")

    def _commit(self, written: Mapping[Rank, Written], began_s: float) -> None:
        """Have the manifest of the save under way written, and charge the save.

        ``began_s``: the clock's reading from which on training stood still for it.
        """
        progress, plan = self.saving, self._requests[self.ranks[0]].plan
        assert progress is not None, "a save is under way"
        assert self._dense is not None, "a save is under way"
        manifest = Manifest(
            sequence=self._sequence,
            step=progress.step,
            samples=progress.samples,
            kind=plan.kind,
            config_hash=self.config_hash,
            shards={rank: reply.records for rank, reply in written.items()},
            trainer=self._dense.result(),
            tier=plan.tier,
            others=tuple(replace(each, others=()) for each in self._left if each.tier != plan.tier),
        )
        self.injections.record_write_faults(written)
        self.injections.strike("manifest")  # all files are on disk: the save counts, even if a rank dies now
        self.supervisor.commit(manifest)
        self.newest, self.saving, self._dense, self._lost = manifest, None, None, []
        for kind in self.recoveries:
            kind.committed()
        stall_s = self.supervisor.clock() - began_s + sum(reply.waited_s for reply in written.values())
        self.supervisor.record(self.accounting.charge_save(plan, manifest, written, stall_s))

    async def save_noticed(self, most_rows: Mapping[Rank, int], progress: Progress) -> dict[Rank, Written]:
        """Have ranks that are about to die save so many rows, besides the newest checkpoint, and commit that.

        Raises StoreError if the disk failed. No save may be under way, and there must be a checkpoint.
        """
        assert self.newest is not None, "rows are added to a checkpoint"
        newest, plan = self.newest, SavePlan(kind="notice", closes_interval=False)
        requests = {
            rank: Save(
                plan=plan,
                sequence=self._sequence,
                step=progress.step,
                records=newest.shards[rank][:1],
                most_rows=number,
            )
            for rank, number in most_rows.items()
        }
        with self.injections.suspended():
            asked = self.requests.ask(requests, progress)
        written: dict[Rank, Written] = await asked
        noticed = {rank: (*newest.noticed.get(rank, ()), reply.records[-1]) for rank, reply in written.items()}
        self.newest = replace(newest, sequence=self._sequence, noticed={**newest.noticed, **noticed})
        self.supervisor.commit(self.newest)
        return written

    def drop_noticed(self) -> None:
        """Drop what was saved on notice since the newest checkpoint, to which all ranks are about to return."""
        if self.newest is not None:
            self.newest = replace(self.newest, noticed={})

    def _dense_writer(self, progress: Progress) -> Callable[[], FileRecord]:
        """A function that writes the dense network, for a save in the background from a copy made now."""
        tensors = self.dense_state()
        if self.in_background:
            tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        # Every random stream is derived from (seed, labels, step): the position is the state of all of them.
        position = {"step": progress.step, "samples": progress.samples}
        extra = {"position": position, "optimizer": self.dense_optimizer}
        write, sequence = self.store.write_dense, self._sequence
        return partial(write, CHIEF, sequence, progress.step, tensors, extra)
