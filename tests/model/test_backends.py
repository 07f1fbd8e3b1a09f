"""Laws of both backends of DLRM's dense network: which one runs, who takes a step and when, threads, processes."""

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import xxhash
from torch import Tensor

from harness.config.model import TrainerConfig
from harness.core.errors import ConfigError
from harness.kernels import products
from harness.model import backends
from harness.model.dlrm import DenseNetwork
from harness.model.network import make_share_trainer
from tests import started
from tests.forked import ran, said_by
from tests.model.batches import BACKENDS, CRITEO, batch_of, dlrm_of

needs_compiled = pytest.mark.skipif("compiled" not in BACKENDS, reason="needs fused multiply-adds")


def tiny(**settings: Any) -> DenseNetwork:
    return DenseNetwork(dlrm_of("tiny"), CRITEO, seed=0, learning_rate=0.1, **settings)


def copied(network: DenseNetwork) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state().items()}


def same(state: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in state.items())


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_any_size_follow_one_another(backend: str) -> None:
    """Full batches, a short one, one sample, a prediction in between: each step is that of a network that only ever
    saw this batch.
    """
    network = tiny(backend=backend)
    for num_samples in (128, 37, 1, 128):
        batch, other = batch_of(num_samples, seed=num_samples), tiny(backend=backend)
        other.load(network.state())
        expected_loss, expected_ND = other.train(*batch)
        other.apply_pending()
        loss, grads_ND = network.train(*batch)
        network.predict(*batch_of(128, seed=77)[:3])
        network.apply_pending()
        assert loss == expected_loss
        assert torch.equal(grads_ND, expected_ND)
        assert same(network.state(), other.state())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_taken_once_whoever_asks_for_it(backend: str) -> None:
    """Asked for by apply_pending(), once or twice or of one thread alone, or left to the next batch, to a prediction or
    to state(): the same bits.
    """
    batches = [batch_of(num_samples, seed=2) for num_samples in (64, 64, 9)]
    torch.set_num_threads(2)

    def end(after: Callable[[DenseNetwork], object], is_eager: bool) -> tuple[list[float], dict[str, Tensor]]:
        network = tiny(backend=backend, is_eager=is_eager)
        losses: list[float] = []
        for batch in batches:
            losses.append(network.train(*batch)[0])
            after(network)
        return losses, copied(network)

    losses, state = end(DenseNetwork.apply_pending, is_eager=False)
    assert losses[0] > losses[1], "the first step was taken before the second batch"
    ways: list[Callable[[DenseNetwork], object]] = [
        lambda network: (network.apply_pending(), network.apply_pending()),
        lambda network: network.apply_pending(is_alone=True),
        lambda _: None,
        DenseNetwork.state,
        lambda network: network.predict(*batches[0][:3]),
    ]
    for after, is_eager in product(ways, (False, True)):
        other_losses, other_state = end(after, is_eager)
        assert other_losses == losses
        assert same(state, other_state)


@needs_compiled
@pytest.mark.parametrize("num_threads", [2, 5])
def test_workers_that_begin_an_update_early_or_late_change_no_bit(num_threads: int) -> None:
    """A hundred steps on several threads, however few cores there are, with pauses between them that are long enough
    for workers to fall asleep, and states loaded while an update is being made: the bits of one thread that makes all
    updates itself, share by share.
    """
    torch.set_num_threads(num_threads)
    eager, patient = (tiny(backend="compiled", is_eager=is_eager) for is_eager in (True, False))
    batches = [batch_of(num_samples, seed=num_samples) for num_samples in (128, 128, 47)]
    start = copied(eager)
    for step in range(100):
        losses = [network.train(*batches[step % 7 % 3])[0] for network in (eager, patient)]
        assert losses[0] == losses[1]
        patient.apply_pending(is_alone=True)
        if step % 5 == 0:
            time.sleep(step % 4 * 1e-4)
        if step % 30 == 20:
            eager.load(start)
            patient.load(start)
    assert same(eager.state(), patient.state())


def test_a_processor_without_fused_multiply_adds_uses_the_torch_backend() -> None:
    """``auto`` is ``torch``, and a step is made. No matrix product is compiled, as in all processes but trainers."""
    script = """
import platform, sys, llvmlite.binding
import harness.client.clients, harness.cluster.server, harness.data.dataset
assert "harness.kernels.row_loops" in sys.modules, "Numba has looked at the processor"
assert "harness.kernels.products" not in sys.modules
llvmlite.binding.get_host_cpu_features = dict
platform.machine = lambda: "x86_64"
from harness.config.model import TrainerConfig
from harness.model import backends
from harness.model.dlrm import BACKENDS, DenseNetwork
from harness.model.network import make_share_trainer
from tests.model.batches import CRITEO, batch_of, dlrm_of
assert backends.choose_backend(TrainerConfig()) == "torch"
assert list(BACKENDS) == ["torch"]
print(DenseNetwork(dlrm_of("tiny"), CRITEO, seed=0, learning_rate=0.1).train(*batch_of(8, seed=1))[0])
"""
    done = ran(started.fresh_program, script)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


def test_auto_takes_the_compiled_backend_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` depends on the device and the processor. A backend that is named stays, or is refused."""

    def check(message: str, **settings: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            backends.check_backend(TrainerConfig(backend="compiled", **settings))

    monkeypatch.setattr(products, "AVAILABLE", True)
    assert backends.choose_backend(TrainerConfig()) == "compiled"
    assert backends.choose_backend(TrainerConfig(device="cuda")) == "torch"
    assert backends.choose_backend(TrainerConfig(backend="torch")) == "torch"
    backends.check_backend(TrainerConfig(backend="compiled"))
    check(r"trainer\.backend: compiled, but it runs on the CPU only, not on cuda; set ", device="cuda")
    monkeypatch.setattr(products, "AVAILABLE", False)
    assert backends.choose_backend(TrainerConfig()) == "torch"
    check(r"it needs fused multiply-adds, which .*; set trainer\.backend=")


def digest(backend: str, num_threads: int = 2, optimizer: str = "sgd") -> str:
    """Bits of a step for each of three batch sizes."""
    torch.set_num_threads(num_threads)
    settings: dict[str, Any] = {"backend": backend, "optimizer": optimizer}
    network = DenseNetwork(dlrm_of("kaggle"), CRITEO, seed=0, learning_rate=0.1, **settings)
    bits: list[str] = []
    for seed, num_samples in enumerate((128, 1, 33)):
        loss, grads_ND = network.train(*batch_of(num_samples, seed))
        network.apply_pending()
        bits += [loss.hex(), xxhash.xxh3_64_hexdigest(grads_ND.numpy().tobytes())]
    bits += [xxhash.xxh3_64_hexdigest(value.numpy().tobytes()) for value in network.state().values()]
    return " ".join(bits)


@needs_compiled
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_the_number_of_threads_changes_no_bit_of_the_compiled_backend(optimizer: str) -> None:
    assert len({digest("compiled", num_threads, optimizer) for num_threads in (1, 2, 5)}) == 1


def test_another_process_computes_the_same_bits() -> None:
    """Losses, gradients and parameters, with as many threads, wherever in memory their operands lie."""
    assert said_by(print_digests) == "".join(digest(backend) + "\n" for backend in BACKENDS)


def print_digests() -> None:
    """What is held before moves their operands to other addresses."""
    kept = torch.empty(1003)
    for backend in BACKENDS:
        sys.stdout.write(digest(backend) + "\n")
    del kept


@needs_compiled
@pytest.mark.parametrize(
    ("optimizer", "num_samples", "num_trainers"),
    [("sgd", 128, 2), ("adagrad", 100, 20), ("sgd", 5, 8), ("adagrad", 1, 2), ("sgd", 1024, 4)],
)
def test_trainers_that_divide_a_batch_have_the_bits_of_one(optimizer: str, num_samples: int, num_trainers: int) -> None:
    """Losses, gradients of rows, parameters: those of one network on whole batches, with any number of threads."""
    make_team = [partial(make_share_trainer, TrainerConfig(num_threads=number)) for number in (1, 2)]

    teams = [make_team[number % 2]() for number in range(1, num_trainers)]
    alone, divided = (tiny(optimizer=optimizer, backend="compiled", is_eager=True) for _ in range(2))
    for seed in range(3):
        batch = batch_of(num_samples, seed)
        expected, expected_ND = alone.train(*batch)
        division = divided.divide(num_trainers, *batch)
        division.compute()
        loss, grads_ND = division.merge([team(share) for team, share in zip(teams, division.shares, strict=True)])
        assert loss == expected
        assert torch.equal(grads_ND.view(torch.int32), expected_ND.view(torch.int32))
    assert same(divided.state(), alone.state())
