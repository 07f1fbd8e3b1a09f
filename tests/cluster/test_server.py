"""What a rank's server tells its tracker."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from harness.cluster.protocol import Exchange, Initialise, Push, WriteBack
from harness.cluster.server import RankServer, RankSpec
from harness.core.placement import Placement
from harness.core.trackers import TRACKERS, Tracker, TrackerSpec

DIM = 4
NUM_ROWS = 60


class Noting(Tracker):
    """Writes down every call; chooses the rows that were updated since the last full save."""

    needs_touches: ClassVar[bool] = True
    needs_samples: ClassVar[bool] = True
    needs_norms: ClassVar[bool] = True

    def __init__(self, shard: Any, spec: TrackerSpec) -> None:
        self.calls: list[tuple] = []
        self.changed: set[int] = set()

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """Write it down."""
        self.calls.append(("touched", step, rows_N.tolist(), counts_N.tolist()))
        self.changed |= set(rows_N.tolist())

    def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
        """Write it down."""
        self.calls.append(("moved", step, rows_N.tolist(), norms_N.tolist()))

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """Write it down."""
        self.calls.append(("sampled", step, rows_N[is_sampled_N].tolist()))

    def choose(self, table: int, step: int) -> Tensor:
        """All that differ from the base."""
        return torch.tensor(sorted(self.changed), dtype=torch.int64)

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Write it down."""
        self.calls.append(("saved", table, rows if isinstance(rows, slice) else rows.tolist()))
        if isinstance(rows, slice):
            self.changed.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RankServer:
    """A rank of one table, with a tracker that notes its calls."""
    monkeypatch.setitem(TRACKERS, "noting", Noting)
    spec = RankSpec(
        placement=Placement("row", (NUM_ROWS,), 1),
        embedding_dim=DIM,
        seed=0,
        tracker=TrackerSpec("noting", (0,)),
        count_updates=True,
        checkpoints=tmp_path,
        fsync=False,
        save_buffer_bytes=1 << 16,
    )
    server = RankServer(spec, "ps0")
    server.handle(Initialise(step=0))
    return server


def push(step: int, rows: list[int], counts: list[int], sampled: list[bool]) -> Exchange:
    """A step's gradients, all ones."""
    return Exchange(
        push=Push(
            step=step,
            rows_N=torch.tensor(rows),
            grads_ND=torch.ones(len(rows), DIM),
            counts_N=torch.tensor(counts, dtype=torch.int32),
            sampled_N=torch.tensor(sampled),
            learning_rate=0.1,
        )
    )


def calls(server: RankServer) -> list[tuple]:
    """What the tracker was told."""
    tracker = server._tracker
    assert isinstance(tracker, Noting)
    return tracker.calls


STEPS = ((1, [2, 5, 9], [1, 3, 1], [False, True, True]), (2, [5], [2], [False]), (3, [0, 9], [1, 1], [True, False]))
TOUCHED = [("touched", step, rows, counts) for step, rows, counts, _ in STEPS]
SAMPLED = [("sampled", 1, [5, 9]), ("sampled", 3, [0])]


def test_a_tracker_is_told_of_every_step_once(server: RankServer) -> None:
    """Of each step its rows, counts and sampled rows; of a step that is sent again, nothing."""
    for step in STEPS:
        for _ in range(2):
            server.handle(push(*step))
    assert [call for call in calls(server) if call[0] == "touched"] == TOUCHED
    assert [call for call in calls(server) if call[0] == "sampled" and call[2]] == SAMPLED
    moved = [call for call in calls(server) if call[0] == "moved"]
    assert [call[1:3] for call in moved] == [call[1:3] for call in TOUCHED]
    assert all(norm == pytest.approx(0.1 * DIM**0.5) for call in moved for norm in call[3]), "gradients of ones"


def test_a_client_cache_reports_steps_when_it_writes_back(server: RankServer) -> None:
    """The same calls in the same order of steps, with one message for several steps; sent again, nothing."""
    written = WriteBack(
        step=3,
        rows_N=torch.tensor([0, 2, 5, 9]),
        values_ND=torch.ones(4, DIM),
        counts_N=torch.tensor([1, 1, 5, 2], dtype=torch.int32),
        sampled=tuple((step, torch.tensor(rows)) for _, step, rows in SAMPLED),
        touched=tuple((step, torch.tensor(rows), torch.tensor(counts)) for _, step, rows, counts in TOUCHED),
    )
    for _ in range(2):
        server.handle(Exchange(push=written))
    assert [call for call in calls(server) if call[0] == "touched"] == TOUCHED
    assert [call for call in calls(server) if call[0] == "sampled"] == SAMPLED
