"""The dense part of DLRM (Naumov et al. 2019): bottom MLP, dot interaction, top MLP, binary cross-entropy, SGD.

Forward and backward are written out, without autograd. The mathematics of the layers stands in
:mod:`harness.model.linear`, that of the interaction in :mod:`harness.model.interaction`; the loss is

    L = mean over B of log(1 + exp(a)) - y a,    dL/da = (sigmoid(a) - y) / B

for logits a and labels y. What the ranks wait for, the gradients of embeddings, comes first; the gradients of the
parameters need nothing that changes before the next batch, so they are computed when asked for, or in the SGD step.

B batch, F tables, D embedding dim, N distinct rows of a batch, A = B*F accesses, I integer features, T top's inputs.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from harness.core.lookup import BatchPlan, coalesce
from harness.core.seeds import generator
from harness.model.interaction import Interaction
from harness.model.linear import Linear, Mlp, make_linear
from harness.model.sizes import NUM_INTEGERS, NUM_TABLES, ModelSize

PREDICT_SAMPLES = 1024
"""Samples predicted at once: what is between the layers stays in cache, and memory does not grow with the batch."""


class DenseNetwork:
    """A replica of the dense network with its optimizer (plain SGD, which has no state besides the parameters).

    Same parameters, batch, device and number of threads: same bits, in every process. A ``dtype`` other than float32 is
    for checking the mathematics.
    """

    def __init__(
        self,
        size: ModelSize,
        *,
        seed: int,
        learning_rate: float,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.size = size
        self.learning_rate = learning_rate
        self.device = torch.device(device)
        self._dtype = dtype
        self._bottom = _make_mlp(
            "bottom", (NUM_INTEGERS, *size.bottom_mlp), seed, self.device, dtype, ends_in_relu=True
        )
        self._top = _make_mlp("top", (size.top_inputs, *size.top_mlp), seed, self.device, dtype, ends_in_relu=False)
        self._parameters = {**_named("bottom", self._bottom), **_named("top", self._top)}
        self._interaction: Interaction | None = None  # of the last batch trained on
        self._operands: list[tuple[Mlp, Sequence[Tensor], Sequence[Tensor]]] = []  # of the last batch
        self._gradients: list[Tensor] = []  # of its parameters, once computed

    def train(self, dense_BI: Tensor, rows_ND: Tensor, plan: BatchPlan, labels_B: Tensor) -> tuple[float, Tensor]:
        """Mean loss of a batch, and the gradient of each of its N distinct rows, (N, D) on the CPU.

        What the gradients of the dense parameters need is kept for :meth:`step`.
        """
        if self._interaction is None or self._interaction.num_samples != len(dense_BI):
            self._interaction = self._make_interaction(len(dense_BI))
        bottom, top = self._forward(self._interaction, dense_BI, rows_ND, plan.inverse_A)
        logits_B, labels_B = top[-1].squeeze(1), labels_B.to(self.device, self._dtype)
        loss = functional.binary_cross_entropy_with_logits(logits_B, labels_B)
        grad_B = torch.sigmoid(logits_B).sub_(labels_B).div_(len(labels_B))
        top_grads = self._top.backward(top, grad_B.unsqueeze(1))
        bottom_grad_BD, grad_BFD = self._interaction.backward(self._top.input_gradient(top_grads))
        bottom_grads = self._bottom.backward(bottom, bottom_grad_BD)
        self._operands = [(self._bottom, bottom, bottom_grads), (self._top, top, top_grads)]
        self._gradients = []
        return loss.item(), coalesce(grad_BFD.view(-1, self.size.embedding_dim).cpu(), plan)

    def differentiate(self) -> None:
        """Compute the gradients of all parameters for :meth:`step`, which does it itself where nobody has.

        It changes no parameter, so it may run while the gradients of :meth:`train` are under way.
        """
        assert self._operands, "no batch to step with"
        self._gradients = [
            gradient for mlp, values, grads in self._operands for gradient in mlp.parameter_gradients(values, grads)
        ]

    def step(self) -> None:
        """One SGD step with the gradients of the last :meth:`train`."""
        if not self._gradients:
            self.differentiate()
        for parameter, gradient in zip(self._parameters.values(), self._gradients, strict=True):
            parameter.sub_(gradient, alpha=self.learning_rate)
        self._operands, self._gradients = [], []

    def predict(self, dense_BI: Tensor, rows_ND: Tensor, plan: BatchPlan) -> Tensor:
        """Logits, (B,) on the CPU. It leaves what :meth:`train` keeps alone."""
        parts: list[Tensor] = []
        interaction = self._make_interaction(min(len(dense_BI), PREDICT_SAMPLES))
        inverses = plan.inverse_A.split(PREDICT_SAMPLES * NUM_TABLES)
        for part_BI, inverse_A in zip(dense_BI.split(PREDICT_SAMPLES), inverses, strict=True):
            if len(part_BI) != interaction.num_samples:
                interaction = self._make_interaction(len(part_BI))
            _, top = self._forward(interaction, part_BI, rows_ND, inverse_A)
            parts.append(top[-1].squeeze(1).cpu())
        return torch.cat(parts)

    def _forward(
        self, interaction: Interaction, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The values of both MLPs; the last of the top's are the logits, (B, 1)."""
        embeddings_BFD = rows_ND.index_select(0, inverse_A).view(len(dense_BI), -1, self.size.embedding_dim)
        bottom = self._bottom.forward(dense_BI.to(self.device, self._dtype))
        top_BT = interaction.forward(bottom[-1], embeddings_BFD.to(self.device, self._dtype))
        return bottom, self._top.forward(top_BT)

    def _make_interaction(self, num_samples: int) -> Interaction:
        return Interaction(num_samples, NUM_TABLES, self.size.embedding_dim, device=self.device, dtype=self._dtype)

    def state(self) -> dict[str, Tensor]:
        """All parameters by name, on the CPU; where the network is there too they share its memory.

        Weights are (O, I), whatever their layout in memory.
        """
        return {name: parameter.cpu() for name, parameter in self._parameters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set all parameters. ``state`` must name each of them, with its shape."""
        assert state.keys() == self._parameters.keys()
        for name, parameter in self._parameters.items():
            parameter.copy_(state[name])
        self._operands, self._gradients = [], []


def _make_mlp(
    name: str, widths: tuple[int, ...], seed: int, device: torch.device, dtype: torch.dtype, *, ends_in_relu: bool
) -> Mlp:
    """Weights ~ N(0, sqrt(2/(fan_in+fan_out))), biases ~ N(0, sqrt(1/fan_out)), as facebookresearch/dlrm."""
    layers: list[Linear] = []
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        rng = generator(seed, "dense", name, index)
        weight_OI = rng.normal(0, math.sqrt(2 / (fan_in + fan_out)), (fan_out, fan_in)).astype(np.float32)
        bias_O = rng.normal(0, math.sqrt(1 / fan_out), fan_out).astype(np.float32)
        parameters = (torch.tensor(values, device=device, dtype=dtype) for values in (weight_OI, bias_O))
        layers.append(make_linear(*parameters, has_relu=ends_in_relu or index < len(widths) - 2))
    return Mlp(layers)


def _named(name: str, mlp: Mlp) -> dict[str, Tensor]:
    """Parameters by the names they have in checkpoints."""
    kinds = [f"{name}.{index}.{kind}" for index in range(len(mlp.layers)) for kind in ("weight", "bias")]
    return dict(zip(kinds, mlp.parameters(), strict=True))
