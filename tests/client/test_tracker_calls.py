"""What a tracker is told: each step once, however its rows travel."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from harness.cluster.protocol import Exchange, Initialise, Push, WriteBack
from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.placement import Placement
from harness.core.shard import Shard
from harness.core.trackers import TRACKERS, SsuTracker, TrackerSpec
from harness.store import MemoryStore
from tests.runs import changed, run, saving_every

Call = tuple[object, ...]


class RecordingTracker(SsuTracker):
    """Chooses as SSU does; records every call in ``calls``, by rank."""

    needs_touches: ClassVar[bool] = True
    needs_norms: ClassVar[bool] = True
    calls: ClassVar[dict[int, list[Call]]] = {}

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        super().__init__(shard, spec)
        self._own = self.calls.setdefault(shard.rank_index, [])

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        assert (rows_N.dtype, counts_N.dtype) == (torch.int64, torch.int32)
        self._own.append(("touched", step, rows_N.tolist(), counts_N.tolist()))

    def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
        assert (rows_N.dtype, norms_N.dtype) == (torch.int64, torch.float32)
        assert (norms_N > 0).any()
        self._own.append(("moved", step, rows_N.tolist(), norms_N.tolist()))

    def sampled(self, step: int, rows_N: Tensor, is_sampled_N: Tensor) -> None:
        """Record the rows that count; calls without any are void."""
        if is_sampled_N.any():
            self._own.append(("sampled", step, rows_N[is_sampled_N].tolist()))
        super().sampled(step, rows_N, is_sampled_N)

    def saved(self, table: int, rows: Tensor | slice) -> None:
        self._own.append(("saved", table, rows if isinstance(rows, slice) else rows.tolist()))
        super().saved(table, rows)

    def reset(self) -> None:
        self._own.append(("reset",))
        super().reset()


@pytest.fixture(autouse=True)
def _recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "ssu", RecordingTracker)
    RecordingTracker.calls.clear()


def calls_of(config: Config, run_dir: Path) -> dict[int, list[Call]]:
    """Every call of the trackers of a run, by rank."""
    RecordingTracker.calls.clear()
    run(config, run_dir)
    return {rank: list(calls) for rank, calls in RecordingTracker.calls.items()}


def test_a_tracker_is_told_the_same_on_every_data_path(config: Config, tmp_path: Path) -> None:
    """Call for call between two saves, under ten failures, also on ranks that have no row in most batches."""
    config = changed(config, strategy__name="cpr_ssu", data__max_train_samples=96, cluster__num_ps=16)
    config = saving_every(config, 48)
    plain = calls_of(config, tmp_path / "plain")
    assert {call[0] for calls in plain.values() for call in calls} == {
        *("touched", "moved", "sampled", "saved", "reset")
    }
    assert all(call[2] for calls in plain.values() for call in calls if call[0] in ("touched", "moved")), (
        "no call without a row"
    )
    paths = {
        "lookahead": {"cache__mode": "lookahead", "cache__lookahead": 30},
        "stale": {"cache__mode": "stale", "cache__staleness": 0},
        "async": {"save__mode": "async"},
    }
    for name, keys in paths.items():
        assert calls_of(changed(config, **keys), tmp_path / name) == plain, name


def test_a_tracker_is_told_of_a_message_once(tmp_path: Path) -> None:
    """Of a step's rows, counts and sampled rows, also by one message of a cache; of one sent again, nothing."""
    spec = RankSpec(
        placement=Placement("row", (60,), 1),
        embedding_dim=4,
        seed=0,
        tracker=TrackerSpec("ssu", (0,), {"r": 0.5}),
        counts_updates=True,
        store=MemoryStore(),
        fsync=False,
        save_buffer_bytes=1 << 16,
    )
    server = RankServer(spec, "ps0")
    server.handle(Initialise(step=0))
    rows_N, counts_N = torch.tensor([2, 5, 9]), torch.tensor([1, 3, 1], dtype=torch.int32)
    sampled_N, ones_ND = torch.tensor([False, True, True]), torch.ones(3, 4)
    push = Push(step=1, rows_N=rows_N, grads_ND=ones_ND, counts_N=counts_N, sampled_N=sampled_N, learning_rate=0.1)
    back = WriteBack(
        step=3,
        rows_N=rows_N,
        values_ND=ones_ND,
        counts_N=counts_N,
        sampled=((2, rows_N[:1]), (3, rows_N[1:])),
        touched=((2, rows_N, counts_N), (3, rows_N, counts_N)),
    )
    for message in (push, push, back, back):
        server.handle(Exchange(push=message))
    (calls,) = RecordingTracker.calls.values()
    rows, counts = rows_N.tolist(), counts_N.tolist()
    assert [call for call in calls if call[0] == "touched"] == [("touched", step, rows, counts) for step in (1, 2, 3)]
    sampled = [("sampled", 1, rows[1:]), ("sampled", 2, rows[:1]), ("sampled", 3, rows[1:])]
    assert [call for call in calls if call[0] == "sampled"] == sampled
    assert [call[1:3] for call in calls if call[0] == "moved"] == [(1, rows)]
