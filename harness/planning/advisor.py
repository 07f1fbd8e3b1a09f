"""CPR's closed forms for a job: save intervals of full and partial recovery, their costs, and the cheaper one.

Also the spread of overhead and PLS over generated traces, simulated with the strategies and ledgers of a run.

Symbols and formulas are as in CPR section 4 (docs/CPR.md). All times are emulated hours of the profile's cluster.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.config.model import Config
from harness.core.clock import boundary_at, hour_to_samples
from harness.core.faults import PlannedFault, Strike
from harness.core.overhead import (
    expected_pls,
    load_part_h,
    o_full_h,
    o_part_h,
    saves_h,
    t_save_full_h,
    t_save_part_h,
)
from harness.core.placement import MIRROR_INDEX_BYTES, Placement, num_mirrored, tracked_tables
from harness.core.plans import Costs, ps_rank
from harness.core.pls import rank_weights
from harness.core.strategies import CprMirror, CprPriority, StrategyOptions, make_strategy
from harness.model.models import footprint
from harness.planning.simulate import Job, due_saves, save_sizes, simulate
from harness.traces.draw import WALL_LENGTH
from harness.traces.generate import generate_many
from harness.traces.spec import GeneratorSpec

F64 = NDArray[np.float64]
_TRACES_AT_ONCE = 500
_UNSURE = 1e-12  # relative: far above the rounding of four floats

PLANNED = ("full", "partial", "cpr_vanilla", "cpr_mfu")
"""Built-in strategies that `--simulate` always covers. Most others cost no more than one of these: priority strategies
choose as many rows as cpr_mfu, or fewer, and differential writes at most what full or partial does."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Expected overhead of a job by bucket, in emulated hours."""

    save_h: float
    load_h: float
    lost_h: float
    reschedule_h: float

    @property
    def total_h(self) -> float:
        return self.save_h + self.load_h + self.lost_h + self.reschedule_h


@dataclass(frozen=True, kw_only=True)
class Option:
    """Full or partial recovery, with its save interval, expected overhead and expected PLS."""

    name: Literal["full", "partial"]
    interval_h: float
    overhead: Buckets
    pls: float


@dataclass(frozen=True, kw_only=True)
class Flips:
    """Break-even values of full against partial recovery: partial is cheaper above each value, all else equal.

    ``num_ps_scaled``: number N of PS ranks if the MTBF is proportional to 1/N; in ``num_ps`` it is constant. Neither
    number is rounded. A value is 0 if partial is always cheaper, infinite if it never is.
    """

    pls_target: float
    mtbf_h: float
    num_ps: float
    num_ps_scaled: float


@dataclass(frozen=True, kw_only=True)
class TrackerMemory:
    """Memory of one tracker or replica, in addition to the tables, counted as in CPR.

    ``num_bytes``: of the whole model. ``frac``: of the bytes of the tables with their optimizer state.
    """

    name: str
    num_bytes: int
    frac: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The recommendation for one job, with its numbers. ``decision``: the recovery that cpr_* strategies choose."""

    costs: Costs
    full: Option
    partial: Option
    decision: Literal["full", "partial"]
    flips: Flips
    trackers: tuple[TrackerMemory, ...]


def advise(
    costs: Costs,
    options: CprPriority.Options,
    cardinalities: Sequence[int],
    *,
    embedding_dim: int,
    row_width: int,
    num_tracked: int,
) -> Advice:
    """The recommendation for a job whose tables have ``cardinalities`` rows of ``embedding_dim`` values.

    ``row_width``: float32 numbers per row, optimizer state included. ``num_tracked``: number of tracked tables. The
    mirror's share is the one in ``options``, else the default of ``cpr_mirror``.
    """
    share = getattr(options, "share", CprMirror.Options.model_fields["share"].default)
    counts_ranks = options.interval_counts_ranks
    full_h, part_h = t_save_full_h(costs), t_save_part_h(costs, counts_ranks=counts_ranks)
    is_full = o_part_h(costs, part_h) >= o_full_h(costs, full_h)
    return Advice(
        costs=costs,
        full=Option(name="full", interval_h=full_h, overhead=full_buckets(costs, full_h), pls=0.0),
        partial=Option(
            name="partial", interval_h=part_h, overhead=part_buckets(costs, part_h), pls=expected_pls(costs, part_h)
        ),
        decision="full" if is_full else "partial",
        flips=flips(costs, counts_ranks=counts_ranks),
        trackers=tuple(_tracker_memory(cardinalities, embedding_dim, row_width, num_tracked, options.r, share)),
    )


def full_buckets(costs: Costs, t_save_h: float) -> Buckets:
    """The overhead ``o_full_h`` of full recovery, split into its buckets."""
    num_failures = costs.job_h / costs.mtbf_h
    lost_h = t_save_h / 2 * num_failures
    return replace(part_buckets(costs, t_save_h), lost_h=lost_h, load_h=costs.o_load_h * num_failures)


def part_buckets(costs: Costs, t_save_h: float) -> Buckets:
    """The overhead ``o_part_h`` of partial recovery, split into its buckets."""
    num_failures = costs.job_h / costs.mtbf_h
    return Buckets(
        save_h=saves_h(costs, t_save_h),
        load_h=load_part_h(costs) * num_failures,
        lost_h=0.0,
        reschedule_h=costs.o_res_h * num_failures,
    )


def flips(costs: Costs, *, counts_ranks: bool = True) -> Flips:
    """The break-even values of full against partial recovery, by the rule by which cpr_* strategies decide.

    If load and reschedule cost the same in both, and training waits for saves, partial recovery is cheaper if its saves
    cost less than the saves and the lost computation of full recovery::

        k O_save / (2 P N F) < sqrt(2 O_save / F)    that is    P N sqrt(F) / k > sqrt(O_save / 8)

    with P the PLS target and F the MTBF; k is 1 without ``counts_ranks``. For other costs there is no closed form, so
    all values are found by bisection.
    """

    def is_partial(**changes: Any) -> bool:
        moved = replace(costs, **changes)
        part_h = t_save_part_h(moved, counts_ranks=counts_ranks)
        return o_part_h(moved, part_h) < o_full_h(moved, t_save_full_h(moved))

    job_ranks_h = costs.mtbf_h * costs.num_ps
    return Flips(
        pls_target=_break_even(lambda value: is_partial(pls_target=value)),
        mtbf_h=_break_even(lambda value: is_partial(mtbf_h=value)),
        num_ps=_break_even(lambda value: is_partial(num_ps=value)),
        num_ps_scaled=_break_even(lambda value: is_partial(num_ps=value, mtbf_h=job_ranks_h / value)),
    )


def _break_even(holds: Callable[[float], bool]) -> float:
    """The value above which ``holds`` is true, to 14 digits; 0 if it is below 1e-12, infinity if it is above 1e12."""
    low, high = 1e-12, 1e12
    if holds(low):
        return 0.0
    if not holds(high):
        return math.inf
    while (middle := math.sqrt(low * high)) not in (low, high) and high / low > 1 + 1e-14:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _tracker_memory(  # noqa: PLR0917
    cardinalities: Sequence[int], dim: int, row_width: int, num_tracked: int, r: float, share: float
) -> Iterator[TrackerMemory]:
    """The memory of each tracker and replica for tables of these sizes.

    SCAR keeps a second copy of the D values of each tracked row. MFU keeps 4 bytes per tracked row; mass and
    differential keep 4 bytes per row of all tables. SSU keeps a fraction r of MFU's bytes. SSU and differential also
    keep a bit per row of all tables. ``buddy`` keeps a replica of all rows, and a counter of 4 bytes per row. The
    mirror of ``cpr_mirror``, at the trainer, keeps the fraction ``share`` of the tracked tables, and all other tables.
    """
    tables = tracked_tables(tuple(cardinalities), num_tracked)
    rows, all_rows = sum(cardinalities[table] for table in tables), sum(cardinalities)
    bits = -(-all_rows // 8)
    total_bytes = 4 * row_width * all_rows
    mirrored = sum(num_mirrored(n, share, is_tracked=table in tables) for table, n in enumerate(cardinalities))
    sizes = {
        "cpr_scar": 4 * dim * rows,
        "cpr_mfu": 4 * rows,
        "cpr_mass": 4 * all_rows,
        "cpr_ssu": round(r * 4 * rows) + bits,
        "differential": 4 * all_rows + bits,
        "cpr_mirror, at the trainer": mirrored * (4 * row_width + MIRROR_INDEX_BYTES),
        "buddy": total_bytes + 4 * all_rows,
    }
    for name, num_bytes in sizes.items():
        yield TrackerMemory(name=name, num_bytes=num_bytes, frac=num_bytes / total_bytes)


# --- the spread -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of two or more outcomes: mean with its standard error, median, 5th and 95th percentile."""

    mean: float
    error: float
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: F64) -> "Summary":
        low, median, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(mean=float(np.mean(values)), error=error, median=median, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Overhead and PLS of one strategy under many traces.

    ``interval_h``: None if the strategy never saves. ``falls_back``: a cpr_* strategy chose full recovery.
    """

    name: str
    interval_h: float | None
    falls_back: bool
    overhead: Summary  # fraction of the job
    pls: Summary


Outcomes = NDArray[np.float64]
"""Results for K traces, (K, 2): overhead as a fraction of the job, and PLS."""


def outcomes(options: StrategyOptions, job: Job, schedules: Sequence[Sequence[PlannedFault]]) -> Outcomes:
    """Simulate one strategy under each schedule, with the strategy and ledgers of a run but without training.

    A strategy without failures (``none``) is simulated under empty schedules.
    """
    strategy = make_strategy(options, job.costs)
    saves = due_saves(strategy, job)
    carried_out = schedules if strategy.injects_failures else [()] * len(schedules)
    found = (simulate(strategy, job, planned_kills, saves) for planned_kills in carried_out)
    return np.array([(outcome.overhead_frac, outcome.pls) for outcome in found])


def spread(options: StrategyOptions, costs: Costs, parts: Sequence[Outcomes]) -> Spread:
    interval = make_strategy(options, costs).interval
    found = np.concatenate(parts)
    return Spread(
        name=options.name,
        interval_h=None if interval.samples is None else interval.samples / costs.total_samples * costs.job_h,
        falls_back=interval.fallback,
        overhead=Summary.of(found[:, 0]),
        pls=Summary.of(found[:, 1]),
    )


def planned_kills_at(hours_E: F64, ranks_E: NDArray[np.int64], job: Job) -> tuple[PlannedFault, ...]:
    """Planned kills of a drawn trace (hours ascending), equal to those that ``harness.traces.schedule`` makes of it."""
    planned_kills: dict[tuple[int, float], dict[int, float]] = {}
    for hour, rank, step in zip(hours_E.tolist(), ranks_E.tolist(), _steps_at(hours_E, job), strict=True):
        place = min(max(0, step), job.num_steps - 1), hour if job.clock == "wall" else 0.0
        planned_kills.setdefault(place, {}).setdefault(rank, hour)
    return tuple(
        PlannedFault(step=step, strikes={ps_rank(rank): Strike(killed[rank], 0) for rank in sorted(killed)})
        for (step, _), killed in sorted(planned_kills.items())
    )


def _steps_at(hours_E: F64, job: Job) -> list[int]:
    """The first boundary at or after each hour, by exact arithmetic where floats could give another one."""
    costs = job.costs
    step_E = hours_E / costs.job_h * (costs.total_samples / job.batch_size)
    steps = np.ceil(step_E).astype(np.int64).tolist()
    for index in np.flatnonzero(np.abs(step_E - np.round(step_E)) < _UNSURE * (1 + step_E)).tolist():
        due = hour_to_samples(float(hours_E[index]), job_h=costs.job_h, total_samples=costs.total_samples)
        steps[index] = boundary_at(due, job.batch_size)
    return steps


def job_of(config: Config, costs: Costs, cardinalities: Sequence[int]) -> Job:
    """The simulator's job for a run of ``config``, with these ``costs``, over tables of these cardinalities."""
    placement = Placement(config.cluster.placement, tuple(cardinalities), costs.num_ps)
    model = footprint(config.model, config.trainer.optimizer, config.trainer.dense_optimizer)
    strategy = config.strategy
    return Job(
        costs=costs,
        batch_size=config.trainer.batch_size,
        num_steps=costs.total_samples // config.trainer.batch_size,
        weights=rank_weights(placement),
        sizes=save_sizes(
            placement,
            width=model.row_width,
            dense_bytes=model.dense_bytes,
            tracked=tracked_tables(tuple(cardinalities), config.metrics.num_tracked),
            r=strategy.r if isinstance(strategy, CprPriority.Options) else 1.0,
            share=strategy.share if isinstance(strategy, CprMirror.Options) else 0.0,
        ),
        pls_since=config.metrics.pls_since,
        clock=config.trace.clock,
    )


def simulate_all(
    strategies: Sequence[StrategyOptions],
    job: Job,
    spec: GeneratorSpec,
    num_traces: int,
    seed: int,
    *,
    on_progress: Callable[[int, int], None],
) -> list[Spread]:
    """Simulate all ``strategies`` under the same traces, of which there must be at least 2, in at most 8 processes.

    With the clock ``wall``, traces are ``WALL_LENGTH`` times as long as ``spec`` says, since overhead makes the job
    longer; the part up to that length is the same. ``on_progress(done, total)`` counts traces.
    """
    if job.clock == "wall":
        spec = spec.times(WALL_LENGTH)
    parts: dict[str, dict[int, Outcomes]] = {options.name: {} for options in strategies}
    num_done = 0
    with ProcessPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        tasks = {
            pool.submit(_simulate_some, strategies, job, spec, seed, traces): traces
            for first in range(0, num_traces, _TRACES_AT_ONCE)
            for traces in [range(first, min(first + _TRACES_AT_ONCE, num_traces))]
        }
        for task in as_completed(tasks):
            for name, found in task.result().items():
                parts[name][tasks[task].start] = found
            num_done += len(tasks[task])
            on_progress(num_done, num_traces)
    return [
        spread(options, job.costs, [found for _, found in sorted(parts[options.name].items())])
        for options in strategies
    ]


def _simulate_some(
    strategies: Sequence[StrategyOptions], job: Job, spec: GeneratorSpec, seed: int, traces: range
) -> Mapping[str, Outcomes]:
    """The outcomes of each strategy, by name, under the traces with the numbers ``traces``."""
    deaths = generate_many(spec, seed, len(traces), first=traces.start)
    schedules: list[tuple[PlannedFault, ...]] = [planned_kills_at(*deaths.of(k), job) for k in range(len(traces))]
    return {options.name: outcomes(options, job, schedules) for options in strategies}
