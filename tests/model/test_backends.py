"""Laws of both backends of the dense network, in one set: held against autograd, differences and each other.

B batch, F tables, D embedding dim, N distinct rows of a batch, I integer features.
"""

import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping

import pytest
import torch
import xxhash
from torch import Tensor
from torch.nn import functional

from harness.config.model import BackendName, DenseOptimizerName, TrainerConfig
from harness.core.errors import ConfigError
from harness.core.lookup import BatchPlan
from harness.core.trainers import ALONE, TrainerGroup
from harness.kernels import products
from harness.model import backends
from harness.model.dlrm import PREDICT_SAMPLES, DenseNetwork
from harness.model.sizes import SIZES, ModelSize
from tests import started
from tests.forked import ran, said_by
from tests.model.batches import BACKENDS, initial_tables, looked_up, make_batch
from tests.threads import in_threads

needs_compiled = pytest.mark.skipif("compiled" not in BACKENDS, reason="needs fused multiply-adds and semaphores")
ODD = ModelSize(3, (7, 3), (5, 9, 1))
"""Widths that no vector register divides."""

Batch = tuple[Tensor, Tensor, BatchPlan, Tensor]


def batch_for(size: ModelSize, num_samples: int, seed: int, dtype: torch.dtype = torch.float32) -> Batch:
    """What train() takes."""
    dense_BI, ids_BF, labels_B = make_batch(num_samples, seed)
    plan, rows_ND = looked_up(initial_tables(size.embedding_dim, seed=1), ids_BF)
    return dense_BI.to(dtype), rows_ND.to(dtype), plan, labels_B.to(dtype)


def plain_logits(size: ModelSize, state: Mapping[str, Tensor], dense_BI: Tensor, rows_BFD: Tensor) -> Tensor:
    """Logits, (B,), of DLRM as its paper draws it, which torch can differentiate; nothing of ours."""
    bottom = dense_BI
    for index in range(len(size.bottom_mlp)):
        bottom = functional.linear(bottom, state[f"bottom.{index}.weight"], state[f"bottom.{index}.bias"]).relu()
    vectors = [bottom, *rows_BFD.unbind(1)]
    dots = [(vectors[i] * vectors[j]).sum(dim=1) for i in range(len(vectors)) for j in range(i)]
    top = torch.cat([bottom, torch.stack(dots, dim=1)], dim=1)
    for index in range(len(size.top_mlp)):
        top = functional.linear(top, state[f"top.{index}.weight"], state[f"top.{index}.bias"])
        top = top.relu() if index < len(size.top_mlp) - 1 else top
    return top.squeeze(1)


def autograd(
    network: DenseNetwork, batch: Batch, dtype: torch.dtype
) -> tuple[Tensor, float, Tensor, dict[str, Tensor]]:
    """Logits, loss, gradient of the rows, gradient of each parameter."""
    state = {name: value.to(dtype).clone().requires_grad_() for name, value in network.state().items()}
    dense_BI, rows_ND, plan, labels_B = batch
    leaf_ND = rows_ND.to(dtype).clone().requires_grad_()
    rows_BFD = leaf_ND[plan.inverse_A].view(len(labels_B), -1, network.size.embedding_dim)
    logits_B = plain_logits(network.size, state, dense_BI.to(dtype), rows_BFD)
    loss = functional.binary_cross_entropy_with_logits(logits_B, labels_B.to(dtype))
    loss.backward()
    assert leaf_ND.grad is not None
    grads = {name: value.grad for name, value in state.items() if value.grad is not None}
    return logits_B.detach(), loss.item(), leaf_ND.grad, grads


def distance(actual: Tensor, expected: Tensor) -> float:
    """Of two tensors, relative to the second's norm."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("num_samples", [1, 3, 128])
@pytest.mark.parametrize("size", [*SIZES.values(), ODD], ids=[*SIZES, "odd"])
@pytest.mark.parametrize(
    ("backend", "dtype"), [*((name, torch.float32) for name in BACKENDS), ("torch", torch.float64)]
)
def test_logits_and_gradients_are_autograds(
    backend: BackendName, dtype: torch.dtype, size: ModelSize, num_samples: int
) -> None:
    """Loss, row gradients and the gradient of every parameter are autograd's, to 1e-6 of their norm in float32 and to
    1e-13 in float64. The step is so long that the parameter itself vanishes beside its gradient.
    """
    learning_rate = 2.0**40
    bound = 1e-13 if dtype == torch.float64 else 2e-6
    network = DenseNetwork(size, seed=3, learning_rate=learning_rate, dtype=dtype, backend=backend)
    batch = batch_for(size, num_samples, seed=5, dtype=dtype)
    logits_B, expected_loss, expected_ND, expected = autograd(network, batch, dtype)
    torch.testing.assert_close(network.predict(*batch[:3]), logits_B, rtol=1e-5, atol=1e-6)
    assert len(logits_B) == 1 or logits_B.std() > 1e-3, "the logits tell samples apart"
    before = {name: value.clone() for name, value in network.state().items()}
    loss, grads_ND = network.train(*batch)
    network.step()
    assert loss == pytest.approx(expected_loss, rel=bound)
    assert grads_ND.dtype == dtype
    assert distance(grads_ND, expected_ND) < bound
    assert expected.keys() == network.state().keys()
    for key, value in network.state().items():
        assert distance((before[key] - value) / learning_rate, expected[key]) < bound, key


@pytest.mark.parametrize("size", [SIZES["tiny"], ODD], ids=["tiny", "odd"])
@pytest.mark.parametrize(
    ("backend", "dtype"), [*((name, torch.float32) for name in BACKENDS), ("torch", torch.float64)]
)
def test_twenty_steps_of_adagrad_are_torchs(backend: BackendName, dtype: torch.dtype, size: ModelSize) -> None:
    """Losses, parameters and sums follow torch.optim.Adagrad on autograd's gradients in float64: to 2e-6 of their norm
    in float32 and to 1e-10 in float64. A first step divides a gradient by its own size, so rounding of the smallest
    ones counts most.
    """
    bound = 1e-10 if dtype == torch.float64 else 2e-6
    network = DenseNetwork(size, seed=3, learning_rate=0.02, optimizer="adagrad", backend=backend, dtype=dtype)
    plain = DenseNetwork(size, seed=3, learning_rate=0.0, dtype=torch.float64)
    values = {name: value.clone().requires_grad_() for name, value in plain.state().items()}
    optimizer = torch.optim.Adagrad(values.values(), lr=0.02)
    for seed in range(20):
        batch = batch_for(size, 64, seed, dtype)
        _, expected_loss, _, grads = autograd(plain, batch, torch.float64)
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


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_restores_a_network_to_the_bit(backend: BackendName, optimizer: DenseOptimizerName) -> None:
    """From a copy of an earlier state the same batches give the same bits again; with other sums they give others."""
    network = DenseNetwork(SIZES["tiny"], seed=3, learning_rate=0.02, optimizer=optimizer, backend=backend)
    batches = [batch_for(network.size, 16, seed) for seed in range(4)]
    network.train(*batches[0])
    saved = {name: value.clone() for name, value in network.state().items()}
    sums = {f"{name}.sum" for name in saved if not name.endswith(".sum")} if optimizer == "adagrad" else set[str]()
    assert {name for name in saved if name.endswith(".sum")} == sums

    def end(state: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
        network.load(state)
        losses = [network.train(*batch)[0] for batch in batches[1:]]
        return losses, {name: value.clone() for name, value in network.state().items()}

    losses, first = end(saved)
    network.train(*batches[0])  # gradients that a restore must drop
    again_losses, again = end(saved)
    assert losses == again_losses
    assert all(torch.equal(first[name], again[name]) for name in first)
    _, other = end({name: torch.zeros_like(value) if name in sums else value for name, value in saved.items()})
    assert torch.equal(first["top.0.weight"], other["top.0.weight"]) == (optimizer == "sgd")


@pytest.mark.parametrize("backend", BACKENDS)
def test_columns_behind_the_values_of_a_row_change_nothing(backend: BackendName) -> None:
    """Rows with five columns of state, in order or in the slots of a cache: the bits of rows without."""
    plain, wide = (
        DenseNetwork(SIZES["tiny"], seed=3, learning_rate=0.02, optimizer="adagrad", backend=backend) for _ in range(2)
    )
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_any_size_follow_one_another(backend: BackendName) -> None:
    """Full batches, a short one, one sample, a prediction in between: each step is that of a network that only ever
    saw this batch.
    """
    size = SIZES["kaggle"]
    network = DenseNetwork(size, seed=0, learning_rate=0.1, backend=backend)
    for num_samples in (128, 37, 1, 128):
        batch = batch_for(size, num_samples, seed=num_samples)
        other = DenseNetwork(size, seed=0, learning_rate=0.1, backend=backend)
        other.load(network.state())
        expected_loss, expected_ND = other.train(*batch)
        other.step()
        loss, grads_ND = network.train(*batch)
        network.predict(*batch_for(size, 128, seed=77)[:3])
        network.step()
        assert loss == expected_loss
        assert torch.equal(grads_ND, expected_ND)
        assert all(torch.equal(value, other.state()[name]) for name, value in network.state().items())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_taken_once_whoever_asks_for_it(backend: BackendName) -> None:
    """Asked for by step(), once or twice or of one thread alone, or left to the next batch, to a prediction or to
    state(): the same bits.
    """
    size = SIZES["kaggle"]
    batches = [batch_for(size, num_samples, seed=2) for num_samples in (64, 64, 9)]

    def end(
        after: Callable[[DenseNetwork], object], *, is_eager: bool = False
    ) -> tuple[list[float], dict[str, Tensor]]:
        network = DenseNetwork(size, seed=0, learning_rate=0.1, backend=backend, is_eager=is_eager)
        losses: list[float] = []
        for batch in batches:
            losses.append(network.train(*batch)[0])
            after(network)
        return losses, {name: value.clone() for name, value in network.state().items()}

    def twice(network: DenseNetwork) -> None:
        network.step()
        network.step()

    def by_one_thread(network: DenseNetwork) -> None:
        network.step(is_alone=True)

    torch.set_num_threads(2)
    losses, state = end(DenseNetwork.step)
    assert losses[0] > losses[1], "the first step was taken before the second batch"
    for after in (
        twice,
        by_one_thread,
        lambda _: None,
        DenseNetwork.state,
        lambda network: network.predict(*batches[0][:3]),
    ):
        for is_eager in (False, True):
            other_losses, other_state = end(after, is_eager=is_eager)
            assert other_losses == losses
            assert all(torch.equal(value, other_state[name]) for name, value in state.items())


def test_large_batches_are_predicted_in_parts() -> None:
    """A batch beyond PREDICT_SAMPLES gives every sample the logit that it has in a small batch."""
    size = SIZES["tiny"]
    network = DenseNetwork(size, seed=0, learning_rate=0.1)
    dense_BI, ids_BF, _ = make_batch(2 * PREDICT_SAMPLES + 7, seed=8)
    tables = initial_tables(16, seed=0)
    plan, rows_ND = looked_up(tables, ids_BF)
    logits_B = network.predict(dense_BI, rows_ND, plan)
    assert logits_B.shape == (len(dense_BI),)
    for first in (0, PREDICT_SAMPLES - 3, 2 * PREDICT_SAMPLES, len(dense_BI) - 5):
        span = slice(first, first + 5)
        plan_5, rows = looked_up(tables, ids_BF[span])
        torch.testing.assert_close(logits_B[span], network.predict(dense_BI[span], rows, plan_5), rtol=1e-5, atol=1e-6)


@needs_compiled
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_the_number_of_threads_changes_no_bit_of_the_compiled_backend(optimizer: DenseOptimizerName) -> None:
    """Three steps by one, two, three and seven threads, of full batches and one of a single sample."""
    digests = {digest("compiled", num_threads, (128, 1, 33), optimizer) for num_threads in (1, 2, 3, 7)}
    assert len(digests) == 1


@needs_compiled
@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_workers_that_begin_an_update_early_or_late_change_no_bit(num_threads: int) -> None:
    """Two hundred steps on two to five threads, however few cores there are, with pauses between them that are long
    enough for workers to fall asleep, and states loaded while an update is being made: the bits of one thread that
    makes all updates itself, share by share.
    """
    torch.set_num_threads(num_threads)
    size = SIZES["tiny"]
    eager, patient = (
        DenseNetwork(size, seed=0, learning_rate=0.1, backend="compiled", is_eager=is_eager)
        for is_eager in (True, False)
    )
    batches = [batch_for(size, num_samples, seed=num_samples) for num_samples in (128, 128, 47)]
    start = {name: value.clone() for name, value in eager.state().items()}
    for step in range(200):
        batch = batches[step % 7 % 3]
        losses = [network.train(*batch)[0] for network in (eager, patient)]
        assert losses[0] == losses[1]
        patient.step(is_alone=True)
        if step % 5 == 0:
            time.sleep(step % 4 * 1e-4)
        if step % 50 == 20:
            eager.load(start)
            patient.load(start)
    assert all(torch.equal(value, patient.state()[name]) for name, value in eager.state().items())


def test_a_processor_without_fused_multiply_adds_uses_the_torch_backend() -> None:
    """``auto`` is ``torch``, no matrix product is compiled, and a step is made."""
    script = """
import platform, llvmlite.binding, torch
import harness.kernels.row_loops  # Numba has looked at the processor
llvmlite.binding.get_host_cpu_features = dict
platform.machine = lambda: "x86_64"
from harness.config.model import TrainerConfig
from harness.kernels import products
from harness.model import backends
from harness.model.dlrm import BACKENDS, DenseNetwork
from harness.model.sizes import SIZES
from tests.model.test_backends import batch_for
assert not products.AVAILABLE
assert backends.choose_backend(TrainerConfig()) == "torch"
assert list(BACKENDS) == ["torch"]
network = DenseNetwork(SIZES["tiny"], seed=0, learning_rate=0.1)
print(network.train(*batch_for(network.size, 8, seed=1))[0])
"""
    done = ran(started.fresh_program, script)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


def test_auto_takes_the_compiled_backend_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` depends on the device and the processor. A backend that is named stays, or is refused."""
    monkeypatch.setattr(products, "AVAILABLE", True)
    assert backends.choose_backend(TrainerConfig()) == "compiled"
    assert backends.choose_backend(TrainerConfig(device="cuda")) == "torch"
    assert backends.choose_backend(TrainerConfig(backend="torch")) == "torch"
    backends.check_backend(TrainerConfig(backend="compiled"))
    with pytest.raises(
        ConfigError, match=r"trainer\.backend: compiled, but it runs on the CPU only, not on cuda; set "
    ):
        backends.check_backend(TrainerConfig(backend="compiled", device="cuda"))
    with pytest.raises(ConfigError, match=r"computes in torch\.float32 only, not in torch\.float64; use torch"):
        DenseNetwork(ODD, seed=0, learning_rate=0.1, backend="compiled", dtype=torch.float64)
    monkeypatch.setattr(products, "AVAILABLE", False)
    assert backends.choose_backend(TrainerConfig()) == "torch"
    with pytest.raises(
        ConfigError, match=r"it needs fused multiply-adds and POSIX semaphores, .*; set trainer\.backend="
    ):
        backends.check_backend(TrainerConfig(backend="compiled"))


@needs_compiled
def test_helpers_end_with_their_network() -> None:
    """Threads of a network that nobody needs any more are gone, though an update was still to be made."""
    torch.set_num_threads(3)
    before = {*threading.enumerate()}
    network = DenseNetwork(SIZES["tiny"], seed=0, learning_rate=0.1, backend="compiled", is_eager=True)
    network.train(*batch_for(network.size, 16, seed=0))
    helpers = {*threading.enumerate()} - before  # threads of other tests may still end
    assert len(helpers) == 2
    del network
    gc.collect()
    for helper in helpers:
        helper.join(20)
    assert not any(helper.is_alive() for helper in helpers)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_a_number_is_not_hidden(backend: BackendName) -> None:
    """With NaN in one feature, or in one value of a row, the loss is NaN, and so are gradients of rows."""
    network = DenseNetwork(SIZES["kaggle"], seed=0, learning_rate=0.1, backend=backend)
    for broken in ("feature", "row"):
        dense_BI, rows_ND, plan, labels_B = batch_for(network.size, 16, seed=3)
        (dense_BI if broken == "feature" else rows_ND)[0, 0] = math.nan
        loss, grads_ND = network.train(dense_BI, rows_ND, plan, labels_B)
        assert math.isnan(loss)
        assert grads_ND.isnan().any()


def digest(
    backend: BackendName,
    num_threads: int = 2,
    sizes: tuple[int, ...] = (128, 128, 128),
    optimizer: DenseOptimizerName = "sgd",
) -> str:
    """Bits of a step for each batch size."""
    torch.set_num_threads(num_threads)
    network = DenseNetwork(SIZES["kaggle"], seed=0, learning_rate=0.1, backend=backend, optimizer=optimizer)
    words: list[str] = []
    for seed, num_samples in enumerate(sizes):
        loss, grads_ND = network.train(*batch_for(network.size, num_samples, seed))
        network.step()
        words += [loss.hex(), xxhash.xxh3_64_hexdigest(grads_ND.numpy().tobytes())]
    return " ".join(
        [*words, *(xxhash.xxh3_64_hexdigest(value.numpy().tobytes()) for value in network.state().values())]
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_process_computes_the_same_bits(backend: BackendName) -> None:
    """Same number of threads: same losses, gradients and parameters to the bit, wherever in memory their operands
    lie.
    """
    assert said_by(print_digest, backend) == digest(backend) + "\n"


def print_digest(backend: BackendName) -> None:
    """Print the digest; what is held before moves its operands to other addresses."""
    kept = torch.empty(1003)
    sys.stdout.write(digest(backend) + "\n")
    del kept


@needs_compiled
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize(("num_samples", "num_trainers"), [(128, 2), (100, 20), (5, 8), (1, 2), (2048, 4)])
def test_trainers_that_divide_a_batch_have_the_bits_of_one(
    optimizer: DenseOptimizerName, num_samples: int, num_trainers: int
) -> None:
    """Losses, gradients of rows, parameters: those of one network on whole batches, with any number of threads."""
    size = SIZES["kaggle"]
    batches = [batch_for(size, num_samples, seed) for seed in range(3)]

    def train(group: TrainerGroup) -> tuple[list[tuple[float, Tensor]], dict[str, Tensor]]:
        torch.set_num_threads(1 + (group.index + group.size) % 2)
        network = DenseNetwork(
            size, seed=0, learning_rate=0.1, optimizer=optimizer, backend="compiled", is_eager=True, group=group
        )
        return [network.train(*batch) for batch in batches], network.state()

    expected, state = train(ALONE)
    for results, replica in in_threads(num_trainers, train):
        for (loss, grads_ND), (expected_loss, expected_ND) in zip(results, expected, strict=True):
            assert loss == expected_loss
            assert torch.equal(grads_ND.view(torch.int32), expected_ND.view(torch.int32))
        assert all(torch.equal(value, state[name]) for name, value in replica.items())
