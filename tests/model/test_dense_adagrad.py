"""Adagrad of the dense network: both backends against torch.optim.Adagrad, and its sums as part of the state."""

import pytest
import torch
from torch import Tensor

from harness.config.model import BackendName
from harness.model.dlrm import DenseNetwork
from harness.model.sizes import SIZES, ModelSize
from tests.model.batches import BACKENDS
from tests.model.test_backends import ODD, autograd, batch_for, distance

RATE = 0.02


def make_network(
    size: ModelSize, backend: BackendName, dtype: torch.dtype = torch.float32, *, is_eager: bool = False
) -> DenseNetwork:
    """A network with Adagrad."""
    return DenseNetwork(
        size, seed=3, learning_rate=RATE, optimizer="adagrad", backend=backend, dtype=dtype, is_eager=is_eager
    )


def copied(network: DenseNetwork) -> dict[str, Tensor]:
    """The state as it is now."""
    return {name: value.clone() for name, value in network.state().items()}


@pytest.mark.parametrize("size", [SIZES["tiny"], ODD], ids=["tiny", "odd"])
@pytest.mark.parametrize(
    ("backend", "dtype"), [*((name, torch.float32) for name in BACKENDS), ("torch", torch.float64)]
)
def test_twenty_steps_are_torchs(backend: BackendName, dtype: torch.dtype, size: ModelSize) -> None:
    """Losses, parameters and sums follow torch.optim.Adagrad on autograd's gradients in float64: to 2e-6 of their norm
    in float32 and to 1e-10 in float64. A first step divides a gradient by its own size, so rounding of the smallest
    ones counts most.
    """
    bound = 1e-10 if dtype == torch.float64 else 2e-6
    network = make_network(size, backend, dtype)
    plain = DenseNetwork(size, seed=3, learning_rate=0.0, dtype=torch.float64)
    values = {name: value.clone().requires_grad_() for name, value in plain.state().items()}
    optimizer = torch.optim.Adagrad(values.values(), lr=RATE)
    for seed in range(20):
        batch = batch_for(size, 64, seed, dtype)
        expected_loss, _, grads = autograd(plain, batch, torch.float64)
        for name, value in values.items():
            value.grad = grads[name]
        optimizer.step()
        plain.load({name: value.detach() for name, value in values.items()})
        loss, _ = network.train(*batch)
        network.step()
        assert loss == pytest.approx(expected_loss, abs=bound / 2)
    state = network.state()
    for name, value in values.items():
        assert distance(state[name], value.detach()) < bound, name
        assert distance(state[f"{name}.sum"], optimizer.state[value]["sum"]) < bound, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_is_loaded_brings_the_sums_back(backend: BackendName) -> None:
    """After load() the same batches give the same bits again; with other sums they give others."""
    network = make_network(SIZES["tiny"], backend)
    batches = [batch_for(network.size, 16, seed) for seed in range(4)]
    network.train(*batches[0])
    saved = copied(network)
    assert {name for name in saved if name.endswith(".sum")} == {f"{name}.sum" for name in saved if "sum" not in name}

    def end(state: dict[str, Tensor]) -> dict[str, Tensor]:
        network.load(state)
        for batch in batches[1:]:
            network.train(*batch)
        return copied(network)

    first, again = end(saved), end(saved)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = end({name: torch.zeros_like(value) if name.endswith(".sum") else value for name, value in saved.items()})
    assert not torch.equal(first["top.0.weight"], other["top.0.weight"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_columns_behind_the_values_of_a_row_change_nothing(backend: BackendName) -> None:
    """Rows with five columns of state, in order or in the slots of a cache: the bits of rows without."""
    plain, wide = (make_network(SIZES["tiny"], backend) for _ in range(2))
    dense_BI, rows_ND, plan, labels_B = batch_for(plain.size, 32, seed=4)
    rows_NX = torch.cat([rows_ND, torch.full((len(rows_ND), 5), torch.nan)], dim=1)
    slots_N = torch.randperm(2 * len(rows_ND), generator=torch.Generator().manual_seed(0))[: len(rows_ND)]
    rows_SX = torch.full((2 * len(rows_ND), rows_NX.shape[1]), torch.nan)
    rows_SX[slots_N] = rows_NX
    assert torch.equal(wide.predict(dense_BI, rows_NX, plan), plain.predict(dense_BI, rows_ND, plan))
    for given, slots in ((rows_NX, None), (rows_SX, slots_N)):
        loss, grads_ND = wide.train(dense_BI, given, plan, labels_B, slots)
        expected_loss, expected_ND = plain.train(dense_BI, rows_ND, plan, labels_B)
        assert loss == expected_loss
        assert torch.equal(grads_ND, expected_ND)
