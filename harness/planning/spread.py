"""The spread of overhead and PLS over generated traces, simulated with the strategies and ledgers of a run.

All times are emulated hours of the profile's cluster.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.config.model import Config
from harness.core.clock import boundary_at, hour_to_samples
from harness.core.events import BUCKETS
from harness.core.faults import PlannedFault, Strike
from harness.core.placement import MIRROR_INDEX_BYTES, Placement, num_mirrored, tracked_tables
from harness.core.plans import Costs, ps_rank
from harness.core.pls import rank_weights
from harness.core.strategies import CprMirror, CprPriority, StrategyOptions, make_strategy
from harness.core.trackers import TrackerSpec, tracker_bytes
from harness.model.models import Footprint, footprint
from harness.planning.simulate import Job, due_saves, save_sizes, simulate
from harness.recovery.recoveries import RECOVERIES
from harness.traces.draw import WALL_LENGTH
from harness.traces.generate import generate_many
from harness.traces.shrink import shrunk
from harness.traces.spec import GeneratorSpec

F64 = NDArray[np.float64]
_TRACES_AT_ONCE = 500
_COUNTER_BYTES = 4  # of the updates of a row
_UNSURE = 1e-12  # relative: far above the rounding of four floats


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of two or more outcomes: mean with its standard error, 5th and 95th percentile."""

    mean: float
    error: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of the width of the mean's 95 % interval."""
        return 1.96 * self.error

    @classmethod
    def of(cls, values: F64) -> "Summary":
        low, high = np.quantile(values, [0.05, 0.95]).tolist()
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(mean=float(np.mean(values)), error=error, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Overhead and PLS of one strategy under many traces, and its outcomes, in order of traces.

    ``interval_h``: None if the strategy never saves. ``falls_back``: a cpr_* strategy chose full recovery. Overhead is
    a fraction of the job; ``buckets``: its mean in each of ``BUCKETS``. NaN: unknown.
    """

    name: str
    interval_h: float | None
    falls_back: bool
    overhead: Summary
    buckets: tuple[float, ...]
    pls: Summary
    outcomes: "Outcomes"


Outcomes = NDArray[np.float64]
"""Results for K traces, (K, B + 3): overhead as a fraction of the job, PLS, hours of B buckets, and node-hours.

NaN is unknown.
"""


def outcomes(options: StrategyOptions, job: Job, schedules: Sequence[Sequence[PlannedFault]]) -> Outcomes:
    """Simulate one strategy under each schedule, with the strategy and ledgers of a run but without training.

    A strategy without failures (``none``) is simulated under empty schedules.
    """
    strategy = make_strategy(options, job.costs)
    saves = due_saves(strategy, job)
    carried_out = schedules if strategy.injects_failures else [()] * len(schedules)
    found = (simulate(strategy, job, planned_kills, saves) for planned_kills in carried_out)
    hours = (
        (one.overhead_frac, one.pls, *(getattr(one, f"{each}_h") for each in BUCKETS), one.node_h) for one in found
    )
    return np.array([*hours], dtype=np.float64)


def spread(options: StrategyOptions, costs: Costs, parts: Sequence[Outcomes]) -> Spread:
    interval = make_strategy(options, costs).interval
    found = np.concatenate(parts)
    return Spread(
        name=options.name,
        interval_h=None if interval.samples is None else interval.samples / costs.total_samples * costs.job_h,
        falls_back=interval.fallback,
        overhead=Summary.of(found[:, 0]),
        buckets=tuple((found[:, 2:-1].mean(axis=0) / costs.job_h).tolist()),
        pls=Summary.of(found[:, 1]),
        outcomes=found,
    )


def planned_kills_at(
    hours_E: F64,
    ranks_E: NDArray[np.int64],
    job: Job,
    repairs_E: Sequence[float | None] | None = None,
    notice_h: float = 0.0,
) -> tuple[PlannedFault, ...]:
    """Planned kills of a drawn trace (hours ascending), equal to those that ``harness.traces.schedule`` makes of it."""
    planned_kills: dict[tuple[int, float], dict[int, Strike]] = {}
    repairs_E = [None] * len(hours_E) if repairs_E is None else repairs_E
    deaths = zip(hours_E.tolist(), ranks_E.tolist(), repairs_E, _steps_at(hours_E, job), strict=True)
    for hour, rank, repair_h, step in deaths:
        place = min(max(0, step), job.num_steps - 1), hour if job.clock == "wall" else 0.0
        strike = Strike(hour, 0, repair_h=repair_h, notice_h=notice_h)
        planned_kills.setdefault(place, {}).setdefault(rank, strike)
    planned = tuple(
        PlannedFault(step=step, strikes={ps_rank(rank): killed[rank] for rank in sorted(killed)})
        for (step, _), killed in sorted(planned_kills.items())
    )
    return shrunk(planned, job.costs.num_ps, job.num_steps, job.strike_step) if job.shrinks else planned


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
    model, strategy = _footprint(config), config.strategy
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
        interrupts=config.trace.interrupts,
        shrinks=config.cluster.on_loss == "shrink",
        on_notice=config.cluster.on_notice,
    )


def memory_bytes(config: Config, costs: Costs, cardinalities: Sequence[int]) -> int | None:
    """Bytes of the strategy's trackers, replicas and mirror besides the tables, an upper bound; None if unknown.

    All PS ranks count as the one that needs most. With replicas there is a copy of all rows, each with a counter; with
    saves in memory there are two.
    """
    strategy, tables = make_strategy(config.strategy, costs), tuple(cardinalities)
    tracked, row_bytes = tracked_tables(tables, config.metrics.num_tracked), 4 * _footprint(config).row_width
    spec = TrackerSpec(strategy.tracker, tracked, strategy.tracker_options)
    of_rank = tracker_bytes(spec, Placement(config.cluster.placement, tables, costs.num_ps), config.model.row_values)
    if of_rank is None:
        return None
    share = config.strategy.share if isinstance(config.strategy, CprMirror.Options) else 0.0
    mirrored = (
        sum(num_mirrored(n, share, is_tracked=table in tracked) for table, n in enumerate(tables)) if share else 0
    )
    has_replicas = any(RECOVERIES[kind].needs_replicas for kind in strategy.recoveries)
    replica_bytes = has_replicas * sum(tables) * (row_bytes + _COUNTER_BYTES)
    replica_bytes += 2 * ("memory" in strategy.tiers) * sum(tables) * row_bytes
    if strategy.groups is not None:
        replica_bytes += len(strategy.groups.members) * -(-sum(tables) // costs.num_ps) * row_bytes
    return of_rank * costs.num_ps + replica_bytes + mirrored * (row_bytes + MIRROR_INDEX_BYTES)


def _footprint(config: Config) -> Footprint:
    return footprint(config.model, config.trainer.optimizer, config.trainer.dense_optimizer)


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
    ranges = [range(first, min(first + _TRACES_AT_ONCE, num_traces)) for first in range(0, num_traces, _TRACES_AT_ONCE)]
    parts: list[Mapping[str, Outcomes]] = []
    work = partial(_simulate_some, strategies, job, spec, seed)
    with ProcessPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:  # it starts none for a single range
        for traces, found in zip(
            ranges, map(work, ranges) if len(ranges) == 1 else pool.map(work, ranges), strict=True
        ):
            parts.append(found)
            on_progress(traces.stop, num_traces)
    return [spread(options, job.costs, [part[options.name] for part in parts]) for options in strategies]


def _simulate_some(
    strategies: Sequence[StrategyOptions], job: Job, spec: GeneratorSpec, seed: int, traces: range
) -> Mapping[str, Outcomes]:
    """The outcomes of each strategy, by name, under the traces with the numbers ``traces``."""
    deaths = generate_many(spec, seed, len(traces), first=traces.start)
    notice_h = spec.law.notice_s / 3600
    schedules = [planned_kills_at(*deaths.of(k), job, deaths.repairs_of(k), notice_h) for k in range(len(traces))]
    return {options.name: outcomes(options, job, schedules) for options in strategies}
