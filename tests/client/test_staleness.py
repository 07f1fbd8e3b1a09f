"""Bounded staleness: held to a plain model of itself, to no cache at s = 0, and to the laws of failures at any s."""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.client import slots
from harness.client import staleness as stale_clients
from harness.client.embedding_client import ClientSpec, make_pushes
from harness.client.staleness import StaleClient
from harness.cluster.protocol import Exchange, Push
from harness.config.model import CacheConfig, Config
from harness.core.lookup import plan_batch
from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank
from harness.core.pls import UpdateCounter
from harness.core.shard import Shard
from harness.core.trackers import Tracker
from tests.runs import changed, losses_of, run

CARDINALITIES = (3, 40, 1, 90)
NUM_PS, NUM_STEPS, BATCH_SIZE, DIM, RATE = 3, 80, 6, 4, 0.5
SAVES, BOUNDARIES = frozenset({30, NUM_STEPS}), frozenset({3, 17, 18, 50})


# --- against a plain model ------------------------------------------------------------------------------------------


@dataclass
class Copy:
    """A worker's copy of a row in the plain model."""

    value: Tensor
    version: int
    grad: Tensor | None = None
    updates: int = 0
    last_use: int = -1


@dataclass
class PlainModel:
    """Bounded staleness as it is told, one row at a time, with dictionaries."""

    rows_MD: Tensor
    staleness: int
    max_rows: int | None
    copies: dict[tuple[int, int], Copy] = field(default_factory=dict)  # by (key, worker)
    clocks: dict[int, int] = field(default_factory=dict)
    pushed: dict[int, list[tuple[int, Tensor]]] = field(default_factory=dict)  # key -> (worker, gradient), this step

    def read(self, step: int, worker: int, keys: list[int]) -> Tensor:
        """Push what must go for that, deliver, fetch what must be fetched."""
        held = {key: self.copies[key, worker] for key in keys if (key, worker) in self.copies}
        if self.max_rows is not None:
            others = sorted((c.last_use, k, w) for (k, w), c in self.copies.items() if w != worker or k not in held)
            excess = len(self.copies) + len(keys) - len(held) - self.max_rows
            for _, key, owner in others[: max(0, excess)]:
                self.push(key, owner)
                del self.copies[key, owner]
        old = [key for key, copy in held.items() if self.clocks[key] - copy.version > self.staleness]
        for key in old:
            self.push(key, worker)
        self.deliver()
        for key in {*keys} - {*held} | {*old}:
            version = self.clocks.setdefault(key, 0)
            self.copies[key, worker] = Copy(self.rows_MD[key].clone(), version)
        for key in keys:
            copy = self.copies[key, worker]
            assert self.clocks[key] - copy.version <= self.staleness
            copy.last_use = step
        return torch.stack([self.copies[key, worker].value for key in keys])

    def write(self, worker: int, keys: list[int], grads_ND: Tensor) -> None:
        """Update copies, and push those that are over the bound."""
        for key, grad in zip(keys, grads_ND, strict=True):
            copy = self.copies[key, worker]
            copy.value = torch.sub(copy.value, grad, alpha=RATE)
            copy.grad = grad if copy.grad is None else copy.grad + grad
            copy.updates += 1
            if copy.updates > self.staleness:
                self.push(key, worker)

    def push(self, key: int, worker: int) -> None:
        """What is pending of a copy goes."""
        copy = self.copies[key, worker]
        if copy.grad is not None:
            self.pushed.setdefault(key, []).append((worker, copy.grad))
            self.clocks[key] += copy.updates
            copy.version += copy.updates
            copy.grad, copy.updates = None, 0

    def deliver(self) -> None:
        """One update a row, gradients summed in the order of the workers."""
        for key, grads in self.pushed.items():
            total = sum((grad for _, grad in sorted(grads, key=lambda pair: pair[0])), torch.zeros(DIM))
            self.rows_MD[key] = torch.sub(self.rows_MD[key], total, alpha=RATE)
        self.pushed.clear()

    def lose(self, first: int, last: int, initial_MD: Tensor) -> None:
        """These rows start anew; what was pending of them is gone."""
        for key in range(first, last):
            self.pushed.pop(key, None)
            self.rows_MD[key] = initial_MD[key]
        self.copies = {place: copy for place, copy in self.copies.items() if not first <= place[0] < last}

    def empty(self) -> None:
        """Everything goes."""
        for key, worker in self.copies:
            self.push(key, worker)
        self.deliver()
        self.copies.clear()


class Shards:
    """Requests to shards that do not die; ``lose`` restores one to its initial values."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.shards = {f"ps{k}": Shard(placement, k, DIM, seed=0, counts_updates=True) for k in range(NUM_PS)}
        self.ranks = tuple(self.shards)
        for shard in self.shards.values():
            shard.initialise(applied_step=0)

    def start(self, requests: Mapping[Rank, Exchange]) -> dict[Rank, Tensor | None]:
        replies = {}
        for rank, request in requests.items():
            shard, push = self.shards[rank], request.push
            if push is not None:
                assert isinstance(push, Push)
                assert push.step == shard.applied_step + 1
                shard.apply(push.step, push.rows_N, push.grads_ND, push.counts_N, push.learning_rate)
            replies[rank] = None if request.pull_N is None else shard.gather(request.pull_N)
        return replies

    async def finish(self, replies: dict[Rank, Tensor | None], progress: Progress) -> dict[Rank, Tensor | None]:
        return replies

    async def ask(self, requests: Mapping[Rank, Exchange], progress: Progress) -> dict[Rank, Tensor | None]:
        return self.start(requests)

    def lose(self, client: StaleClient, rank: Rank) -> None:
        """The shard is restored alone."""
        self.shards[rank].initialise(applied_step=self.shards[rank].applied_step)
        client.shards_restored([rank])

    def rows_MD(self) -> Tensor:
        """All rows, rank-major."""
        return torch.cat([shard.rows_MD for shard in self.shards.values()]).clone()


class SkewedBatches:
    """Batches of which some rows are met often."""

    placement = Placement("row", CARDINALITIES, NUM_PS)

    def __call__(self, step: int):
        rng = np.random.Generator(np.random.PCG64(step))
        columns = [np.minimum(rng.geometric(min(1.0, 6 / n), BATCH_SIZE) - 1, n - 1) for n in CARDINALITIES]
        return None, plan_batch(np.stack(columns, axis=1).astype(np.int32), self.placement, np.arange(BATCH_SIZE) < 2)


def make_client(shards: Shards, *, staleness: int, workers: int, max_rows: int | None = None) -> StaleClient:
    """A client over ``shards`` whose caches are emptied after the steps ``SAVES``."""
    batches = SkewedBatches()
    run: Any = SimpleNamespace(
        placement=batches.placement,
        dim=DIM,
        width=DIM,
        optimizer=OPTIMIZERS["sgd"],
        learning_rate=RATE,
        count_updates=UpdateCounter(batches.placement, (3,)),
    )
    return StaleClient(
        ClientSpec(
            requests=shards,  # type: ignore[arg-type]
            batches=batches,  # type: ignore[arg-type]
            run=run,
            num_steps=NUM_STEPS,
            is_boundary=SAVES.__contains__,
            needs_all=SAVES.__contains__,
            cache=CacheConfig(mode="stale", staleness=staleness, workers=workers, max_rows=max_rows),
            tracker=Tracker,
        )
    )


def now(method: Coroutine[Any, Any, Any]) -> Any:
    """The result of a method that waits for nobody."""
    with pytest.raises(StopIteration) as end:
        method.send(None)
    return end.value.value


def progress_at(step: int) -> Progress:
    """Progress, as far as a client without failures reads it."""
    return Progress(step=step, samples=step * BATCH_SIZE, previous_samples=0, total_samples=NUM_STEPS * BATCH_SIZE)


def grads_of(step: int, num_rows: int) -> Tensor:
    """Gradients of different sizes, so that sums in another order round differently."""
    rng = np.random.Generator(np.random.PCG64([7, step]))
    return torch.from_numpy((rng.standard_normal((num_rows, DIM)) * 10.0 ** rng.integers(-3, 2)).astype(np.float32))


@pytest.mark.parametrize(
    ("staleness", "workers", "max_rows"),
    [(0, 3, None), (1, 1, None), (1, 3, 30), (4, 3, None), (4, 1, 60), (4, 3, 60), (4, 3, 5)],
)
def test_a_client_reads_and_writes_what_a_plain_model_does(
    monkeypatch: pytest.MonkeyPatch, staleness: int, workers: int, max_rows: int | None
) -> None:
    """Every row that is read, and every row of the ranks at the end, to the bit; both bounds hold on the way.

    A shard that is restored takes along what was pending of its rows, and nothing of others.
    """
    monkeypatch.setattr(slots, "_SLACK", 0)
    monkeypatch.setattr(slots, "_FIRST_CAPACITY", 8)
    monkeypatch.setattr(stale_clients, "_FIRST_CAPACITY", 8)
    shards = Shards(SkewedBatches.placement)
    initial_MD, (first, last) = shards.rows_MD(), shards.placement.rank_base_R[1:3].tolist()
    model = PlainModel(initial_MD.clone(), staleness, max_rows)
    client = make_client(shards, staleness=staleness, workers=workers, max_rows=max_rows)
    loss = 47 if max_rows is None else None  # which rows give way to others may be known before it
    for step in range(NUM_STEPS):
        rows_ND = now(client.pull(progress_at(step))).rows_SX.clone()
        grads_ND, keys = grads_of(step, len(rows_ND)), SkewedBatches()(step)[1].keys_N.tolist()
        # Boundaries at which nothing is lost split messages, and move no gradient.
        is_boundary = step + 1 in SAVES | BOUNDARIES | {loss}
        now(client.push(grads_ND, progress_at(step), is_boundary=is_boundary, overlap=lambda: None))
        assert torch.equal(rows_ND, model.read(step, step % workers, keys)), step
        model.write(step % workers, keys, grads_ND)
        if step + 1 in SAVES:
            model.empty()
        if step + 1 == loss:
            shards.lose(client, "ps1")
            model.lose(first, last, initial_MD)
    assert torch.equal(shards.rows_MD(), model.rows_MD)
    summary = client.summary()
    assert summary["max_staleness"] <= staleness
    assert summary["max_pending"] <= staleness
    assert summary["max_pending"] == staleness or (max_rows or 99) < 60
    assert max_rows is None or summary["peak_rows"] <= max(max_rows, BATCH_SIZE * len(CARDINALITIES))


def test_an_evaluation_sees_what_is_pending() -> None:
    """Rows are looked up as a push of everything would leave them, and nothing is pushed."""
    shards = Shards(SkewedBatches.placement)
    client = make_client(shards, staleness=50, workers=3)
    for step in range(20):
        grads_ND = grads_of(step, len(now(client.pull(progress_at(step))).rows_SX))
        now(client.push(grads_ND, progress_at(step), is_boundary=step == 19, overlap=lambda: None))
    before_MD, (_, plan) = shards.rows_MD(), SkewedBatches()(1)
    seen_ND = now(client.look_up(plan, progress_at(20)))
    assert torch.equal(shards.rows_MD(), before_MD)
    pushes = make_pushes(*client._caches.drain(), 21, RATE)
    shards.start({rank: Exchange(push=push) for rank, push in zip(shards.shards, pushes, strict=True)})
    assert torch.equal(seen_ND, shards.rows_MD()[plan.keys_N])
    assert not torch.equal(seen_ND, before_MD[plan.keys_N])


# --- whole runs -----------------------------------------------------------------------------------------------------


def stale(config: Config, staleness: int, **dotted: object) -> Config:
    """``config`` with three workers whose rows may be ``staleness`` old."""
    return changed(config, cache__mode="stale", cache__staleness=staleness, cache__workers=3, **dotted)


def test_the_more_staleness_the_fewer_bytes(config: Config, tmp_path: Path) -> None:
    """Another staleness gives other losses, and more of it moves fewer bytes."""
    config = changed(config, strategy__name="none", data__max_train_samples=512)
    runs = [run(stale(config, s), tmp_path / f"s{s}") for s in (0, 2, 20)]
    assert len({tuple(losses_of(events)) for _, events in runs}) == 3
    summaries = [finished.cache or {} for finished, _ in runs]
    moved = [summary["bytes"] for summary in summaries]
    assert moved == sorted(moved, reverse=True)
    assert [summary["max_staleness"] for summary in summaries] == [0, 2, 20]
    assert all(0 <= summary["mean_staleness"] <= summary["max_staleness"] for summary in summaries)
