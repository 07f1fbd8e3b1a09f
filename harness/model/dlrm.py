"""The dense network of DLRM (Naumov et al. 2019): MLPs, dot interaction, binary cross-entropy, SGD or Adagrad.

This module has the parameters, their names and initial values. A backend does the arithmetic;
:mod:`harness.model.torch_backend` states its mathematics.

Gradients of embedding rows are computed first, since ranks wait for them. The step of the dense parameters is then
pending. :meth:`Network.apply_pending` applies it, and so does every other method before it computes anything.

B batch, F tables, D embedding dim, N distinct rows of a batch, A = B*F accesses, I integer features. J: a layer's
inputs and a one; O: its outputs. S rows of a cache or of a batch, X columns of a row: D values, then state of its
optimizer, which the network does not read.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.config.model import BackendName, DenseOptimizerName
from harness.core.lookup import BatchPlan
from harness.core.model_options import DlrmOptions, Shape
from harness.core.resumable import Resumable
from harness.core.shares import Division
from harness.kernels import products
from harness.model.models import initial_layer, num_top_inputs
from harness.model.torch_backend import TorchBackend

PREDICT_SAMPLES = 1024
"""Samples predicted at once: activations stay in cache, and memory does not grow with the batch."""


class Network(Resumable, ABC):
    """The dense network of a run with its optimizer, as the step loop uses it.

    The step of a batch is pending after :meth:`train`. The next call of any method applies it.
    """

    _num_tables: int

    @abstractmethod
    def train(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None = None
    ) -> tuple[float, Tensor]:
        """Mean loss of a batch, and the gradient of each of its N distinct rows, (N, D) on the CPU.

        The rows are ``rows_SX[slots_N]``, or all of ``rows_SX`` in order if ``slots_N`` is None. No index is checked.
        """

    @abstractmethod
    def apply_pending(self, *, is_alone: bool = False) -> None:
        """Apply the pending step of the last :meth:`train`, if there is one.

        A caller that waits anyway, for instance for replies to its gradients, can apply the step in that time.
        Otherwise the next batch applies it at a lower cost. A step cannot be taken back: to undo a batch, :meth:`load`
        an earlier state. ``is_alone``: the step is computed on this thread only, which leaves cores to other processes.
        It is ignored if one thread would compute other bits, or if other threads have begun the step.
        """

    def predict(self, dense_BI: Tensor, rows_NX: Tensor, plan: BatchPlan) -> Tensor:
        """Logits, (B,) on the CPU. ``rows_NX``: the distinct rows of ``plan``, in its order."""
        self.apply_pending()
        inverses = plan.inverse_A.split(PREDICT_SAMPLES * self._num_tables)
        parts = zip(dense_BI.split(PREDICT_SAMPLES), inverses, strict=True)
        return torch.cat([self._predict(part_BI, rows_NX, inverse_A) for part_BI, inverse_A in parts])

    @abstractmethod
    def _predict(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B,) on the CPU. Access a, sample by sample, reads row ``rows_NX[inverse_A[a]]``."""

    @abstractmethod
    def _tensors(self) -> Mapping[str, Tensor]:
        """The tensors of :meth:`state` by name, which share the memory of the network."""

    def state(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimizer's state by name, on the CPU.

        If the network is there too, they share its memory.
        """
        self.apply_pending()
        return {name: value.cpu() for name, value in self._tensors().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set all tensors from a :meth:`state`, which must name each of them, with its shape."""
        self.apply_pending()  # so that no thread works on the parameters any more
        tensors = self._tensors()
        assert state.keys() == tensors.keys()
        for name, value in tensors.items():
            value.copy_(state[name])


BACKENDS: "dict[BackendName, type[TorchBackend] | type[CompiledBackend]]" = {"torch": TorchBackend}
"""Backends by name that can run on this machine. :class:`TorchBackend` documents what they take and return."""
if products.AVAILABLE:
    # Here and not on first use: processes of a run are forked from one that has loaded the machine code.
    from harness.model.compiled_backend import CompiledBackend

    BACKENDS["compiled"] = CompiledBackend


class DenseNetwork(Network):
    """A replica of DLRM's dense network with its optimizer: ``sgd``, which has no state, or ``adagrad``.

    Results have the same bits in every process with the same parameters, batch, device, ``backend`` and, with
    ``torch``, number of threads. A ``dtype`` other than float32 serves to check the mathematics, by backend ``torch``.
    ``is_eager``: a backend with threads of its own begins the step of a batch at once. Raises ConfigError for options
    that do not fit.

    The state has weights (O, I), whatever their layout in memory. With Adagrad the sums of squared gradients follow,
    each shaped as its parameter and named after it: ``top.0.weight.sum``.
    """

    def __init__(
        self,
        options: DlrmOptions,
        shape: Shape,
        *,
        seed: int,
        learning_rate: float,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        optimizer: DenseOptimizerName = "sgd",
        backend: BackendName = "torch",
        is_eager: bool = False,
    ) -> None:
        options.check(shape)
        whole = options.filled()
        assert whole.bottom_mlp
        assert whole.top_mlp
        self._num_tables = shape.num_tables
        bottom_JO = _initial_layers("bottom", (shape.num_dense, *whole.bottom_mlp), seed, device, dtype)
        top_JO = _initial_layers("top", (num_top_inputs(whole.dim, shape), *whole.top_mlp), seed, device, dtype)
        sums_JO = [torch.zeros_like(affine_JO) for affine_JO in (*bottom_JO, *top_JO)] if optimizer == "adagrad" else []
        self._by_name = {
            **_named("bottom", bottom_JO),
            **_named("top", top_JO),
            **_named("bottom", sums_JO[: len(bottom_JO)], ".sum"),
            **_named("top", sums_JO[len(bottom_JO) :], ".sum"),
        }
        self._backend = BACKENDS[backend](bottom_JO, top_JO, sums_JO, learning_rate=learning_rate, is_eager=is_eager)

    def train(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None = None
    ) -> tuple[float, Tensor]:
        return self._backend.train(dense_BI, rows_SX, plan, labels_B, slots_N)

    def divide(self, num_shares: int, *batch: Any) -> Division:
        """A batch, given as to :meth:`train`, as ``num_shares`` shares. Its results have the same bits.

        The pending step is applied first. Needs backend ``compiled``.
        """
        return self._backend.divide(num_shares, *batch)

    def apply_pending(self, *, is_alone: bool = False) -> None:
        self._backend.apply_pending(is_alone=is_alone)

    def _tensors(self) -> Mapping[str, Tensor]:
        return self._by_name

    def _predict(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        return self._backend.predict(dense_BI, rows_NX, inverse_A)


def _initial_layers(name: str, widths: tuple[int, ...], seed: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Wᵀ above b of every layer, (fan_in + 1, fan_out)."""
    layers_JO: list[Tensor] = []
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weight_OI, bias_O = initial_layer(seed, f"{name}.{index}", fan_in, fan_out)
        affine_JO = np.ascontiguousarray(np.vstack([weight_OI.T, bias_O]))
        layers_JO.append(torch.tensor(affine_JO, device=device, dtype=dtype))
    return layers_JO


def _named(name: str, layers_JO: Sequence[Tensor], suffix: str = "") -> dict[str, Tensor]:
    """Views of the parameters by the names that they have in checkpoints: weights (O, I), biases (O,)."""
    named: dict[str, Tensor] = {}
    for index, affine_JO in enumerate(layers_JO):
        named[f"{name}.{index}.weight{suffix}"] = affine_JO[:-1].t()
        named[f"{name}.{index}.bias{suffix}"] = affine_JO[-1]
    return named
