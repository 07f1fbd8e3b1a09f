"""A training step of DLRM as one program for a team of threads, compiled by Numba.

Each thread takes a share of the samples through the whole network, forward and back, and only then waits for the
others: to add up what samples of all of them say of a row, and to update the parameters, of which each takes a share.
Between two matrix products of a thread nothing is called and nobody is woken, which otherwise costs as much as the
products: a batch has some twenty of them, 5 to 150 us each.

The mathematics is that of :mod:`harness.model.blas` and :mod:`harness.model.interaction`. Nothing outside the products
fuses a product with a sum or reorders a sum; the products round as the BLAS does for a share of that size. So a result
depends on the number of shares, and neither on how many threads there are to take them nor on which is faster.

Everything that a function here needs it is told in records of addresses and sizes, :data:`JOB` and :data:`LAYER`. It is
compiled when this module is imported and kept beside it; it calls nothing of another file that is compiled, for Numba
would not notice a change there.

B batch, V vectors of a sample, A = B (V - 1) accesses, N distinct rows of a batch, D embedding dim.
"""

import math
from typing import Any

import numba
import numpy as np
from numba import float32, float64, int64, void
from numba.np.numpy_support import carray

from harness.core.compiled import compiled_for
from harness.native import barrier, blas_threads, call, nanoseconds, num_threads, parallel, pointer, sgemm, thread_num

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("affine", "fan_in", "fan_out"),  # A (fan_in + 1, fan_out): Wᵀ above b
            *("inputs", "inputs_width"),  # what it reads, rows of ``inputs_width`` numbers, a one behind each
            *("outputs", "outputs_width"),  # what it gives
            *("input_grad", "output_grad"),  # dL/d of these, rows of the same widths
            "has_relu",
        )
    ]
)
"""A layer at work: addresses and sizes, in numbers."""

PREDICT_PARTS = ("bottom", "interaction", "top")
TRAIN_PARTS = (*PREDICT_PARTS, "loss", "top backward", "interaction backward", "coalesce")
UPDATE_PARTS = ("bottom backward", "dense update")
"""What :data:`predict`, :data:`train` and :data:`update` do, in order; the first thread notes when it begins the first,
and when it has done each, for the last of its shares."""

JOB = np.dtype(
    [
        *((name, np.int64) for name in ("num_samples", "num_shares", "num_vectors", "dim", "num_bottom", "num_layers")),
        *((name, np.int64) for name in ("layers", "vectors", "vector_grads", "scratch")),
        # of this batch
        *((name, np.int64) for name in ("dense", "labels", "rows", "inverse", "num_rows", "order", "starts")),
        *((name, np.int64) for name in ("losses", "row_grads")),
        ("learning_rate", np.float32),
        ("marks", np.int64, (len(UPDATE_PARTS) + len(TRAIN_PARTS) + 1,)),
    ]
)
"""A batch at work: sizes, where the first of ``num_layers`` LAYERs is, and addresses of arrays."""


_inlined = numba.njit(nogil=True, error_model="numpy")


@_inlined
def _matrix(address: int, num_rows: int, width: int) -> Any:
    return carray(pointer(address), (num_rows, width), np.float32)


@_inlined
def _share(total: int, part: int, num_parts: int, unit: int) -> Any:
    """From where to where ``total`` things are the share of one of ``num_parts``, in whole units but at the end."""
    units = (total + unit - 1) // unit
    return min(total, units * part // num_parts * unit), min(total, units * (part + 1) // num_parts * unit)


@_inlined
def _multiply(left_MK: Any, right_KN: Any, out_MN: Any, factor: float, keep: float) -> None:
    """out <- keep out + factor left right. Operands may be transposed views, whose columns then are contiguous."""
    left_is_transposed, right_is_transposed = left_MK.strides[1] != 4, right_KN.strides[1] != 4
    # From row to row, or from column to column. Of a single one it is anything, and BLAS wants a possible one.
    left_step = max(left_MK.strides) // 4 if left_is_transposed else max(left_MK.strides[0] // 4, left_MK.shape[1])
    right_step = max(right_KN.strides) // 4 if right_is_transposed else max(right_KN.strides[0] // 4, right_KN.shape[1])
    # Fortran sees each matrix transposed, so it is asked for outᵀ = rightᵀ leftᵀ.
    sgemm(
        right_is_transposed,
        left_is_transposed,
        out_MN.shape[1],
        out_MN.shape[0],
        left_MK.shape[1],
        float32(factor),
        right_KN.ctypes.data,
        right_step,
        left_MK.ctypes.data,
        left_step,
        float32(keep),
        out_MN.ctypes.data,
        out_MN.strides[0] // 4,
    )


@_inlined
def _mark(job: Any, index: int) -> None:
    if thread_num() == 0:
        job.marks[index] = nanoseconds()


@_inlined
def _forward(layer: Any, num_samples: int, first: int, last: int) -> None:
    """y = relu(x̃ A) of some samples."""
    inputs = _matrix(layer.inputs, num_samples, layer.inputs_width)[first:last, : layer.fan_in + 1]
    outputs = _matrix(layer.outputs, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
    _multiply(inputs, _matrix(layer.affine, layer.fan_in + 1, layer.fan_out), outputs, 1.0, 0.0)
    if layer.has_relu:
        for b in range(outputs.shape[0]):
            for o in range(outputs.shape[1]):
                value = outputs[b, o]
                outputs[b, o] = float32(0) if value < 0 else value  # what is not a number is not hidden


@_inlined
def _mask(layer: Any, num_samples: int, first: int, last: int) -> None:
    """dL/d(x̃ A) from dL/dy, in place: nothing flows back where the ReLU gave nothing."""
    if layer.has_relu:
        outputs = _matrix(layer.outputs, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
        grads = _matrix(layer.output_grad, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
        for b in range(outputs.shape[0]):
            for o in range(outputs.shape[1]):
                grads[b, o] = float32(0) if outputs[b, o] <= 0 else grads[b, o]


@_inlined
def _backward(layer: Any, num_samples: int, first: int, last: int) -> None:
    """dL/dx = g W of some samples, and behind it what b gives, for the roundness of the product's width."""
    grads = _matrix(layer.output_grad, num_samples, layer.outputs_width)[first:last, : layer.fan_out]
    wanted = _matrix(layer.input_grad, num_samples, layer.inputs_width)[first:last, : layer.fan_in + 1]
    _multiply(grads, _matrix(layer.affine, layer.fan_in + 1, layer.fan_out).T, wanted, 1.0, 0.0)


@_inlined
def _descend(job: Any, layer: Any, part: int, num_parts: int) -> None:
    """A <- A - lr x̃ᵀ g, of a share of A's rows."""
    first, last = _share(layer.fan_in + 1, part, num_parts, 16)
    affine = _matrix(layer.affine, layer.fan_in + 1, layer.fan_out)[first:last]
    inputs = _matrix(layer.inputs, job.num_samples, layer.inputs_width)[:, first:last]
    grads = _matrix(layer.output_grad, job.num_samples, layer.outputs_width)[:, : layer.fan_out]
    if layer.fan_out > 1:
        _multiply(inputs.T, grads, affine, -job.learning_rate, 1.0)
        return
    # A product with one column would add term by term to what is there, and round each time.
    gradient = _matrix(job.scratch, layer.fan_in + 1, 1)[first:last]
    _multiply(inputs.T, grads, gradient, 1.0, 0.0)
    for j in range(len(gradient)):
        affine[j, 0] -= job.learning_rate * gradient[j, 0]


@_inlined
def _interact(job: Any, bottom: Any, top: Any, first: int, last: int) -> None:
    """z of some samples, from the bottom's outputs and the rows that they read, to what the top reads."""
    dim, num_vectors = job.dim, job.num_vectors
    bottom_BD = _matrix(bottom.outputs, job.num_samples, bottom.outputs_width)
    top_BT = _matrix(top.inputs, job.num_samples, top.inputs_width)
    rows_ND = _matrix(job.rows, job.num_rows, dim)
    inverse_A = carray(pointer(job.inverse), job.num_samples * (num_vectors - 1), np.int64)
    vectors_BVD = carray(pointer(job.vectors), (job.num_samples, num_vectors, dim), np.float32)
    products_VV = np.empty((num_vectors, num_vectors), np.float32)
    for b in range(first, last):
        vectors_VD, out_T = vectors_BVD[b], top_BT[b]
        for d in range(dim):
            vectors_VD[0, d] = out_T[d] = bottom_BD[b, d]
        for v in range(1, num_vectors):
            row = inverse_A[b * (num_vectors - 1) + v - 1]
            for d in range(dim):
                vectors_VD[v, d] = rows_ND[row, d]
        _multiply(vectors_VD, vectors_VD.T, products_VV, 1.0, 0.0)
        at = dim
        for i in range(1, num_vectors):
            for j in range(i):
                out_T[at + j] = products_VV[i, j]
            at += i


@_inlined
def _interact_backward(job: Any, bottom: Any, top: Any, first: int, last: int) -> None:
    """dL/d(vectors) of some samples, that of the bottom's output to where the bottom looks for it."""
    dim, num_vectors = job.dim, job.num_vectors
    bottom_grad_BD = _matrix(bottom.output_grad, job.num_samples, bottom.outputs_width)
    top_grad_BT = _matrix(top.input_grad, job.num_samples, top.inputs_width)
    vectors_BVD = carray(pointer(job.vectors), (job.num_samples, num_vectors, dim), np.float32)
    grads_BVD = carray(pointer(job.vector_grads), (job.num_samples, num_vectors, dim), np.float32)
    mirrored_VV = np.zeros((num_vectors, num_vectors), np.float32)
    for b in range(first, last):
        at = dim
        for i in range(1, num_vectors):
            for j in range(i):
                mirrored_VV[i, j] = mirrored_VV[j, i] = top_grad_BT[b, at + j]
            at += i
        _multiply(mirrored_VV, vectors_BVD[b], grads_BVD[b], 1.0, 0.0)
        for d in range(dim):
            bottom_grad_BD[b, d] = grads_BVD[b, 0, d] + top_grad_BT[b, d]


@_inlined
def _cross_entropy(job: Any, top: Any, first: int, last: int) -> None:
    """log(1 + exp(s a)) of some logits a, and dL/da of the mean, with s = 1 - 2 y; in double precision."""
    logits_B1 = _matrix(top.outputs, job.num_samples, top.outputs_width)
    grads_B1 = _matrix(top.output_grad, job.num_samples, top.outputs_width)
    labels_B = carray(pointer(job.labels), job.num_samples, np.float32)
    losses_B = carray(pointer(job.losses), job.num_samples, np.float64)
    for b in range(first, last):
        sign = 1.0 - 2.0 * labels_B[b]
        against = sign * logits_B1[b, 0]
        small = math.exp(-abs(against))
        losses_B[b] = max(against, 0.0) + math.log1p(small)
        grads_B1[b, 0] = sign * (1.0 if against >= 0 else small) / (1.0 + small) / job.num_samples


@_inlined
def _coalesce(job: Any, first: int, last: int) -> None:
    """Sums of the gradients of all accesses of some rows, each in the order of the batch."""
    dim, num_vectors, num_tables = job.dim, job.num_vectors, job.num_vectors - 1
    num_accesses = job.num_samples * num_tables
    order_A = carray(pointer(job.order), num_accesses, np.int64)
    starts_N = carray(pointer(job.starts), job.num_rows, np.int64)
    grads_XD = _matrix(job.vector_grads, job.num_samples * num_vectors, dim)
    out_ND = _matrix(job.row_grads, job.num_rows, dim)
    for n in range(first, last):
        end = starts_N[n + 1] if n + 1 < job.num_rows else num_accesses
        for a in range(starts_N[n], end):
            value = order_A[a] + order_A[a] // num_tables + 1
            if a == starts_N[n]:
                for d in range(dim):
                    out_ND[n, d] = grads_XD[value, d]
            else:
                for d in range(dim):
                    out_ND[n, d] += grads_XD[value, d]


@_inlined
def _forward_all(job: Any, first: int, last: int, at: int) -> None:
    """Logits of some samples, to the outputs of the last layer; noted from mark ``at`` on."""
    _mark(job, at)
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_integers, num_bottom = layers[0].fan_in, job.num_bottom
    inputs_BI = _matrix(layers[0].inputs, job.num_samples, layers[0].inputs_width)
    dense_BI = _matrix(job.dense, job.num_samples, num_integers)
    for b in range(first, last):
        for i in range(num_integers):
            inputs_BI[b, i] = dense_BI[b, i]
    for index in range(num_bottom):
        _forward(layers[index], job.num_samples, first, last)
    _mark(job, at + 1)
    _interact(job, layers[num_bottom - 1], layers[num_bottom], first, last)
    _mark(job, at + 2)
    for index in range(num_bottom, job.num_layers):
        _forward(layers[index], job.num_samples, first, last)
    _mark(job, at + 3)


@_inlined
def _train(job: Any, at: int) -> None:
    """``losses`` of the batch, and ``row_grads``; noted from mark ``at`` on."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_bottom = job.num_bottom
    bottom, top = layers[num_bottom - 1], layers[num_bottom]
    for part in range(thread_num(), job.num_shares, num_threads()):
        first, last = _share(job.num_samples, part, job.num_shares, 16)
        _forward_all(job, first, last, at)
        _cross_entropy(job, layers[job.num_layers - 1], first, last)
        _mark(job, at + 4)
        for index in range(job.num_layers - 1, num_bottom - 1, -1):
            _mask(layers[index], job.num_samples, first, last)
            _backward(layers[index], job.num_samples, first, last)
        _mark(job, at + 5)
        _interact_backward(job, bottom, top, first, last)
        _mark(job, at + 6)
    barrier()
    for part in range(thread_num(), job.num_shares, num_threads()):
        first, last = _share(job.num_rows, part, job.num_shares, 1)
        _coalesce(job, first, last)
    _mark(job, at + 7)


@_inlined
def _update(job: Any) -> None:
    """One SGD step of all parameters, with what is left of the last batch trained on."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    _mark(job, 0)
    for part in range(thread_num(), job.num_shares, num_threads()):
        first, last = _share(job.num_samples, part, job.num_shares, 16)
        for index in range(job.num_bottom - 1, -1, -1):
            _mask(layers[index], job.num_samples, first, last)
            if index > 0:
                _backward(layers[index], job.num_samples, first, last)
    _mark(job, 1)
    barrier()
    for index in range(job.num_layers):
        for part in range(thread_num(), job.num_shares, num_threads()):
            _descend(job, layers[index], part, job.num_shares)
    _mark(job, 2)


_for_a_team: Any = numba.cfunc("void(voidptr)", cache=True, error_model="numpy")


@_for_a_team
def predict(data: Any) -> None:
    """Logits of the batch."""
    before = blas_threads(1)
    job = carray(data, 1, JOB)[0]
    for part in range(thread_num(), job.num_shares, num_threads()):
        first, last = _share(job.num_samples, part, job.num_shares, 16)
        _forward_all(job, first, last, 0)
    blas_threads(before)


@_for_a_team
def train(data: Any) -> None:
    """Losses, and gradients of rows."""
    before = blas_threads(1)
    _train(carray(data, 1, JOB)[0], 0)
    blas_threads(before)


@_for_a_team
def update(data: Any) -> None:
    """The step that belongs to the last :data:`train`."""
    before = blas_threads(1)
    _update(carray(data, 1, JOB)[0])
    blas_threads(before)


@_for_a_team
def update_and_train(data: Any) -> None:
    """Both in one, which wakes the other threads once."""
    before = blas_threads(1)
    job = carray(data, 1, JOB)[0]
    _update(job)
    barrier()
    _train(job, len(UPDATE_PARTS))
    blas_threads(before)


_JOB_1 = numba.from_dtype(JOB)[::1]


@compiled_for(void(int64, _JOB_1, int64))
def run(program: int, job_1: Any, size: int) -> None:
    """Run one of these programs, by its address, on a team of so many threads, and wait for it."""
    if size > 1:
        parallel(pointer(program), pointer(job_1.ctypes.data), np.uint32(size), np.uint32(0))
        return
    # A team of one would send OpenMP's other threads away, and the next one would have to make them anew.
    call(program, job_1.ctypes.data)


@compiled_for(void(_JOB_1, float32[:, ::1], float32[:, ::1], int64[::1]))
def begin(job_1: Any, dense_BI: Any, rows_ND: Any, inverse_A: Any) -> None:
    """Tell a job what to read."""
    job = job_1[0]
    job.dense, job.rows, job.inverse = dense_BI.ctypes.data, rows_ND.ctypes.data, inverse_A.ctypes.data
    job.num_rows = len(rows_ND)


@compiled_for(float64(_JOB_1, float32[::1], int64[::1], int64[::1], float32[:, ::1], float64[::1], int64, int64))
def run_training(  # noqa: PLR0917 - compiled functions take values by place
    job_1: Any, labels_B: Any, order_A: Any, starts_N: Any, out_ND: Any, losses_B: Any, program: int, size: int
) -> float:
    """Run one of the programs that train, and return the mean of the losses."""
    job = job_1[0]
    job.labels, job.order, job.starts = labels_B.ctypes.data, order_A.ctypes.data, starts_N.ctypes.data
    job.row_grads, job.losses = out_ND.ctypes.data, losses_B.ctypes.data
    run(program, job_1, size)
    total = 0.0
    for b in range(len(losses_B)):
        total += losses_B[b]
    return total / len(losses_B)
