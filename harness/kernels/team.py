"""A training step of DLRM as one program for a team of threads, compiled by Numba.

Each thread takes a share of the samples through the whole network, forward and backward, and only then waits for the
others at a barrier. Then the threads add up the gradients of rows, which samples of several shares may read. Between
two matrix products a thread calls no other library and wakes no other thread, since that would cost as much as the
products: a batch has some twenty of them, 5 to 150 us each.

The calling thread posts a command, takes part in it as thread 0, and waits for the workers. An update, which is the
optimizer's step of the dense parameters and the backward of the bottom MLP that only the step needs, is cut into tasks.
Any thread claims the next one: workers while the caller does something else, the caller while it waits, or all of them
before the next batch. Which thread does a task changes no bit.
"""

from typing import Any

import numba
from numba import boolean, float32, float64, int64, void
from numba.np.numpy_support import carray

from harness.kernels.compiler import compiled_for
from harness.kernels.layers import (
    JOB,
    LAYER,
    SHARE_UNIT,
    backward,
    coalesce,
    cross_entropy,
    forward,
    inlined,
    interact,
    interact_backward,
    mask,
    matrix,
    share,
    step,
)
from harness.kernels.native import (
    exchange,
    fetch_add,
    load,
    nanoseconds,
    pointer,
    sem_init,
    sem_post,
    sem_wait,
    yield_core,
)

COMMANDS, ARRIVED, FINISHED, CLAIMED, BACK, DONE, ASLEEP = range(7)
"""Counters, each on a cache line.

COMMANDS: commands posted. ARRIVED, FINISHED: threads at the barrier of the present command, workers that have finished
it. CLAIMED, DONE, BACK: tasks of the update claimed, tasks done, and those of the bottom's backward among these.
ASLEEP + k: whether thread k sleeps.
"""

TRAIN, TRAIN_PART, MERGE, UPDATE, PREDICT, STOP = range(6)
"""Commands. TRAIN is TRAIN_PART, then MERGE."""

_SPINS = 2000  # polls of a counter before the core is yielded


def num_counters(num_shares: int) -> int:
    """Number of cache lines that the counters of a JOB occupy."""
    return ASLEEP + num_shares


@inlined
def counter(job: Any, index: int) -> int:
    return job.counters + 64 * index


@inlined
def wait_for(address: int, value: int) -> None:
    """Wait until the counter at ``address`` is at least ``value``.

    After many polls the core is yielded, since the thread that increases the counter may need it.
    """
    spins = 0
    while load(address) < value:
        spins += 1
        if spins > _SPINS:
            yield_core()


@inlined
def _forward_share(job: Any, first: int, last: int) -> None:
    """Compute the logits of some samples, in the outputs of the last layer."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_integers, num_bottom = layers[0].fan_in, job.num_bottom
    inputs_BI = matrix(layers[0].inputs, job.num_samples, layers[0].inputs_width)
    dense_BI = matrix(job.dense, job.num_samples, num_integers)
    for b in range(first, last):
        for i in range(num_integers):
            inputs_BI[b, i] = dense_BI[b, i]
    for index in range(num_bottom):
        forward(layers[index], job.num_samples, first, last)
    interact(job, layers[num_bottom - 1], layers[num_bottom], first, last)
    for index in range(num_bottom, job.num_layers):
        forward(layers[index], job.num_samples, first, last)


@inlined
def _train_share(job: Any, thread: int) -> None:
    """Compute ``losses`` and ``vector_grads`` of a thread's share of the samples, after the previous batch's update."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_bottom, num_shares = job.num_bottom, job.num_shares
    bottom, top = layers[num_bottom - 1], layers[num_bottom]
    run_tasks(job)
    wait_for(counter(job, DONE), num_tasks(job))
    start, stop = share(job.last - job.first, thread, num_shares, SHARE_UNIT)
    first, last = job.first + start, job.first + stop
    _forward_share(job, first, last)
    cross_entropy(job, layers[job.num_layers - 1], first, last)
    for index in range(job.num_layers - 1, num_bottom - 1, -1):
        mask(layers[index], job.num_samples, first, last)
        backward(layers[index], job.num_samples, first, last)
    interact_backward(job, bottom, top, first, last)


@inlined
def _merge_share(job: Any, thread: int) -> None:
    """Compute a thread's share of the distinct rows' gradients: ``row_grads``."""
    first, last = share(job.num_rows, thread, job.num_shares, 1)  # in units of a row
    coalesce(job, first, last)


@inlined
def num_tasks(job: Any) -> int:
    """Number of tasks of an update: ``num_shares`` for the step of each layer, and for the bottom MLP's backward."""
    return (job.num_layers + 1) * job.num_shares


@inlined
def run_tasks(job: Any) -> None:
    """Claim and run tasks of the update until none is left.

    There are ``num_shares`` tasks each, in this order, for: the step of each layer of the top MLP; the backward of the
    bottom MLP; the step of each layer of the bottom MLP, for which all tasks of the backward must be done. Tasks are
    claimed in this order, so what one waits for is already claimed, by a thread that runs it and waits for nothing.
    """
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_bottom, num_shares = job.num_bottom, job.num_shares
    num_top = (job.num_layers - num_bottom) * num_shares
    while True:
        task = fetch_add(counter(job, CLAIMED), 1)
        if task >= num_tasks(job):
            break
        part = task % num_shares
        if task < num_top:
            step(job, layers[num_bottom + task // num_shares], part, num_shares)
        elif task < num_top + num_shares:
            first, last = share(job.num_samples, part, num_shares, SHARE_UNIT)
            for index in range(num_bottom - 1, -1, -1):
                mask(layers[index], job.num_samples, first, last)
                if index > 0:
                    backward(layers[index], job.num_samples, first, last)
            fetch_add(counter(job, BACK), 1)
        else:
            wait_for(counter(job, BACK), num_shares)
            step(job, layers[(task - num_top) // num_shares - 1], part, num_shares)
        fetch_add(counter(job, DONE), 1)


@inlined
def execute(job: Any, command: int, thread: int) -> None:
    if command == TRAIN:
        _train_share(job, thread)
        fetch_add(counter(job, ARRIVED), 1)
        wait_for(counter(job, ARRIVED), job.num_shares)
        _merge_share(job, thread)
    elif command == TRAIN_PART:
        _train_share(job, thread)
    elif command == MERGE:
        _merge_share(job, thread)
    elif command == UPDATE:
        run_tasks(job)
    else:
        first, last = share(job.num_samples, thread, job.num_shares, SHARE_UNIT)
        _forward_share(job, first, last)


_SPIN_NS = 50_000  # an eager worker polls this long for a command before it sleeps: as long as waking it would take


@inlined
def _post(job: Any, command: int) -> None:
    """Start the workers, which must have finished the previous command, on a command; wake sleeping workers."""
    job.command = command
    exchange(counter(job, ARRIVED), 0)
    exchange(counter(job, FINISHED), 0)
    fetch_add(counter(job, COMMANDS), 1)
    for thread in range(1, job.num_shares):
        if exchange(counter(job, ASLEEP + thread), 0) == 1:
            sem_post(pointer(job.semaphores + 64 * thread))
    job.workers_have_command = 1


@inlined
def _join(job: Any) -> None:
    """Wait until the workers have finished their command; if it is an update, take part in it."""
    if job.workers_have_command:
        if job.command == UPDATE:
            run_tasks(job)
            wait_for(counter(job, DONE), num_tasks(job))
        wait_for(counter(job, FINISHED), job.num_shares - 1)
        job.workers_have_command = 0


@inlined
def _command(job: Any, command: int) -> None:
    """Carry out a command with the whole team, once the previous one is finished; returns when all threads are done.

    A pending update is finished first for PREDICT; for TRAIN the threads do so themselves (:func:`_train_share`).
    """
    _join(job)
    if command == PREDICT:  # it overwrites buffers that a pending update still reads
        run_tasks(job)
        wait_for(counter(job, DONE), num_tasks(job))
    if command == UPDATE and load(counter(job, CLAIMED)) >= num_tasks(job):
        return  # none is pending: after _join the claimed tasks are done
    if job.num_shares > 1:
        _post(job, command)
    execute(job, command, 0)
    if command == UPDATE:
        wait_for(counter(job, DONE), num_tasks(job))
    _join(job)


_JOB_1 = numba.from_dtype(JOB)[::1]


@compiled_for(void(_JOB_1))
def prepare(job_1: Any) -> None:
    """Initialise the counters and semaphores of a new JOB: no update is pending, no worker sleeps."""
    job = job_1[0]
    exchange(counter(job, CLAIMED), num_tasks(job))
    exchange(counter(job, DONE), num_tasks(job))
    for thread in range(1, job.num_shares):
        sem_init(pointer(job.semaphores + 64 * thread), 0, 0)


@compiled_for(void(_JOB_1, int64))
def run_worker(job_1: Any, thread: int) -> None:
    """Body of worker ``thread``, from 1: carry out commands until STOP, and sleep between them."""
    job = job_1[0]
    asleep, commands = counter(job, ASLEEP + thread), counter(job, COMMANDS)
    seen = 0
    while True:
        idle_since = nanoseconds()
        while load(commands) == seen:
            if nanoseconds() - idle_since > job.spin_ns:
                exchange(asleep, 1)
                # From here on a posted command wakes this thread. If one was posted just before and the flag is cleared
                # already, the semaphore was posted too and must be waited for.
                if load(commands) == seen or exchange(asleep, 0) == 0:
                    while sem_wait(pointer(job.semaphores + 64 * thread)) != 0:
                        pass  # interrupted by a signal
                idle_since = nanoseconds()
        seen += 1
        if job.command == STOP:
            break
        execute(job, job.command, thread)
        fetch_add(counter(job, FINISHED), 1)


@compiled_for(void(_JOB_1))
def stop_workers(job_1: Any) -> None:
    """Finish what is running, then command the workers to return."""
    _join(job_1[0])
    _post(job_1[0], STOP)


@compiled_for(void(_JOB_1, float32[:, ::1], float32[:, ::1], int64[::1]))
def predict(job_1: Any, dense_BI: Any, rows_NX: Any, inverse_A: Any) -> None:
    """Compute the logits of a batch and write them to the outputs of the last layer."""
    job = job_1[0]
    job.dense, job.rows, job.inverse = dense_BI.ctypes.data, rows_NX.ctypes.data, inverse_A.ctypes.data
    job.slots, job.num_rows, job.row_width = 0, len(rows_NX), rows_NX.shape[1]
    _command(job, PREDICT)


@compiled_for(void(_JOB_1, boolean))
def update(job_1: Any, is_alone: bool) -> None:
    """Apply the pending step of the last batch; a no-op if there is none.

    ``is_alone``: the calling thread computes it alone, unless it was posted to the workers already. Otherwise the team
    does.
    """
    job = job_1[0]
    if is_alone and not job.workers_have_command:
        run_tasks(job)
    else:
        _command(job, UPDATE)


@inlined
def _end_batch(job: Any, losses_B: Any, is_eager: bool) -> float:
    """Return the mean loss, and make the batch's step pending: from here on, tasks of its update may be claimed."""
    exchange(counter(job, BACK), 0)
    exchange(counter(job, DONE), 0)
    exchange(counter(job, CLAIMED), 0)
    if is_eager and job.num_shares > 1:
        _post(job, UPDATE)
    total = 0.0
    for b in range(len(losses_B)):
        total += losses_B[b]
    return total / len(losses_B)


@compiled_for(
    float64(
        *(_JOB_1, float32[:, ::1], float32[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1]),
        *(float32[::1], float32[:, ::1], float64[::1], int64, int64, boolean),
    )
)
def train(  # noqa: PLR0917 - compiled functions take values by place
    job_1: Any,
    dense_BI: Any,
    rows_SX: Any,
    slots_N: Any,
    inverse_A: Any,
    order_A: Any,
    starts_N: Any,
    labels_B: Any,
    out_ND: Any,
    losses_B: Any,
    first: int,
    last: int,
    is_eager: bool,
) -> float:
    """Apply the pending step, then compute the mean loss and the row gradients (``out_ND``) of a batch.

    ``rows_SX``: a table of rows. ``slots_N``: where each distinct row of the batch lies in it; empty: row n at n.
    ``inverse_A``, ``order_A``, ``starts_N``: as in ``BatchPlan``.

    Sets ``losses_B`` too. The step of this batch is pending afterwards. ``is_eager``: the workers begin it at once.
    Otherwise they sleep, and leave their cores to other threads.

    ``first``, ``last`` (exclusive): the samples to train on; -1, -1: all. With a part of the samples only the buffers
    of these are filled, no step is pending, and the result is 0.0. When the buffers have all samples, :func:`merge`
    must follow.
    """
    job = job_1[0]
    job.dense, job.rows, job.inverse = dense_BI.ctypes.data, rows_SX.ctypes.data, inverse_A.ctypes.data
    job.slots, job.num_rows = slots_N.ctypes.data if len(slots_N) else 0, len(out_ND)
    job.row_width = rows_SX.shape[1]
    job.labels, job.order_A, job.starts = labels_B.ctypes.data, order_A.ctypes.data, starts_N.ctypes.data
    job.row_grads, job.losses = out_ND.ctypes.data, losses_B.ctypes.data
    job.spin_ns = _SPIN_NS if is_eager else 0
    if first >= 0:
        job.first, job.last = first, last
        _command(job, TRAIN_PART)
        return 0.0
    job.first, job.last = 0, job.num_samples
    _command(job, TRAIN)
    return _end_batch(job, losses_B, is_eager)


@compiled_for(float64(_JOB_1, float64[::1], boolean))
def merge(job_1: Any, losses_B: Any, is_eager: bool) -> float:
    """The mean loss and the row gradients of the batch whose samples are all in the buffers; its step is then pending.

    Reads and writes the arrays of the last :func:`train`. The bits equal those of a :func:`train` on all samples.
    """
    _command(job_1[0], MERGE)
    return _end_batch(job_1[0], losses_B, is_eager)
