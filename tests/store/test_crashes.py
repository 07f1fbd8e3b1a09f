"""Law: whatever was saved before, and wherever processes or the power end, the last commit is found, and whole."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as given_by
from torch import Tensor

from harness.core.errors import StoreError
from harness.core.resumable import EventsPosition
from harness.store import (
    FileRecord,
    FileStore,
    ResumeFolder,
    ResumePoint,
    newest_checkpoint,
    read_state,
    wants_compaction,
    write_state,
)
from tests.crashes import LOSSES, Disk, Ended, Loss
from tests.store.helpers import OneShard, chosen, files, manifest, read_dense, rows_of, write_dense

NUM_ROWS = 7
RANKS = ("ps0", "ps1")


@dataclass(frozen=True)
class Step:
    """A save of both ranks: of all rows, or of ``rows``. ``commits``: it is not abandoned. ``reopens``: before it, the
    folder is opened anew, as by a supervisor that was started again."""

    rows: frozenset[int] | None
    commits: bool = True
    reopens: bool = False


@dataclass(frozen=True)
class Life:
    """What a process saves, the number of the call before which it ends, if it makes so many, and what is lost then."""

    steps: Sequence[Step]
    ends: int
    loss: Loss


STEPS = given_by.builds(
    Step,
    rows=given_by.none() | given_by.frozensets(given_by.integers(0, NUM_ROWS - 1), max_size=NUM_ROWS),
    commits=given_by.sampled_from([True, True, True, False]),
    reopens=given_by.booleans(),
)
LIFE = given_by.builds(
    Life,
    steps=given_by.lists(STEPS, min_size=1, max_size=5),
    ends=given_by.integers(1, 120),
    loss=given_by.sampled_from(LOSSES),
)
LIVES = given_by.lists(LIFE, min_size=1, max_size=3)
"""Processes that save one after another, each with what the one before has left."""


class _Processes:
    """Processes on one disk: before each call that changes a file a crash is tried, with each kind of loss.

    ``rows``: of each commit, by sequence, the rows of both ranks. ``last``: the last commit that has returned.
    """

    def __init__(self, folder: Path, *, fsync: bool) -> None:
        self.folder, self.fsync = folder, fsync
        self.losses = LOSSES if fsync else LOSSES[:1]  # without fsync processes are killed, and the power stays
        self.rows: dict[int, dict[str, Tensor]] = {}
        self.last: int | None = None
        self.num_saves = self.num_calls = self.ends = 0
        (folder / "0").mkdir()
        self.disk = Disk(folder / "0", self.try_crashes)

    def live(self, number: int, life: Life) -> None:
        """Carry out ``life`` until it ends."""
        began, self.ends = self.disk.num_calls, self.disk.num_calls + life.ends
        with suppress(Ended), self.disk.installed():
            self.carry_out(life.steps)
        self.num_calls += self.disk.num_calls - began
        if life.loss in self.losses[1:]:
            self.disk = Disk(self.disk.after(life.loss, self.folder / f"{number}"), self.try_crashes)

    def carry_out(self, steps: Sequence[Step]) -> None:
        """Save and commit as ``steps`` say, after the checkpoint that the process finds: all others are gone."""
        root = self.disk.root
        store = FileStore(root, keep=1, fsync=self.fsync)
        store.open()
        newest, _ = newest_checkpoint(root)
        self.last = newest and newest.sequence
        self.rows = {} if newest is None else {newest.sequence: self.rows[newest.sequence]}
        for step in steps:
            self.num_saves += 1
            sequence = self.num_saves
            if step.reopens:
                store = FileStore(root, keep=1, fsync=self.fsync)
                store.open()
            shards: dict[str, tuple[FileRecord, ...]] = {}
            saved: dict[str, Tensor] = {}
            for place, rank in enumerate(RANKS):
                now_MD, shard = rows_of(100 * sequence + place, NUM_ROWS), OneShard(store, rank)
                if newest is None or step.rows is None:
                    shards[rank], saved[rank] = (shard.base(sequence, sequence, now_MD),), now_MD
                else:
                    ids, chain = sorted(step.rows), newest.shards[rank]
                    saved[rank] = self.rows[newest.sequence][rank].clone()
                    saved[rank][ids] = now_MD[ids]
                    delta = shard.delta(sequence, sequence, now_MD, [chosen(*ids)])
                    chain = (shard.compact(chain, sequence),) if wants_compaction(chain) else chain
                    shards[rank] = (*chain, delta)
            dense = write_dense(root, sequence, sequence, fsync=self.fsync, w=saved["ps0"])
            if step.commits:
                self.rows[sequence] = saved
                newest = manifest(sequence, sequence, shards, dense)
                store.commit(newest)
                store.close()
                self.last = sequence

    def try_crashes(self) -> None:
        """The last commit, or the one under way, is what each crash leaves, every file of it as it was written."""
        may_be = {self.last, *(sequence for sequence in self.rows if self.last is None or sequence > self.last)}
        for root in self.disk.left(self.folder / "left", self.losses, expected=may_be):
            found, _ = newest_checkpoint(root)
            assert (found and found.sequence) in may_be
            if found is not None:
                for rank, records in found.shards.items():
                    rows_MD = files(root, rank).read(records, torch.empty(NUM_ROWS, 3))
                    assert torch.equal(rows_MD, self.rows[found.sequence][rank])
                read_dense(root, found.trainer)
        if self.disk.num_calls >= self.ends:
            raise Ended


def live(lives: Sequence[Life], *, fsync: bool) -> int:
    """Carry out ``lives``; the number of their calls. Raises AssertionError if a crash would lose the last commit."""
    with TemporaryDirectory() as name:
        processes = _Processes(Path(name), fsync=fsync)
        for number, life in enumerate(lives, start=1):
            processes.live(number, life)
        return processes.num_calls


ALL, HALF = Step(None), Step(frozenset(range(4)))
EVERY_KIND = [ALL, HALF, HALF, HALF, replace(HALF, commits=False), replace(HALF, reopens=True)]
WHOLE = 1000  # more calls than a life has


@pytest.mark.parametrize("fsync", [True, False])
@example(lives=[Life(EVERY_KIND, WHOLE, "kill")])
@example(lives=[Life([ALL, HALF, HALF], 60, "kill"), Life([HALF, ALL], 25, "late names"), Life([HALF], WHOLE, "kill")])
@settings(max_examples=settings().max_examples // 10)
@given(lives=LIVES)
def test_a_crash_at_any_call_leaves_the_last_commit(lives: list[Life], *, fsync: bool) -> None:
    """Saves, deltas, compactions and commits of processes that end and are followed by others, cut short at each call
    that changes a file; without fsync, by a kill."""
    assert live(lives, fsync=fsync) > 0


def test_a_crash_at_any_call_leaves_the_last_resume_point(tmp_path: Path) -> None:
    """The last committed point is found, or the one under way, and its state is whole."""
    root = tmp_path / "live"
    root.mkdir()
    committed: list[int | None] = [None]

    def check() -> None:
        under_way = 1 + (-1 if committed[-1] is None else committed[-1])
        for left in disk.left(tmp_path / "left", expected=under_way):
            found = newest_point(ResumeFolder(left / "resume", fsync=True))
            assert (found and found.number) in {committed[-1], under_way}
            if found is not None:
                assert read_state(left / "resume", found.files["ps0"])["rows"].eq(found.number).all()

    disk = Disk(root, check)
    with disk.installed():
        folder = ResumeFolder(root / "resume", fsync=True)
        folder.prepare()
        for number in range(3):
            state = {"rows": torch.full((2, 3), number)}
            files = {rank: write_state(folder.root, rank, number, 0, state, fsync=True) for rank in ("ps0", "trainer0")}
            point = make_point(number, files)
            folder.commit(point)
            folder.keep_only(point)
            committed.append(number)
    assert disk.num_calls > 40
    assert len(list(folder.root.glob("*/*.bin"))) == 2


def make_point(number: int, files: dict[str, FileRecord]) -> ResumePoint:
    """A resume point without a checkpoint."""
    events = EventsPosition(num_bytes=1, num_events=1, digest="e")
    about = {
        "config_hash": "c",
        "code": "d",
        "checkpoint": None,
        "store": "files",
        "supervisor": {"generation": number},
    }
    return ResumePoint(number=number, step=number, events=events, files=files, **about)


def newest_point(folder: ResumeFolder) -> ResumePoint | None:
    """The newest point whose files are whole."""
    for path in folder.paths():
        with suppress(StoreError):
            return folder.read(path)
    return None
