"""Writes checkpoints: the ranks save themselves, the trainer writes the dense network, the supervisor the manifest.

A save is begun at a boundary. It is committed at once or, with ``save.mode=async``, at a later boundary. The checkpoint
exists when the supervisor has written its manifest, and not before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from harness.cluster.protocol import NO_ROWS, Ask, Collect, Save, Written
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.plans import CHIEF, Progress, Rank, SavePlan
from harness.core.resumable import State
from harness.record.place import Place
from harness.recovery.accounting import Accounting, CommittedSave
from harness.recovery.injections import Injections
from harness.recovery.recoveries import Recoveries
from harness.store import Background, FileRecord, Manifest, discard_dense, write_dense


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """How checkpoints are written.

    ``in_background``: training goes on while a save is written.
    ``dense_optimizer`` is recorded in the file of the dense network.
    """

    fsync: bool
    config_hash: str
    dense_optimizer: str
    in_background: bool = False


@dataclass(frozen=True, kw_only=True)
class PendingSave:
    """A save that is being written in the background.

    ``requests`` are those that began it. ``stall_s``: seconds that training stood still for it so far.
    """

    plan: SavePlan
    progress: Progress
    is_charged: bool
    requests: Mapping[Rank, Save]
    dense: Background[FileRecord]
    stall_s: float


class Checkpoints:
    """The newest checkpoint of a run in folder ``root``, and the save under way."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = Place(root)
        self.newest: Manifest | None = None
        self.pending: PendingSave | None = None
        self._kept: PendingSave | None = None  # the save under way whose file a resume point names

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next manifest; files of a save under way carry the same number."""
        return self.newest.sequence + 1 if self.newest else 0

    @property
    def saved_step(self) -> int | None:
        """Step of the newest save, committed or under way."""
        newest = self.pending.progress if self.pending else self.newest
        return newest.step if newest else None

    @property
    def saved_samples(self) -> int | None:
        """Samples behind the newest save, committed or under way."""
        newest = self.pending.progress if self.pending else self.newest
        return newest.samples if newest else None

    def state(self) -> State:
        """See :class:`harness.core.resumable.Stateful`. Waits for the file of a save in the background."""
        self._kept = self.pending
        return {
            "newest": self.newest and self.newest.to_text(),
            "pending": self.pending and _to_plain(self.pending),
        }

    def load(self, state: State) -> None:
        """See :class:`harness.core.resumable.Stateful`."""
        self.newest = state["newest"] and Manifest.from_text(state["newest"], "resume point")
        self.pending = self._kept = state["pending"] and _from_plain(state["pending"])

    @property
    def written_files(self) -> tuple[FileRecord, ...]:
        """The trainer's file of a save in the background. Waits for it."""
        return () if self.pending is None else (self.pending.dense.result(),)

    def begin(self, pending: PendingSave) -> None:
        """Record that a save is being written in the background."""
        self.pending = pending

    def commit(self, manifest: Manifest) -> None:
        """Record that the manifest of the save under way has been written."""
        self.newest, self.pending = manifest, None

    def close(self) -> None:
        """End the thread of the save under way, if any. Its file is removed unless a resume point names it."""
        if self.pending is not None and self.pending is self._kept:
            self.pending.dense.wait()
            self.pending = None
        self.give_up()

    def give_up(self) -> None:
        """Abandon the save under way, if any: its thread ends, and the trainer's file of it is removed."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.dense.wait()
            if self.place.is_own:
                discard_dense(self.root, CHIEF, self.next_sequence)


def _to_plain(pending: PendingSave) -> State:
    requests = {
        rank: {
            "sequence": save.sequence,
            "records": [record.to_json() for record in save.records],
            "mirrored_N": save.mirrored_N,
            "faults": list(save.faults),
        }
        for rank, save in pending.requests.items()
    }
    return {
        "plan": vars(pending.plan),
        "progress": vars(pending.progress),
        "is_charged": pending.is_charged,
        "requests": requests,
        "dense": pending.dense.result().to_json(),
        "stall_s": pending.stall_s,
    }


def _from_plain(state: State) -> PendingSave:
    plan, progress = SavePlan(**state["plan"]), Progress(**state["progress"])
    dense = FileRecord.from_json(state["dense"])
    requests = {
        rank: Save(
            plan=plan,
            sequence=save["sequence"],
            step=progress.step,
            records=tuple(FileRecord.from_json(record) for record in save["records"]),
            mirrored_N=save["mirrored_N"],
            faults=tuple(save["faults"]),
            in_background=True,
        )
        for rank, save in state["requests"].items()
    }
    return PendingSave(
        plan=plan,
        progress=progress,
        is_charged=state["is_charged"],
        requests=requests,
        dense=Background("save", lambda: dense),
        stall_s=state["stall_s"],
    )


class Checkpointer:
    """Begins saves and commits them.

    Args:
        dense_state: gives the dense parameters and the state of their optimizer by name.
        clock: seconds, monotonic; for the ``machine`` part of events and measured totals only.
    """

    def __init__(
        self,
        *,
        ask: Ask,
        ranks: tuple[Rank, ...],
        supervisor: SupervisorClient,
        checkpoints: Checkpoints,
        accounting: Accounting,
        recoveries: Recoveries,
        injections: Injections,
        store: StoreSpec,
        dense_state: Callable[[], Mapping[str, Tensor]],
        clock: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._ranks = ranks
        self._supervisor = supervisor
        self._checkpoints = checkpoints
        self._accounting = accounting
        self._recoveries = recoveries
        self._injections = injections
        self._store = store
        self._dense_state = dense_state
        self._clock = clock

    def save(self, plan: SavePlan, progress: Progress, *, is_charged: bool) -> None:
        """Write a checkpoint; in the background, begin one. Raises RolledBack if a failure voided it."""
        assert self._checkpoints.pending is None, "one save at a time"
        began_s = self._clock()
        self._supervisor.status(phase="save")
        mirrored = self._recoveries.prepare_save(self._ask, progress)
        newest = self._checkpoints.newest
        files = newest.shards if newest else {}
        requests = {
            rank: Save(
                plan=plan,
                sequence=self._checkpoints.next_sequence,
                step=progress.step,
                records=tuple(files.get(rank, ())),
                mirrored_N=mirrored.get(rank, NO_ROWS),
                faults=self._injections.write_faults,
                in_background=self._store.in_background,
            )
            for rank in self._ranks
        }
        written: dict[Rank, Written] = self._ask(requests, progress)
        self._accounting.freeze()
        for kind in self._recoveries:
            kind.freeze(closes_interval=plan.closes_interval)
        write = self._dense_writer(progress)
        if self._store.in_background:
            dense = Background("save", write)
            pending = PendingSave(
                plan=plan,
                progress=progress,
                is_charged=is_charged,
                requests=requests,
                dense=dense,
                stall_s=self._clock() - began_s,
            )
            self._checkpoints.begin(pending)
        else:
            self._commit(plan, progress, written, write(), is_charged=is_charged, began_s=began_s)
        self._supervisor.status(phase="train")

    def finish_pending(self, progress: Progress) -> None:
        """Wait for the save under way, if there is one, and commit it. Raises RolledBack if a failure voided it."""
        pending = self._checkpoints.pending
        if pending is None:
            return
        began_s = self._clock() - pending.stall_s
        self._supervisor.status(phase="save")
        collects = {rank: Collect(save=request) for rank, request in pending.requests.items()}
        written: dict[Rank, Written] = self._ask(collects, progress)
        self._commit(
            pending.plan,
            pending.progress,
            written,
            pending.dense.result(),
            is_charged=pending.is_charged,
            began_s=began_s,
        )
        if late := {rank: pending.requests[rank] for rank, reply in written.items() if reply.is_late}:
            for kind in self._recoveries:
                kind.wrote_late(late, self._ask, progress)
        self._supervisor.status(phase="train")

    def _commit(
        self,
        plan: SavePlan,
        progress: Progress,
        written: Mapping[Rank, Written],
        dense: FileRecord,
        *,
        is_charged: bool,
        began_s: float,
    ) -> None:
        """Have the manifest written, and the save charged. Training has stood still since ``began_s``."""
        manifest = Manifest(
            sequence=self._checkpoints.next_sequence,
            step=progress.step,
            samples=progress.samples,
            kind=plan.kind,
            config_hash=self._store.config_hash,
            shards={rank: reply.records for rank, reply in written.items()},
            trainer=dense,
        )
        self._injections.wrote(written)
        self._injections.strike("manifest")  # all files are on disk: the save counts, whoever dies now
        self._supervisor.commit(manifest)
        self._checkpoints.commit(manifest)
        for kind in self._recoveries:
            kind.committed()
        stall_s = self._clock() - began_s + sum(reply.waited_s for reply in written.values())
        committed = CommittedSave(
            plan=plan, progress=progress, is_charged=is_charged, manifest=manifest, written=written, stall_s=stall_s
        )
        self._supervisor.record(self._accounting.committed(committed))

    def _dense_writer(self, progress: Progress) -> Callable[[], FileRecord]:
        """A function that writes the dense network as it is now."""
        tensors = self._dense_state()
        if self._store.in_background:
            tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        write = partial(
            write_dense,
            self._checkpoints.root,
            CHIEF,
            self._checkpoints.next_sequence,
            progress.step,
            tensors=tensors,
            # Every random stream is derived from (seed, labels, step): the position is the state of all of them.
            extra={
                "position": {"step": progress.step, "samples": progress.samples},
                "optimizer": self._store.dense_optimizer,
            },
            fsync=self._store.fsync,
        )

        def write_in_place() -> FileRecord:
            self._checkpoints.place.check()
            return write()

        return write_in_place
