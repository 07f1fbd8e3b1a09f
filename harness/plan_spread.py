"""What chance does to a plan: generated traces through the real ledgers, without training, on all cores."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.table import Column, Table

from harness import console
from harness.advisor import PLANNED, Outcomes, Spread, outcomes, placement_of, spread, strikes_at
from harness.core.config import Config, StrategyName
from harness.core.placement import tracked_tables
from harness.core.plans import Costs
from harness.core.pls import rank_weights
from harness.core.simulate import Job, save_sizes
from harness.core.trace import Strike
from harness.model.sizes import model_size
from harness.trace_models import spec_of_model
from harness.traces.generate import generate_many
from harness.traces.spec import GeneratorSpec

_TRACES_AT_ONCE = 500
_LABELS = {"cpr_mfu": "cpr_mfu, cpr_ssu, cpr_random"}  # the ledger cannot tell them apart


def job_of(config: Config, costs: Costs, cardinalities: Sequence[int]) -> Job:
    placement, size = placement_of(cardinalities, costs.num_ps), model_size(config.model)
    return Job(
        costs=costs,
        batch_size=config.trainer.batch_size,
        num_steps=costs.total_samples // config.trainer.batch_size,
        weights=rank_weights(placement),
        sizes=save_sizes(
            placement,
            dim=size.embedding_dim,
            dense_bytes=size.dense_bytes,
            tracked=tracked_tables(tuple(cardinalities), config.strategy.num_tracked),
            r=config.strategy.r,
        ),
        pls_since=config.strategy.pls_since,
    )


def spec_of(costs: Costs, *, model: str, shape: float | None) -> GeneratorSpec:
    """Traces as the costs describe them; the law of the gaps by name, or that of a trace (``fit:``, ``empirical:``).

    A mean of ranks per failure that is no whole number is mixed from two.
    """
    learned = spec_of_model(model, {} if shape is None else {"shape": shape})
    k = costs.ranks_per_failure
    low = int(k)
    sizes = {low: 1 - (k - low), low + 1: k - low}
    groups = {size: weight for size, weight in sizes.items() if size > 1 and weight > 1e-9}
    probability = sum(groups.values())
    return GeneratorSpec(
        model=learned.model if learned else model,
        shape=learned.shape if learned else shape,
        gaps_h=learned.gaps_h if learned else (),
        like=learned.like if learned else None,
        mtbf_h=costs.mtbf_h,
        ranks=costs.num_ps,
        length_h=costs.job_h,
        group_probability=min(1.0, probability),
        group_sizes=tuple(groups.items()),
    )


def simulate_all(config: Config, job: Job, spec: GeneratorSpec, num_traces: int, seed: int) -> list[Spread]:
    """Every strategy under the same traces, on all cores."""
    parts: dict[StrategyName, dict[int, Outcomes]] = {name: {} for name in PLANNED}
    num_done = 0
    with (
        console.amount_progress("simulate") as progress,
        ProcessPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool,
    ):
        tasks = {
            pool.submit(_simulate_some, config, job, spec, seed, first, min(_TRACES_AT_ONCE, num_traces - first)): first
            for first in range(0, num_traces, _TRACES_AT_ONCE)
        }
        for task in as_completed(tasks):
            for name, found in task.result().items():
                parts[name][tasks[task]] = found
            num_done += min(_TRACES_AT_ONCE, num_traces - tasks[task])
            progress(num_done, num_traces)
    return [
        spread(name, config.strategy, job.costs, [found for _, found in sorted(parts[name].items())])
        for name in PLANNED
    ]


def _simulate_some(  # noqa: PLR0917 - a task of a pool
    config: Config, job: Job, spec: GeneratorSpec, seed: int, first: int, num_traces: int
) -> Mapping[StrategyName, Outcomes]:
    """Traces ``first`` … of the seed: a function of these alone, whatever process it runs in."""
    deaths = generate_many(spec, seed, num_traces, first=first)
    schedules: list[tuple[Strike, ...]] = [strikes_at(*deaths.of(k), job) for k in range(num_traces)]
    return {name: outcomes(name, config.strategy, job, schedules) for name in PLANNED}


def spread_table(spreads: Sequence[Spread], num_traces: int, spec: GeneratorSpec) -> Table:
    columns = ("strategy", "save every", "overhead", "median", "5–95 %", "PLS", "median", "5–95 %")
    law = spec.model + (f" after {spec.like}" if spec.like else "")
    table = Table(
        *(Column(name, justify="left" if name == "strategy" else "right") for name in columns),
        title=f"{num_traces:,} traces ({law}), means with 95 % confidence intervals",
        title_justify="left",
        box=None,
    )
    for each in spreads:
        overhead, pls = each.overhead, each.pls
        table.add_row(
            _LABELS.get(each.name, each.name) + (" (falls back to full)" if each.falls_back else ""),
            "never" if each.interval_h is None else f"{each.interval_h:.3g} h",
            f"{overhead.mean:.3%} ±{1.96 * overhead.error:.3%}",
            f"{overhead.median:.3%}",
            f"{overhead.low:.3%}–{overhead.high:.3%}",
            f"{pls.mean:.4f} ±{1.96 * pls.error:.4f}",
            f"{pls.median:.4f}",
            f"{pls.low:.4f}–{pls.high:.4f}",
        )
    return table
