"""How rows travel decides nothing: every uncached path gives the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from torch import Tensor, equal

from harness.client.direct import DirectPath, Fetched, make_pushes
from harness.cluster.protocol import Exchange
from harness.config.model import Config
from harness.core.events import Event
from harness.core.lookup import plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress
from harness.core.shard import Shard
from tests.recovery.test_unplanned import run_mortal
from tests.runs import changed, run


def facts(events: list[Event]) -> list[dict]:
    """Events without their machine parts and the hash of their config."""
    return [{k: v for k, v in e.to_json().items() if k not in ("machine", "config_hash")} for e in events]


@pytest.mark.parametrize("placement", ["row", "table"])
@pytest.mark.parametrize("strategy", ["full", "cpr_ssu"])
def test_split_messages_change_nothing(config: Config, tmp_path: Path, strategy: str, placement: str) -> None:
    """A pull and a push a rank, or for each of its tables: event for event the fused run, under ten failures."""
    config = changed(config, strategy__name=strategy, cluster__placement=placement, data__max_train_samples=512)
    config = changed(config, eval__every_steps=45)
    _, fused = run(config, tmp_path / "fused")
    for data_path in ("pull_push", "naive"):
        _, split = run(changed(config, cluster__data_path=data_path), tmp_path / data_path)
        assert facts(split) == facts(fused), data_path


@pytest.mark.timeout(120)
def test_ranks_may_serve_the_parts_of_a_step_in_any_order(config: Config, tmp_path: Path) -> None:
    """On engine rpc a message for every table, served by two threads, gives the bits of engine local."""
    config = changed(config, strategy__name="cpr_mfu", data__max_train_samples=200, cluster__data_path="naive")
    config = changed(config, strategy__interval_samples=48)
    _, local = run(config, tmp_path / "local")
    _, rpc = run(changed(config, engine="rpc"), tmp_path / "rpc")
    assert facts(rpc) == facts(local)


@pytest.mark.parametrize("number", [10, 40, 400])
def test_a_death_between_parts_is_mended(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A rank that dies after some of a step's parts: full recovery ends bit-equal to no failure."""
    config = changed(config, data__max_train_samples=400, cluster__data_path="naive")
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    mortal = changed(config, strategy__name="full")
    finished = run_mortal(mortal, tmp_path / "mortal", monkeypatch, {("ps2", number, Exchange): "after"})
    assert finished.num_unplanned == 1
    assert finished.digests == reference.digests


@pytest.mark.parametrize("number", [41, 42, 80], ids=lambda number: f"message{number}")
@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_step_trains_on_what_the_ranks_hold(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, number: int
) -> None:
    """Also rows that were asked for ahead, shards restored alone meanwhile: to the bit, whoever lives."""
    real, seen = DirectPath.fetch, []

    def fetch(path: DirectPath, progress: Progress) -> Fetched:
        fetched = real(path, progress)
        plan, rows_ND = fetched.plan, fetched.rows_ND
        cluster: Any = path._recovery._cluster
        servers = cluster._ranks.servers
        for k, rows in enumerate(plan.rows):
            server = servers.get(f"ps{k}")
            if server is not None:
                first, last = plan.bounds[k : k + 2]
                assert equal(rows_ND[first:last], server.shard.gather(rows)), (progress.step, k)
                seen.append(path._underway is not None)
        return fetched

    monkeypatch.setattr(DirectPath, "fetch", fetch)
    config = changed(config, strategy__name="partial", strategy__interval_samples=300, data__max_train_samples=400)
    finished = run_mortal(config, tmp_path / "run", monkeypatch, {("ps2", number, Exchange): fate})
    assert finished.num_lost_ranks == 1
    assert sum(seen) > len(seen) / 2, "most rows came ahead"


def test_a_step_in_parts_is_applied_once_and_when_complete() -> None:
    """Parts count once however often they come; the step is applied with the last of them; a restore forgets parts."""
    placement = Placement("row", (50, 30), 1)
    ids_BF = np.array([[3, 4], [7, 4], [3, 9]])
    plan = plan_batch(ids_BF, placement, np.zeros(3, dtype=bool))
    grads_ND = make_grads(sum(plan.splits))
    whole, parted = (Shard(placement, 0, 4, seed=0, count_updates=True) for _ in range(2))
    for shard in (whole, parted):
        shard.initialise(applied_step=0)
    (push,) = make_pushes(plan, grads_ND, 1, 0.1)
    assert apply(whole, push.rows_N, push.grads_ND, push.counts_N)
    halves = [(push.rows_N[:2], grads_ND[:2], push.counts_N[:2]), (push.rows_N[2:], grads_ND[2:], push.counts_N[2:])]
    assert apply(parted, *halves[1], part=1, num_parts=2)
    assert not apply(parted, *halves[1], part=1, num_parts=2)
    assert parted.applied_step == 0
    assert apply(parted, *halves[0], part=0, num_parts=2)
    assert not apply(parted, *halves[0], part=0, num_parts=2)
    assert parted.applied_step == 1
    assert equal(parted.rows_MD, whole.rows_MD)
    assert apply(parted, *halves[0], step=2, part=0, num_parts=2)
    parted.reset_counts(applied_step=1)
    assert apply(parted, *halves[0], step=2, part=0, num_parts=2)


def make_grads(num_rows: int) -> Tensor:
    """Gradients that differ in every place."""
    return Tensor(np.arange(num_rows * 4, dtype=np.float32).reshape(num_rows, 4))


def apply(shard: Shard, *push: Tensor, step: int = 1, part: int = 0, num_parts: int = 1) -> bool:
    """Apply a step, or a part of it: rows, gradients, counts."""
    rows_N, grads_ND, counts_N = push
    return shard.apply(step, rows_N, grads_ND, counts_N, 0.1, part=part, num_parts=num_parts)


def test_a_cache_needs_fused_messages(config: Config) -> None:
    """Asking for both is refused, and the line says what would be right."""
    with pytest.raises(ValidationError, match=r"cluster\.data_path: naive .* must be fused"):
        changed(config, cache__mode="lookahead", cluster__data_path="naive")
