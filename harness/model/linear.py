"""A fully connected layer with a hand-written backward, by whichever matrix product is fastest where it runs.

B batch, I inputs, O outputs of a layer. With x (B, I), W (O, I), b (O,), and g = dL/dy masked to where y > 0::

    y  = relu(x Wᵀ + b)      dL/dW = gᵀ x      dL/db = sum over B of g      dL/dx = g W

The mask belongs to the backward of a whole MLP (:class:`Mlp`), so that dL/dy is masked once for all three products.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_ONEDNN_WEIGHTS = 4096
"""Weights of a layer from which oneDNN's faster kernels make up for its 10 us of overhead a call (LOG, 2026-11-21)."""


class Linear:
    """``relu(x Wᵀ + b)``, or without the ReLU, by the BLAS behind ``torch.mm`` (MKL, cuBLAS)."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor, *, has_relu: bool) -> None:
        self.weight_OI = weight_OI
        self.bias_O = bias_O
        self.has_relu = has_relu

    def forward(self, x_BI: Tensor) -> Tensor:
        """y, (B, O)."""
        y_BO = torch.addmm(self.bias_O, x_BI, self.weight_OI.t())
        return y_BO.relu_() if self.has_relu else y_BO

    def input_gradient(self, grad_BO: Tensor) -> Tensor:
        """dL/dx, (B, I)."""
        return torch.mm(grad_BO, self.weight_OI)

    def weight_gradient(self, x_BI: Tensor, grad_BO: Tensor) -> Tensor:
        """dL/dW, (O, I), laid out in memory as W."""
        return torch.mm(grad_BO.t(), x_BI)


class OneDnnLinear(Linear):
    """The same by oneDNN: float32 on the CPU only.

    On AMD's Zen 5 it is twice as fast as MKL (LOG, 2026-11-21), and it adds the bias and applies the ReLU while the
    product is in registers. Its one product reads C = A Bᵀ; B may be a transposed
    view, A is copied if it is one. In dL/dW one operand has to be copied: the narrower one, for which W is laid out
    transposed in memory where I < O.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor, *, has_relu: bool) -> None:
        self._is_transposed = weight_OI.shape[1] < weight_OI.shape[0]
        laid_out_OI = weight_OI.t().contiguous().t() if self._is_transposed else weight_OI
        super().__init__(laid_out_OI, bias_O, has_relu=has_relu)
        self._activation = "relu" if has_relu else "none"
        self._product = torch.ops.mkldnn._linear_pointwise  # which builds of torch without oneDNN do not have

    def forward(self, x_BI: Tensor) -> Tensor:
        """y, (B, O)."""
        return self._product(x_BI, self.weight_OI, self.bias_O, self._activation, [], "")

    def input_gradient(self, grad_BO: Tensor) -> Tensor:
        """dL/dx, (B, I)."""
        return self._product(grad_BO, self.weight_OI.t(), None, "none", [], "")

    def weight_gradient(self, x_BI: Tensor, grad_BO: Tensor) -> Tensor:
        """dL/dW, (O, I), laid out in memory as W."""
        if self._is_transposed:
            return self._product(x_BI.t(), grad_BO.t(), None, "none", [], "").t()
        return self._product(grad_BO.t(), x_BI.t(), None, "none", [], "")


def make_linear(weight_OI: Tensor, bias_O: Tensor, *, has_relu: bool) -> Linear:
    """The fastest kind of layer for these parameters, which it may copy."""
    is_fast = (
        weight_OI.device.type == "cpu"
        and weight_OI.dtype == torch.float32
        and weight_OI.numel() >= MIN_ONEDNN_WEIGHTS
        and torch.backends.mkldnn.is_available()
    )
    return (OneDnnLinear if is_fast else Linear)(weight_OI, bias_O, has_relu=has_relu)


class Mlp:
    """Layers, one after the other."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        self.layers = tuple(layers)

    def forward(self, x_BI: Tensor) -> list[Tensor]:
        """The input and the output of every layer; the last is the MLP's."""
        values = [x_BI]
        for layer in self.layers:
            values.append(layer.forward(values[-1]))
        return values

    def backward(self, values: Sequence[Tensor], grad_BO: Tensor) -> list[Tensor]:
        """From dL/d(output), which it overwrites: dL/d(x Wᵀ + b) of every layer, in order."""
        grads: list[Tensor] = []
        for index in reversed(range(len(self.layers))):
            if self.layers[index].has_relu:  # in place: nobody needs what the mask hides
                torch.ops.aten.threshold_backward.grad_input(grad_BO, values[index + 1], 0, grad_input=grad_BO)
            grads.append(grad_BO)
            if index > 0:
                grad_BO = self.layers[index].input_gradient(grad_BO)
        return grads[::-1]

    def input_gradient(self, grads: Sequence[Tensor]) -> Tensor:
        """dL/d(input), from what :meth:`backward` gave."""
        return self.layers[0].input_gradient(grads[0])

    def parameters(self) -> list[Tensor]:
        """W, b of every layer, in order."""
        return [parameter for layer in self.layers for parameter in (layer.weight_OI, layer.bias_O)]

    def parameter_gradients(self, values: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """dL/dW, dL/db of every layer, in order."""
        return [
            gradient
            for layer, x_BI, grad_BO in zip(self.layers, values[:-1], grads, strict=True)
            for gradient in (layer.weight_gradient(x_BI, grad_BO), grad_BO.sum(dim=0))
        ]
