"""A training step of DLRM as one program for a team of threads, compiled by Numba.

Each thread takes a share of the samples through the whole network, forward and backward, and only then meets the others
at a barrier, to add up the gradients of rows that samples of several shares read. Between two matrix products of a
thread nothing else is called and no thread is woken, which would cost as much as the products: a batch has some twenty
of them, 5 to 150 us each.

The calling thread posts a command, takes part in it as thread 0, and waits for the workers.
"""

from typing import Any

import numba
from numba import boolean, float32, float64, int64, void

from harness.kernels.compiler import compiled_for
from harness.kernels.layers import JOB, inlined
from harness.kernels.native import exchange, fetch_add, load, nanoseconds, pointer, sem_init, sem_post, sem_wait
from harness.kernels.step import (
    ARRIVED,
    ASLEEP,
    BACK,
    CLAIMED,
    COMMANDS,
    DONE,
    FINISHED,
    MERGE,
    PREDICT,
    STOP,
    TRAIN,
    TRAIN_PART,
    UPDATE,
    counter,
    execute,
    mark,
    num_tasks,
    run_tasks,
    wait_for,
)

_SPIN_NS = 50_000  # an eager worker polls this long for a command before it sleeps: as long as waking it would take


@inlined
def _post(job: Any, command: int) -> None:
    """Start the workers on a command, after they have finished the previous one; wake sleeping workers."""
    job.command = command
    exchange(counter(job, ARRIVED), 0)
    exchange(counter(job, FINISHED), 0)
    fetch_add(counter(job, COMMANDS), 1)
    for thread in range(1, job.num_shares):
        if exchange(counter(job, ASLEEP + thread), 0) == 1:
            sem_post(pointer(job.semaphores + 64 * thread))
    job.is_running = 1


@inlined
def _join(job: Any) -> None:
    """Wait until the workers have finished their command; take part in it if it is an update."""
    if job.is_running:
        if job.command == UPDATE:
            run_tasks(job)
            wait_for(counter(job, DONE), num_tasks(job))
        wait_for(counter(job, FINISHED), job.num_shares - 1)
        job.is_running = 0


@inlined
def _command(job: Any, command: int) -> None:
    """Carry out a command with the whole team, after the rest of the previous command."""
    mark(job, 0, 0)
    _join(job)
    if command == PREDICT:  # it overwrites buffers that an update reads
        run_tasks(job)
        wait_for(counter(job, DONE), num_tasks(job))
        mark(job, 0, 1)
    if command == UPDATE and load(counter(job, CLAIMED)) >= num_tasks(job):
        return
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
    """Apply the pending step of the last batch, if there is one.

    ``is_alone``: this thread computes it alone, unless the workers are running. Otherwise the team does.
    """
    job = job_1[0]
    if is_alone and not job.is_running:
        mark(job, 0, 0)
        run_tasks(job)
    else:
        _command(job, UPDATE)
    mark(job, 0, 1)


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
    """Apply the pending step, then compute the mean loss and the row gradients of a batch.

    The step of this batch is pending afterwards.

    ``first``, ``last`` (exclusive): the samples to train on; -1, -1: all. If they are given, the buffers then hold what
    the step reads of these samples, and no more: :func:`merge` must follow when all samples are there.

    ``is_eager``: the workers begin that step at once. Otherwise they sleep, and leave their cores to other threads.
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

    The arrays are those of the last :func:`train`, and the bits equal those of a :func:`train` on all samples.
    """
    _command(job_1[0], MERGE)
    return _end_batch(job_1[0], losses_B, is_eager)
