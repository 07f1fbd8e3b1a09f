"""Forward and backward of DLRM for a share of the samples, compiled by Numba; the thread team calls it.

The mathematics is that of :mod:`harness.model.torch_backend`. Matrix products are those of
:mod:`harness.kernels.products`. Nothing outside them fuses a product with a sum or reorders a sum. So no result depends
on the number of shares or threads.

Arrays are passed as addresses and sizes, in records of two types, :data:`LAYER` and :data:`JOB`. Bounds ``first`` to
``last`` of samples or rows exclude ``last``.

B batch, V vectors of a sample, A = B (V - 1) accesses, N distinct rows of a batch, D embedding dim, T the top's inputs.
"""

import math
from typing import Any

import numba
import numpy as np
from numba import float32
from numba.np.numpy_support import carray

from harness.kernels.compiler import FLOATS_PER_LINE
from harness.kernels.native import pointer, prefetch
from harness.kernels.products import TILE_COLUMNS, multiply
from harness.kernels.row_loops import adagrad, sum_some_runs

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("affine", "fan_in", "fan_out"),  # A (fan_in + 1, fan_out): Wᵀ above b
            *("inputs", "inputs_width"),  # rows of ``inputs_width`` numbers, a one behind each sample's inputs
            *("outputs", "outputs_width"),
            *("input_grad", "output_grad"),  # dL/d(inputs), dL/d(outputs): rows of the same widths
            *("sums", "affine_grad"),  # of Adagrad: sums of squared gradients, and dL/dA, like A; 0: SGD
            "has_relu",
        )
    ]
)
"""A layer with its buffers for one batch size: addresses, and sizes in numbers of elements."""

JOB = np.dtype(
    [
        *((name, np.int64) for name in ("num_samples", "num_shares", "num_vectors", "dim", "num_bottom", "num_layers")),
        *((name, np.int64) for name in ("layers", "vectors", "vector_grads", "counters", "semaphores")),
        *((name, np.int64) for name in ("command", "workers_have_command", "spin_ns")),
        # of the batch at hand
        *((name, np.int64) for name in ("first", "last", "dense", "labels")),
        *((name, np.int64) for name in ("rows", "row_width", "slots", "inverse", "num_rows")),
        *((name, np.int64) for name in ("order_A", "starts", "losses", "row_grads")),
        ("learning_rate", np.float32),
    ]
)
"""A team's work on batches of one size: sizes, the address of ``num_layers`` LAYERs, and addresses of arrays.

Each of ``num_shares`` has a thread, the first of which is the caller's. ``workers_have_command`` is 1 from
the posting of a command until all workers have finished it. ``counters``, ``semaphores``: see
:mod:`harness.kernels.team`. ``first``, ``last``: the samples to train on, all or some. Access a reads row
``inverse[a]``, or row ``slots[inverse[a]]`` where ``slots`` is not 0: the first D of ``row_width`` numbers.
"""

inlined = numba.njit(nogil=True, error_model="numpy")
"""For functions that only compiled functions call."""


SHARE_UNIT = 16
"""Samples, or rows of a weight matrix, that shares keep together: two tiles of a product (512 bits), where a tile that
is not full takes as long as a full one."""


@inlined
def matrix(address: int, num_rows: int, width: int) -> Any:
    """The float32 matrix at an address."""
    return carray(pointer(address), (num_rows, width), np.float32)


@inlined
def share(total: int, part: int, num_parts: int, unit: int) -> Any:
    """The bounds (start, stop) of share ``part`` of ``total`` items.

    Shares begin at multiples of ``unit`` items, so only the last one that is not empty may end within a unit.
    """
    units = (total + unit - 1) // unit
    return min(total, units * part // num_parts * unit), min(total, units * (part + 1) // num_parts * unit)


@inlined
def _multiply(left_MK: Any, right_KN: Any, out_MN: Any, factor: float, adds: bool) -> None:
    """out <- left right or, if ``adds``, out <- out + factor left right. An operand may be a transposed view."""
    multiply(
        left_MK.shape[0],
        right_KN.shape[1],
        left_MK.shape[1],
        *(left_MK.ctypes.data, left_MK.strides[0], left_MK.strides[1]),
        *(right_KN.ctypes.data, right_KN.strides[0], right_KN.strides[1]),
        *(out_MN.ctypes.data, out_MN.strides[0]),
        float32(factor),
        adds,
    )


@inlined
def forward(layer: Any, num_samples: int, first: int, last: int) -> None:
    """Compute y = relu(x̃ A), or x̃ A in a layer without ReLU, of samples ``first`` to ``last``."""
    inputs = matrix(layer.inputs, num_samples, layer.inputs_width)[first:last, : layer.fan_in + 1]
    outputs = matrix(layer.outputs, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
    _multiply(inputs, matrix(layer.affine, layer.fan_in + 1, layer.fan_out), outputs, factor=1.0, adds=False)
    if layer.has_relu:
        for b in range(outputs.shape[0]):
            for o in range(outputs.shape[1]):
                value = outputs[b, o]
                outputs[b, o] = float32(0) if value < 0 else value  # NaN stays NaN


@inlined
def mask(layer: Any, num_samples: int, first: int, last: int) -> None:
    """Turn dL/dy into dL/d(x̃ A) in place: 0 where the ReLU's output is 0. A no-op in a layer without ReLU."""
    if layer.has_relu:
        outputs = matrix(layer.outputs, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
        grads = matrix(layer.output_grad, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
        for b in range(outputs.shape[0]):
            for o in range(outputs.shape[1]):
                grads[b, o] = float32(0) if outputs[b, o] <= 0 else grads[b, o]


@inlined
def backward(layer: Any, num_samples: int, first: int, last: int) -> None:
    """Compute the gradient of a layer's inputs, dL/dx = g Aᵀ, of samples ``first`` to ``last``.

    g: ``output_grad`` after :func:`mask`; A: here without the row of biases.
    """
    grads = matrix(layer.output_grad, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
    wanted = matrix(layer.input_grad, num_samples, layer.inputs_width)[first:last, : layer.fan_in]
    _multiply(grads, matrix(layer.affine, layer.fan_in, layer.fan_out).T, wanted, factor=1.0, adds=False)


@inlined
def step(job: Any, layer: Any, part: int, num_parts: int) -> None:
    """Make the optimizer's step of share ``part`` of the rows of a layer's matrix, over all samples of the batch.

    SGD: matrix <- matrix - lr x̃ᵀ g, with x̃ the layer's inputs and a one, and g the gradient of its outputs. Adagrad,
    with the gradient x̃ᵀ g, if the layer has ``sums`` (their address is not 0).
    """
    first, last = share(layer.fan_in + 1, part, num_parts, SHARE_UNIT)
    affine = matrix(layer.affine, layer.fan_in + 1, layer.fan_out)[first:last]
    inputs = matrix(layer.inputs, job.num_samples, layer.inputs_width)[:, first:last]
    grads = matrix(layer.output_grad, job.num_samples, layer.outputs_width)[:, : layer.fan_out]
    if layer.sums == 0:
        _multiply(inputs.T, grads, affine, factor=-job.learning_rate, adds=True)
        return
    sums = matrix(layer.sums, layer.fan_in + 1, layer.fan_out)[first:last]
    affine_grad = matrix(layer.affine_grad, layer.fan_in + 1, layer.fan_out)[first:last]
    _multiply(inputs.T, grads, affine_grad, factor=1.0, adds=False)
    for j in range(affine.shape[0]):
        for o in range(affine.shape[1]):
            sums[j, o] += affine_grad[j, o] * affine_grad[j, o]
            affine[j, o] = adagrad(affine[j, o], affine_grad[j, o], sums[j, o], job.learning_rate)


@inlined
def interact(job: Any, bottom: Any, top: Any, first: int, last: int) -> None:
    """Compute the interaction z of samples ``first`` to ``last``.

    It reads the outputs of the bottom MLP and the embedding rows, and writes the inputs of the top MLP.
    """
    dim, num_vectors = job.dim, job.num_vectors
    bottom_BD = matrix(bottom.outputs, job.num_samples, bottom.outputs_width)
    top_BT = matrix(top.inputs, job.num_samples, top.inputs_width)
    rows_NX = matrix(job.rows, job.num_rows, job.row_width)
    slots_N = carray(pointer(job.slots), job.num_rows, np.int64)
    inverse_A = carray(pointer(job.inverse), job.num_samples * (num_vectors - 1), np.int64)
    vectors_BVD = carray(pointer(job.vectors), (job.num_samples, num_vectors, dim), np.float32)
    # Products of a vector and those before it are wanted. They are computed in blocks of whole tiles, which are stored
    # faster than parts of tiles: the last block takes vectors of the next sample too, and nothing is read of that.
    width = (num_vectors + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS
    products_VV = np.empty((num_vectors, width), np.float32)
    for b in range(first, last):
        vectors_VD, out_T = vectors_BVD[b], top_BT[b]
        for d in range(dim):
            vectors_VD[0, d] = out_T[d] = bottom_BD[b, d]
        for v in range(1, num_vectors):
            access = b * (num_vectors - 1) + v - 1
            row = inverse_A[access]
            if job.slots != 0:  # rows lie anywhere: prefetch those of the next sample
                row = slots_N[row]
                if b + 1 < last:
                    ahead = slots_N[inverse_A[access + num_vectors - 1]]
                    for line in range(0, dim, FLOATS_PER_LINE):
                        prefetch(job.rows + (ahead * job.row_width + line) * 4)
            for d in range(dim):
                vectors_VD[v, d] = rows_NX[row, d]
        for column in range(0, num_vectors - 1, TILE_COLUMNS):
            multiply(
                *(num_vectors - column - 1, TILE_COLUMNS, dim),
                *(vectors_VD[column + 1 :].ctypes.data, 4 * dim, 4),
                *(vectors_VD[column:].ctypes.data, 4, 4 * dim),
                *(products_VV[column + 1 :, column:].ctypes.data, 4 * width),
                *(float32(1), False),  # factor, adds
            )
        at = dim
        for i in range(1, num_vectors):
            for j in range(i):
                out_T[at + j] = products_VV[i, j]
            at += i


@inlined
def interact_backward(job: Any, bottom: Any, top: Any, first: int, last: int) -> None:
    """Compute dL/d(vectors) of samples ``first`` to ``last``.

    ``bottom.output_grad`` gets the sum of both paths: vector 0 of the interaction, and the top's first D inputs.
    """
    dim, num_vectors = job.dim, job.num_vectors
    bottom_grad_BD = matrix(bottom.output_grad, job.num_samples, bottom.outputs_width)
    top_grad_BT = matrix(top.input_grad, job.num_samples, top.inputs_width)
    vectors_BVD = carray(pointer(job.vectors), (job.num_samples, num_vectors, dim), np.float32)
    grads_BVD = carray(pointer(job.vector_grads), (job.num_samples, num_vectors, dim), np.float32)
    symmetric_VV = np.zeros((num_vectors, num_vectors), np.float32)
    for b in range(first, last):
        at = dim
        for i in range(1, num_vectors):
            for j in range(i):
                symmetric_VV[i, j] = symmetric_VV[j, i] = top_grad_BT[b, at + j]
            at += i
        _multiply(symmetric_VV, vectors_BVD[b], grads_BVD[b], factor=1.0, adds=False)
        for d in range(dim):
            bottom_grad_BD[b, d] = grads_BVD[b, 0, d] + top_grad_BT[b, d]


@inlined
def cross_entropy(job: Any, top: Any, first: int, last: int) -> None:
    """Compute the losses log(1 + exp(s a)), s = 1 - 2 y, of logits a, and dL/da of their mean L over B, in float64."""
    logits_B1 = matrix(top.outputs, job.num_samples, top.outputs_width)
    grads_B1 = matrix(top.output_grad, job.num_samples, top.outputs_width)
    labels_B = carray(pointer(job.labels), job.num_samples, np.float32)
    losses_B = carray(pointer(job.losses), job.num_samples, np.float64)
    for b in range(first, last):
        sign = 1.0 - 2.0 * labels_B[b]
        against = sign * logits_B1[b, 0]
        small = math.exp(-abs(against))
        losses_B[b] = max(against, 0.0) + math.log1p(small)
        grads_B1[b, 0] = sign * (1.0 if against >= 0 else small) / (1.0 + small) / job.num_samples


@inlined
def coalesce(job: Any, first: int, last: int) -> None:
    """Compute the gradients of distinct rows ``first`` to ``last``: sums over accesses in the order of the batch."""
    dim, num_vectors, num_tables = job.dim, job.num_vectors, job.num_vectors - 1
    order_A = carray(pointer(job.order_A), job.num_samples * num_tables, np.int64)
    starts_N = carray(pointer(job.starts), job.num_rows, np.int64)
    grads_XD = matrix(job.vector_grads, job.num_samples * num_vectors, dim)
    out_ND = matrix(job.row_grads, job.num_rows, dim)
    sum_some_runs(grads_XD, order_A, starts_N, num_tables, num_vectors, first, last, out_ND)
