"""Lives of a store: processes that save, each of which ends at some call, maybe with the power, and what they leave."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hypothesis import strategies as given_by

from harness.store import (
    CheckpointStore,
    FileRecord,
    Manifest,
    ShardStore,
    newest_checkpoint,
    wants_compaction,
)
from tests.crashes import LOSSES, Disk, Loss
from tests.store.helpers import chosen, manifest, next_sequence, read_dense, rows_of, write_dense

NUM_ROWS = 7
RANKS = ("ps0", "ps1")


@dataclass(frozen=True)
class Step:
    """A save of both ranks: of all rows, or of ``rows``. ``commits``: it is not abandoned. ``reopens``: before it, the
    folder is opened anew, as by a supervisor that was started again."""

    rows: frozenset[int] | None
    commits: bool
    reopens: bool


STEPS = given_by.lists(
    given_by.builds(
        Step,
        rows=given_by.none() | given_by.frozensets(given_by.integers(0, NUM_ROWS - 1), max_size=NUM_ROWS),
        commits=given_by.sampled_from([True, True, True, False]),
        reopens=given_by.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@dataclass(frozen=True)
class Life:
    """What a process saves, the number of the call before which it ends, if it makes so many, and what is lost then."""

    steps: Sequence[Step]
    ends: int
    loss: Loss


LIVES = given_by.lists(
    given_by.builds(Life, steps=STEPS, ends=given_by.integers(1, 120), loss=given_by.sampled_from(LOSSES)),
    min_size=1,
    max_size=3,
)


class Ended(Exception):
    """The process ends here."""


@dataclass
class History:
    """What was saved: of each commit the rows of both ranks; the sequence of the last commit that has returned."""

    rows: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    last: int | None = None
    num_saves: int = 0

    def take_up(self, root: Path) -> Manifest | None:
        """The checkpoint that the next process finds: all others are gone."""
        found, _ = newest_checkpoint(root)
        self.last = found and found.sequence
        self.rows = {} if found is None else {found.sequence: self.rows[found.sequence]}
        return found

    def carry_out(self, steps: Sequence[Step], root: Path, *, fsync: bool) -> None:
        """Save and commit as ``steps`` say, in a process of its own."""
        store = CheckpointStore(root, keep=1, fsync=fsync)
        newest = self.take_up(root)
        now: dict[str, torch.Tensor] = {}
        for step in steps:
            self.num_saves += 1
            if step.reopens:
                store = CheckpointStore(root, keep=1, fsync=fsync)
            sequence = next_sequence(root)
            shards: dict[str, tuple[FileRecord, ...]] = {}
            saved: dict[str, torch.Tensor] = {}
            for place, rank in enumerate(RANKS):
                now[rank] = rows_of(100 * self.num_saves + place, NUM_ROWS)
                chain = newest.shards[rank] if newest and step.rows is not None else ()
                files = ShardStore(root, rank, fsync=fsync)
                before_MD = self.rows[newest.sequence][rank] if newest else None
                shards[rank], saved[rank] = save(files, sequence, step.rows, now[rank], chain, before_MD)
            dense = write_dense(root, sequence, sequence, tensors={"w": now["ps0"]}, extra={}, fsync=fsync)
            if step.commits:
                self.rows[sequence] = saved
                newest = manifest(sequence, sequence, shards, dense)
                store.commit(newest)
                store.wait()
                self.last = sequence

    def check(self, root: Path) -> None:
        """The last commit, or the one under way, is found in ``root``, every file of it as it was written."""
        found, _ = newest_checkpoint(root)
        if self.last is None and found is None:
            return
        assert found is not None
        under_way = [sequence for sequence in self.rows if self.last is None or sequence > self.last]
        assert found.sequence in {self.last, *under_way}
        for rank, records in found.shards.items():
            rows_MD = torch.empty(NUM_ROWS, 3)
            ShardStore(root, rank).read_into(records, rows_MD)
            assert torch.equal(rows_MD, self.rows[found.sequence][rank])
        read_dense(root, found.trainer)


def save(  # noqa: PLR0917
    files: ShardStore,
    sequence: int,
    rows: frozenset[int] | None,
    now_MD: torch.Tensor,
    chain: tuple[FileRecord, ...],
    before_MD: torch.Tensor | None,
) -> tuple[tuple[FileRecord, ...], torch.Tensor]:
    """The files of a shard, as a rank writes them, and the rows that they restore to. Without a chain: all rows."""
    if not chain or rows is None or before_MD is None:
        return (files.write_base(sequence, sequence, now_MD),), now_MD
    rows_MD = before_MD.clone()
    rows_MD[sorted(rows)] = now_MD[sorted(rows)]
    delta = files.write_delta(sequence, sequence, now_MD, [chosen(*sorted(rows))])
    base = (files.compact(chain, sequence),) if wants_compaction(chain) else chain
    return (*base, delta), rows_MD


class _Watched:
    """A disk on which processes live: before each call a crash is tried, with each of ``losses``."""

    def __init__(self, root: Path, history: History, losses: Sequence[Loss]) -> None:
        self.disk = Disk(root, self._before_call)
        self._history = history
        self._losses = losses
        self._ends = 0

    def live(self, life: Life, *, fsync: bool) -> int:
        """Carry out ``life``; the number of its calls."""
        began = self.disk.num_calls
        self._ends = began + life.ends
        with suppress(Ended), self.disk.installed():
            self._history.carry_out(life.steps, self.disk.root, fsync=fsync)
        return self.disk.num_calls - began

    def _before_call(self) -> None:
        for loss in self._losses:
            self._history.check(self.disk.after(loss, self.disk.root.with_name("left")))
        if self.disk.num_calls >= self._ends:
            raise Ended


def live(lives: Sequence[Life], *, fsync: bool) -> int:
    """Carry out ``lives``, one after another, each with what the one before has left; the number of their calls.

    Without ``fsync`` processes are killed, and the power stays. Raises AssertionError if at any call a crash would not
    leave the last commit, whole.
    """
    history, num_calls = History(), 0
    losses = LOSSES if fsync else LOSSES[:1]
    with TemporaryDirectory() as name:
        root = Path(name) / "0"
        root.mkdir()
        watched = _Watched(root, history, losses)
        for number, life in enumerate(lives, start=1):
            num_calls += watched.live(life, fsync=fsync)
            if life.loss in losses[1:]:
                watched = _Watched(watched.disk.after(life.loss, Path(name) / str(number)), history, losses)
    return num_calls
