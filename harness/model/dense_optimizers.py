"""Optimizers of the dense network: the update of one parameter, in place, by torch operations on any device.

The same functions update parameters of every network but those of the compiled backend, and plain SGD of
:mod:`harness.model.torch_backend`, which is one product.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from harness.kernels.adagrad import EPS


class DenseOptimizer:
    """The update rule of a dense parameter: SGD, ``value -= learning_rate * gradient``. It has no state of its own."""

    states: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors of state that each parameter has, shaped as it is and 0 before the first step."""
    counts_steps: ClassVar[bool] = False
    """Whether :meth:`step` reads ``number``."""

    def step(self, value: Tensor, grad: Tensor, states: Sequence[Tensor], *, learning_rate: float, number: int) -> None:
        """Update ``value`` and ``states``. ``number``: of the step, counted from 1."""
        value.sub_(grad, alpha=learning_rate)


class Adagrad(DenseOptimizer):
    """``G += gradient ** 2``, then ``value -= learning_rate * gradient / (sqrt(G) + 1e-10)``."""

    states = ("sum",)

    def step(self, value: Tensor, grad: Tensor, states: Sequence[Tensor], *, learning_rate: float, number: int) -> None:
        """See DenseOptimizer."""
        (sums,) = states
        sums.addcmul_(grad, grad)
        value.addcdiv_(grad, sums.sqrt().add_(float(EPS)), value=-learning_rate)


class Adam(DenseOptimizer):
    """Adam (Kingma and Ba 2015, algorithm 1) with the constants of its paper, as torch.optim.Adam::

    m <- 0.9 m + 0.1 g        v <- 0.999 v + 0.001 g²
    value <- value - lr / (1 - 0.9ᵗ) · m / (sqrt(v / (1 - 0.999ᵗ)) + 1e-8)
    """

    states = ("m", "v")
    counts_steps = True

    def step(self, value: Tensor, grad: Tensor, states: Sequence[Tensor], *, learning_rate: float, number: int) -> None:
        """See DenseOptimizer."""
        m, v = states
        m.lerp_(grad, 0.1)
        v.mul_(0.999).addcmul_(grad, grad, value=0.001)
        divisor = v.sqrt().div_(math.sqrt(1 - 0.999**number)).add_(1e-8)
        value.addcdiv_(m, divisor, value=-learning_rate / (1 - 0.9**number))


DENSE_OPTIMIZERS: Mapping[str, DenseOptimizer] = {"sgd": DenseOptimizer(), "adagrad": Adagrad(), "adam": Adam()}
"""By the value of ``trainer.dense_optimizer``."""
