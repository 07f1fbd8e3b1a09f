"""One thread's part of a command to the team: train or predict on its samples, run tasks of an update.

The optimizer's step of the dense parameters, and the bottom's backward, which only that needs, are cut into tasks. Any
thread claims the next one: workers while the caller does something else, the caller while it waits, or all of them
before the next batch. Which thread does a task changes no bit.
"""

from typing import Any

from numba.np.numpy_support import carray

from harness.kernels.layers import (
    LAYER,
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
from harness.kernels.native import fetch_add, load, nanoseconds, pointer, yield_core

COMMANDS, ARRIVED, FINISHED, CLAIMED, BACK, DONE, ASLEEP = range(7)
"""Counters, each on a cache line: commands posted; of the present command, threads that have reached its barrier and
workers that have finished it; of the update, tasks claimed, tasks of the bottom's backward done, all tasks done; then
of each thread whether it sleeps.
"""

TRAIN, TRAIN_PART, MERGE, UPDATE, PREDICT, STOP = range(6)
"""Commands. TRAIN is TRAIN_PART and MERGE at once."""

_SPINS = 2000  # polls of a counter before the core is yielded


def num_counters(num_shares: int) -> int:
    """Number of cache lines that the counters of a JOB occupy."""
    return ASLEEP + num_shares


@inlined
def counter(job: Any, index: int) -> int:
    """The address of counter ``index``."""
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
def mark(job: Any, thread: int, index: int) -> None:
    """Store the present time, in ns, in ``job.marks[index]``; a no-op on other threads than 0."""
    if thread == 0:
        job.marks[index] = nanoseconds()


@inlined
def _forward_share(job: Any, thread: int, first: int, last: int) -> None:
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
    mark(job, thread, 2)
    interact(job, layers[num_bottom - 1], layers[num_bottom], first, last)
    mark(job, thread, 3)
    for index in range(num_bottom, job.num_layers):
        forward(layers[index], job.num_samples, first, last)
    mark(job, thread, 4)


@inlined
def _train_share(job: Any, thread: int) -> None:
    """Compute ``losses`` and ``vector_grads`` of a thread's share of the samples, after the previous batch's update."""
    layers = carray(pointer(job.layers), job.num_layers, LAYER)
    num_bottom, num_shares = job.num_bottom, job.num_shares
    bottom, top = layers[num_bottom - 1], layers[num_bottom]
    run_tasks(job)
    wait_for(counter(job, DONE), num_tasks(job))
    mark(job, thread, 1)
    start, stop = share(job.last - job.first, thread, num_shares, 16)
    first, last = job.first + start, job.first + stop
    _forward_share(job, thread, first, last)
    cross_entropy(job, layers[job.num_layers - 1], first, last)
    mark(job, thread, 5)
    for index in range(job.num_layers - 1, num_bottom - 1, -1):
        mask(layers[index], job.num_samples, first, last)
        backward(layers[index], job.num_samples, first, last)
    mark(job, thread, 6)
    interact_backward(job, bottom, top, first, last)
    mark(job, thread, 7)


@inlined
def _merge_share(job: Any, thread: int) -> None:
    """Compute a thread's share of the distinct rows' gradients: ``row_grads``."""
    first, last = share(job.num_rows, thread, job.num_shares, 1)
    coalesce(job, first, last)
    mark(job, thread, 8)


@inlined
def num_tasks(job: Any) -> int:
    """Number of tasks of an update: the step of each layer, the bottom MLP's backward, ``num_shares`` each."""
    return (job.num_layers + 1) * job.num_shares


@inlined
def run_tasks(job: Any) -> None:
    """Claim and run tasks of the update until none is left.

    Tasks of the top MLP come first, since they depend on no other task.
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
            first, last = share(job.num_samples, part, num_shares, 16)
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
    """Execute one thread's part of a command."""
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
        first, last = share(job.num_samples, thread, job.num_shares, 16)
        _forward_share(job, thread, first, last)
