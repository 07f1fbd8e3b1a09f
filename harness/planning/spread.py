"""The spread of overhead and PLS over generated traces: simulated with a run's strategies and ledgers, on all cores."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from harness.config.model import Config
from harness.core.faults import PlannedFault
from harness.core.placement import Placement, tracked_tables
from harness.core.plans import Costs
from harness.core.pls import rank_weights
from harness.core.priority_strategies import CprMirror, CprPriority
from harness.core.strategy import StrategyOptions
from harness.model.footprint import footprint
from harness.planning.advisor import Outcomes, Spread, outcomes, planned_kills_at, spread
from harness.planning.simulate import Job, save_sizes
from harness.traces.generate import generate_many
from harness.traces.learn import spec_of_model
from harness.traces.regime import WALL_LENGTH, group_sizes
from harness.traces.spec import GeneratorSpec

_TRACES_AT_ONCE = 500


def job_of(config: Config, costs: Costs, cardinalities: Sequence[int]) -> Job:
    """The simulator's job for a run of ``config`` over tables of these cardinalities."""
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


def spec_of(costs: Costs, *, model: str, shape: float | None) -> GeneratorSpec:
    """Parameters of generated traces for a job with ``costs``.

    ``model``: a law of the gaps, or ``fit:TRACE`` or ``empirical:TRACE``. A fractional mean of ranks per failure
    becomes a mixture of the two nearest whole numbers.
    """
    learned = spec_of_model(model, {} if shape is None else {"shape": shape})
    groups = group_sizes(costs.ranks_per_failure)
    return GeneratorSpec(
        model=learned.model if learned else model,
        shape=learned.shape if learned else shape,
        gaps_h=learned.gaps_h if learned else (),
        like=learned.like if learned else None,
        mtbf_h=costs.mtbf_h,
        ranks=costs.num_ps,
        length_h=costs.job_h,
        group_probability=min(1.0, sum(weight for _, weight in groups)),
        group_sizes=groups,
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
    """Simulate all ``strategies`` under the same traces, in at most 8 processes.

    With the clock ``wall`` traces are ``WALL_LENGTH`` times as long as ``spec`` says; their beginnings are the same.
    ``on_progress(done, total)`` counts traces.
    """
    if job.clock == "wall":
        spec = spec.changed(length_h=WALL_LENGTH * spec.length_h)
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
    """Simulate the strategies under the traces numbered ``traces``. Returns outcomes by strategy's name."""
    deaths = generate_many(spec, seed, len(traces), first=traces.start)
    schedules: list[tuple[PlannedFault, ...]] = [planned_kills_at(*deaths.of(k), job) for k in range(len(traces))]
    return {options.name: outcomes(options, job, schedules) for options in strategies}
