"""The dense part of DLRM (Naumov et al. 2019): bottom MLP, dot interaction, top MLP, binary cross-entropy, SGD.

Forward and backward are written out, without autograd. The mathematics of the layers stands in
:mod:`harness.model.mlp`, that of the interaction in :mod:`harness.model.interaction`; the loss is, for logits a and
labels y, with s = 1 - 2 y, the sign that a should not have::

    L = mean over B of log(1 + exp(s a)),    dL/da = s sigmoid(s a) / B

What the ranks wait for, the gradients of embeddings, comes first; the bottom's backward and the update of the
parameters need nothing that changes before the next batch, so they are made when asked for.

B batch, F tables, D embedding dim, N distinct rows of a batch, A = B*F accesses, I integer features, T top's inputs.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.core.lookup import BatchPlan
from harness.core.seeds import generator
from harness.kernels import native
from harness.model.blas import BlasMlp
from harness.model.interaction import CompiledInteraction, Interaction, TorchInteraction
from harness.model.layered import LayeredPass
from harness.model.mlp import Mlp
from harness.model.onednn import OneDnnMlp
from harness.model.sizes import NUM_INTEGERS, NUM_TABLES, ModelSize

if TYPE_CHECKING:
    from harness.model.team import TeamPass

PREDICT_SAMPLES = 1024
"""Samples predicted at once: what is between the layers stays in cache, and memory does not grow with the batch."""

Products = Literal["team", "blas", "onednn"]
"""Who makes the perceptrons' matrix products: the BLAS, each thread of a team for its share of the samples, or all
threads together for one product after the other; or oneDNN."""

MLPS: dict[Products, type[BlasMlp | OneDnnMlp]] = {"team": BlasMlp, "blas": BlasMlp, "onednn": OneDnnMlp}


class Pass(Protocol):
    """The network at work on batches of one size, in buffers that the next batch overwrites."""

    num_samples: int

    def train(
        self, dense_BI: Tensor, rows_XD: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None
    ) -> tuple[float, Tensor]:
        """Mean loss, and the gradient of each distinct row, (N, D) on the CPU; new. The step before is made first."""
        ...

    def update(self, *, is_alone: bool = False) -> None:
        """One SGD step of all parameters, with the gradients of the last :meth:`train`, unless it was made already.

        ``is_alone``: by this thread, if the bits do not depend on it.
        """
        ...

    def predict(self, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B,) on the CPU; new. Access a reads ``rows_ND[inverse_A[a]]``."""
        ...


class DenseNetwork:
    """A replica of the dense network with its optimizer (plain SGD, which has no state besides the parameters).

    Same parameters, batch, device, ``products`` and number of threads: same bits, in every process. A team and oneDNN
    are for float32 on the CPU; otherwise it is the BLAS. A ``dtype`` other than float32 is to check the mathematics.
    ``is_eager``: a team begins the step that belongs to a batch at once, on cores that nobody else needs.
    """

    def __init__(
        self,
        size: ModelSize,
        *,
        seed: int,
        learning_rate: float,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        products: Products = "blas",
        is_eager: bool = False,
    ) -> None:
        self.size = size
        self._is_eager = is_eager
        self.learning_rate = learning_rate
        self.device = torch.device(device)
        self._dtype = dtype
        self._is_usual = self.device.type == "cpu" and dtype == torch.float32
        self._products: Products = products if self._is_usual else "blas"
        make_mlp = MLPS[self._products]
        bottom = _initial_layers("bottom", (NUM_INTEGERS, *size.bottom_mlp), seed, self.device, dtype)
        top = _initial_layers("top", (size.top_inputs, *size.top_mlp), seed, self.device, dtype)
        self._bottom: Mlp = make_mlp(bottom, ends_in_relu=True)
        self._top: Mlp = make_mlp(top, ends_in_relu=False)
        self._parameters = {**_named("bottom", self._bottom), **_named("top", self._top)}
        self._pass: Pass | None = None  # of the last batch trained on
        self._predicting: Pass | None = None  # of the last part predicted

    def train(
        self, dense_BI: Tensor, rows_XD: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None = None
    ) -> tuple[float, Tensor]:
        """Mean loss of a batch, and the gradient of each of its N distinct rows, (N, D) on the CPU.

        The rows are ``rows_XD[slots_N]``, or all of ``rows_XD`` in order. No index is checked.
        One SGD step belongs to it, which is made before anything else is asked of the network, or by :meth:`step`.
        """
        last, self._pass = self._pass, self._pass_for(len(dense_BI), self._pass)
        if last is not None and last is not self._pass:
            last.update()
        return self._pass.train(dense_BI, rows_XD, plan, labels_B, slots_N)

    def step(self, *, is_alone: bool = False) -> None:
        """One SGD step with the gradients of the last :meth:`train`, unless it was made already.

        For who waits anyway: the next batch makes it too, at less cost. It may run while what :meth:`train` gave is
        under way: who takes that back gives up the parameters too. ``is_alone``: by this thread, so that others find a
        core, where that gives the same bits.
        """
        if self._pass is not None:
            self._pass.update(is_alone=is_alone)

    def predict(self, dense_BI: Tensor, rows_ND: Tensor, plan: BatchPlan) -> Tensor:
        """Logits, (B,) on the CPU."""
        self.step()
        parts: list[Tensor] = []
        inverses = plan.inverse_A.split(PREDICT_SAMPLES * NUM_TABLES)
        for part_BI, inverse_A in zip(dense_BI.split(PREDICT_SAMPLES), inverses, strict=True):
            self._predicting = self._pass_for(len(part_BI), self._predicting)
            parts.append(self._predicting.predict(part_BI, rows_ND, inverse_A))
        return torch.cat(parts)

    def _pass_for(self, num_samples: int, last: "Pass | None") -> "Pass":
        """``last`` again, if it is of this size."""
        if last is not None and last.num_samples == num_samples:
            return last
        dim = self.size.embedding_dim
        if self._products == "team":
            assert isinstance(self._bottom, BlasMlp)
            assert isinstance(self._top, BlasMlp)
            return _team_pass()(
                self._bottom.affine_JO,
                self._top.affine_JO,
                num_samples,
                num_tables=NUM_TABLES,
                dim=dim,
                learning_rate=self.learning_rate,
                is_eager=self._is_eager,
            )
        interaction: Interaction = (
            CompiledInteraction(num_samples, NUM_TABLES, dim)
            if self._is_usual
            else TorchInteraction(num_samples, NUM_TABLES, dim, device=self.device, dtype=self._dtype)
        )
        bottom, top = self._bottom.start(num_samples), self._top.start(num_samples)
        return LayeredPass(bottom, interaction, top, learning_rate=self.learning_rate)

    def state(self) -> dict[str, Tensor]:
        """All parameters by name, on the CPU; where the network is there too they share its memory.

        Weights are (O, I), whatever their layout in memory.
        """
        self.step()
        return {name: parameter.cpu() for name, parameter in self._parameters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set all parameters. ``state`` must name each of them, with its shape."""
        assert state.keys() == self._parameters.keys()
        self.step()  # nobody is at work on them any more
        for name, parameter in self._parameters.items():
            parameter.copy_(state[name])


def _team_pass() -> "type[TeamPass]":
    """Where torch hides its BLAS, importing it would fail."""
    from harness.model.team import TeamPass  # noqa: PLC0415 - as said

    return TeamPass


if native.AVAILABLE:
    _team_pass()  # compiled code is read now, by the process that those are forked from who use it


def _initial_layers(
    name: str, widths: tuple[int, ...], seed: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """W ~ N(0, sqrt(2/(fan_in+fan_out))), b ~ N(0, sqrt(1/fan_out)) of every layer, as facebookresearch/dlrm."""
    layers: list[tuple[Tensor, Tensor]] = []
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        rng = generator(seed, "dense", name, index)
        weight_OI = rng.normal(0, math.sqrt(2 / (fan_in + fan_out)), (fan_out, fan_in)).astype(np.float32)
        bias_O = rng.normal(0, math.sqrt(1 / fan_out), fan_out).astype(np.float32)
        layers.append(
            (
                torch.tensor(weight_OI, device=device, dtype=dtype),
                torch.tensor(bias_O, device=device, dtype=dtype),
            )
        )
    return layers


def _named(name: str, mlp: Mlp) -> dict[str, Tensor]:
    """Parameters by the names they have in checkpoints."""
    parameters = mlp.parameters()
    kinds = [f"{name}.{index}.{kind}" for index in range(len(parameters) // 2) for kind in ("weight", "bias")]
    return dict(zip(kinds, parameters, strict=True))
