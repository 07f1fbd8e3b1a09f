"""Laws of a snapshot: whatever changes meanwhile, what is read is what was; and it keeps its bound."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.store import Part, Snapshot, in_background
from harness.store.snapshot import GivenUp
from tests.store.helpers import DIM, NUM_ROWS, chosen, files, rows_of

ROW_BYTES = DIM * 4
PARTS: tuple[Part, ...] = (chosen(*range(3, 60, 2)), slice(60, 80), chosen(81, 90, 100))
BUFFERS_BYTES = [1, 12 * ROW_BYTES, 1 << 20]


class Training:
    """Steps that change random rows of a shard, which they first ask a snapshot for."""

    def __init__(self, snapshot: Snapshot, seed: int) -> None:
        self.snapshot = snapshot
        self.chance = random.Random(seed)
        self.blocked_N = torch.empty(0, dtype=torch.int64)
        self.num_blocked = 0

    def some_steps(self) -> None:
        """Up to three steps; they end where one finds no room."""
        for _ in range(self.chance.randrange(4)):
            if not len(self.blocked_N):
                self.blocked_N = torch.tensor(self.chance.sample(range(NUM_ROWS), self.chance.randrange(1, 30)))
                self.rows_N = self.blocked_N
            self.blocked_N = self.snapshot.put_aside(self.blocked_N)
            if len(self.blocked_N):
                self.num_blocked += 1
                return
            self.snapshot.rows_MD[self.rows_N] += self.chance.random()


def read(snapshot: Snapshot, parts: tuple[Part, ...], training: Training) -> Iterator[Tensor]:
    """What a writer reads, with steps at every moment between two of its acts."""
    for part in parts:
        for chunk in snapshot.chunks(part):
            training.some_steps()
            chunk_WD = snapshot.copy(chunk)
            training.some_steps()
            snapshot.lay_over(chunk, chunk_WD)
            training.some_steps()
            yield chunk_WD.clone()


@pytest.mark.parametrize("buffer_bytes", BUFFERS_BYTES)
@pytest.mark.parametrize("parts", [None, PARTS], ids=["all", "parts"])
def test_what_is_read_is_what_was(parts: tuple[Part, ...] | None, buffer_bytes: int) -> None:
    """Every row has the value of the snapshot's moment, wherever steps come between copying a chunk and laying over."""
    num_blocked = num_changed = 0
    for seed in range(12):
        rows_MD = rows_of(seed)
        snapshot = Snapshot(rows_MD, parts, buffer_bytes=buffer_bytes)
        training = Training(snapshot, seed)
        asked = parts or (slice(0, NUM_ROWS),)
        found_KD = torch.cat(list(read(snapshot, asked, training)))
        ids = torch.cat([torch.arange(p.start, p.stop) if isinstance(p, slice) else p for p in asked])
        assert torch.equal(found_KD, rows_of(seed)[ids])
        num_changed += not torch.equal(rows_MD, rows_of(seed))
        num_blocked += training.num_blocked
    assert num_changed > 8, "steps went on"
    assert (num_blocked > 0) == (buffer_bytes < 1 << 20), "a small buffer makes steps wait, a large one does not"


def changing(rows: Snapshot, rows_MD: Tensor, enough: threading.Event) -> None:
    """Change random rows, as steps do, until it is enough."""
    chance = torch.Generator().manual_seed(0)
    while not enough.is_set():
        rows_N = torch.randperm(len(rows_MD), generator=chance)[:50]
        rows.before_change(rows_N)
        rows_MD[rows_N] += 1


@pytest.mark.parametrize(
    ("buffer_bytes", "parts"),
    [(1, None), (1, (chosen(*range(0, 1000, 3)), slice(1000, 2000))), (1 << 20, None)],
    ids=["base", "delta", "large"],
)
def test_a_file_written_beside_steps_is_the_file_written_before_them(
    tmp_path: Path, parts: tuple[Part, ...] | None, buffer_bytes: int
) -> None:
    """Byte for byte, with real threads, also where steps wait for the writer at every row."""
    rows_MD = rows_of(3, num_rows=2000)

    def write(root: Path, rows):
        shard = files(root)
        return shard.base(1, 10, rows) if parts is None else shard.delta(1, 10, rows, parts)

    before = write(tmp_path / "before", rows_MD)
    rows = Snapshot(rows_MD, parts, buffer_bytes=buffer_bytes)
    enough = threading.Event()
    steps = in_background("steps", lambda: changing(rows, rows_MD, enough))
    meanwhile = write(tmp_path / "meanwhile", rows)
    rows.release()
    enough.set()
    steps.result()
    assert meanwhile == before
    assert (rows.waited_s > 0) == (buffer_bytes == 1)


def test_what_is_given_up_leaves_no_file_and_nobody_waiting(tmp_path: Path) -> None:
    """The writer ends with its half-written file gone, and a step that waited for it goes on."""
    rows_MD = rows_of(3, num_rows=2000)
    rows = Snapshot(rows_MD, None, buffer_bytes=1)
    step = in_background("step", lambda: rows.before_change(torch.arange(2000)))  # no room for it
    rows.release()
    step.result()
    with pytest.raises(GivenUp):
        files(tmp_path).base(1, 10, rows)
    assert list((tmp_path / "ps0").iterdir()) == []
