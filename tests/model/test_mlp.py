"""Laws of perceptrons and their written-out backward, whoever makes the products. B batch, I inputs, O outputs."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.kernels import native
from harness.model.blas import BlasMlp
from harness.model.mlp import MlpPass
from harness.model.onednn import MIN_WEIGHTS, BlasLayer, OneDnnLayer, OneDnnMlp
from harness.record.environment import products

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
KINDS = [
    pytest.param(BlasMlp, torch.float64, 1e-12, id="blas-float64"),
    pytest.param(BlasMlp, torch.float32, 1e-4, id="blas"),
    pytest.param(OneDnnMlp, torch.float32, 1e-4, id="onednn", marks=needs_onednn),
]
LEARNING_RATE = 0.001


def make(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_layers(widths: Sequence[int], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """W and b of every layer, so scaled that values keep their size."""
    return [
        (make(o, i, seed=2 * k, dtype=dtype) / i**0.5, make(o, seed=2 * k + 1, dtype=dtype))
        for k, (i, o) in enumerate(pairwise(widths))
    ]


def by_autograd(
    layers: Sequence[tuple[Tensor, Tensor]], x_BI: Tensor, grad_BO: Tensor, *, ends_in_relu: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, dL/d(input), and the parameters after one step."""
    leaves = [tensor.clone().requires_grad_() for layer in layers for tensor in layer]
    leaf_BI = x_BI.clone().requires_grad_()
    y_BO = leaf_BI
    for index in range(len(layers)):
        y_BO = functional.linear(y_BO, leaves[2 * index], leaves[2 * index + 1])
        y_BO = y_BO.relu() if ends_in_relu or index < len(layers) - 1 else y_BO
    y_BO.backward(grad_BO)
    gradient_BI = leaf_BI.grad
    assert gradient_BI is not None
    stepped = [leaf.detach() - LEARNING_RATE * leaf.grad for leaf in leaves if leaf.grad is not None]
    return y_BO.detach(), gradient_BI, stepped


@pytest.mark.parametrize("num_samples", [1, 3, 128])
@pytest.mark.parametrize("widths", [(7, 9, 4, 3), (13, 512, 64, 16), (367, 80, 1), (1, 5), (15, 16, 17, 31)])
@pytest.mark.parametrize("ends_in_relu", [True, False])
@pytest.mark.parametrize(("kind", "dtype", "atol"), KINDS)
def test_an_mlp_is_differentiated_as_by_autograd(  # noqa: PLR0917 - five laws' worth of cases
    kind: type[BlasMlp | OneDnnMlp],
    dtype: torch.dtype,
    atol: float,
    ends_in_relu: bool,
    widths: tuple[int, ...],
    num_samples: int,
) -> None:
    """Outputs, dL/d(input) with a column of zeros, parameters after a step are autograd's, batch after batch."""
    layers = make_layers(widths, dtype)
    mlp = kind(layers, ends_in_relu=ends_in_relu)
    work = mlp.start(num_samples)
    for seed in (100, 200):
        x_BI = make(num_samples, widths[0], seed=seed, dtype=dtype)
        grad_BO = make(num_samples, widths[-1], seed=seed + 1, dtype=dtype)
        before = [(w.clone(), b.clone()) for w, b in zip(mlp.parameters()[::2], mlp.parameters()[1::2], strict=True)]
        y_BO, gradient_BI, stepped = by_autograd(before, x_BI, grad_BO, ends_in_relu=ends_in_relu)
        work.inputs_BI.copy_(x_BI)
        torch.testing.assert_close(work.forward(), y_BO, rtol=0, atol=atol)
        work.backward(grad_BO.clone())
        torch.testing.assert_close(
            work.input_gradient(), functional.pad(gradient_BI, (0, 1)), rtol=0, atol=atol * num_samples
        )
        work.update(LEARNING_RATE)
        for parameter, expected in zip(mlp.parameters(), stepped, strict=True):
            torch.testing.assert_close(parameter, expected, rtol=0, atol=atol * num_samples)


@pytest.mark.parametrize(("kind", "dtype", "atol"), KINDS)
def test_parameters_are_those_that_were_given(kind: type[BlasMlp | OneDnnMlp], dtype: torch.dtype, atol: float) -> None:
    """W (O, I) and b (O,) of every layer, in order and to the bit; what is written to them is what is computed with."""
    layers = make_layers((13, 512, 64, 1), dtype)
    mlp = kind([(w.clone(), b.clone()) for w, b in layers], ends_in_relu=False)
    given = [tensor for layer in layers for tensor in layer]
    assert all(torch.equal(actual, tensor) for actual, tensor in zip(mlp.parameters(), given, strict=True))
    work = mlp.start(2)
    for parameter in mlp.parameters():
        parameter.fill_(0.5)
    work.inputs_BI.fill_(1)
    hidden = (13 * 0.5 + 0.5) * 512 * 0.5 + 0.5
    torch.testing.assert_close(
        work.forward(), torch.full((2, 1), hidden * 64 * 0.5 + 0.5, dtype=dtype), rtol=atol, atol=0
    )


@pytest.mark.parametrize(("kind", "dtype", "atol"), KINDS)
def test_passes_do_not_disturb_one_another(kind: type[BlasMlp | OneDnnMlp], dtype: torch.dtype, atol: float) -> None:
    """What another pass computes between forward, backward and update of the first changes none of its bits."""
    layers = make_layers((13, 512, 64, 1), dtype)
    results: list[list[Tensor]] = []
    for disturbed in (False, True):
        mlp = kind([(w.clone(), b.clone()) for w, b in layers], ends_in_relu=False)
        work, other = mlp.start(8), mlp.start(8)

        def disturb(other: MlpPass = other, disturbed: bool = disturbed) -> None:
            if disturbed:
                other.inputs_BI.copy_(make(8, 13, seed=9))
                other.forward()
                other.backward(make(8, 1, seed=10, dtype=dtype))

        work.inputs_BI.copy_(make(8, 13, seed=7))
        logits_B1 = work.forward().clone()
        disturb()
        work.backward(make(8, 1, seed=8, dtype=dtype))
        disturb()
        gradient = work.input_gradient().clone()
        disturb()
        work.update(LEARNING_RATE)
        results.append([logits_B1, gradient, *mlp.parameters()])
    assert all(torch.equal(alone, between) for alone, between in zip(*results, strict=True))


@needs_onednn
@pytest.mark.parametrize("num_samples", [1, 3, 128])
@pytest.mark.parametrize(("fan_in", "fan_out"), [(13, 512), (512, 256), (64, 64), (367, 1), (1, 5)])
def test_a_product_of_onednn_is_one_of_the_blas(fan_in: int, fan_out: int, num_samples: int) -> None:
    """y, dL/dx and dL/dW of a layer, whatever its layout, to float32's accuracy; dL/dW lies in memory as W does."""
    weight_OI, bias_O = make(fan_out, fan_in, seed=1), make(fan_out, seed=2)
    x_BI, grad_BO = make(num_samples, fan_in, seed=3), make(num_samples, fan_out, seed=4)
    for has_relu in (True, False):
        layer, other = (kind(weight_OI, bias_O, has_relu=has_relu) for kind in (OneDnnLayer, BlasLayer))
        assert torch.equal(layer.weight_OI, weight_OI)
        gradient_OI = layer.weight_gradient(x_BI, grad_BO)
        for actual, expected in (
            (layer.forward(x_BI), other.forward(x_BI)),
            (layer.input_gradient(grad_BO), other.input_gradient(grad_BO)),
            (gradient_OI, other.weight_gradient(x_BI, grad_BO)),
        ):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
        if min(fan_in, fan_out) > 1:
            assert gradient_OI.stride() == layer.weight_OI.stride()


def test_only_large_layers_go_to_onednn() -> None:
    """Layers of fewer than MIN_WEIGHTS weights stay with the BLAS."""
    layers = make_layers((64, MIN_WEIGHTS // 64, MIN_WEIGHTS // 64 - 1), torch.float32)
    assert [type(layer) for layer in OneDnnMlp(layers, ends_in_relu=True).layers] == [OneDnnLayer, BlasLayer]


def test_the_processor_decides_who_multiplies() -> None:
    """oneDNN on AMD's, the BLAS on Intel's and on unknown ones, and the same answer every time."""
    of_the_blas = "team" if native.AVAILABLE else "blas"
    assert products("GenuineIntel") == products("unknown") == of_the_blas
    assert products("AuthenticAMD") == ("onednn" if torch.backends.mkldnn.is_available() else of_the_blas)
    assert products() == products()
