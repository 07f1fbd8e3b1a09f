"""The baselines: DLRM as one process of PyTorch has it, and the matrix products of its dense network alone.

B batch, F = 26 tables, D embedding dim, I inputs and O outputs of a layer.
"""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._turns import Parts, Spent, loop
from harness.config.model import Config
from harness.core.model_options import CRITEO, ModelOptions
from harness.data.dataset import Dataset
from harness.model.models import make_model, num_top_inputs


def plain(config: Config, folder: Path) -> list[Parts]:
    """Body: one process, ``nn.EmbeddingBag``, autograd, ``torch.optim.SGD``; the harness's batches and dense modules.

    Gradients come in two halves, so that embeddings are timed apart. In turn with one backward pass of the whole the
    step took 0.96 times as long (0.67 to 1.04).
    """
    torch.set_num_threads(config.trainer.num_threads)
    dataset = Dataset.open(Path(config.data.path), split=config.data.split, seed=config.seed)
    size = config.trainer.batch_size
    tables = nn.ModuleList(_table(rows, config.model.dim) for rows in dataset.cardinalities)
    network = make_model(config.model, CRITEO, seed=0)
    optimizers = [torch.optim.SGD(each.parameters(), lr=config.trainer.learning_rate) for each in (tables, network)]
    offsets_B = torch.arange(size, dtype=torch.int32)

    def step(number: int, spent_s: Spent) -> None:
        times = [time.perf_counter()]
        batch = dataset.train_batch(number, size)
        ids_FB = torch.from_numpy(batch.ids_BF).t().contiguous()
        times.append(time.perf_counter())
        for optimizer in optimizers:
            optimizer.zero_grad()
        rows = [table(ids_B, offsets_B) for table, ids_B in zip(tables, ids_FB, strict=True)]
        leaves = [rows_BD.detach().requires_grad_() for rows_BD in rows]
        times.append(time.perf_counter())
        logits_B = network(batch.dense_BI, torch.stack(leaves, dim=1), None)
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        loss.backward()
        optimizers[1].step()
        loss.item()
        times.append(time.perf_counter())
        torch.autograd.backward(rows, [leaf.grad for leaf in leaves])
        optimizers[0].step()
        times.append(time.perf_counter())
        read_s, forward_s, dense_s, backward_s = (end - begin for begin, end in pairwise(times))
        for part, part_s in (("read", read_s), ("embedding", forward_s + backward_s), ("dense", dense_s)):
            spent_s[part] += part_s

    return loop(config, step)


def _table(num_rows: int, dim: int) -> nn.EmbeddingBag:
    bound = num_rows**-0.5
    rows_ND = torch.empty(num_rows, dim).uniform_(-bound, bound)
    return nn.EmbeddingBag.from_pretrained(rows_ND, freeze=False, mode="sum", sparse=True)


Product = tuple[Tensor, Tensor, Tensor]
"""(left, right, out): ``out = left @ right``, preallocated."""


def products(options: ModelOptions, batch_size: int) -> list[Product]:
    """The matrix products of both perceptrons: of each layer the forward one and both backward ones.

    The gradient of the integer features is left out, since no step needs it, and so is the interaction, whose products
    of 27 x 16 are 2 % of the arithmetic.
    """
    whole: Any = options.filled()
    top = num_top_inputs(whole.dim, CRITEO), *whole.top_mlp
    layers = [*pairwise((CRITEO.num_dense, *whole.bottom_mlp)), *pairwise(top)]
    found: list[Product] = []
    for place, (fan_in, fan_out) in enumerate(layers):
        x_BI, weight_OI, grad_BO = (
            torch.randn(n, m) for n, m in ((batch_size, fan_in), (fan_out, fan_in), (batch_size, fan_out))
        )
        pairs = [(x_BI, weight_OI.t()), (grad_BO.t(), x_BI), (grad_BO, weight_OI)]
        found += [(left, right, torch.empty(len(left), right.shape[1])) for left, right in pairs[: 3 if place else 2]]
    return found


def num_flops(found: list[Product]) -> int:
    """A multiplication and an addition for each pair of values."""
    return sum(2 * left.shape[0] * left.shape[1] * right.shape[1] for left, right, _ in found)


def floor(config: Config, folder: Path) -> list[Parts]:
    """Body: the products alone, by ``torch.mm``, MKL on a CPU. The compiled backend has products of its own."""
    torch.set_num_threads(config.trainer.num_threads)
    found = products(config.model, config.trainer.batch_size)

    def multiply(number: int, spent_s: Spent) -> None:
        for left, right, out in found:
            torch.mm(left, right, out=out)

    return loop(config, multiply)
