"""Law: whatever was saved before, and wherever a process or the power ends, the last commit is found, and whole."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as given_by

from harness.store import (
    CheckpointStore,
    FileRecord,
    Manifest,
    ShardStore,
    newest_checkpoint,
    read_dense,
    wants_compaction,
    write_dense,
)
from tests.crashes import LOSSES, Disk
from tests.store.helpers import chosen, manifest, rows_of

NUM_ROWS = 7
RANKS = ("ps0", "ps1")


@dataclass(frozen=True)
class Step:
    """A save of both ranks: of all rows, or of ``rows``. ``commits``: it is not abandoned. ``reopens``: before it, the
    folder is opened anew, as by a supervisor that was started again."""

    rows: frozenset[int] | None
    commits: bool
    reopens: bool


ALL, HALF = Step(None, commits=True, reopens=False), Step(frozenset(range(4)), commits=True, reopens=False)
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


@dataclass
class History:
    """What was saved: of each commit the rows of both ranks; the sequence of the last commit that has returned."""

    rows: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    last: int | None = None

    def carry_out(self, steps: list[Step], root: Path, *, fsync: bool) -> None:
        """Save and commit as ``steps`` say."""
        store = CheckpointStore(root, keep=1, fsync=fsync)
        newest: Manifest | None = None
        now = {rank: rows_of(number, NUM_ROWS) for number, rank in enumerate(RANKS)}
        for number, step in enumerate(steps, start=1):
            if step.reopens:
                store = CheckpointStore(root, keep=1, fsync=fsync)
            sequence = store.next_sequence()
            shards: dict[str, tuple[FileRecord, ...]] = {}
            saved: dict[str, torch.Tensor] = {}
            for place, rank in enumerate(RANKS):
                now[rank] = rows_of(100 * number + place, NUM_ROWS)
                chain = newest.shards[rank] if newest and step.rows is not None else ()
                files = ShardStore(root, rank, fsync=fsync)
                before_MD = self.rows[newest.sequence][rank] if newest else None
                shards[rank], saved[rank] = save(files, sequence, step.rows, now[rank], chain, before_MD)
            dense = write_dense(root, "trainer0", sequence, sequence, tensors={"w": now["ps0"]}, extra={}, fsync=fsync)
            if step.commits:
                self.rows[sequence] = saved
                newest = manifest(sequence, sequence, shards, dense)
                store.commit(newest)
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


@pytest.mark.parametrize("fsync", [True, False])
@example(steps=[ALL, HALF, HALF, HALF, replace(HALF, commits=False), replace(HALF, reopens=True)])
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_a_crash_at_any_call_leaves_the_last_commit(steps: list[Step], *, fsync: bool) -> None:
    """Saves, deltas, compactions and commits, cut short at each call that changes a file; without fsync, by a kill."""
    with TemporaryDirectory() as name:
        root, left = Path(name) / "live", Path(name) / "left"
        root.mkdir()
        history = History()

        def check() -> None:
            for loss in LOSSES if fsync else LOSSES[:1]:
                history.check(disk.after(loss, left))

        disk = Disk(root, check)
        with disk.installed():
            history.carry_out(steps, root, fsync=fsync)
        assert disk.num_calls > 2 * len(steps)
