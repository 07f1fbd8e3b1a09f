"""What the dense network asks of a multilayer perceptron, whoever computes its matrix products.

B batch, I inputs, O outputs of a layer. With x (B, I), W (O, I), b (O,), and g = dL/dy masked to where y > 0::

    y = relu(x Wᵀ + b)      dL/dx = g W      W <- W - lr gᵀ x      b <- b - lr (sum over B of g)

The ReLU of the last layer may be missing.
"""

from typing import Protocol

from torch import Tensor


class MlpPass(Protocol):
    """An MLP at work on batches of one size. Its tensors are overwritten by the next batch."""

    inputs_BI: Tensor
    """To be filled in before :meth:`forward`."""

    def forward(self) -> Tensor:
        """The outputs of the last layer, (B, O)."""
        ...

    def backward(self, grad_BO: Tensor) -> None:
        """From dL/d(output) of the last :meth:`forward`, which it overwrites: dL/d(x Wᵀ + b) of every layer."""
        ...

    def input_gradient(self) -> Tensor:
        """dL/d(input) and a column of zeros behind it, (B, I + 1), from the last :meth:`backward`.

        Whoever takes elements of it by number so finds a zero in it.
        """
        ...

    def update(self, learning_rate: float) -> None:
        """One SGD step of all parameters, with the gradients of the last :meth:`backward`."""
        ...


class Mlp(Protocol):
    """Layers, one after the other, with their parameters."""

    def parameters(self) -> list[Tensor]:
        """W (O, I), b (O,) of every layer, in order: views of what is trained, whatever its layout in memory."""
        ...

    def start(self, num_samples: int) -> MlpPass:
        """Buffers for batches of this size, with the parameters as they are whenever they are used."""
        ...
