"""The dense part of DLRM by plain torch operations: the readable reference, on any device, in any precision.

Letters: B batch, I inputs of a layer, J = I + 1, O its outputs, F tables, V = F + 1 vectors of a sample, D embedding
dim, P = V (V - 1) / 2 pairs of vectors, T = D + P inputs of the top, N distinct rows of a batch, A = B F accesses,
S rows of a cache or of a batch, X columns of a row: D values, then columns that the network does not read.

**Perceptrons** (:class:`Mlp`). A layer is one matrix A (J, O), Wᵀ above b, and reads x̃ (B, J): x and a column of ones.
So one product does the weights and the bias, forward, backward and in the step. With g = dL/dy where y > 0 and 0
elsewhere, (B, O)::

    y = relu(x̃ A)        dL/dx̃ = g Aᵀ (whose last column is dropped)        A <- A - lr x̃ᵀ g

The bottom ends in a ReLU, the top does not.

**Interaction** (:func:`interact`). With V (V, D) the vectors of a sample, v_0 the bottom's output, then a row of each
table, and S = V Vᵀ (V, V)::

    z = [v_0, (S_ij for i = 1 .. F, j < i)]        (T,)

Let G (V, V) hold dL/dS_ij below its diagonal, the transpose above, and zeros on it. The derivative of S_ij by v_i
is v_j, and that by v_j is v_i; v_0 is also a part of z::

    dL/dV = G V        dL/dv_0 = (G V)_0 + dL/dz[:D]

**Loss** (:func:`cross_entropy`). For logits a and labels y, with s = 1 - 2 y, the sign of a wrong logit::

    L = mean over B of log(1 + exp(s a))        dL/da = s sigmoid(s a) / B

**Optimizer** of the dense parameters: SGD as above, or Adagrad (:class:`Adagrad`) with the gradient x̃ᵀ g.

Source: Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation Systems".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.core.lookup import BatchPlan, coalesce
from harness.core.shares import Division
from harness.kernels.compiler import FLOATS_PER_LINE
from harness.kernels.row_loops import ADAGRAD_EPS


class DenseOptimizer:
    """The update rule of a dense parameter; this base class is SGD, ``value -= learning_rate * gradient``.

    An object has no state of its own: its caller keeps the tensors ``states`` of each parameter.
    """

    states: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors of state of a parameter, each of the parameter's shape, and 0 before the first step."""
    counts_steps: ClassVar[bool] = False
    """Whether :meth:`step` reads ``number``."""

    def step(self, value: Tensor, grad: Tensor, states: Sequence[Tensor], *, learning_rate: float, number: int) -> None:
        """Update ``value`` and ``states`` in place. ``number``: of the step, from 1, if :attr:`counts_steps`."""
        value.sub_(grad, alpha=learning_rate)


class Adagrad(DenseOptimizer):
    """``G += gradient ** 2``, then ``value -= learning_rate * gradient / (sqrt(G) + 1e-10)``."""

    states = ("sum",)

    def step(self, value: Tensor, grad: Tensor, states: Sequence[Tensor], *, learning_rate: float, number: int) -> None:
        (sums,) = states
        sums.addcmul_(grad, grad)
        value.addcdiv_(grad, sums.sqrt().add_(float(ADAGRAD_EPS)), value=-learning_rate)


class Adam(DenseOptimizer):
    """Adam (Kingma and Ba 2015, algorithm 1) with the constants of its paper, as torch.optim.Adam.

    In step t, with gradient g::

        m <- 0.9 m + 0.1 g        v <- 0.999 v + 0.001 g²
        value <- value - lr / (1 - 0.9ᵗ) · m / (sqrt(v / (1 - 0.999ᵗ)) + 1e-8)
    """

    states = ("m", "v")
    counts_steps = True

    def step(self, value: Tensor, grad: Tensor, states: Sequence[Tensor], *, learning_rate: float, number: int) -> None:
        m, v = states
        m.lerp_(grad, 0.1)
        v.mul_(0.999).addcmul_(grad, grad, value=0.001)
        divisor = v.sqrt().div_(math.sqrt(1 - 0.999**number)).add_(1e-8)
        value.addcdiv_(m, divisor, value=-learning_rate / (1 - 0.9**number))


DENSE_OPTIMIZERS: Mapping[str, DenseOptimizer] = {"sgd": DenseOptimizer(), "adagrad": Adagrad(), "adam": Adam()}
"""Update rules by the value of ``trainer.dense_optimizer``."""


class TorchBackend:
    """The network's arithmetic by torch operations, as :class:`harness.model.dlrm.Network` describes the methods.

    ``bottom_JO``, ``top_JO``: one matrix for each layer, Wᵀ above b. ``sums_JO``: Adagrad's sums of squared gradients,
    one matrix for each layer, the bottom's first; none for SGD. The caller shares these matrices, and steps update them
    in place; their device and dtype are those of the network. Results are new tensors on the CPU.

    The bits of a result depend on torch's number of threads. ``is_eager`` is ignored.
    """

    def __init__(
        self,
        bottom_JO: Sequence[Tensor],
        top_JO: Sequence[Tensor],
        sums_JO: Sequence[Tensor] = (),
        *,
        learning_rate: float,
        is_eager: bool = False,
    ) -> None:
        self._bottom = Mlp(bottom_JO, sums_JO[: len(bottom_JO)], ends_in_relu=True)
        self._top = Mlp(top_JO, sums_JO[len(bottom_JO) :], ends_in_relu=False)
        self._dim = bottom_JO[-1].shape[1]
        self._learning_rate = learning_rate
        self._like = bottom_JO[0]
        self._step_is_due = False

    def train(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None
    ) -> tuple[float, Tensor]:
        self.apply_pending()
        rows_NX = rows_SX if slots_N is None else rows_SX[slots_N]
        logits_B1, vectors_BVD = self._forward(dense_BI, rows_NX, plan.inverse_A)
        loss, grad_B1 = cross_entropy(logits_B1, labels_B)
        vector_grads_BVD = interact_backward(vectors_BVD, self._top.backward(grad_B1))
        self._bottom.backward(vector_grads_BVD[:, 0])
        self._step_is_due = True
        return loss, coalesce(vector_grads_BVD.cpu(), plan)

    def divide(self, num_shares: int, *batch: Any) -> Division:
        raise NotImplementedError("a product of fewer samples may be summed in another order")

    def apply_pending(self, *, is_alone: bool = False) -> None:
        """Apply the pending step; ``is_alone`` is ignored, since one thread would compute other bits."""
        if self._step_is_due:
            self._bottom.step(self._learning_rate)
            self._top.step(self._learning_rate)
        self._step_is_due = False

    def predict(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        return self._forward(dense_BI, rows_NX, inverse_A)[0].squeeze(1).cpu()

    def _forward(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, (B, 1), and the vectors of each sample, (B, V, D)."""
        bottom_BD = self._bottom.forward(dense_BI.to(self._like))
        rows_ND = rows_NX[:, : self._dim]
        embeddings_BFD = rows_ND[inverse_A].view(len(dense_BI), -1, self._dim).to(self._like)
        vectors_BVD = torch.cat([bottom_BD.unsqueeze(1), embeddings_BFD], dim=1)
        return self._top.forward(interact(vectors_BVD)), vectors_BVD


class Mlp:
    """Layers one after another, one matrix each. Each ends in a ReLU, the last one only if ``ends_in_relu``.

    ``sums_JO``: with Adagrad, one matrix for each layer; empty for SGD.
    """

    def __init__(self, layers_JO: Sequence[Tensor], sums_JO: Sequence[Tensor] = (), *, ends_in_relu: bool) -> None:
        self.layers_JO = tuple(layers_JO)
        self._sums_JO = tuple(sums_JO) or (None,) * len(layers_JO)
        self._has_relu = [True] * (len(layers_JO) - 1) + [ends_in_relu]
        self._values_BJ: list[Tensor] = []  # of the last forward: x̃ of each layer, and that of the outputs
        self._grads_BO: list[Tensor] = []  # of the last backward: g of each layer

    def forward(self, x_BI: Tensor) -> Tensor:
        """The outputs of the last layer, (B, O)."""
        self._values_BJ = [_rows(x_BI, x_BI.shape[1])]
        self._values_BJ[0][:, :-1] = x_BI
        for affine_JO, has_relu in zip(self.layers_JO, self._has_relu, strict=True):
            values_BJ = _rows(x_BI, affine_JO.shape[1])
            y_BO = torch.mm(self._values_BJ[-1], affine_JO, out=values_BJ[:, :-1])
            if has_relu:
                y_BO.relu_()
            self._values_BJ.append(values_BJ)
        return self._values_BJ[-1][:, :-1]

    def backward(self, grad_BO: Tensor) -> Tensor:
        """dL/d(inputs of the first layer), (B, I), from dL/d(outputs of the last one), for the last :meth:`forward`."""
        self._grads_BO = []
        for affine_JO, values_BJ, has_relu in zip(
            reversed(self.layers_JO), reversed(self._values_BJ), reversed(self._has_relu), strict=False
        ):
            if has_relu:
                grad_BO = torch.where(values_BJ[:, :-1] <= 0, 0.0, grad_BO)  # NaN stays NaN
            self._grads_BO.insert(0, grad_BO)
            grad_BO = torch.mm(grad_BO, affine_JO.t())[:, :-1]
        return grad_BO

    def step(self, learning_rate: float) -> None:
        """Update all layers with the gradients of the last :meth:`backward`."""
        for affine_JO, sums_JO, inputs_BJ, grad_BO in zip(
            self.layers_JO, self._sums_JO, self._values_BJ, self._grads_BO, strict=False
        ):
            if sums_JO is not None:
                grad_JO = torch.mm(inputs_BJ.t(), grad_BO)
                DENSE_OPTIMIZERS["adagrad"].step(affine_JO, grad_JO, [sums_JO], learning_rate=learning_rate, number=0)
            elif grad_BO.shape[1] > 1:
                affine_JO.addmm_(inputs_BJ.t(), grad_BO, alpha=-learning_rate)
            else:  # a product with one column would add term by term to A, and round each time
                affine_JO.sub_(torch.mm(inputs_BJ.t(), grad_BO), alpha=learning_rate)


def _rows(like_BI: Tensor, width: int) -> Tensor:
    """Memory for x̃, (B, width + 1), with its column of ones set. Rows begin on cache lines, which is faster."""
    num_samples = len(like_BI)
    rows_BX = like_BI.new_zeros(num_samples, (width // FLOATS_PER_LINE + 1) * FLOATS_PER_LINE)
    rows_BX[:, width] = 1
    return rows_BX[:, : width + 1]


def interact(vectors_BVD: Tensor) -> Tensor:
    """z of each sample: its first vector, then the dot products of all pairs of its vectors, (B, T)."""
    products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
    i_P, j_P = _pairs(vectors_BVD)
    return torch.cat([vectors_BVD[:, 0], products_BVV[:, i_P, j_P]], dim=1)


def interact_backward(vectors_BVD: Tensor, grad_BT: Tensor) -> Tensor:
    """dL/d(vectors), (B, V, D), from dL/dz."""
    num_samples, num_vectors, dim = vectors_BVD.shape
    i_P, j_P = _pairs(vectors_BVD)
    symmetric_BVV = grad_BT.new_zeros(num_samples, num_vectors, num_vectors)
    symmetric_BVV[:, i_P, j_P] = grad_BT[:, dim:]
    symmetric_BVV[:, j_P, i_P] = grad_BT[:, dim:]
    grads_BVD = torch.bmm(symmetric_BVV, vectors_BVD)
    grads_BVD[:, 0] += grad_BT[:, :dim]
    return grads_BVD


def _pairs(vectors_BVD: Tensor) -> Tensor:
    """The indices (i, j) of all pairs i > j of vectors, ordered by i and then j, (2, P)."""
    num_vectors = vectors_BVD.shape[1]
    return torch.tril_indices(num_vectors, num_vectors, offset=-1, device=vectors_BVD.device)


def cross_entropy(logits_B1: Tensor, labels_B: Tensor) -> tuple[float, Tensor]:
    """Mean loss, and dL/d(logits), (B, 1) in the dtype of the logits. Computed in double precision."""
    signs_B1 = 1 - 2 * labels_B.to(logits_B1.device, torch.float64).unsqueeze(1)
    wrong_B1 = signs_B1 * logits_B1.double()
    losses_B1 = wrong_B1.clamp(min=0) + torch.log1p(torch.exp(-wrong_B1.abs()))
    grad_B1 = signs_B1 * torch.sigmoid(wrong_B1) / len(labels_B)
    mean = sum(losses_B1.flatten().tolist()) / len(labels_B)  # in order, whatever the number of threads
    return mean, grad_B1.to(logits_B1.dtype)
