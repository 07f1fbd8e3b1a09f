"""The dense part of DLRM by the compiled program of :mod:`harness.kernels.team`: float32 on the CPU.

B batch, V vectors of a sample, D embedding dim, N distinct rows of a batch, I integer features, A accesses. J: a
layer's inputs and a one; O: its outputs. S rows of a cache or of a batch, X columns of a row, D or more. P samples of a
part, W numbers of a sample in it.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.core.lookup import BatchPlan
from harness.core.shares import Division, Share, spans
from harness.kernels import team
from harness.kernels.compiler import FLOATS_PER_LINE
from harness.kernels.layers import JOB, LAYER
from harness.kernels.products import TILE_COLUMNS
from harness.kernels.team import num_counters

_NONE = np.empty(0, np.int64)  # no slots: rows are read in order; or an argument that a call does not read


class CompiledBackend:
    """The network's arithmetic on several threads; see :class:`harness.model.torch_backend.TorchBackend`.

    ``bottom_JO``, ``top_JO``, ``sums_JO``: contiguous float32 on the CPU, which steps update in place. ``is_eager``:
    worker threads begin the step of a batch at once, while the caller does something else. There are as many threads as
    torch has when the batch size changes. No bit of a result depends on the number of threads, or on how a batch is
    divided.
    """

    def __init__(
        self,
        bottom_JO: Sequence[Tensor],
        top_JO: Sequence[Tensor],
        sums_JO: Sequence[Tensor] = (),
        *,
        learning_rate: float,
        is_eager: bool,
    ) -> None:
        self._make_pass = partial(TeamPass, bottom_JO, top_JO, sums_JO, learning_rate=learning_rate, is_eager=is_eager)
        self._training: TeamPass | None = None  # of the last batch trained on
        self._predicting: TeamPass | None = None  # of the last batch predicted

    def train(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None
    ) -> tuple[float, Tensor]:
        return self._begin(len(dense_BI)).train(dense_BI, rows_SX, plan, labels_B, slots_N)

    def divide(self, num_shares: int, *batch: Any) -> Division:
        return TeamDivision(self._begin(len(batch[0])), num_shares, *batch)

    def _begin(self, num_samples: int) -> "TeamPass":
        """The pass of the batch to train on. The step of another pass is applied, if one is pending."""
        last, self._training = self._training, self._pass_for(num_samples, self._training)
        if last is not None and last is not self._training:
            last.update()
        return self._training

    def apply_pending(self, *, is_alone: bool = False) -> None:
        if self._training is not None:
            self._training.update(is_alone=is_alone)

    def predict(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        self._predicting = self._pass_for(len(dense_BI), self._predicting)
        return self._predicting.predict(dense_BI, rows_NX, inverse_A)

    def _pass_for(self, num_samples: int, last: "TeamPass | None") -> "TeamPass":
        if last is not None and last.num_samples == num_samples:
            return last
        return self._make_pass(num_samples=num_samples)


class ShareTeam:
    """Computes shares, on a compute rank. It keeps buffers from one share to the next, and no state.

    ``num_threads``: of the team.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pass: TeamPass | None = None

    def __call__(self, share: Share) -> Tensor:
        """The part (P, W) of ``share`` (:meth:`TeamPass.train_part`)."""
        if self._pass is None or self._pass.num_samples != share.num_samples:
            self._pass = self._pass_for(share)
        for own_JO, given_JO in zip(self._layers_JO, share.layers_JO, strict=True):
            own_JO.copy_(given_JO)
        part = slice(share.first, share.first + len(share.labels_P))
        self._dense_BI[part], self._labels_B[part] = share.dense_PI, share.labels_P
        self._inverse_BF[part] = torch.arange(len(share.rows_AD)).view(len(share.labels_P), self._inverse_BF.shape[1])
        return self._pass.train_part(self._dense_BI, share.rows_AD, self._inverse_BF.flatten(), self._labels_B, part)

    def _pass_for(self, share: Share) -> "TeamPass":
        """A pass for batches like that of ``share``, with buffers for one."""
        num_samples, num_tables = share.num_samples, len(share.rows_AD) // max(1, len(share.labels_P))
        self._layers_JO = tuple(map(torch.empty_like, share.layers_JO))
        self._dense_BI, self._labels_B = torch.empty((num_samples, share.dense_PI.shape[1])), torch.empty(num_samples)
        self._inverse_BF = torch.empty((num_samples, num_tables), dtype=torch.int64)
        bottom_JO, top_JO = self._layers_JO[: share.num_bottom], self._layers_JO[share.num_bottom :]
        return TeamPass(bottom_JO, top_JO, num_samples=num_samples, num_threads=self._num_threads)


class TeamDivision(Division):
    """A batch of a :class:`TeamPass` that is divided. The arguments are those of :meth:`CompiledBackend.divide`."""

    def __init__(self, team_pass: "TeamPass", num_shares: int, *batch: Any) -> None:
        team_pass.update()
        self._pass = team_pass
        self._own, *self._others = [slice(s.start, s.stop) for s in spans(team_pass.num_samples, num_shares)]
        self.shares: Sequence[Share] = [team_pass.share(part, *batch) for part in self._others]
        self._train, self._grads_ND = team_pass.prepared(*batch)

    def compute(self) -> None:
        self._train(self._own.start, self._own.stop, True)  # is_eager: the workers stay awake for the merge

    def merge(self, parts: Sequence[Tensor]) -> tuple[float, Tensor]:
        return self._pass.merge(zip(self._others, parts, strict=True)), self._grads_ND


class TeamPass:
    """The network on batches of one size, with its buffers and a team of threads.

    The worker threads end with the object. While it lives its process must not be forked. ``num_threads``: None for as
    many as torch has now. The other arguments are those of :class:`CompiledBackend`.
    """

    def __init__(
        self,
        bottom_JO: Sequence[Tensor],
        top_JO: Sequence[Tensor],
        sums_JO: Sequence[Tensor] = (),
        *,
        num_samples: int,
        learning_rate: float = 0.0,
        is_eager: bool = False,
        num_threads: int | None = None,
    ) -> None:
        self.num_samples = num_samples
        self._is_eager = is_eager
        self._layers_JO, self._num_bottom = (*bottom_JO, *top_JO), len(bottom_JO)
        num_shares = num_threads or torch.get_num_threads()
        bottom = _Stack(bottom_JO, sums_JO[: len(bottom_JO)], num_samples, ends_in_relu=True)
        top = _Stack(top_JO, sums_JO[len(bottom_JO) :], num_samples, ends_in_relu=False)
        layers = np.array([*bottom.layers, *top.layers], LAYER)
        self._dim = bottom_JO[-1].shape[1]
        num_pairs = len(top_JO[0]) - 1 - self._dim
        num_vectors = (1 + math.isqrt(1 + 8 * num_pairs)) // 2
        # Interactions read up to a tile of vectors beyond a sample.
        memory_XD = torch.zeros((num_samples * num_vectors + TILE_COLUMNS, self._dim))
        vectors_BVD = memory_XD[: num_samples * num_vectors].view(num_samples, num_vectors, self._dim)
        vector_grads_BVD = torch.empty_like(vectors_BVD)
        counters = _lines(num_counters(num_shares))
        semaphores = _lines(num_shares)
        self._logits_BX = top.values[-1]
        self._losses_B = np.empty(num_samples)
        self._job_1 = np.zeros(1, JOB)
        job = self._job_1[0]
        job["num_samples"], job["num_vectors"], job["dim"] = vectors_BVD.shape
        job["num_shares"], job["num_bottom"], job["num_layers"] = num_shares, len(bottom_JO), len(layers)
        job["layers"], job["counters"], job["semaphores"] = (
            array.ctypes.data for array in (layers, counters, semaphores)
        )
        job["vectors"], job["vector_grads"] = _address(vectors_BVD), _address(vector_grads_BVD)
        job["learning_rate"] = learning_rate
        team.prepare(self._job_1)
        self._of_samples = _of_samples(bottom, top, vector_grads_BVD, self._losses_B)
        # The program has addresses only: this object and each worker keep the arrays alive.
        self._buffers = (
            *(bottom, top, bottom_JO, top_JO, sums_JO, layers),
            *(vectors_BVD, vector_grads_BVD, counters, semaphores),
        )
        self._start_workers(num_shares)

    def _start_workers(self, num_shares: int) -> None:
        workers = [
            Thread(target=_run_worker, args=(self._job_1, thread, self._buffers), daemon=True)
            for thread in range(1, num_shares)
        ]
        if workers:
            weakref.finalize(self, _stop_workers, self._job_1, workers)
        for worker in workers:
            worker.start()

    def train(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None
    ) -> tuple[float, Tensor]:
        train, grads_ND = self.prepared(dense_BI, rows_SX, plan, labels_B, slots_N)
        first = last = -1  # all samples
        return train(first, last, self._is_eager), grads_ND

    def prepared(
        self, dense_BI: Tensor, rows_SX: Tensor, plan: BatchPlan, labels_B: Tensor, slots_N: Tensor | None = None
    ) -> tuple[Callable[[int, int, bool], float], Tensor]:
        """:func:`team.train` of this batch, which lacks its last three arguments, and the gradients that it fills."""
        assert len(dense_BI) == self.num_samples
        grads_ND = torch.empty((len(plan.keys_N), self._dim))
        train = partial(
            team.train,
            self._job_1,
            dense_BI.numpy(),
            rows_SX.numpy(),
            _NONE if slots_N is None else slots_N.numpy(),
            plan.inverse_A.numpy(),
            plan.order_A.numpy(),
            plan.starts_N.numpy(),
            labels_B.numpy(),
            grads_ND.numpy(),
            self._losses_B,
        )
        return train, grads_ND

    def share(  # noqa: PLR0917 - the parts of a batch
        self,
        part: slice,
        dense_BI: Tensor,
        rows_SX: Tensor,
        plan: BatchPlan,
        labels_B: Tensor,
        slots_N: Tensor | None = None,
    ) -> Share:
        """The share with the samples ``part`` of a batch. The pending step must have been applied."""
        rows_A = plan.inverse_A.view(self.num_samples, -1)[part].flatten()
        return Share(
            num_samples=self.num_samples,
            first=part.start,
            dense_PI=dense_BI[part].clone(),
            rows_AD=rows_SX[rows_A if slots_N is None else slots_N[rows_A], : self._dim],
            labels_P=labels_B[part].clone(),
            layers_JO=self._layers_JO,
            num_bottom=self._num_bottom,
        )

    def merge(self, parts: Iterable[tuple[slice, Tensor]]) -> float:
        """Take over ``parts`` (P, W), then return the mean loss of the batch. Its step is pending then."""
        widths = [values_BX.shape[1] for values_BX in self._of_samples]
        for part, part_PW in parts:
            for values_BX, values_PX in zip(self._of_samples, part_PW.split(widths, dim=1), strict=True):
                values_BX[part] = values_PX
        return team.merge(self._job_1, self._losses_B, self._is_eager)

    def train_part(self, dense_BI: Tensor, rows_AD: Tensor, inverse_A: Tensor, labels_B: Tensor, part: slice) -> Tensor:
        """Forward and backward of the samples ``part``.

        Returns a row for each of them, (P, W) float32: its values in all buffers that :meth:`merge` and the step read,
        side by side, and its loss. The arguments' values for other samples are not read.
        """
        team.train(
            self._job_1,
            dense_BI.numpy(),
            rows_AD.numpy(),
            *(_NONE, inverse_A.numpy(), _NONE, _NONE),
            labels_B.numpy(),
            rows_AD.numpy(),  # in place of gradients, which merging alone writes
            self._losses_B,
            *(part.start, part.stop, True),  # is_eager: the workers stay awake for the next share
        )
        return torch.cat([values_BX[part] for values_BX in self._of_samples], dim=1)

    def update(self, *, is_alone: bool = False) -> None:
        """Apply the pending step of the last :meth:`train`, if there is one.

        ``is_alone``: the calling thread computes it alone, unless the workers have begun it. Otherwise the team does.
        """
        team.update(self._job_1, is_alone)

    def predict(self, dense_BI: Tensor, rows_NX: Tensor, inverse_A: Tensor) -> Tensor:
        """Logits, (B,), in a new tensor."""
        assert len(dense_BI) == self.num_samples
        team.predict(self._job_1, dense_BI.numpy(), rows_NX.numpy(), inverse_A.numpy())
        return self._logits_BX[:, 0].clone()


def _run_worker(job_1: np.ndarray, thread: int, buffers: object) -> None:
    """Body of a worker thread, which keeps ``buffers`` alive while it runs."""
    team.run_worker(job_1, thread)


def _stop_workers(job_1: np.ndarray, workers: Sequence[Thread]) -> None:
    """Stop and join worker threads, since none may return from compiled code into Python at interpreter exit."""
    if not all(worker.is_alive() for worker in workers):
        return  # this process is a fork of the one that started them
    team.stop_workers(job_1)
    for worker in workers:
        worker.join(1.0)


class _Stack:
    """Layers one after another, with buffers for their inputs, the last outputs, and the gradients of these.

    Each row of a buffer begins on a cache line. Behind its values a row of inputs has a one, which multiplies the bias.
    ``sums_JO``: with Adagrad, one matrix for each layer; empty for SGD, which needs no gradients of the weights in
    memory.
    """

    def __init__(
        self, affines_JO: Sequence[Tensor], sums_JO: Sequence[Tensor], num_samples: int, *, ends_in_relu: bool
    ) -> None:
        self.widths = [len(affine_JO) - 1 for affine_JO in affines_JO] + [affines_JO[-1].shape[1]]
        self.values = [
            torch.zeros((num_samples, (width // FLOATS_PER_LINE + 1) * FLOATS_PER_LINE)) for width in self.widths
        ]
        for values, width in zip(self.values, self.widths, strict=True):
            values[:, width] = 1
        self.grads = [torch.empty_like(values) for values in self.values]
        self._affine_grads = [torch.empty_like(sum_JO) for sum_JO in sums_JO]
        of_adagrad = [
            (_address(sum_JO), _address(grad_JO)) for sum_JO, grad_JO in zip(sums_JO, self._affine_grads, strict=True)
        ] or [(0, 0)] * len(affines_JO)
        self.layers = [
            (
                *(_address(affine_JO), len(affine_JO) - 1, affine_JO.shape[1]),
                *(_address(inputs), inputs.shape[1], _address(outputs), outputs.shape[1]),
                *(_address(input_grads), _address(output_grads)),
                *of_adagrad[k],
                ends_in_relu or k + 1 < len(affines_JO),
            )
            for k, (affine_JO, (inputs, outputs), (input_grads, output_grads)) in enumerate(
                zip(affines_JO, pairwise(self.values), pairwise(self.grads), strict=True)
            )
        ]


def _of_samples(bottom: _Stack, top: _Stack, vector_grads_BVD: Tensor, losses_B: np.ndarray) -> list[Tensor]:
    """Views (B, W) of all buffers that the step and the row gradients of a batch read, and of the losses, by sample.

    A loss is float64: two float32 columns of its view hold it.
    """
    inputs = [*zip(bottom.values, bottom.widths, strict=True), *zip(top.values[:-1], top.widths[:-1], strict=True)]
    grads = [*zip(top.grads[1:], top.widths[1:], strict=True), (bottom.grads[-1], bottom.widths[-1])]
    return [
        *(values_BX[:, :width] for values_BX, width in [*inputs, *grads]),
        vector_grads_BVD[:, 1:].flatten(1),
        torch.from_numpy(losses_B.view(np.float32).reshape(-1, 2)),
    ]


def _lines(number: int) -> np.ndarray:
    """``number`` cache lines of zeros, int64; the first number lies at the beginning of a line."""
    memory = np.zeros(number * 8 + 8, np.int64)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + number * 8]


def _address(tensor: Tensor) -> int:
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
