"""Laws of a snapshot: whatever changes meanwhile, what is read is what was; and it keeps its bound."""

import random
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
