"""Resume points, as the trainer writes and loads them, and the one that a run goes on from.

A resume point is the whole state of a run at a boundary. It is no save: it charges nothing and changes no counter, no
tracker and no event, so a run that goes on from one ends with the record of a run that was not interrupted.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.client.embedding_client import EmbeddingClient
from harness.cluster.effects import Effects
from harness.cluster.protocol import LoadState, WriteState
from harness.core.errors import Damaged, PointKept, RunFailed, RunStopped, StoreError
from harness.core.plans import CHIEF, Progress
from harness.core.resumable import Resumable, State
from harness.record.code import current_code, difference_of, roots_of
from harness.record.folder import empty_run, has_resume_point
from harness.record.place import Place
from harness.record.recorder import check_environment, check_position
from harness.record.rundir import RunDir
from harness.recovery.checkpointer import Checkpointer
from harness.recovery.failover import FailoverClient
from harness.run.spec import RunSpec
from harness.store import (
    FileRecord,
    ResumeFolder,
    ResumePoint,
    discard,
    read_checkpoint,
    read_state,
    write_state,
)

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ResumePoints:
    """The trainer's side: writes the resume points of a run, and loads the one that it goes on from.

    A trainer that replaces a dead one goes on from the state of another trainer, as from a resume point.

    Args:
        parts: the trainer's objects with a state, by name.
        every_s: seconds between points; 0: one before every save; None: only where the run is to stop.
    """

    parts: Mapping[str, Resumable]
    client: EmbeddingClient
    failover: FailoverClient
    checkpointer: Checkpointer
    effects: Effects
    every_s: float | None
    fsync: bool

    def __post_init__(self) -> None:
        self._resumption = self.effects.resumption()
        self._number = self._resumption.next_number
        self._began_s = self._last_s = self.effects.clock()
        self._written_s = 0.0

    def measured_s(self) -> dict[str, float]:
        """Seconds of this machine: of the run, without the time between two starts, and of its resume points."""
        return {"seconds": self.effects.clock() - self._began_s, "resume_seconds": self._written_s}

    def resume(self) -> bool:
        """Load the point that the run goes on from; False if it starts. Raises StoreError, RunFailed."""
        root, point = self._resumption.root, self._resumption.point
        if point is None:
            return False
        self._load(read_state(root, point.files[CHIEF]))
        requests = {rank: LoadState(root=root, file=point.files[rank]) for rank in self.failover.ranks}
        if self.failover.ask_once(requests) is None:
            raise RunFailed(f"step {point.step}: a rank died while it loaded its state; run it again")
        return True

    def _state(self) -> State:
        return {**{name: part.state() for name, part in self.parts.items()}, "measured_s": self.measured_s()}

    def _load(self, state: State) -> None:
        for name in self.parts.keys() & state.keys():
            self.parts[name].load(state[name])
        self._began_s -= state["measured_s"]["seconds"]
        self._written_s = state["measured_s"]["resume_seconds"]

    def admit_trainers(self, progress: Progress) -> None:
        """Take in the trainers that replace dead ones, between two steps. Raises RolledBack if a failure was found.

        To be called where it does not matter which message is in flight.
        """
        self.client.settle(progress)
        self.failover.cluster.admit(lambda: (self._state(), self._number, self.checkpointer.under_way()))

    def enter(self) -> bool:
        """Take the state of the other trainers, if this one replaces a dead one; False if it does not."""
        given = self.failover.cluster.enter()
        if given is None:
            return False
        state, self._number, save = given
        self._load(state)
        self.checkpointer.take_over(save)
        return True

    def hand_over(self) -> Any:
        """The state that outlives all trainers: the ledgers, and nothing of caches, mirror, dense network."""
        self.client.reset()
        for kind in self.failover.recoveries:
            kind.lose_trainers()
        state = self._state()
        del state["network"]
        return state, self._number, self.failover.cluster.hand_over()

    def succeed(self) -> bool:
        """Go on for trainers that have all been killed; False if this one is none of their successors."""
        succession = self._resumption.succession
        if succession is None:
            return False
        state, self._number, cluster = succession.state
        self._load(state)
        self.failover.injections.take_over(succession.struck)
        self.failover.cluster.take_over(cluster, succession.lost)
        return True

    def at_boundary(self, progress: Progress, *, saves: bool) -> None:
        """Write a point if one is due and no save is under way. ``saves``: whether one follows at this boundary.

        To be called where it does not matter which message is in flight, before what is due at the boundary. Raises
        RunStopped if the run is asked to stop, RolledBack if a failure was found.
        """
        is_stopping = self.effects.is_stopping()
        if self.checkpointer.checkpoints.saving is not None or not (is_stopping or self._is_due(saves=saves)):
            return
        try:
            is_written = self._write(progress)
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
        return self.effects.has_passed(self.every_s, self._last_s)

    def _write(self, progress: Progress) -> bool:
        """Write and commit a point; False if a rank is dead, which the next step finds. Raises StoreError."""
        began_s = self._last_s = self.effects.clock()
        number, self._number = self._number, self._number + 1
        root = self._resumption.root
        self.client.settle(progress)
        request = WriteState(root=root, number=number)
        files: Mapping[str, FileRecord] | None = self.failover.ask_once(dict.fromkeys(self.failover.ranks, request))
        if files is None:
            return False
        state = self._state()

        def write() -> FileRecord:
            if self.effects.group.dead:
                discard(root, CHIEF, number)
            return write_state(root, CHIEF, number, progress.step, state, fsync=self.fsync)

        own = self.effects.once(write)
        newest = self.checkpointer.checkpoints.newest
        self.effects.commit_point(number, progress.step, newest and newest.sequence, {**files, CHIEF: own})
        self._last_s = self.effects.clock()
        self._written_s += self._last_s - began_s
        return True


def point_to_go_on_from(run_spec: RunSpec, run: RunDir, folder: ResumeFolder, place: Place) -> ResumePoint | None:
    """The newest resume point of a run whose bytes are whole; of a newer one, the damage is logged, a line each.

    Where there is none, the run starts afresh: its folder is emptied. Raises PointKept if the run cannot go on from it
    now: a file cannot be read, or the code or the record is another.
    """
    for path in folder.paths():
        try:
            point = folder.read(path)
            _check(point, path.name, run_spec=run_spec, run=run)
        except Damaged as error:
            _log.warning("note: %s; not used", error)
        except StoreError as error:
            raise PointKept(
                f"{error}; the resume point stays: put this right, or remove {folder.root} to start afresh"
            ) from error
        else:
            _log.info("%s: goes on from step %d of %d", run.path, point.step, run_spec.num_steps)
            return point
    place.check()
    if has_resume_point(run.path):
        _log.info("%s: starts afresh", run.path)
    empty_run(run.path)
    return None


def _check(point: ResumePoint, name: str, *, run_spec: RunSpec, run: RunDir) -> None:
    """Raise StoreError unless ``point`` is of this config, code and record; Damaged unless its checkpoint is whole."""
    where = run.resume / name
    if point.config_hash != run_spec.result_hash:
        raise StoreError(f"{where}: expected a resume point of config {run_spec.result_hash}, got {point.config_hash}")
    if point.code != current_code(roots_of(run_spec.config)).fingerprint:
        raise StoreError(f"{where}: written by other code ({difference_of(run.path)})")
    if point.checkpoint is not None:
        read_checkpoint(run.checkpoints, point.checkpoint)
    check_environment(run, check_position(run.events, point.events))
