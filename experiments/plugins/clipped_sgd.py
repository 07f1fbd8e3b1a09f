"""Optimizer ``clipped_sgd`` of the embedding tables."""

from typing import Any

from torch import Tensor

from harness.core.optimizers import OPTIMIZERS, Sgd


class ClippedSgd(Sgd):
    """SGD on gradients whose values are clipped to [-LIMIT, LIMIT]."""

    LIMIT = 0.001

    def step(self, rows_MX: Tensor, rows_N: Tensor, grads_ND: Tensor, learning_rate: float, **counters: Any) -> None:
        """See RowOptimizer.step."""
        super().step(rows_MX, rows_N, self._clip(grads_ND), learning_rate, **counters)

    def stepped(self, rows_NX: Tensor, grads_ND: Tensor, learning_rate: float) -> Tensor:
        """See RowOptimizer.stepped."""
        return super().stepped(rows_NX, self._clip(grads_ND), learning_rate)

    def step_shared(
        self, out_HX: Tensor, keys_H: Any, keys_N: Any, rows_NX: Tensor, grads_ND: Tensor, **rate: Any
    ) -> None:
        """See RowOptimizer.step_shared."""
        super().step_shared(out_HX, keys_H, keys_N, rows_NX, self._clip(grads_ND), **rate)

    def _clip(self, grads_ND: Tensor) -> Tensor:
        return grads_ND.clamp(-self.LIMIT, self.LIMIT)


OPTIMIZERS["clipped_sgd"] = ClippedSgd()
