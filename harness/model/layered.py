"""The dense network at work on a batch, operation by operation: on any device, in any precision, by any products.

B batch, D embedding dim, N distinct rows of a batch, I integer features.
"""

import torch
from torch import Tensor
from torch.nn import functional

from harness.core.lookup import BatchPlan
from harness.kernels import compiled
from harness.model.interaction import Interaction
from harness.model.mlp import MlpPass


class LayeredPass:
    """A pass over batches of one size. On a CPU in float32 what is between the products is compiled."""

    def __init__(self, bottom: MlpPass, interaction: Interaction, top: MlpPass, *, learning_rate: float) -> None:
        self.num_samples = len(bottom.inputs_BI)
        self._bottom = bottom
        self._interaction = interaction
        self._top = top
        self._is_usual = bottom.inputs_BI.device.type == "cpu" and bottom.inputs_BI.dtype == torch.float32
        self._learning_rate = learning_rate
        self._bottom_grad_BD = torch.empty(0)
        self._must_update = False

    def train(
        self, dense_BI: Tensor, rows_XD: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None
    ) -> tuple[float, Tensor]:
        """Mean loss, and the gradient of each distinct row, (N, D) on the CPU."""
        self.update()
        rows_ND = rows_XD if slots_N is None else rows_XD.index_select(0, slots_N)
        logits_B1 = self._forward(dense_BI, rows_ND, plan.inverse_A)
        loss, grad_B1 = (_compiled_loss if self._is_usual else _torch_loss)(logits_B1, labels_B)
        self._top.backward(grad_B1)
        self._bottom_grad_BD = self._interaction.backward(self._top.input_gradient())
        self._must_update = True
        return float(loss), self._interaction.row_gradients(plan)

    def update(self, *, is_alone: bool = False) -> None:
        """The SGD step of the last :meth:`train`, unless it was made. By all threads: one alone rounds otherwise."""
        if self._must_update:
            self._bottom.backward(self._bottom_grad_BD)
            self._bottom.update(self._learning_rate)
            self._top.update(self._learning_rate)
        self._must_update = False

    def predict(self, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B,) on the CPU."""
        return self._forward(dense_BI, rows_ND, inverse_A).squeeze(1).to("cpu", copy=True)

    def _forward(self, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B, 1)."""
        self._bottom.inputs_BI.copy_(dense_BI)
        self._interaction.forward(self._bottom.forward(), rows_ND, inverse_A, self._top.inputs_BI)
        return self._top.forward()


def _compiled_loss(logits_B1: Tensor, labels_B: Tensor) -> tuple[float, Tensor]:
    """Mean loss, and dL/d(logits), (B, 1)."""
    grad_B1 = torch.empty((len(labels_B), 1))
    return compiled.cross_entropy(logits_B1.numpy(), labels_B.numpy(), grad_B1.numpy()), grad_B1


def _torch_loss(logits_B1: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """The same on any device and in any precision."""
    signs_B1 = torch.rsub(labels_B.to(logits_B1), 1, alpha=2).unsqueeze(1)
    against_B1 = signs_B1 * logits_B1
    grad_B1 = torch.sigmoid(against_B1).mul_(signs_B1).div_(len(labels_B))
    return functional.softplus(against_B1).mean(), grad_B1
