"""The dense part of DLRM (Naumov et al. 2019): bottom MLP, dot interaction, top MLP, binary cross-entropy, SGD.

B batch, F tables, D embedding dim, N distinct rows of a batch, A = B*F accesses, I integer features.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from harness.core.lookup import BatchPlan, coalesce
from harness.core.seeds import generator
from harness.model.sizes import NUM_INTEGERS, NUM_TABLES, ModelSize


class DenseNetwork:
    """A replica of the dense network with its optimizer (plain SGD, which has no state besides the parameters)."""

    def __init__(self, size: ModelSize, *, seed: int, learning_rate: float, device: str = "cpu") -> None:
        self.size = size
        self.learning_rate = learning_rate
        self.device = torch.device(device)
        self._bottom = _make_mlp("bottom", (NUM_INTEGERS, *size.bottom_mlp), seed, self.device)
        self._top = _make_mlp("top", (size.top_inputs, *size.top_mlp), seed, self.device)
        self._parameters = {**self._bottom, **self._top}
        self._bottom_layers = list(_layers(self._bottom))
        self._top_layers = list(_layers(self._top))
        self._pairs = torch.tril_indices(NUM_TABLES + 1, NUM_TABLES + 1, offset=-1, device=self.device)

    def forward(self, dense_BI: Tensor, embeddings_BFD: Tensor) -> Tensor:
        """Logits, (B,)."""
        bottom_BD = dense_BI
        for weight, bias in self._bottom_layers:
            bottom_BD = functional.relu(functional.linear(bottom_BD, weight, bias))
        vectors_BVD = torch.cat([bottom_BD.unsqueeze(1), embeddings_BFD], dim=1)
        dots_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        hidden = torch.cat([bottom_BD, dots_BVV[:, self._pairs[0], self._pairs[1]]], dim=1)
        for weight, bias in self._top_layers[:-1]:
            hidden = functional.relu(functional.linear(hidden, weight, bias))
        weight, bias = self._top_layers[-1]
        return functional.linear(hidden, weight, bias).squeeze(1)

    def train(self, dense_BI: Tensor, rows_ND: Tensor, plan: BatchPlan, labels_B: Tensor) -> tuple[float, Tensor]:
        """Mean loss of a batch, and the gradient of each of its N distinct rows, float32 (N, D) on the CPU.

        The gradients of the dense parameters are kept for :meth:`step`.
        """
        embeddings_AD = rows_ND.index_select(0, plan.inverse_A).to(self.device).requires_grad_()
        embeddings_BFD = embeddings_AD.view(len(labels_B), -1, self.size.embedding_dim)
        logits_B = self.forward(dense_BI.to(self.device), embeddings_BFD)
        loss = functional.binary_cross_entropy_with_logits(logits_B, labels_B.to(self.device))
        loss.backward()
        assert embeddings_AD.grad is not None
        return loss.item(), coalesce(embeddings_AD.grad.cpu(), plan)

    @torch.no_grad()
    def step(self) -> None:
        """One SGD step with the gradients of the last :meth:`train`."""
        for parameter in self._parameters.values():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=self.learning_rate)
            parameter.grad = None

    @torch.no_grad()
    def predict(self, dense_BI: Tensor, rows_ND: Tensor, plan: BatchPlan) -> Tensor:
        """Logits, (B,) on the CPU."""
        embeddings_BFD = rows_ND.index_select(0, plan.inverse_A).view(len(dense_BI), -1, self.size.embedding_dim)
        return self.forward(dense_BI.to(self.device), embeddings_BFD.to(self.device)).cpu()

    def state(self) -> dict[str, Tensor]:
        """All parameters by name, detached, on the CPU; where the network is there too they share its memory."""
        return {name: parameter.detach().cpu() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set all parameters. ``state`` must name each of them, with its shape."""
        assert state.keys() == self._parameters.keys()
        for name, parameter in self._parameters.items():
            parameter.copy_(state[name])
            parameter.grad = None


def _layers(layers: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of each layer, in order."""
    values = list(layers.values())
    return list(zip(values[::2], values[1::2], strict=True))


def _make_mlp(name: str, widths: tuple[int, ...], seed: int, device: torch.device) -> dict[str, Tensor]:
    """Weights ~ N(0, sqrt(2/(fan_in+fan_out))), biases ~ N(0, sqrt(1/fan_out)), as facebookresearch/dlrm."""
    layers: dict[str, Tensor] = {}
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        rng = generator(seed, "dense", name, index)
        weight = rng.normal(0, math.sqrt(2 / (fan_in + fan_out)), (fan_out, fan_in)).astype(np.float32)
        bias = rng.normal(0, math.sqrt(1 / fan_out), fan_out).astype(np.float32)
        for kind, values in (("weight", weight), ("bias", bias)):
            layers[f"{name}.{index}.{kind}"] = torch.from_numpy(values).to(device).requires_grad_()
    return layers
