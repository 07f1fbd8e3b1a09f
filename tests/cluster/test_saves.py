"""Kinds of save on one rank: what its files restore, and what its tracker takes for saved, through random histories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.cluster.protocol import Exchange, Failure, Initialise, Push, Restore, Save, Written
from harness.cluster.server import RankServer, RankSpec
from harness.core.placement import Placement
from harness.core.plans import SavePlan
from harness.core.trackers import ChangedTracker, ScarTracker, TrackerSpec
from harness.store import FileRecord, FileStore

DIM = 4
CARDINALITIES = (300, 20, 90)
TRACKED = (0, 2)


class History:
    """A rank that trains at random and saves; its records are those of the newest save."""

    def __init__(self, folder: Path, tracker: str, *, seed: int = 0) -> None:
        spec = RankSpec(
            placement=Placement("row", CARDINALITIES, 1),
            embedding_dim=DIM,
            seed=0,
            tracker=TrackerSpec(tracker, TRACKED, {"r": 0.05}),
            counts_updates=True,
            store=FileStore(folder, fsync=False),
            fsync=False,
            save_buffer_bytes=1 << 16,
        )
        self.server = RankServer(spec, "ps0")
        self.shard, self.tracker = self.server.shard, self.server._tracker
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.records: tuple[FileRecord, ...] = ()
        self.sequence = 0
        self.ask(Initialise(step=0))
        self.save("full")

    def ask(self, request: Any) -> Any:
        reply = self.server.handle(request)
        assert not isinstance(reply, Failure), reply
        return reply

    def train(self, num_steps: int, num_rows: int = 12) -> None:
        """Random gradients of random rows, the low ones of each table more often."""
        num_all = len(self.shard.rows_MD)
        weights = 1 / (1 + np.arange(num_all) % 90)
        for _ in range(num_steps):
            rows = np.sort(self.rng.choice(num_all, num_rows, replace=False, p=weights / weights.sum()))
            push = Push(
                step=self.shard.applied_step + 1,
                rows_N=torch.from_numpy(rows),
                grads_ND=torch.from_numpy(self.rng.standard_normal((num_rows, DIM), np.float32)),
                counts_N=torch.ones(num_rows, dtype=torch.int32),
                sampled_N=torch.ones(num_rows, dtype=torch.bool),
                learning_rate=0.1,
            )
            self.ask(Exchange(push=push))

    def save(self, kind: str, *, meanwhile: int | None = None) -> Written:
        """A save; with ``meanwhile`` in the background of so many steps."""
        request = Save(
            plan=SavePlan(kind=kind),
            sequence=self.sequence,
            step=self.shard.applied_step,
            records=self.records,
            mode="now" if meanwhile is None else "begin",
        )
        written = self.ask(request)
        if meanwhile is not None:
            self.train(meanwhile)
            written = self.ask(replace(request, mode="finish"))
        self.sequence += 1
        self.records = written.records
        return written

    def restore(self) -> None:
        self.ask(Restore(records=self.records, step=self.shard.applied_step))

    def on_disk(self) -> torch.Tensor:
        """The rows that a restore would give."""
        rows_MD = torch.full_like(self.shard.rows_MD, torch.nan)
        self.server._store.read_rows(self.records, rows_MD)
        return rows_MD


@pytest.mark.parametrize("tracker", ["mfu", "mass", "scar"])
def test_a_restore_gives_every_row_its_newest_saved_version(tmp_path: Path, tracker: str) -> None:
    """Whatever was left out of whichever save, at once or in the background; SCAR's copy is what the files restore."""
    history = History(tmp_path, tracker)
    shard, rng = history.shard, history.rng
    expected_MD = shard.rows_MD.clone()
    chosen = []
    for number in range(40):
        history.train(5)
        rows = torch.cat([history.tracker.choose(table, shard.applied_step) for table in TRACKED])
        kind = str(rng.choice(["priority", "tracked"]))
        if kind == "priority":
            rows = torch.cat([rows, torch.arange(300, 320)])
        expected_MD[rows] = shard.rows_MD[rows]
        written = history.save(kind, meanwhile=None if rng.random() < 0.5 else int(rng.integers(0, 4)))
        assert written.num_rows == len(rows)
        assert torch.equal(history.on_disk(), expected_MD)
        if number % 10 == 9:
            history.restore()
            assert torch.equal(shard.rows_MD, expected_MD)
            assert all(len(history.tracker.choose(table, 1)) == 0 for table in TRACKED)
        if isinstance(history.tracker, ScarTracker):
            for table in TRACKED:
                assert torch.equal(history.tracker._saved[table], expected_MD[shard.span(table)])
        chosen.append(len(rows))
    assert len(set(chosen)) == 2, "the budget binds"


def test_differential_files_hold_the_rows_as_they_were_at_the_save(tmp_path: Path) -> None:
    """In at most a base and two deltas before each restore, which may add one; a delta replaces the one before it."""
    history = History(tmp_path, "changed", seed=1)
    num_bases = num_restores = 0
    for number in range(100):
        history.train(int(history.rng.integers(0, 6)))
        at_save_MD = history.shard.rows_MD.clone()
        before = history.records
        written = history.save("differential", meanwhile=2 if history.rng.random() < 0.5 else None)
        assert torch.equal(history.on_disk(), at_save_MD)
        is_base = history.records[-1].kind == "base"
        assert (len(history.records) == 1) == is_base
        if is_base:
            num_bases, num_restores = num_bases + 1, 0
            assert written.payload_bytes == len(at_save_MD) * 4 * DIM
        elif number % 9 == 8:
            history.restore()
            assert torch.equal(history.shard.rows_MD, at_save_MD)
            num_restores += 1
        elif not written.compacted:
            assert len(history.records) <= num_restores + 2
            assert set(history.records[:-1]) <= set(before)
    assert 1 < num_bases < 50


def test_a_base_is_written_where_deltas_cost_no_less(tmp_path: Path) -> None:
    """The saves of a period, its base included, cost less on average up to a new base than with one delta more."""
    history = History(tmp_path, "changed")
    assert isinstance(history.tracker, ChangedTracker)
    sizes, num_periods = [len(history.shard.rows_MD) * 4 * DIM], 0
    for _ in range(80):
        history.train(3)
        is_worth_it = history.tracker.num_changed * (4 * DIM + 4) < sum(sizes) / len(sizes)
        written = history.save("differential")
        assert (len(written.records) == 2) == is_worth_it
        num_periods += not is_worth_it
        sizes = [*sizes, written.payload_bytes] if is_worth_it else [written.payload_bytes]
    assert num_periods > 3
