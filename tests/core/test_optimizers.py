"""Laws of the optimizers of embedding rows. N rows of an update, D embedding dim, X columns of a row."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.client.lookahead import RowCache
from harness.core.optimizers import OPTIMIZERS, row_width
from harness.core.placement import Placement
from harness.core.shard import Shard
from harness.core.trackers import distances

NUM_ROWS, DIM, RATE = 60, 5, 0.05
EPS = np.float32(1e-10)


def make_shard(name: str, *, dim: int = DIM, num_rows: int = NUM_ROWS) -> Shard:
    """The only rank of a world of one table."""
    placement = Placement("row", (num_rows,), 1)
    shard = Shard(placement, 0, dim, seed=0, counts_updates=True, optimizer=OPTIMIZERS[name])
    shard.initialise(applied_step=0)
    return shard


def updates(num_steps: int, num_rows: int) -> list[tuple[Tensor, Tensor]]:
    """Distinct rows and their gradients, some of them zero, of magnitudes from 1e-4 to 10."""
    rng = torch.Generator().manual_seed(1)
    drawn: list[tuple[Tensor, Tensor]] = []
    for _ in range(num_steps):
        rows_N = torch.randperm(NUM_ROWS, generator=rng)[:num_rows]
        grads_ND = torch.randn((num_rows, DIM), generator=rng) * 10 ** (
            5 * torch.rand((num_rows, 1), generator=rng) - 4
        )
        grads_ND[0] = 0
        drawn.append((rows_N, grads_ND))
    return drawn


@pytest.mark.parametrize(("name", "torch_name"), [("sgd", "SGD"), ("adagrad", "Adagrad"), ("adam", "Adam")])
def test_a_row_is_trained_as_if_it_were_alone(name: str, torch_name: str) -> None:
    """Rows after thirty steps, each of a third of them, equal parameters of their own in torch's optimizer, to 1e-6."""
    shard = make_shard(name)
    rows = [nn.Parameter(row_D.clone()) for row_D in shard.rows_MD[:, :DIM]]
    optimizer = getattr(torch.optim, torch_name)(rows, lr=RATE)
    for step, (rows_N, grads_ND) in enumerate(updates(30, NUM_ROWS // 3), start=1):
        assert shard.apply(step, rows_N, grads_ND, torch.ones(len(rows_N), dtype=torch.int32), RATE)
        optimizer.zero_grad()
        for row, grad_D in zip(rows_N.tolist(), grads_ND, strict=True):
            rows[row].grad = grad_D
        optimizer.step()
    expected_MD = torch.stack([row.detach() for row in rows])
    torch.testing.assert_close(shard.rows_MD[:, :DIM], expected_MD, rtol=0, atol=1e-6)


def plain_step(name: str, rows_NX: np.ndarray, grads_ND: np.ndarray, rate: np.float32) -> np.ndarray:
    """The twin of the compiled loop: float32, one rounding an operation."""
    dim = grads_ND.shape[1]
    new_NX = rows_NX.copy()
    values_ND, sums_NX = new_NX[:, :dim], new_NX[:, dim:]
    if name == "sgd":
        values_ND -= rate * grads_ND
    elif name == "adagrad":
        sums_NX += grads_ND * grads_ND
        values_ND -= rate * grads_ND / (np.sqrt(sums_NX) + EPS)
    elif name == "adam":
        first_ND, second_ND, num_N = sums_NX[:, :dim], sums_NX[:, dim:-1], sums_NX[:, -1]
        first_ND[:] = np.float32(0.9) * first_ND + np.float32(0.1) * grads_ND
        second_ND[:] = np.float32(0.999) * second_ND + np.float32(0.001) * (grads_ND * grads_ND)
        num_N += 1
        roots_N = np.sqrt(1 - np.float64(0.999) ** num_N)
        rates_N = (np.float64(rate) * roots_N / (1 - np.float64(0.9) ** num_N)).astype(np.float32)
        eps_N = (1e-8 * roots_N).astype(np.float32)
        values_ND -= rates_N[:, None] * first_ND / (np.sqrt(second_ND) + eps_N[:, None])
    else:
        squares_ND = np.add.accumulate(grads_ND * grads_ND, axis=1, dtype=np.float32)
        sums_NX += squares_ND[:, -1:] / np.float32(dim)
        values_ND -= rate / (np.sqrt(sums_NX) + EPS) * grads_ND
    return new_NX


@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("name", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_a_step_is_the_same_bits_wherever_it_is_made(name: str, dim: int) -> None:
    """Three steps of a shard, a cache at the trainer, rows looked up ahead and plain arithmetic in float32."""
    rng = torch.Generator().manual_seed(0)
    optimizer, shard = OPTIMIZERS[name], make_shard(name, dim=dim, num_rows=500)
    width = row_width(optimizer, dim)
    assert shard.rows_MD.shape == (500, width)
    rows_N, slots_N = torch.randperm(500, generator=rng)[:300], torch.randperm(400, generator=rng)[:300]
    keys_N, before_ND = np.arange(300) * 7, shard.gather(rows_N)
    cache = RowCache(width, max_rows=None)
    cache.reserve(400)
    cache.insert(slots_N.numpy(), before_ND)
    for step in (1, 2, 3):
        grads_ND = torch.randn((300, dim), generator=rng)
        ahead_HX = torch.zeros((100, width))  # every third one is wanted again
        optimizer.step_shared(ahead_HX, keys_N[::3].copy(), keys_N, before_ND, grads_ND, learning_rate=0.1)
        norms_2N, changes_NX, mass_M = torch.empty((2, 300)), torch.empty((300, width)), torch.rand(500, generator=rng)
        expected_M = mass_M.clone()
        measures = {"norms_N": norms_2N[1], "mass_M": mass_M, "changes_NX": changes_NX}
        optimizer.step(cache.values_SX, slots_N, grads_ND, 0.1, norms_N=norms_2N[0])
        assert shard.apply(step, rows_N, grads_ND, torch.ones(300, dtype=torch.int32), 0.1, **measures)
        expected_NX = torch.from_numpy(plain_step(name, before_ND.numpy(), grads_ND.numpy(), np.float32(0.1)))
        for actual in (
            shard.gather(rows_N),
            cache.values(slots_N.numpy()),
            optimizer.stepped(before_ND, grads_ND, 0.1),
        ):
            assert torch.equal(actual, expected_NX)
        assert torch.equal(ahead_HX, expected_NX[::3])
        assert torch.equal(norms_2N, distances(expected_NX[:, :dim], before_ND[:, :dim]).expand(2, 300))
        expected_M[rows_N] += norms_2N[1]
        assert torch.equal(mass_M, expected_M)
        assert torch.equal(changes_NX.view(torch.int32), before_ND.view(torch.int32) ^ expected_NX.view(torch.int32))
        before_ND = expected_NX
    others, fresh = torch.ones(500, dtype=torch.bool), make_shard(name, dim=dim, num_rows=500)
    others[rows_N] = False
    assert torch.equal(shard.rows_MD[others], fresh.rows_MD[others])
    shard.reset_states()
    assert torch.equal(shard.rows_MD[rows_N, :dim], before_ND[:, :dim]), "a reset of states leaves the values"
    assert torch.equal(shard.rows_MD[:, dim:], fresh.rows_MD[:, dim:])
