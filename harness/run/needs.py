"""What a run will need of the machine, before it starts: memory, disk and time.

Bytes are upper bounds, from the sizes of the tables and the saves that the strategy will make. The time is rough, since
machines differ: it rests on speeds between those of a fast and of a slow one with idle cores (docs/log/platform.md).
"""

from dataclasses import dataclass

from harness.core.placement import MIRROR_INDEX_BYTES
from harness.planning.simulate import saves_of
from harness.planning.spread import job_of
from harness.run.spec import RunSpec

PROCESS_BYTES = 0.5e9
"""Memory of a run besides its tables: the interpreter, torch, compiled loops. Pages of the data's file are left out,
since the system drops them when it needs memory."""
RANK_BYTES = 0.1e9
"""Memory of a process of a PS or trainer rank, besides its shard."""
START_S = 0.3
"""Seconds of a run besides its steps, saves and recoveries, on either engine."""
STEP_S = 0.45e-3
"""Seconds of a step besides the products of the dense network."""
SAVE_S = 6e-3
"""Seconds of a save besides its bytes."""
RECOVERY_S = 0.08
"""Seconds to replace dead ranks and load their rows."""
FLOP_PER_S = 220e9
"""Floating-point operations per second of the dense network's products, on one core."""
MESSAGE_S = 0.35e-3
"""Seconds that a step takes longer for each PS rank, on engine `rpc` without a cache."""
ROWS_PER_S = 3e7
"""Embedding rows that are set to initial values per second."""
DISK_BYTES_PER_S = 1e9
"""Bytes that saves write per second."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Needs of one run.

    Attributes:
        memory_bytes: memory of all its processes, an upper bound.
        least_memory_bytes: memory of the model and the counts of updates, a lower bound.
        written_bytes: written by all its saves, an upper bound.
        disk_bytes: on disk at one time, checkpoints, resume points and the final model, an upper bound.
        least_disk_bytes: on disk at one time, full saves alone, a lower bound.
        kept_bytes: of checkpoints and the final model when the run is finished, an upper bound.
        seconds: rough, for a run alone on its cores.
    """

    memory_bytes: float
    least_memory_bytes: float
    written_bytes: int
    disk_bytes: int
    least_disk_bytes: int
    kept_bytes: int
    seconds: float


def needs_of(run_spec: RunSpec) -> Needs:
    """The needs of a run. Raises UserError if the config, the data or the trace cannot be used."""
    config, strategy = run_spec.config, run_spec.strategy
    job = job_of(config, run_spec.costs, run_spec.dataset.cardinalities)
    full_bytes = run_spec.bytes_full
    due = saves_of(strategy, batch_size=job.batch_size, num_steps=job.num_steps, total_samples=run_spec.total_samples)
    kinds = [*(["full"] if strategy.saves_initially else []), *(plan.kind for _, plan in due)]
    saves = [job.sizes.of(kind).num for kind in kinds]
    counts_bytes = 4 * run_spec.num_rows if run_spec.counts_updates else 0
    tracker_bytes = (run_spec.memory_bytes or 0) * config.num_ps
    mirrored_bytes = sum(rows.mirrored for rows in job.sizes.ranks) * (run_spec.row_bytes + MIRROR_INDEX_BYTES)
    num_processes = config.num_ps + config.cluster.num_trainers if config.engine == "rpc" else 0
    point_bytes = memory_bytes = full_bytes + counts_bytes + tracker_bytes + mirrored_bytes
    buffers_bytes = config.num_ps * config.save.buffer_bytes + run_spec.num_rows if config.save.mode == "async" else 0

    # A checkpoint is a base, or a base and deltas: before it is compacted, as many bytes again and one more delta.
    most_delta = max((size for kind, size in zip(kinds, saves, strict=True) if kind != "full"), default=None)
    checkpoint_bytes = full_bytes if most_delta is None else 2 * full_bytes + most_delta
    save_bytes = checkpoint_bytes + full_bytes + (most_delta or 0)  # and the save under way
    others_bytes = (len(strategy.tiers) - 1) * full_bytes  # the newest checkpoints in other tiers
    num_failures = len({fault.step for fault in run_spec.planned_faults})
    num_times = num_failures + 1 if others_bytes else 1  # a rollback repeats saves of lost tiers
    written_bytes = num_times * sum(saves)
    merged_bytes = 0 if most_delta is None else full_bytes  # a rank merges in memory
    if run_spec.store_kind == "memory":
        written_bytes, merged_bytes = 0, min(sum(saves), save_bytes + others_bytes)
        point_bytes += merged_bytes
    flop = 6 * run_spec.footprint.num_parameters * config.trainer.batch_size
    step_s = STEP_S + flop / (FLOP_PER_S * config.trainer.num_threads)
    if config.engine == "rpc" and config.cache.mode == "none":
        step_s += MESSAGE_S * config.num_ps
    seconds = START_S + run_spec.num_rows / ROWS_PER_S + run_spec.num_steps * step_s
    seconds += written_bytes / DISK_BYTES_PER_S + SAVE_S * len(saves)
    seconds += RECOVERY_S * num_failures
    has_points = config.resume.every_s is not None and 10 * seconds > config.resume.every_s
    # The newest, one that the resume point still needs, the save under way. On a busy machine a run may take ten times
    # as long, and then has resume points too.
    held_bytes = (config.store.keep + has_points - 1) * checkpoint_bytes + save_bytes + (1 + has_points) * others_bytes
    model_bytes = full_bytes if config.store.keep_finished else 0
    return Needs(
        least_memory_bytes=full_bytes + counts_bytes,
        memory_bytes=memory_bytes + merged_bytes + buffers_bytes + PROCESS_BYTES + RANK_BYTES * num_processes,
        written_bytes=written_bytes,
        disk_bytes=min(written_bytes, held_bytes) + (1 + has_points) * point_bytes + model_bytes,
        least_disk_bytes=min(written_bytes, full_bytes * min(kinds.count("full"), config.store.keep + 1)),
        kept_bytes=min(written_bytes, config.store.keep * checkpoint_bytes + others_bytes) + model_bytes
        if model_bytes
        else 0,
        seconds=seconds,
    )
