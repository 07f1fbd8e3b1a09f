"""Laws of layers and their written-out backward, in both kinds of matrix product. B batch, I inputs, O outputs."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from harness.model.linear import MIN_ONEDNN_WEIGHTS, Linear, Mlp, OneDnnLinear, make_linear

KINDS = [
    Linear,
    pytest.param(
        OneDnnLinear,
        marks=pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
    ),
]
SHAPES = [(13, 512), (512, 256), (64, 64), (367, 1), (1, 5)]


def make(*shape: int, seed: int) -> Tensor:
    """Normal numbers, float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_samples", [1, 3, 128])
@pytest.mark.parametrize(("fan_in", "fan_out"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_its_equations(kind: type[Linear], fan_in: int, fan_out: int, num_samples: int) -> None:
    """y, dL/dx and dL/dW are relu(x Wᵀ + b), g W and gᵀ x, computed in float64 and compared to float32's accuracy,
    whatever the layout of the operands; dL/dW lies in memory as W does.
    """
    weight_OI, bias_O = make(fan_out, fan_in, seed=1), make(fan_out, seed=2)
    x_BI, grad_BO = make(num_samples, fan_in, seed=3), make(num_samples, fan_out, seed=4)
    for has_relu in (True, False):
        layer = kind(weight_OI, bias_O, has_relu=has_relu)
        assert torch.equal(layer.weight_OI, weight_OI)
        y_BO = x_BI.double() @ weight_OI.double().t() + bias_O.double()
        gradient_OI = layer.weight_gradient(x_BI, grad_BO)
        for actual, exact in (
            (layer.forward(x_BI), y_BO.clamp(min=0) if has_relu else y_BO),
            (layer.input_gradient(grad_BO), grad_BO.double() @ weight_OI.double()),
            (gradient_OI, grad_BO.double().t() @ x_BI.double()),
        ):
            assert actual.dtype == torch.float32
            torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=1e-4)
        if min(fan_in, fan_out) > 1:
            assert gradient_OI.stride() == layer.weight_OI.stride()


def test_only_large_float32_layers_go_to_onednn() -> None:
    """Small layers, float64 and tensors elsewhere than on the CPU stay with the BLAS."""
    small, large = MIN_ONEDNN_WEIGHTS // 64 - 1, MIN_ONEDNN_WEIGHTS // 64
    has_onednn = torch.backends.mkldnn.is_available()
    for fan_out, dtype, device, fast in (
        (large, torch.float32, "cpu", has_onednn),
        (small, torch.float32, "cpu", False),
        (large, torch.float64, "cpu", False),
        (large, torch.float32, "meta", False),
    ):
        weight_OI = torch.zeros((fan_out, 64), dtype=dtype, device=device)
        layer = make_linear(weight_OI, torch.zeros(fan_out, dtype=dtype, device=device), has_relu=True)
        assert isinstance(layer, OneDnnLinear) == fast


@pytest.mark.parametrize("ends_in_relu", [True, False])
def test_an_mlp_is_differentiated_as_by_autograd(ends_in_relu: bool) -> None:
    """Gradients of every parameter and of the input equal autograd's, to float64's accuracy; some units are off."""
    widths = (7, 9, 4, 3)
    parameters: list[Tensor] = []
    layers: list[Linear] = []
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weight_OI, bias_O = make(fan_out, fan_in, seed=2 * index).double(), make(fan_out, seed=2 * index + 1).double()
        parameters += [weight_OI.clone().requires_grad_(), bias_O.clone().requires_grad_()]
        layers.append(Linear(weight_OI, bias_O, has_relu=ends_in_relu or index < 2))
    mlp = Mlp(layers)
    x_BI, grad_BO = make(5, 7, seed=10).double(), make(5, 3, seed=11).double()
    leaf_BI = x_BI.clone().requires_grad_()
    y = leaf_BI
    for index, layer in enumerate(layers):
        y = torch.nn.functional.linear(y, parameters[2 * index], parameters[2 * index + 1])
        y = y.relu() if layer.has_relu else y
    y.backward(grad_BO)

    values = mlp.forward(x_BI)
    assert any((value == 0).any() and (value > 0).any() for value in values[1:])
    torch.testing.assert_close(values[-1], y.detach(), rtol=0, atol=1e-12)
    grads = mlp.backward(values, grad_BO.clone())
    torch.testing.assert_close(mlp.input_gradient(grads), leaf_BI.grad, rtol=0, atol=1e-12)
    gradients = mlp.parameter_gradients(values, grads)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-12)
