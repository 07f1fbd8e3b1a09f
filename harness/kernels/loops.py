"""A training step of DLRM as one program for a team of threads, compiled by Numba.

Each thread takes a share of the samples through the whole network, forward and back, and only then waits for the
others, to add up what samples of all of them say of a row. Between two matrix products of a thread nothing is called
and nobody is woken, which otherwise costs as much as the products: a batch has some twenty of them, 5 to 150 us each.
The update of the parameters, and of the backward what nothing but that waits for, is cut into tasks, which whoever has
time takes: helpers while the caller is busy elsewhere, the caller while he waits, or all of them before the next batch.

The mathematics is that of :mod:`harness.model.blas` and :mod:`harness.model.interaction`. Nothing outside the products
fuses a product with a sum or reorders a sum; the products round as the BLAS does for a share of that size. So a result
depends on the number of shares, and neither on how many threads there are to take them nor on which is faster.

Everything that a function here needs it is told in records of addresses and sizes, :data:`JOB` and :data:`LAYER`. It
calls nothing of another file that is compiled but ``native``: of a change elsewhere, what was compiled before and kept
would not know.

B batch, V vectors of a sample, A = B (V - 1) accesses, N distinct rows of a batch, D embedding dim.
"""

import math
from typing import Any

import numba
import numpy as np
from numba import boolean, float32, float64, int64, void
from numba.np.numpy_support import carray

from harness.kernels.compiled import compiled_for
from harness.kernels.native import (
    blas_threads,
    exchange,
    fetch_add,
    give_way,
    load,
    nanoseconds,
    pointer,
    prefetch,
    sem_init,
    sem_post,
    sem_wait,
    sgemm,
)

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

PARTS = ("dense update", "bottom", "interaction", "top", "loss", "top backward", "interaction backward", "coalesce")
"""What :func:`train` does, in order; the first thread notes when it begins the first, and when it has done each."""

JOB = np.dtype(
    [
        *((name, np.int64) for name in ("num_samples", "num_shares", "num_vectors", "dim", "num_bottom", "num_layers")),
        *((name, np.int64) for name in ("layers", "vectors", "vector_grads", "counters", "semaphores")),
        *((name, np.int64) for name in ("order", "is_given", "patience")),
        # of this batch
        *((name, np.int64) for name in ("dense", "labels", "rows", "slots", "inverse", "num_rows")),
        *((name, np.int64) for name in ("order_A", "starts", "losses", "row_grads")),
        ("marks", np.int64, (len(PARTS) + 1,)),
        ("learning_rate", np.float32),
    ]
)
"""A batch at work: sizes, where the first of ``num_layers`` LAYERs is, and addresses of arrays.

There is a thread for each of ``num_shares``, the caller's and helpers. ``counters``: :func:`num_counters` cache lines;
``semaphores``: one for each thread, each on a line. Access a reads row ``inverse[a]``, or ``slots`` of that, if any.
"""

_ORDERS, _ARRIVED, _FINISHED, _TAKEN, _BACK, _DONE, _ASLEEP = range(7)
"""Counters: orders given; of the present one threads that have come to its barrier, and helpers that have finished it;
of the update tasks taken, tasks done of the bottom's backward, tasks done; and whether each thread sleeps.
"""

_TURNS = 2000  # to wait for another thread, before the core is given away
_PATIENCE_NS = 50_000  # without an order an eager helper stays awake as long, since waking one takes as long


def num_counters(num_shares: int) -> int:
    """How many cache lines they take."""
    return _ASLEEP + num_shares


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
def _counter(job: Any, index: int) -> int:
    """Its address. Each has a cache line."""
    return job.counters + 64 * index


@_inlined
def _wait_for(counter: int, value: int) -> None:
    """Until a counter has got there. Others may need this core to bring it there."""
    turns = 0
    while load(counter) < value:
        turns += 1
        if turns > _TURNS:
            give_way()


@_inlined
def _mark(job: Any, thread: int, index: int) -> None:
    if thread == 0:
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
def _sgd_step(job: Any, layer: Any, part: int, num_parts: int) -> None:
    """A <- A - lr x̃ᵀ g, of a share of A's rows."""
    first, last = _share(layer.fan_in + 1, part, num_parts, 16)
    affine = _matrix(layer.affine, layer.fan_in + 1, layer.fan_out)[first:last]
    inputs = _matrix(layer.inputs, job.num_samples, layer.inputs_width)[:, first:last]
    grads = _matrix(layer.output_grad, job.num_samples, layer.outputs_width)[:, : layer.fan_out]
    if layer.fan_out > 1:
        _multiply(inputs.T, grads, affine, -job.learning_rate, 1.0)
        return
    # A product with one column would add term by term to what is there, and round each time.
    gradient = np.empty((last - first, 1), np.float32)
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
    slots_N = carray(pointer(job.slots), job.num_rows, np.int64)
    inverse_A = carray(pointer(job.inverse), job.num_samples * (num_vectors - 1), np.int64)
    vectors_BVD = carray(pointer(job.vectors), (job.num_samples, num_vectors, dim), np.float32)
    products_VV = np.empty((num_vectors, num_vectors), np.float32)
    for b in range(first, last):
        vectors_VD, out_T = vectors_BVD[b], top_BT[b]
        for d in range(dim):
            vectors_VD[0, d] = out_T[d] = bottom_BD[b, d]
        for v in range(1, num_vectors):
            access = b * (num_vectors - 1) + v - 1
            row = inverse_A[access]
            if job.slots != 0:  # rows lie anywhere: those of the next sample are asked for
                row = slots_N[row]
                if b + 1 < last:
                    ahead = slots_N[inverse_A[access + num_vectors - 1]]
                    for line in range(0, dim, 16):
                        prefetch(job.rows + (ahead * dim + line) * 4)
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
    order_A = carray(pointer(job.order_A), num_accesses, np.int64)
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
def _forward_all(job: Any, thread: int, first: int, last: int) -> None:
    """Logits of some samples, to the outputs of the last layer."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_integers, num_bottom = layers[0].fan_in, job.num_bottom
    inputs_BI = _matrix(layers[0].inputs, job.num_samples, layers[0].inputs_width)
    dense_BI = _matrix(job.dense, job.num_samples, num_integers)
    for b in range(first, last):
        for i in range(num_integers):
            inputs_BI[b, i] = dense_BI[b, i]
    for index in range(num_bottom):
        _forward(layers[index], job.num_samples, first, last)
    _mark(job, thread, 2)
    _interact(job, layers[num_bottom - 1], layers[num_bottom], first, last)
    _mark(job, thread, 3)
    for index in range(num_bottom, job.num_layers):
        _forward(layers[index], job.num_samples, first, last)
    _mark(job, thread, 4)


@_inlined
def _train(job: Any, thread: int) -> None:
    """What one thread does of a batch, after the last one's update: ``losses``, and ``row_grads``."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_bottom, num_shares = job.num_bottom, job.num_shares
    bottom, top = layers[num_bottom - 1], layers[num_bottom]
    _update(job)
    _wait_for(_counter(job, _DONE), _num_tasks(job))
    _mark(job, thread, 1)
    first, last = _share(job.num_samples, thread, num_shares, 16)
    _forward_all(job, thread, first, last)
    _cross_entropy(job, layers[job.num_layers - 1], first, last)
    _mark(job, thread, 5)
    for index in range(job.num_layers - 1, num_bottom - 1, -1):
        _mask(layers[index], job.num_samples, first, last)
        _backward(layers[index], job.num_samples, first, last)
    _mark(job, thread, 6)
    _interact_backward(job, bottom, top, first, last)
    _mark(job, thread, 7)
    fetch_add(_counter(job, _ARRIVED), 1)
    _wait_for(_counter(job, _ARRIVED), num_shares)
    first, last = _share(job.num_rows, thread, num_shares, 1)
    _coalesce(job, first, last)
    _mark(job, thread, 8)


@_inlined
def _num_tasks(job: Any) -> int:
    return (job.num_layers + 1) * job.num_shares


@_inlined
def _update(job: Any) -> None:
    """Take tasks of the update while there are any: one SGD step of all parameters, after the last batch trained on.

    A task is a share of a layer's parameters, or what those of the bottom wait for, its backward for a share of the
    samples; who takes it changes no bit. The top's come first: they wait for nothing.
    """
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_bottom, num_shares = job.num_bottom, job.num_shares
    num_top = (job.num_layers - num_bottom) * num_shares
    while True:
        task = fetch_add(_counter(job, _TAKEN), 1)
        if task >= _num_tasks(job):
            break
        part = task % num_shares
        if task < num_top:
            _sgd_step(job, layers[num_bottom + task // num_shares], part, num_shares)
        elif task < num_top + num_shares:
            first, last = _share(job.num_samples, part, num_shares, 16)
            for index in range(num_bottom - 1, -1, -1):
                _mask(layers[index], job.num_samples, first, last)
                if index > 0:
                    _backward(layers[index], job.num_samples, first, last)
            fetch_add(_counter(job, _BACK), 1)
        else:
            _wait_for(_counter(job, _BACK), num_shares)
            _sgd_step(job, layers[(task - num_top) // num_shares - 1], part, num_shares)
        fetch_add(_counter(job, _DONE), 1)


@_inlined
def _predict(job: Any, thread: int) -> None:
    first, last = _share(job.num_samples, thread, job.num_shares, 16)
    _forward_all(job, thread, first, last)


# --- the team ---------------------------------------------------------------------------------------------------------

TRAIN, UPDATE, PREDICT, LEAVE = range(4)
"""Orders."""


@_inlined
def _obey(job: Any, order: int, thread: int) -> None:
    if order == TRAIN:
        _train(job, thread)
    elif order == UPDATE:
        _update(job)
    else:
        _predict(job, thread)


@_inlined
def _give(job: Any, order: int) -> None:
    """Have helpers do their part of it. They have finished the last one; who fell asleep is woken."""
    job.order = order
    exchange(_counter(job, _ARRIVED), 0)
    exchange(_counter(job, _FINISHED), 0)
    fetch_add(_counter(job, _ORDERS), 1)
    for thread in range(1, job.num_shares):
        if exchange(_counter(job, _ASLEEP + thread), 0) == 1:
            sem_post(pointer(job.semaphores + 64 * thread))
    job.is_given = 1


@_inlined
def _finish(job: Any) -> None:
    """Take part in what helpers were given to do, if they were and it is an update, and wait for them."""
    if job.is_given:
        if job.order == UPDATE:
            _update(job)
            _wait_for(_counter(job, _DONE), _num_tasks(job))
        _wait_for(_counter(job, _FINISHED), job.num_shares - 1)
        job.is_given = 0


@_inlined
def _command(job: Any, order: int) -> None:
    """All of it, by the whole team."""
    before = blas_threads(1)
    _mark(job, 0, 0)
    _finish(job)
    if order == PREDICT:  # it writes where an update still reads
        _update(job)
        _wait_for(_counter(job, _DONE), _num_tasks(job))
        _mark(job, 0, 1)
    if order == UPDATE and load(_counter(job, _TAKEN)) >= _num_tasks(job):
        blas_threads(before)
        return
    if job.num_shares > 1:
        _give(job, order)
    _obey(job, order, 0)
    if order == UPDATE:
        _wait_for(_counter(job, _DONE), _num_tasks(job))
    _finish(job)
    blas_threads(before)


_JOB_1 = numba.from_dtype(JOB)[::1]


@compiled_for(void(_JOB_1))
def prepare(job_1: Any) -> None:
    """Before anything else: nothing is to be done, and nobody sleeps."""
    job = job_1[0]
    exchange(_counter(job, _TAKEN), _num_tasks(job))
    exchange(_counter(job, _DONE), _num_tasks(job))
    for thread in range(1, job.num_shares):
        sem_init(pointer(job.semaphores + 64 * thread), 0, 0)


@compiled_for(void(_JOB_1, int64))
def help_out(job_1: Any, thread: int) -> None:
    """Do what is ordered, as thread number ``thread``, from 1, until the order is to leave. Asleep when idle."""
    job = job_1[0]
    asleep, orders = _counter(job, _ASLEEP + thread), _counter(job, _ORDERS)
    blas_threads(1)
    seen = 0
    while True:
        idle_since = nanoseconds()
        while load(orders) == seen:
            if nanoseconds() - idle_since > job.patience:
                exchange(asleep, 1)
                # Who gives an order now sees it. If one was given just before, and sleep is not taken back in time,
                # the giver has posted, and the post is waited for.
                if load(orders) == seen or exchange(asleep, 0) == 0:
                    while sem_wait(pointer(job.semaphores + 64 * thread)) != 0:
                        pass  # a signal came between
                idle_since = nanoseconds()
        seen += 1
        if job.order == LEAVE:
            break
        _obey(job, job.order, thread)
        fetch_add(_counter(job, _FINISHED), 1)


@compiled_for(void(_JOB_1))
def dismiss(job_1: Any) -> None:
    """Order helpers to leave."""
    before = blas_threads(1)
    _finish(job_1[0])
    blas_threads(before)
    _give(job_1[0], LEAVE)


@compiled_for(void(_JOB_1, float32[:, ::1], float32[:, ::1], int64[::1]))
def predict(job_1: Any, dense_BI: Any, rows_ND: Any, inverse_A: Any) -> None:
    """Logits of a batch, to the outputs of the last layer."""
    job = job_1[0]
    job.dense, job.rows, job.inverse = dense_BI.ctypes.data, rows_ND.ctypes.data, inverse_A.ctypes.data
    job.slots, job.num_rows = 0, len(rows_ND)
    _command(job, PREDICT)


@compiled_for(void(_JOB_1, boolean))
def update(job_1: Any, is_alone: bool) -> None:
    """The SGD step that belongs to the last batch, if it is still to be made; with the helpers or alone."""
    job = job_1[0]
    if is_alone and not job.is_given:
        before = blas_threads(1)
        _mark(job, 0, 0)
        _update(job)
        blas_threads(before)
    else:
        _command(job, UPDATE)
    _mark(job, 0, 1)


@compiled_for(
    float64(
        *(_JOB_1, float32[:, ::1], float32[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1]),
        *(float32[::1], float32[:, ::1], float64[::1], boolean),
    )
)
def train(  # noqa: PLR0917 - compiled functions take values by place
    job_1: Any,
    dense_BI: Any,
    rows_XD: Any,
    slots_N: Any,
    inverse_A: Any,
    order_A: Any,
    starts_N: Any,
    labels_B: Any,
    out_ND: Any,
    losses_B: Any,
    is_eager: bool,
) -> float:
    """The last batch's update, and of this one the mean loss and gradients of rows. Its update waits to be made.

    ``is_eager``: helpers begin it at once. Else they go to sleep at once: somebody needs their cores.
    """
    job = job_1[0]
    job.dense, job.rows, job.inverse = dense_BI.ctypes.data, rows_XD.ctypes.data, inverse_A.ctypes.data
    job.slots, job.num_rows = slots_N.ctypes.data if len(slots_N) else 0, len(out_ND)
    job.labels, job.order_A, job.starts = labels_B.ctypes.data, order_A.ctypes.data, starts_N.ctypes.data
    job.row_grads, job.losses = out_ND.ctypes.data, losses_B.ctypes.data
    job.patience = _PATIENCE_NS if is_eager else 0
    _command(job, TRAIN)
    exchange(_counter(job, _BACK), 0)
    exchange(_counter(job, _DONE), 0)
    exchange(_counter(job, _TAKEN), 0)  # from here on the tasks of the update may be taken
    if is_eager and job.num_shares > 1:
        _give(job, UPDATE)
    total = 0.0
    for b in range(len(losses_B)):
        total += losses_B[b]
    return total / len(losses_B)
