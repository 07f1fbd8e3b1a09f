"""`run.py plan`: what the closed forms advise for a profile or a trace, and how far chance carries a run from them."""

# ruff: noqa: PLC0415 - matplotlib takes a second

import argparse
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from rich.table import Column, Table

from harness import console
from harness.advisor import (
    PLANNED,
    Advice,
    Option,
    Outcomes,
    Spread,
    advise,
    outcomes,
    placement_of,
    spread,
    strikes_at,
)
from harness.core.config import Config, StrategyName
from harness.core.criteo import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES, TERABYTE_CARDINALITIES
from harness.core.errors import ConfigError
from harness.core.overhead import job_costs
from harness.core.placement import tracked_tables
from harness.core.plans import Costs
from harness.core.pls import rank_weights
from harness.core.profiles import PROFILES
from harness.core.simulate import Job, save_sizes
from harness.core.trace import Strike, Trace
from harness.injector import read_trace
from harness.model.sizes import model_size
from harness.settings import config_of
from harness.traces.generate import generate_many
from harness.traces.spec import GeneratorSpec

_TRACES_AT_ONCE = 500
_LARGE = ("terabyte", "mlperf")
_LABELS = {"cpr_mfu": "cpr_mfu, cpr_ssu, cpr_random"}  # the ledger cannot tell them apart


def plan(options: argparse.Namespace) -> int:
    """Print the advice, perhaps the spread, perhaps a figure."""
    config, costs, source = _subject(options.subject, options.overrides)
    cardinalities = TERABYTE_CARDINALITIES if config.model.size in _LARGE else KAGGLE_CARDINALITIES
    advice = advise(costs, config.strategy, cardinalities, model_size(config.model).embedding_dim)
    console.say(source)
    _tell(advice)
    spreads: list[Spread] = []
    if options.simulate:
        job = _job(config, costs, cardinalities)
        spec = _spec(costs, model=options.model, shape=options.shape)
        spreads = _simulate(config, job, spec, options.simulate, options.seed)
        console.show(_spread_table(spreads, options.simulate, spec))
    if options.figure is not None:
        from analysis.plan_figure import write_plan_figure

        write_plan_figure(options.figure, advice, spreads)
        console.say(f"figure: {options.figure}")
    return 0


# --- of what ----------------------------------------------------------------------------------------------------------


def _subject(name: str, overrides: Sequence[str]) -> tuple[Config, Costs, str]:
    """The configuration, its costs, and a line on where they come from. Raises ConfigError, TraceError."""
    if name in PROFILES:
        config = config_of([f"profile={name}", *overrides])
        costs = _costs(config)
        return config, costs, f"profile {config.emulated.name}: {_facts(costs)}"
    if not (name.endswith(".csv") or Path(name).exists()):
        near = difflib.get_close_matches(name, PROFILES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(PROFILES))}"
        raise ConfigError(f"{name!r} is neither a profile nor a trace file (TRACE.csv); {hint}")
    config = config_of(overrides)
    trace = read_trace(Path(name))
    costs = _costs_of(trace, _costs(config), is_fixed=any(word.startswith("cluster.num_ps=") for word in overrides))
    return config, costs, f"trace {name}, other costs of profile {config.emulated.name}: {_facts(costs)}"


def _costs(config: Config) -> Costs:
    batch_size = config.trainer.batch_size
    return job_costs(config, KAGGLE_TRAIN_SAMPLES // batch_size * batch_size)


def _costs_of(trace: Trace, costs: Costs, *, is_fixed: bool) -> Costs:
    """``costs`` with the MTBF, the ranks and the ranks per failure that the trace shows."""
    instants: dict[float, int] = {}
    for entry in trace.entries:
        instants[entry.hour] = instants.get(entry.hour, 0) + (entry.who if isinstance(entry.who, int) else 1)
    if not instants:
        raise ConfigError(f"{trace.source}: no failures, so nothing to plan for")
    header = trace.header
    length_h = float(header.get("length_h") or header.get("job_h") or max(instants))
    named = [int(entry.who.removeprefix("ps")) + 1 for entry in trace.entries if isinstance(entry.who, str)]
    num_ps = int(header.get("ranks") or max(named, default=costs.num_ps))
    return replace(
        costs,
        mtbf_h=length_h / len(instants),
        ranks_per_failure=sum(instants.values()) / len(instants),
        num_ps=costs.num_ps if is_fixed else num_ps,
    )


def _facts(costs: Costs) -> str:
    return (
        f"a job of {costs.job_h:g} h, MTBF {costs.mtbf_h:.3g} h, {costs.num_ps} PS ranks, "
        f"{costs.ranks_per_failure:.3g} lost per failure, O_save {_minutes(costs.o_save_h)}, "
        f"O_load {_minutes(costs.o_load_h)}, O_res {_minutes(costs.o_res_h)}, PLS target {costs.pls_target:g}"
    )


def _minutes(hours: float) -> str:
    return f"{hours * 60:.3g} min"


# --- what the closed forms say ----------------------------------------------------------------------------------------


def _tell(advice: Advice) -> None:
    job_h = advice.costs.job_h
    table = Table(
        *(Column(name, justify="left" if not name else "right") for name in ("", "full", "partial")),
        title="expected, by CPR's closed forms",
        title_justify="left",
        box=None,
    )
    for label, full, partial in _rows(advice.full, advice.partial, job_h):
        table.add_row(label, full, partial)
    console.show(table)
    saved = 1 - advice.partial.overhead.total_h / advice.full.overhead.total_h if advice.full.overhead.total_h else 0.0
    if advice.decision == "partial":
        console.say(f"decision: partial recovery; it removes {saved:.1%} of full recovery's overhead")
    else:
        console.say("decision: full recovery; at this PLS target partial recovery would have to save too often")
    for line in _cautions(advice):
        console.say(f"note: {line}")
    flips = advice.flips
    console.say("partial recovery is the cheaper one, all else held, above:")
    console.say(f"  PLS target {flips.pls_target:.3g}   MTBF {flips.mtbf_h:.3g} h   {_ranks(flips.num_ps)}")
    console.say(f"  {_ranks(flips.num_ps_scaled)} if the MTBF falls as 1/N")
    console.say(
        "memory beside the tables: "
        + "   ".join(f"{each.name} {each.num_bytes / 1e6:,.1f} MB ({each.frac:.2%})" for each in advice.trackers)
    )


def _rows(full: Option, partial: Option, job_h: float) -> Iterator[tuple[str, str, str]]:
    yield "save every", f"{full.interval_h:.3g} h", f"{partial.interval_h:.3g} h"
    for bucket in ("save", "load", "lost", "reschedule", "total"):
        hours = [getattr(option.overhead, f"{bucket}_h") for option in (full, partial)]
        label = {"lost": "lost computation", "total": "overhead"}.get(bucket, bucket)
        yield label, f"{hours[0]:.3g} h  {hours[0] / job_h:.3%}", f"{hours[1]:.3g} h  {hours[1] / job_h:.3%}"
    yield "PLS", f"{full.pls:.3g}", f"{partial.pls:.3g}"


def _cautions(advice: Advice) -> Iterator[str]:
    job_h = advice.costs.job_h
    if advice.partial.interval_h > job_h:
        yield f"{advice.partial.interval_h:.3g} h is longer than the job: nothing is saved, less lost than the target"
    elif advice.partial.interval_h > job_h / 4:
        yield "the interval is not far below the job's length, where E[PLS] holds; --simulate shows what chance does"
    if advice.full.interval_h > advice.costs.mtbf_h:
        yield "failures come more often than full recovery would save; Young's optimum holds for rare failures"


def _ranks(number: float) -> str:
    return f"N {number:.3g} PS ranks" if number >= 1 else "N any number of PS ranks"


# --- what chance does -------------------------------------------------------------------------------------------------


def _job(config: Config, costs: Costs, cardinalities: Sequence[int]) -> Job:
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


def _spec(costs: Costs, *, model: str, shape: float | None) -> GeneratorSpec:
    """Traces as the costs describe them. A mean of ranks per failure that is no whole number is mixed from two."""
    k = costs.ranks_per_failure
    low = int(k)
    sizes = {low: 1 - (k - low), low + 1: k - low}
    groups = {size: weight for size, weight in sizes.items() if size > 1 and weight > 1e-9}
    probability = sum(groups.values())
    return GeneratorSpec(
        model=model,
        shape=shape,
        mtbf_h=costs.mtbf_h,
        ranks=costs.num_ps,
        length_h=costs.job_h,
        group_probability=min(1.0, probability),
        group_sizes=tuple(groups.items()),
    )


def _simulate(config: Config, job: Job, spec: GeneratorSpec, num_traces: int, seed: int) -> list[Spread]:
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


def _spread_table(spreads: Sequence[Spread], num_traces: int, spec: GeneratorSpec) -> Table:
    columns = ("strategy", "save every", "overhead", "median", "5–95 %", "PLS", "median", "5–95 %")
    table = Table(
        *(Column(name, justify="left" if name == "strategy" else "right") for name in columns),
        title=f"{num_traces:,} traces ({spec.model}), means with 95 % confidence intervals",
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
