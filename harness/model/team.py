"""The dense network at work on a batch, by the compiled program of :mod:`harness.model.loops`: float32 on the CPU.

B batch, V vectors of a sample, D embedding dim, N distinct rows of a batch, I integer features, A accesses.
J, O: a layer's inputs and a one, its outputs.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.core.lookup import BatchPlan
from harness.model import loops

_LINE = 16  # floats of a cache line; rows of what products read and write begin on one


class TeamPass:
    """A pass over batches of one size, in as many shares as torch is set to use threads when it is made.

    ``bottom_JO``, ``top_JO``: the layers' matrices, Wᵀ above b, which the pass updates in place.
    """

    def __init__(
        self, bottom_JO: Sequence[Tensor], top_JO: Sequence[Tensor], num_samples: int, *, num_tables: int, dim: int
    ) -> None:
        self.num_samples = num_samples
        self._num_shares = torch.get_num_threads()
        self._bottom = _Stack(bottom_JO, num_samples, ends_in_relu=True)
        self._top = _Stack(top_JO, num_samples, ends_in_relu=False)
        self._layers = np.array([*self._bottom.layers, *self._top.layers], loops.LAYER)
        self._vectors_BVD = torch.empty((num_samples, num_tables + 1, dim))
        self._vector_grads_BVD = torch.empty_like(self._vectors_BVD)
        self._scratch_J = torch.empty(int(self._layers["fan_in"].max()) + 1)
        self._losses_B = np.empty(num_samples)
        self._parts: tuple[str, ...] = ()
        # What the program is told. It knows addresses only: what they are of is kept alive here.
        self._job_1 = np.zeros(1, loops.JOB)
        job = self._job_1[0]
        job["num_samples"], job["num_vectors"], job["dim"] = self._vectors_BVD.shape
        job["num_shares"] = self._num_shares
        job["num_bottom"], job["num_layers"] = len(bottom_JO), len(self._layers)
        job["layers"] = self._layers.ctypes.data
        job["vectors"] = _address(self._vectors_BVD)
        job["vector_grads"] = _address(self._vector_grads_BVD)
        job["scratch"] = _address(self._scratch_J)

    def train(
        self, dense_BI: Tensor, rows_ND: Tensor, plan: BatchPlan, labels_B: Tensor, *, update_first: float | None
    ) -> tuple[float, Tensor]:
        """Mean loss, and the gradient of each distinct row, (N, D); new."""
        grads_ND = torch.empty_like(rows_ND)
        program, self._parts = loops.train, loops.TRAIN_PARTS
        if update_first is not None:
            self._job_1["learning_rate"] = update_first
            program, self._parts = loops.update_and_train, loops.UPDATE_PARTS + loops.TRAIN_PARTS
        self._begin(dense_BI, rows_ND, plan.inverse_A)
        loss = loops.run_training(
            self._job_1,
            labels_B.numpy(),
            plan.order_A.numpy(),
            plan.starts_N.numpy(),
            grads_ND.numpy(),
            self._losses_B,
            program.address,
            self._num_shares,
        )
        return loss, grads_ND

    def update(self, learning_rate: float, *, num_threads: int | None = None) -> None:
        """One SGD step of all parameters, with the gradients of the last :meth:`train`, by a thread for each share or
        by fewer.
        """
        self._job_1["learning_rate"] = learning_rate
        self._run(loops.update, loops.UPDATE_PARTS, num_threads)

    def predict(self, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B,); new."""
        self._begin(dense_BI, rows_ND, inverse_A)
        self._run(loops.predict, loops.PREDICT_PARTS)
        return self._top.values[-1][:, 0].clone()

    def seconds(self) -> dict[str, float]:
        """What each part of the last call took the first thread, waiting for others included."""
        seconds = np.diff(self._job_1["marks"][0, : len(self._parts) + 1]) / 1e9
        return dict(zip(self._parts, seconds.tolist(), strict=True))

    def _begin(self, dense_BI: Tensor, rows_ND: Tensor, inverse_A: Tensor) -> None:
        """Let the next program read these. No index is checked."""
        assert len(dense_BI) == self.num_samples
        loops.begin(self._job_1, dense_BI.numpy(), rows_ND.numpy(), inverse_A.numpy())

    def _run(self, program: Any, parts: tuple[str, ...], num_threads: int | None = None) -> None:
        self._parts = parts
        loops.run(program.address, self._job_1, min(num_threads or self._num_shares, self._num_shares))


class _Stack:
    """Layers one after the other: what each of them reads, what the last one gives, and the gradients of these."""

    def __init__(self, affines_JO: Sequence[Tensor], num_samples: int, *, ends_in_relu: bool) -> None:
        widths = [len(affine_JO) - 1 for affine_JO in affines_JO] + [affines_JO[-1].shape[1]]
        self.values = [_rows(num_samples, width) for width in widths]
        self._grads = [_rows(num_samples, width) for width in widths]
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


def _rows(num_samples: int, width: int) -> Tensor:
    """Rows of ``width`` numbers, a one, and zeros up to a cache line."""
    whole = torch.zeros((num_samples, (width // _LINE + 1) * _LINE))
    whole[:, width] = 1
    return whole


def _address(tensor: Tensor) -> int:
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
