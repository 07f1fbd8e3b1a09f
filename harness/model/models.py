"""Models that turn dense features and embedding rows into logits, by plain torch that autograd differentiates.

Letters: B batch, I dense features, F tables, D embedding dim, W values of a row (D, or D and a first-order weight),
V = F + 1 vectors of DLRM's interaction, P pairs of these, L inputs of the cross layers, H values of a hidden layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.core.choices import CHOICES, PartTable, enter
from harness.core.model_options import (
    CRITEO,
    DcnOptions,
    DeepFmOptions,
    DlrmOptions,
    ModelOptions,
    Shape,
    WideDeepOptions,
)
from harness.core.optimizers import OPTIMIZERS, row_width
from harness.core.seeds import generator
from harness.model.torch_backend import DENSE_OPTIMIZERS

F32 = NDArray[np.float32]
Draws = np.random.Generator | None
"""The random numbers of one training step, which follow from the run's seed and the step; None in prediction."""


class Model(nn.Module):
    """A dense network with its options. To add one: one class and one entry in :data:`MODELS`.

    Its parameters and buffers are what the harness saves, restores and rolls back. ``nn.Linear`` layers get DLRM's
    initial values, which follow from the run's seed; other parameters keep those of the constructor, which must not be
    random. A model must take random numbers only from the ``draws`` that it gets.
    """

    Options: ClassVar[type[ModelOptions]]
    """The class of the options, with types, limits and defaults. The docstring of a field is its help text."""

    def __init__(self, options: Any, shape: Shape) -> None:
        """``options``: an instance of ``Options``, filled. ``shape``: of the data."""
        super().__init__()

    def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
        """Logits, (B,). ``rows_BFW``: the row of each table, of ``options.row_values`` values."""
        raise NotImplementedError


class Dlrm(Model):
    """DLRM (Naumov et al. 2019) as a model for autograd; the formulas are in harness.model.torch_backend.

    Runs use a backend instead, except with the dense optimizer ``adam``, which the backends lack.
    """

    Options = DlrmOptions

    def __init__(self, options: DlrmOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        assert options.bottom_mlp
        assert options.top_mlp
        self.bottom = Mlp(shape.num_dense, options.bottom_mlp)
        self.top = Mlp(num_top_inputs(options.dim, shape), options.top_mlp[:-1], 1)
        self._pairs = torch.tril_indices(shape.num_tables + 1, shape.num_tables + 1, offset=-1, device="cpu")

    def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
        bottom_BD = self.bottom(dense_BI)
        vectors_BVD = torch.cat([bottom_BD.unsqueeze(1), rows_BFW], dim=1)
        products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        i_P, j_P = self._pairs.to(products_BVV.device)
        return self.top(torch.cat([bottom_BD, products_BVV[:, i_P, j_P]], dim=1)).squeeze(1)


def num_top_inputs(dim: int, shape: Shape) -> int:
    """Inputs of DLRM's top MLP: the bottom's output and all pairs of F + 1 vectors (367 for D = 16, F = 26)."""
    return dim + shape.num_tables * (shape.num_tables + 1) // 2


class WideDeep(Model):
    """Wide & Deep (Cheng et al. 2016): a linear model and an MLP whose outputs are added."""

    Options = WideDeepOptions

    def __init__(self, options: WideDeepOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        dim = options.dim
        num_embedded = shape.num_tables * dim
        self.reads_ids = options.wide == "ids"
        self.dim = dim
        num_inputs = shape.num_dense + num_embedded * self.reads_ids
        self.deep = Mlp.of(options, num_inputs)
        self.last = Layer(self.deep.num_outputs + num_embedded * (not self.reads_ids), 1)
        self.wide = Wide(shape.num_dense) if self.reads_ids else None

    def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
        embedded_BX = rows_BFW[:, :, : self.dim].flatten(1)
        if self.wide is None:
            return self.last(torch.cat([self.deep(dense_BI, draws), embedded_BX], dim=1)).squeeze(1)
        first_order_B = rows_BFW[:, :, self.dim].sum(dim=1) + self.wide(dense_BI)
        deep_BH = self.deep(torch.cat([dense_BI, embedded_BX], dim=1), draws)
        return self.last(deep_BH).squeeze(1) + first_order_B


class Dcn(Model):
    """DCN-v2 (Wang et al. 2021, equations 1 to 4 and 6): cross layers, and an MLP behind them or beside them."""

    Options = DcnOptions

    def __init__(self, options: DcnOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        assert options.cross_rank is not None
        self.bottom = Mlp(shape.num_dense, options.bottom_mlp) if options.bottom_mlp else None
        num_dense = self.bottom.num_outputs if self.bottom else shape.num_dense
        num_inputs = num_dense + shape.num_tables * options.dim
        self.cross = nn.ModuleList(Cross(num_inputs, options.cross_rank) for _ in range(options.cross_layers or 0))
        self.deep = Mlp.of(options, num_inputs)
        self.is_parallel = options.structure == "parallel"
        self.last = Layer(self.deep.num_outputs + num_inputs * self.is_parallel, 1)

    def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
        bottom_BX = self.bottom(dense_BI) if self.bottom else dense_BI
        inputs_BL = crossed_BL = torch.cat([bottom_BX, rows_BFW.flatten(1)], dim=1)
        for layer in self.cross:
            crossed_BL = layer(inputs_BL, crossed_BL)
        if self.is_parallel:
            return self.last(torch.cat([crossed_BL, self.deep(inputs_BL, draws)], dim=1)).squeeze(1)
        return self.last(self.deep(crossed_BL, draws)).squeeze(1)


class DeepFm(Model):
    """DeepFM (Guo et al. 2017, equations 1 to 4): first-order weights, products of all pairs of embeddings, an MLP."""

    Options = DeepFmOptions

    def __init__(self, options: DeepFmOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        self.dim = options.dim
        self.num_dense = shape.num_dense if options.dense == "read" else 0
        self.deep = Mlp.of(options, self.num_dense + shape.num_tables * self.dim)
        self.last = Layer(self.deep.num_outputs, 1)
        self.wide = Wide(self.num_dense)

    def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
        embedded_BFD, dense_BI = rows_BFW[:, :, : self.dim], dense_BI[:, : self.num_dense]
        first_order_B = rows_BFW[:, :, self.dim].sum(dim=1) + self.wide(dense_BI)
        # The sum over pairs of <v_i, v_j> is half of (sum of v)² less the sum of v².
        pairs_BD = embedded_BFD.sum(dim=1).square() - embedded_BFD.square().sum(dim=1)
        deep_BH = self.deep(torch.cat([dense_BI, embedded_BFD.flatten(1)], dim=1), draws)
        return self.last(deep_BH).squeeze(1) + first_order_B + pairs_BD.sum(dim=1) / 2


class Cross(nn.Module):
    """A cross layer, ``x <- x0 * (W x + b) + x``. W is a product of rank ``rank``; with rank 0, a full matrix."""

    def __init__(self, num_inputs: int, rank: int) -> None:
        super().__init__()
        self.down = Layer(num_inputs, rank, bias=False) if rank else nn.Identity()
        self.up = Layer(rank or num_inputs, num_inputs)

    def forward(self, inputs_BL: Tensor, x_BL: Tensor) -> Tensor:
        """The next x, (B, L), from x0, ``inputs_BL``, and x."""
        return inputs_BL * self.up(self.down(x_BL)) + x_BL


class Mlp(nn.ModuleList):
    """Hidden layers, and then, if ``num_outputs`` is given, a linear one. ``options``: of the hidden :class:`Layer`."""

    def __init__(self, num_inputs: int, hidden: Sequence[int], num_outputs: int | None = None, **options: Any) -> None:
        widths = [num_inputs, *hidden]
        layers = [Layer(fan_in, fan_out, is_hidden=True, **options) for fan_in, fan_out in pairwise(widths)]
        super().__init__([*layers, *([Layer(widths[-1], num_outputs)] if num_outputs else [])])
        self.num_outputs = num_outputs or widths[-1]

    @classmethod
    def of(cls, options: Any, num_inputs: int) -> "Mlp":
        """The hidden layers that ``mlp``, ``batch_norm`` and ``dropout`` of ``options`` describe."""
        return cls(num_inputs, options.mlp, batch_norm=options.batch_norm, dropout=options.dropout)

    def forward(self, x_BX: Tensor, draws: Draws = None) -> Tensor:
        for layer in self:
            x_BX = layer(x_BX, draws)
        return x_BX


class Wide(nn.Module):
    """A linear model of dense features without a bias, (B,). Its weights start at 0, since the features are large."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.weight_I = nn.Parameter(torch.zeros(num_inputs))

    def forward(self, dense_BI: Tensor) -> Tensor:
        return dense_BI @ self.weight_I


class Layer(nn.Linear):
    """A linear layer, then, each if asked for, batch normalisation, a ReLU (``is_hidden``) and dropout.

    ``dropout``: the probability that an output is dropped, if there are ``draws``.
    """

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        *,
        bias: bool = True,
        is_hidden: bool = False,
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(fan_in, fan_out, bias and not batch_norm)  # batch normalisation would subtract a bias again
        self.norm = nn.BatchNorm1d(fan_out) if batch_norm else None
        self._is_hidden, self._dropout = is_hidden, dropout

    def reset_parameters(self) -> None:
        """A no-op: :func:`make_model` sets the parameters."""

    def forward(self, input: Tensor, draws: Draws = None) -> Tensor:
        y_BO = super().forward(input)
        if self.norm is not None:
            y_BO = self.norm(y_BO)
        if self._is_hidden:
            y_BO = y_BO.relu()
        if draws is None or not self._dropout:
            return y_BO
        keeps_BO = draws.random(y_BO.shape, np.float32) >= self._dropout
        return y_BO * (torch.from_numpy(keeps_BO).to(y_BO) / (1 - self._dropout))


class _Models(PartTable[type[Model]]):
    """The table of models. A new entry also enters the model's options, from which configurations are built."""

    def __setitem__(self, name: str, part: type[Model]) -> None:
        super().__setitem__(name, part)
        if name not in CHOICES["model"]:
            enter(name, part.Options, part.__doc__)


MODELS = _Models([*CHOICES["model"]], {"dlrm": Dlrm, "wide_deep": WideDeep, "dcn": Dcn, "deepfm": DeepFm})
"""Models by the value of ``model.name``."""


def make_model(options: ModelOptions, shape: Shape, *, seed: int) -> Model:
    """The model of ``options`` with its initial values, on the CPU. Raises ConfigError for options that do not fit."""
    options.check(shape)
    model = MODELS[options.name](options.filled(), shape)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            weight_OI, bias_O = initial_layer(seed, name, layer.in_features, layer.out_features)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(weight_OI))
                if layer.bias is not None:
                    layer.bias.copy_(torch.from_numpy(bias_O))
    return model


def initial_layer(seed: int, name: str, fan_in: int, fan_out: int) -> tuple[F32, F32]:
    """Initial W, (O, I), and b, (O,), of the layer with this path, a function of seed and path.

    Both are normal with mean 0. The standard deviation of W is sqrt(2 / (fan_in + fan_out)), that of b
    sqrt(1 / fan_out). Source: facebookresearch/dlrm.
    """
    rng = generator(seed, "dense", *(int(part) if part.isdecimal() else part for part in name.split(".")))
    weight_OI = rng.normal(0, math.sqrt(2 / (fan_in + fan_out)), (fan_out, fan_in)).astype(np.float32)
    return weight_OI, rng.normal(0, math.sqrt(1 / fan_out), fan_out).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Sizes of a trained model.

    ``row_width``: float32 numbers of an embedding row, state of its optimizer included. ``num_parameters``: of the
    dense network. ``dense_bytes``: bytes of the dense network's parameters, buffers and optimizer.
    """

    row_width: int
    num_parameters: int
    dense_bytes: int

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of the whole model with ``num_rows`` embedding rows: the payload of a full save."""
        return 4 * self.row_width * num_rows + self.dense_bytes


def footprint(options: ModelOptions, optimizer: str, dense_optimizer: str, shape: Shape = CRITEO) -> Footprint:
    """The sizes of the model of ``options`` with these optimizers. Raises ConfigError for options that do not fit."""
    options.check(shape)
    with torch.device("meta"):
        model = MODELS[options.name](options.filled(), shape)
    num_parameters, dense = sum(each.numel() for each in model.parameters()), DENSE_OPTIMIZERS[dense_optimizer]
    buffers_bytes = sum(each.nbytes for each in model.buffers())
    steps_bytes = 8 * (dense.counts_steps or not isinstance(options, DlrmOptions))
    return Footprint(
        row_width=row_width(OPTIMIZERS[optimizer], options.row_values),
        num_parameters=num_parameters,
        dense_bytes=4 * (1 + len(dense.states)) * num_parameters + buffers_bytes + steps_bytes,
    )
