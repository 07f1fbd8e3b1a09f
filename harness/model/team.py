"""The dense network at work on a batch, by the compiled program of :mod:`harness.kernels.loops`: float32 on the CPU.

B batch, V vectors of a sample, D embedding dim, N distinct rows of a batch, I integer features, A accesses.
J, O: a layer's inputs and a one, its outputs.
"""

import weakref
from collections.abc import Sequence
from itertools import pairwise
from threading import Thread

import numpy as np
import torch
from torch import Tensor

from harness.core.lookup import BatchPlan
from harness.kernels import loops
from harness.model.blas import Rows

_IN_ORDER = np.empty(0, np.int64)


class TeamPass:
    """A pass over batches of one size, in as many shares as torch is set to use threads when it is made.

    ``bottom_JO``, ``top_JO``: the layers' matrices, Wᵀ above b, which the pass updates in place. ``is_eager``: helpers
    begin an update when :meth:`train` is done with a batch, while the caller is busy elsewhere. They end with the pass;
    while it lives its process must not be forked.
    """

    def __init__(
        self,
        bottom_JO: Sequence[Tensor],
        top_JO: Sequence[Tensor],
        num_samples: int,
        *,
        num_tables: int,
        dim: int,
        learning_rate: float,
        is_eager: bool,
    ) -> None:
        self.num_samples = num_samples
        self._is_eager = is_eager
        num_shares = torch.get_num_threads()
        bottom = _Stack(bottom_JO, num_samples, ends_in_relu=True)
        top = _Stack(top_JO, num_samples, ends_in_relu=False)
        layers = np.array([*bottom.layers, *top.layers], loops.LAYER)
        vectors_BVD = torch.empty((num_samples, num_tables + 1, dim))
        vector_grads_BVD = torch.empty_like(vectors_BVD)
        counters = _lines(loops.num_counters(num_shares))
        semaphores = _lines(num_shares)
        self._logits_BX = top.values[-1]
        self._losses_B = np.empty(num_samples)
        self._job_1 = np.zeros(1, loops.JOB)
        job = self._job_1[0]
        job["num_samples"], job["num_vectors"], job["dim"] = vectors_BVD.shape
        job["num_shares"], job["num_bottom"], job["num_layers"] = num_shares, len(bottom_JO), len(layers)
        job["layers"], job["counters"], job["semaphores"] = (
            array.ctypes.data for array in (layers, counters, semaphores)
        )
        job["vectors"], job["vector_grads"] = _address(vectors_BVD), _address(vector_grads_BVD)
        job["learning_rate"] = learning_rate
        loops.prepare(self._job_1)
        # The program knows addresses only: what they are of is kept alive here, and by each helper.
        self._kept = (bottom, top, bottom_JO, top_JO, layers, vectors_BVD, vector_grads_BVD, counters, semaphores)
        helpers = [
            Thread(target=_help_out, args=(self._job_1, thread, self._kept), daemon=True)
            for thread in range(1, num_shares)
        ]
        if helpers:
            weakref.finalize(self, _dismiss, self._job_1, helpers)
        for helper in helpers:
            helper.start()

    def train(
        self, dense_BI: Tensor, rows_XD: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None
    ) -> tuple[float, Tensor]:
        """Mean loss, and the gradient of each distinct row, (N, D); new. Rows are ``rows_XD[slots_N]``, or in order."""
        assert len(dense_BI) == self.num_samples
        grads_ND = torch.empty((len(plan.keys_N), rows_XD.shape[1]))
        loss = loops.train(
            self._job_1,
            dense_BI.numpy(),
            rows_XD.numpy(),
            _IN_ORDER if slots_N is None else slots_N.numpy(),
            plan.inverse_A.numpy(),
            plan.order_A.numpy(),
            plan.starts_N.numpy(),
            labels_B.numpy(),
            grads_ND.numpy(),
            self._losses_B,
            self._is_eager,
        )
        return loss, grads_ND

    def update(self, *, is_alone: bool = False) -> None:
        """The SGD step of the last :meth:`train`, unless it was made."""
        loops.update(self._job_1, is_alone)

    def predict(self, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B,); new. No index is checked."""
        assert len(dense_BI) == self.num_samples
        loops.predict(self._job_1, dense_BI.numpy(), rows_ND.numpy(), inverse_A.numpy())
        return self._logits_BX[:, 0].clone()

    def seconds(self, parts: Sequence[str] = loops.PARTS) -> dict[str, float]:
        """What each of the first ``parts`` of the last call took the calling thread, waiting for others included."""
        seconds = np.diff(self._job_1["marks"][0, : len(parts) + 1]) / 1e9
        return dict(zip(parts, seconds.tolist(), strict=True))


def _help_out(job_1: np.ndarray, thread: int, kept: object) -> None:
    """Body of a helper. ``kept``: what it reads and writes lives as long as it does."""
    loops.help_out(job_1, thread)


def _dismiss(job_1: np.ndarray, helpers: Sequence[Thread]) -> None:
    """Have helpers end. Python, when it ends, must not meet one on its way out of compiled code."""
    if not all(helper.is_alive() for helper in helpers):
        return  # a fork has none
    loops.dismiss(job_1)
    for helper in helpers:
        helper.join(1.0)


class _Stack:
    """Layers one after the other: what each of them reads, what the last one gives, and the gradients of these."""

    def __init__(self, affines_JO: Sequence[Tensor], num_samples: int, *, ends_in_relu: bool) -> None:
        widths = [len(affine_JO) - 1 for affine_JO in affines_JO] + [affines_JO[-1].shape[1]]
        self.values = [Rows(num_samples, width, affines_JO[0]).whole for width in widths]
        self._grads = [torch.empty_like(values) for values in self.values]
        self.layers = [
            (
                *(_address(affine_JO), len(affine_JO) - 1, affine_JO.shape[1]),
                *(_address(inputs), inputs.shape[1], _address(outputs), outputs.shape[1]),
                *(_address(input_grads), _address(output_grads)),
                ends_in_relu or k + 1 < len(affines_JO),
            )
            for k, (affine_JO, (inputs, outputs), (input_grads, output_grads)) in enumerate(
                zip(affines_JO, pairwise(self.values), pairwise(self._grads), strict=True)
            )
        ]


def _lines(number: int) -> np.ndarray:
    """So many cache lines of zeros, which begin where one does."""
    memory = np.zeros(number * 8 + 8, np.int64)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + number * 8]


def _address(tensor: Tensor) -> int:
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
