"""The writing and loading of resume points by the trainer, and the choice of the point from which a run is resumed.

A resume point is the whole state of a run at a boundary. It is not a save: it charges nothing and changes no counter,
tracker or event. A resumed run therefore ends with the same record as a run that was not interrupted.

Each PS rank and the trainer write ``state-N.bin``, in the format of the store; the supervisor writes ``point-N.json``
last: its own state, the hashes of config and code, the records of the files, and the position in ``events.jsonl``. Then
it removes the point before. No point is written while a save is under way or a lost rank has not been found: a resume
point recovers nobody. The run that goes on removes later checkpoints and events, and begins with the save, evaluation
and faults of the point's boundary. A new trainer after an unplanned death goes on in the same way.
"""

import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass

from harness.client.embedding_client import EmbeddingClient
from harness.cluster.protocol import LoadState, WriteState
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.errors import Damaged, MustStartAnew, PointKept, RunStopped, StoreError, shown
from harness.core.plans import CHIEF, Progress
from harness.core.resumable import Resumable, State
from harness.record.code import current_code, difference_of
from harness.record.folder import empty_run, has_resume_point
from harness.record.recorder import check_environment, check_position
from harness.record.rundir import RunDir
from harness.recovery.checkpointer import Checkpointer
from harness.recovery.injections import Injections
from harness.recovery.recoveries import Recoveries
from harness.recovery.requests import Requests
from harness.run.spec import RunSpec
from harness.store import (
    FileRecord,
    ResumeFolder,
    ResumePoint,
    Store,
    read_state,
    write_state,
)

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ResumePoints:
    """Writes the resume points of a run and loads the one that the run is resumed from.

    After a planned fault has killed a trainer, its successor takes over the state by :meth:`load_succession`.

    Args:
        parts: the trainer's objects with a state, by name.
        every_s: seconds between points; 0: one before every save; None: only when the run is asked to stop.
    """

    parts: Mapping[str, Resumable]
    client: EmbeddingClient
    requests: Requests
    recoveries: Recoveries
    injections: Injections
    checkpointer: Checkpointer
    supervisor: SupervisorClient
    every_s: float | None
    fsync: bool

    def __post_init__(self) -> None:
        self._resumption = self.supervisor.resumption()
        self._next_number = self._resumption.next_number
        self._began_s = self._last_s = self.supervisor.clock()
        self._written_s = 0.0

    def measured_s(self) -> dict[str, float]:
        """Measured times of the run: ``seconds`` in all, of which ``resume_seconds`` for resume points.

        They cover all starts of the run, each up to the resume point from which the next one went on.
        """
        return {"seconds": self.supervisor.clock() - self._began_s, "resume_seconds": self._written_s}

    def resume(self) -> bool:
        """Load the resume point into trainer and PS ranks; False if there is none.

        Raises StoreError if a file cannot be read or used, MustStartAnew if a rank died meanwhile.
        """
        root, point = self._resumption.root, self._resumption.point
        if point is None:
            return False
        self._load(read_state(root, point.files[CHIEF]))
        requests = {rank: LoadState(root=root, file=point.files[rank]) for rank in self.requests.ranks}
        if self.requests.ask_once(requests) is None:
            raise MustStartAnew(f"step {point.step}: a rank died while it loaded its state")
        return True

    def _state(self) -> State:
        return {**{name: part.state() for name, part in self.parts.items()}, "measured_s": self.measured_s()}

    def _load(self, state: State) -> None:
        for name in self.parts.keys() & state.keys():
            self.parts[name].load(state[name])
        self._began_s -= state["measured_s"]["seconds"]
        self._written_s = state["measured_s"]["resume_seconds"]

    def hand_over(self, *, all_die: bool) -> bytes:
        """The state for :meth:`load_succession` of a new trainer, if this one dies now, between two messages.

        It is pickled here: the control channel would share the memory of tensors, which ends with this process.

        ``all_die``: all trainers do. It is then without dense network, caches and mirror, and the call empties the
        caches and the mirror of this trainer. Else it has them, since the other trainers of the emulated job have a
        replica each.
        """
        if all_die:
            self.client.reset()
            for kind in self.recoveries:
                kind.forget()
        state = self._state()
        if all_die:
            del state["network"]
        return pickle.dumps((state, self._next_number))

    def load_succession(self) -> bool:
        """Take over from a former trainer that a planned fault killed; False if there was none.

        Loads the state that it left by :meth:`hand_over`, and records the failure that killed it.
        """
        succession = self._resumption.succession
        if succession is None:
            return False
        state, self._next_number = pickle.loads(succession.state)
        self._load(state)
        self.injections.take_over(succession.injection)
        return True

    async def at_boundary(self, progress: Progress, *, saves: bool) -> None:
        """Write a point if one is due and no save is under way. ``saves``: whether a save follows at this boundary.

        To be called before all actions due at the boundary. Waits for the messages in flight, so it must not be called
        while a planned fault depends on them. A point that cannot be written is logged.

        Raises RunStopped if the run is asked to stop, and the point was written, or could not be.
        """
        is_stopping = self.supervisor.is_stopping()
        if self.checkpointer.saving is not None or not (is_stopping or self._is_due(saves=saves)):
            return
        try:
            is_written = await self._write(progress)
        except StoreError as error:
            _log.warning("note: no resume point of step %d: %s", progress.step, error)
            if is_stopping:
                raise RunStopped(None) from error
        else:
            if is_stopping and is_written:
                raise RunStopped(progress.step)

    def _is_due(self, *, saves: bool) -> bool:
        if not self.every_s:
            return saves and self.every_s is not None
        return self.supervisor.clock() - self._last_s >= self.every_s

    async def _write(self, progress: Progress) -> bool:
        """Write and commit a point; False if a rank is dead, which the next step detects. Raises StoreError."""
        began_s = self._last_s = self.supervisor.clock()
        number, self._next_number = self._next_number, self._next_number + 1
        root = self._resumption.root
        await self.client.drain(progress)
        request = WriteState(root=root, number=number)
        files: Mapping[str, FileRecord] | None = self.requests.ask_once(dict.fromkeys(self.requests.ranks, request))
        if files is None:
            return False
        own = write_state(root, CHIEF, number, progress.step, self._state(), fsync=self.fsync)
        newest = self.checkpointer.newest
        self.supervisor.commit_point(number, progress.step, newest and newest.sequence, {**files, CHIEF: own})
        self._last_s = self.supervisor.clock()
        self._written_s += self._last_s - began_s
        return True


def point_to_go_on_from(run_spec: RunSpec, run: RunDir, folder: ResumeFolder, store: Store) -> ResumePoint | None:
    """The newest undamaged resume point of a run; a line is logged for each newer, damaged one.

    If there is none, the run's record is removed from its folder, and None returned.

    Raises:
        PointKept: the point is undamaged but unusable: a file cannot be read, or the config, the code, the environment
            or the record is another one.
        StoreError: the folder cannot be listed or emptied.
    """
    for path in folder.paths():
        try:
            point = folder.read(path)
            _check(point, path.name, run_spec=run_spec, run=run, store=store)
        except Damaged as error:
            _log.warning("note: %s; not used", error)
        except StoreError as error:
            raise PointKept(
                f"{error}; the resume point stays: put this right, or remove {folder.root} to start afresh"
            ) from error
        else:
            _log.info("%s: goes on from step %d of %d", shown(run.path), point.step, run_spec.num_steps)
            return point
    if has_resume_point(run.path):
        _log.info("%s: starts afresh", shown(run.path))
    empty_run(run.path)
    return None


def _check(point: ResumePoint, name: str, *, run_spec: RunSpec, run: RunDir, store: Store) -> None:
    """Check that a run can go on from ``point``.

    Raises:
        Damaged: the checkpoint that the point names is damaged.
        StoreError: the point belongs to another config, code, environment or record, or a file cannot be read.
    """
    where = run.resume / name
    if point.config_hash != run_spec.result_hash:
        raise StoreError(f"{where}: expected a resume point of config {run_spec.result_hash}, got {point.config_hash}")
    if point.code != current_code().fingerprint:
        raise StoreError(f"{where}: written by other code ({difference_of(run.path)})")
    if point.store != run_spec.store_kind:
        raise StoreError(f"{where}: its checkpoint is in store.kind={point.store}, expected {run_spec.store_kind}")
    if point.checkpoint is not None:
        store.check(point.checkpoint)
    check_environment(run, check_position(run.events, point.events))
