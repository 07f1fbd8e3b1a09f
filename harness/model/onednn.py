"""Perceptrons by oneDNN's float32 products, on CPUs where they are faster than those behind ``torch.mm``.

torch calls oneDNN for plain tensors only in ``mkldnn::_linear_pointwise``: C = A Bᵀ, with bias and ReLU applied while C
is in registers. B may be a transposed view, A is copied if it is one; C is always new. In dL/dW one operand has to be
copied: the narrower one, for which W is laid out transposed in memory where I < O.

B batch, I inputs, O outputs of a layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

MIN_WEIGHTS = 4096
"""Weights of a layer from which oneDNN makes up for its 10 us of overhead a call (AMD Zen 5; LOG, 2026-11-21)."""


class OneDnnMlp:
    """Layers of ``weight_OI`` and ``bias_O``, which may be copied. All end in a ReLU, the last if ``ends_in_relu``."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], *, ends_in_relu: bool) -> None:
        num_relus = len(layers) if ends_in_relu else len(layers) - 1
        self.layers = tuple(
            (OneDnnLayer if weight_OI.numel() >= MIN_WEIGHTS else BlasLayer)(weight_OI, bias_O, has_relu=k < num_relus)
            for k, (weight_OI, bias_O) in enumerate(layers)
        )

    def parameters(self) -> list[Tensor]:
        """W (O, I), b (O,) of every layer, in order."""
        return [parameter for layer in self.layers for parameter in (layer.weight_OI, layer.bias_O)]

    def start(self, num_samples: int) -> "OneDnnPass":
        """A pass over batches of this size."""
        return OneDnnPass(self.layers, num_samples)


class BlasLayer:
    """A layer too small for oneDNN."""

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


class OneDnnLayer(BlasLayer):
    """The same by oneDNN."""

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


class OneDnnPass:
    """An :class:`OneDnnMlp` at work on batches of one size."""

    def __init__(self, layers: Sequence[BlasLayer], num_samples: int) -> None:
        self._layers = tuple(layers)
        weight_OI = layers[0].weight_OI
        self.inputs_BI = weight_OI.new_empty((num_samples, weight_OI.shape[1]))
        self._values = [self.inputs_BI]  # and the outputs of every layer
        self._grads_BO: list[Tensor] = []

    def forward(self) -> Tensor:
        """The outputs of the last layer, (B, O)."""
        del self._values[1:]
        for layer in self._layers:
            self._values.append(layer.forward(self._values[-1]))
        return self._values[-1]

    def backward(self, grad_BO: Tensor) -> None:
        """From dL/d(output) of the last :meth:`forward`, which it overwrites: dL/d(x Wᵀ + b) of every layer."""
        grads_BO: list[Tensor] = []
        for index in reversed(range(len(self._layers))):
            if self._layers[index].has_relu:  # in place: nobody needs what the mask hides
                torch.ops.aten.threshold_backward.grad_input(grad_BO, self._values[index + 1], 0, grad_input=grad_BO)
            grads_BO.append(grad_BO)
            if index > 0:
                grad_BO = self._layers[index].input_gradient(grad_BO)
        self._grads_BO = grads_BO[::-1]

    def input_gradient(self) -> Tensor:
        """dL/d(input) and a column of zeros behind it, (B, I + 1), from the last :meth:`backward`."""
        return functional.pad(self._layers[0].input_gradient(self._grads_BO[0]), (0, 1))

    def update(self, learning_rate: float) -> None:
        """One SGD step of all parameters, with the gradients of the last :meth:`backward`."""
        for layer, x_BI, grad_BO in zip(self._layers, self._values[:-1], self._grads_BO, strict=True):
            layer.weight_OI.sub_(layer.weight_gradient(x_BI, grad_BO), alpha=learning_rate)
            layer.bias_O.sub_(grad_BO.sum(dim=0), alpha=learning_rate)
