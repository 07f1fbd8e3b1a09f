"""The baselines: a model as one process of PyTorch has it, and the matrix products of DLRM's dense network alone.

B batch, F = 26 tables, W values of a row, I inputs and O outputs of a layer.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._turns import Parts, Tick, chunks
from harness.config.model import Config
from harness.core.model_options import CRITEO, ModelOptions, Shape
from harness.data.dataset import Dataset
from harness.model.models import ModelSize, make_model, model_size


class Plain(nn.Module):
    def __init__(self, options: ModelOptions, shape: Shape, cardinalities: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(_table(num_rows, options.row_values) for num_rows in cardinalities)
        self.dense = make_model(options, shape, seed=0)

    def look_up(self, ids_FB: Tensor, offsets_B: Tensor) -> list[Tensor]:
        return [rows(ids_B, offsets_B) for rows, ids_B in zip(self.tables, ids_FB, strict=True)]

    def predict(self, dense_BI: Tensor, looked_up: Sequence[Tensor], draws: np.random.Generator) -> Tensor:
        return self.dense(dense_BI, torch.stack([*looked_up], dim=1), draws)


def _table(num_rows: int, dim: int) -> nn.EmbeddingBag:
    bound = num_rows**-0.5
    rows_ND = torch.empty(num_rows, dim).uniform_(-bound, bound)
    return nn.EmbeddingBag.from_pretrained(rows_ND, freeze=False, mode="sum", sparse=True)


def plain(config: Config, folder: Path, tick: Tick) -> None:
    """Body: one process, ``nn.EmbeddingBag``, autograd, ``torch.optim.SGD``; the harness's batches and dense modules.

    Gradients come in two halves, so that embeddings are timed apart. In turn with one backward pass of the whole the
    step took 0.96 times as long (0.67 to 1.04).
    """
    torch.set_num_threads(config.trainer.num_threads)
    dataset = Dataset.open(Path(config.data.path), split=config.data.split, seed=config.seed)
    size = config.trainer.batch_size
    model = Plain(config.model, Shape(dataset.num_dense, dataset.num_tables), dataset.cardinalities)
    draws = np.random.default_rng(0)
    tables, networks = (
        torch.optim.SGD(parameters, lr=config.trainer.learning_rate)
        for parameters in (model.tables.parameters(), model.dense.parameters())
    )
    offsets_B = torch.arange(size, dtype=torch.int32)
    spent_s: Parts = defaultdict(float)

    def step(number: int) -> None:
        times = [time.perf_counter()]
        batch = dataset.train_batch(number, size)
        ids_FB = torch.from_numpy(batch.ids_BF).t().contiguous()
        times.append(time.perf_counter())
        tables.zero_grad()
        rows = model.look_up(ids_FB, offsets_B)
        leaves = [rows_BD.detach().requires_grad_() for rows_BD in rows]
        times.append(time.perf_counter())
        networks.zero_grad()
        logits_B = model.predict(batch.dense_BI, leaves, draws)
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        loss.backward()
        networks.step()
        loss.item()
        times.append(time.perf_counter())
        torch.autograd.backward(rows, [leaf.grad for leaf in leaves])
        tables.step()
        times.append(time.perf_counter())
        read_s, forward_s, dense_s, backward_s = (end - begin for begin, end in pairwise(times))
        for part, part_s in (("read", read_s), ("embedding", forward_s + backward_s), ("dense", dense_s)):
            spent_s[part] += part_s

    chunks(config, folder, tick, step, spent_s)


Product = tuple[Tensor, Tensor, Tensor]
"""(left, right, out): ``out = left @ right``, preallocated."""


def products(size: ModelSize, batch_size: int) -> list[Product]:
    """The matrix products of both perceptrons: of each layer the forward one and both backward ones.

    The gradient of the integer features is left out, since no step needs it, and so is the interaction, whose products
    of 27 x 16 are 2 % of the arithmetic.
    """
    found: list[Product] = []
    for widths, needs_inputs in (
        ((CRITEO.num_dense, *size.bottom_mlp), False),
        ((size.top_inputs, *size.top_mlp), True),
    ):
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            x_BI, weight_OI = torch.randn(batch_size, fan_in), torch.randn(fan_out, fan_in)
            grad_BO = torch.randn(batch_size, fan_out)
            found.append((x_BI, weight_OI.t(), torch.empty(batch_size, fan_out)))
            found.append((grad_BO.t(), x_BI, torch.empty(fan_out, fan_in)))
            if layer > 0 or needs_inputs:
                found.append((grad_BO, weight_OI, torch.empty(batch_size, fan_in)))
    return found


def num_flops(found: list[Product]) -> int:
    """A multiplication and an addition for each pair of values."""
    return sum(2 * left.shape[0] * left.shape[1] * right.shape[1] for left, right, _ in found)


def multiply(found: list[Product]) -> None:
    """All products, by ``torch.mm``, which is MKL on a CPU. The compiled backend has products of its own."""
    for left, right, out in found:
        torch.mm(left, right, out=out)


def floor(config: Config, folder: Path, tick: Tick) -> None:
    torch.set_num_threads(config.trainer.num_threads)
    found = products(model_size(config.model), config.trainer.batch_size)
    chunks(config, folder, tick, lambda step: multiply(found))
