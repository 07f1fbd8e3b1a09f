"""Ways to run a training step, each in processes of its own, that run so many steps when told and sleep otherwise.

So that they can be measured in turn: a machine that slows down then slows all of them. A step loop passes a
:class:`Gate` at the start of every step. An order ``(lead, steps)`` lets it run ``lead + steps`` steps and times the
last ``steps`` of them, from the start of one step to the start of another, so that work which is done ahead or put off
is neither missed nor counted twice.

B batch, A = B*F accesses, D embedding dim, V = 27 vectors of the interaction.
"""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.cluster.leash import hold_leash
from harness.cluster.protocol import Cluster, SupervisorClient
from harness.cluster.spawn import fork_server, nest_fork_server
from harness.config.model import Config
from harness.core.errors import HarnessError
from harness.core.lookup import plan_batch
from harness.core.placement import Placement
from harness.data.dataset import Dataset
from harness.model.backends import choose_backend
from harness.model.dlrm import DenseNetwork
from harness.model.sizes import NUM_INTEGERS, NUM_TABLES, ModelSize, model_size
from harness.run import assemble, job

_real_train = job.train
_real_network = job.DenseNetwork


class Enough(HarnessError):
    """Whoever measures has seen what he wanted."""


Parts = dict[str, float]
"""Seconds by part of a step."""


class Gate:
    """Where a step loop waits for orders. ``profile`` tells what took time since it was last asked."""

    def __init__(self, pipe: Connection, profile: Callable[[], Parts] = dict) -> None:
        self._pipe = pipe
        self._profile = profile
        self._began_s: float | None = None
        self._left = self._timed = 0

    def step(self) -> None:
        """To be called at the start of every step. Raises Enough."""
        if self._left == 0:
            seconds = None if self._began_s is None else time.perf_counter() - self._began_s
            self._pipe.send(seconds if seconds is None else (seconds, self._profile()))
            order = self._pipe.recv()
            if order is None:
                raise Enough
            lead, self._timed = order
            self._left = lead + self._timed
        if self._left == self._timed:
            self._profile()  # and forget it
            self._began_s = time.perf_counter()
        self._left -= 1


Body = Callable[[Config, Path, Connection], None]
"""What a worker does: (config, folder to write to, pipe of its gate)."""


class Worker:
    """A way to run steps, ready in a process of its own: forked as cells and ranks are, with torch imported once."""

    def __init__(self, body: Body, config: Config, folder: Path) -> None:
        context = fork_server()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(body, config, folder, theirs))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> Self:
        """Wait until it stands before its first step. Raises EOFError if it ended instead."""
        assert self._pipe.recv() is None
        return self

    def run(self, lead: int, steps: int) -> tuple[float, Parts]:
        """Let it run; seconds of the last ``steps`` steps, and what the gate's profile says of them."""
        self._pipe.send((lead, steps))
        return self._pipe.recv()

    def close(self) -> None:
        """End it, and wait for it."""
        with suppress(OSError):  # it has ended by itself, and has said why
            self._pipe.send(None)
        self._pipe.close()
        self._process.join()


def _main(body: Body, config: Config, folder: Path, pipe: Connection) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    hold_leash(parent.pid)
    nest_fork_server()  # for ranks, before anything starts a thread
    with suppress(Enough, EOFError):
        body(config, folder, pipe)


# --- the real thing ---------------------------------------------------------------------------------------------------


def trainer(config: Config, folder: Path, pipe: Connection) -> None:
    """A run as run.py makes one, on either engine; a gate stands before the dense network."""
    assemble.run(config, folder, parts=assemble.Parts(train=partial(gated_train, pipe)))


def gated_train(  # noqa: PLR0917 - the first is bound here, the rest is assemble's call
    pipe: Connection,
    config: Config,
    checkpoints: Path,
    kill_steps: frozenset[int],
    cluster: Cluster,
    supervisor: SupervisorClient,
    *,
    profile: Callable[[], Parts] = dict,
) -> None:
    """The job of the trainer rank, told when to step."""
    gate = Gate(pipe, profile)

    class GatedNetwork(_real_network):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            gate.step()
            return super().train(*args, **kwargs)

    with mock.patch.object(job, "DenseNetwork", GatedNetwork):
        _real_train(config, checkpoints, kill_steps, cluster, supervisor)


# --- what it is compared with -----------------------------------------------------------------------------------------


class PlainDlrm(nn.Module):
    """DLRM in the ordinary way: a module per table and layer."""

    def __init__(self, size: ModelSize, cardinalities: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(_table(num_rows, size.embedding_dim) for num_rows in cardinalities)
        self.bottom = _mlp((NUM_INTEGERS, *size.bottom_mlp), last_relu=True)
        self.top = _mlp((size.top_inputs, *size.top_mlp), last_relu=False)
        self.register_buffer("pairs", torch.tril_indices(NUM_TABLES + 1, NUM_TABLES + 1, offset=-1))

    def forward(self, dense_BI: Tensor, ids_FB: Tensor, offsets_B: Tensor) -> Tensor:
        """Logits, (B,)."""
        bottom_BD = self.bottom(dense_BI)
        looked_up = [table(ids_B, offsets_B) for table, ids_B in zip(self.tables, ids_FB, strict=True)]
        vectors_BVD = torch.stack([bottom_BD, *looked_up], dim=1)
        dots_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        pairs = self.get_buffer("pairs")
        return self.top(torch.cat([bottom_BD, dots_BVV[:, pairs[0], pairs[1]]], dim=1)).squeeze(1)


def _table(num_rows: int, dim: int) -> nn.EmbeddingBag:
    bound = num_rows**-0.5
    rows_ND = torch.empty(num_rows, dim).uniform_(-bound, bound)
    return nn.EmbeddingBag.from_pretrained(rows_ND, freeze=False, mode="sum", sparse=True)


def _mlp(widths: tuple[int, ...], *, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers if last_relu else layers[:-1])


def plain(config: Config, folder: Path, pipe: Connection) -> None:
    """A single process: 26 ``nn.EmbeddingBag``, ``nn.Linear``, autograd, ``torch.optim.SGD``; the same batches."""
    torch.set_num_threads(config.trainer.num_threads)
    dataset = Dataset.open(Path(config.data.path), split=config.data.split, seed=config.seed)
    size = config.trainer.batch_size
    model = PlainDlrm(model_size(config.model), dataset.cardinalities)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.trainer.learning_rate)
    offsets_B = torch.arange(size)
    gate = Gate(pipe)
    losses: list[float] = []
    while True:
        gate.step()
        batch = dataset.train_batch(len(losses), size)
        ids_FB = torch.from_numpy(batch.ids_BF).t().contiguous()
        offsets = offsets_B.to(ids_FB.dtype)
        optimizer.zero_grad()
        logits_B = model(batch.dense_BI, ids_FB, offsets)
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


@dataclass(frozen=True)
class Product:
    """``out = left @ right``, all preallocated."""

    left: Tensor
    right: Tensor
    out: Tensor

    @property
    def num_flops(self) -> int:
        """A multiplication and an addition each."""
        return 2 * self.left.shape[0] * self.left.shape[1] * self.right.shape[1]


def products(size: ModelSize, batch_size: int) -> list[Product]:
    """The matrix products of both perceptrons: of each layer the forward one and both backward ones.

    Those that nobody needs are left out (the gradient of the integer features), and so is the interaction, whose
    products of 27 x 16 are 2 % of the arithmetic.
    """
    found: list[Product] = []
    for widths, needs_inputs in (((NUM_INTEGERS, *size.bottom_mlp), False), ((size.top_inputs, *size.top_mlp), True)):
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            x_BI, weight_OI = torch.randn(batch_size, fan_in), torch.randn(fan_out, fan_in)
            grad_BO = torch.randn(batch_size, fan_out)
            found.append(Product(x_BI, weight_OI.t(), torch.empty(batch_size, fan_out)))
            found.append(Product(grad_BO.t(), x_BI, torch.empty(fan_out, fan_in)))
            if layer > 0 or needs_inputs:
                found.append(Product(grad_BO, weight_OI, torch.empty(batch_size, fan_in)))
    return found


def dense(config: Config, folder: Path, pipe: Connection) -> None:
    """The dense network alone, as the harness trains it: its products and all between them, on one batch."""
    torch.set_num_threads(config.trainer.num_threads)
    size, batch_size = model_size(config.model), config.trainer.batch_size
    network = DenseNetwork(size, seed=0, learning_rate=1e-8, backend=choose_backend(config.trainer))  # hardly moves
    dataset = Dataset.open(Path(config.data.path), split=config.data.split, seed=config.seed)
    batch = dataset.train_batch(0, batch_size)
    placement = Placement("row", dataset.cardinalities, 1)
    plan = plan_batch(batch.ids_BF, placement, np.zeros(batch_size, dtype=bool))
    rows_ND = torch.randn(len(plan.keys_N), size.embedding_dim)
    gate = Gate(pipe)
    while True:
        gate.step()
        network.train(batch.dense_BI, rows_ND, plan, batch.labels_B)
        network.step()


def floor(config: Config, folder: Path, pipe: Connection) -> None:
    """The matrix products of the dense network alone, by ``torch.mm``, which is MKL on a CPU."""
    torch.set_num_threads(config.trainer.num_threads)
    todo = products(model_size(config.model), config.trainer.batch_size)
    gate = Gate(pipe)
    while True:
        gate.step()
        for product in todo:
            torch.mm(product.left, product.right, out=product.out)
