"""`run.py plan`: what CPR's closed forms recommend for a profile or a trace, and the spread over simulated traces."""

# ruff: noqa: PLC0415 - matplotlib takes a second to import

import argparse
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Column, Table

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.config.combinations import refuse_combinations
from harness.config.derived import job_costs
from harness.config.experiment import load_config, load_each
from harness.config.laws import GIVEN, LAWS, Law
from harness.config.model import Config
from harness.config.profiles import PROFILES
from harness.config.words import suggest
from harness.core.clock import FailureClock
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES, TERABYTE_CARDINALITIES
from harness.core.errors import ConfigError
from harness.core.plans import Costs
from harness.core.strategies import BUILT_IN, STRATEGIES, CprPriority, StrategyOptions, make_strategy
from harness.model.models import footprint
from harness.planning.advisor import PLANNED, Advice, Spread, advise, job_of, simulate_all
from harness.planning.simulate import SaveSizes
from harness.traces.draw import spec_of
from harness.traces.gaps import longest_repairs, observe
from harness.traces.job_trace import job_trace, mtbf_and_ranks, with_profile_of_trace
from harness.traces.mismatch import mismatches
from harness.traces.trace import Trace

_LARGE = ("terabyte", "mlperf")
_LABELS = {  # the first five are equal in simulated overhead and PLS
    "cpr_mfu": "cpr_mfu, _ssu, _mass, _scar, _random (at most)",
    "cpr_mirror": "cpr_mirror (at most; no uploads)",
    "differential": "differential (at most)",
}
_LABELLED = ("cpr_ssu", "cpr_mass", "cpr_scar", "cpr_random")  # covered by the label of cpr_mfu


def plan(options: argparse.Namespace) -> None:
    """Print the recommendation; with --simulate also the spread, with --figure also write a figure."""
    configs, law, costs, source = _subject(options.subject, options.overrides, options.mapping)
    config = configs.get("cpr_mirror", configs["cpr_mfu"])  # with the mirror's share, where that is asked for
    _check(options, law, costs)
    spec = spec_of(law, costs.mtbf_h, costs.ranks_per_failure, ranks=costs.num_ps, job_h=costs.job_h)
    cardinalities = TERABYTE_CARDINALITIES if config.model.size in _LARGE else KAGGLE_CARDINALITIES
    assert isinstance(config.strategy, CprPriority.Options)
    trainer, model = config.trainer, config.model
    advice = advise(
        costs,
        config.strategy,
        cardinalities,
        embedding_dim=model.row_values,
        row_width=footprint(model, trainer.optimizer, trainer.dense_optimizer).row_width,
        num_tracked=config.metrics.num_tracked,
    )
    console.say(source)
    for line in mismatches(config, costs, is_planned=True):
        console.note(f"note: {line}")
    job = job_of(config, costs, cardinalities)
    _show_advice(advice)
    if job.clock == "wall":
        console.say(
            "note: trace.clock=wall: the closed forms, and intervals, count the failures of the job's hours without "
            "overhead; --simulate counts those of overhead and of repeated steps too"
        )
    if advice.decision == "partial" and (line := _rest_of_a_save(job.sizes, configs["cpr_mfu"].strategy)):
        console.say(f"note: {line}")
    spreads: list[Spread] = []
    if options.simulate:
        strategies = [each.strategy for each in configs.values()]
        with amount_progress("simulate") as progress:
            spreads = simulate_all(strategies, job, spec, options.simulate, options.seed, on_progress=progress)
        console.show(_spread_table(spreads, options.simulate, law, job.clock))
        console.say(f"strategy.name=NAME adds a row: {', '.join(_others(configs))}")
    if options.figure is not None:
        from analysis.figures import write_plan_figure

        write_plan_figure(options.figure, advice, spreads)
        console.say(f"figure: {options.figure}")


def _check(options: argparse.Namespace, law: Law, costs: Costs) -> None:
    """Raises ConfigError for options that exclude each other, before anything is computed or printed."""
    if options.simulate == 1:
        raise ConfigError("--simulate: expected 2 or more traces, got 1; a single trace has no spread")
    if law.model in GIVEN:
        raise ConfigError(f"trace.law.model: expected a law of gaps, got {law.model}, with given failures")
    if options.figure is not None:
        from analysis.figures import check_plan_figure

        check_plan_figure(options.figure, costs)


# --- the profile or trace ---------------------------------------------------------------------------------------------


def _subject(name: str, overrides: Sequence[str], mapping: Sequence[str]) -> tuple[dict[str, Config], Law, Costs, str]:
    """The configuration of each strategy by name, the law of simulated traces, the job's costs, and a line on them.

    ``name``: a profile or a trace file. ``mapping``: overrides for a trace only. Raises ConfigError, TraceError.
    """
    laws = [word for word in overrides if word.startswith("trace.law")]
    law = load_config(None, laws).trace.law or LAWS["exponential"]
    if name in PROFILES:
        if mapping:
            raise ConfigError(f"--window, --stretch: expected a trace file (TRACE.csv) to map, got profile {name}")
        configs = _load([f"profile={name}", *overrides])
        config = configs["cpr_mfu"]
        costs = _costs(config)
        source, where = f"profile {config.emulated.name}", ""
    elif name.endswith(".csv") or Path(name).exists():
        others = [word for word in overrides if word not in laws]  # a run has a law or a file
        configs = _load([*others, f"trace.path={json.dumps(name)}", *mapping])
        config = configs["cpr_mfu"]
        trace = job_trace(config)
        assert trace is not None, "its path is given"
        given = {word.partition("=")[0] for word in overrides}
        costs = _costs_of(trace, _costs(config), given, has_repairs=config.trace.repair == "reschedule")
        source, where = f"trace {name}, other costs of profile {config.emulated.name}", f"{name}: "
    else:
        hint = suggest(name, PROFILES) or f"; profiles: {', '.join(sorted(PROFILES))}"
        raise ConfigError(f"{name!r}: expected a profile or a trace file (TRACE.csv){hint}")
    named = [word.partition("=")[2] for word in overrides if word.startswith("strategy.name=")]
    config = configs.get(named[-1] if named else "cpr_mfu", config)
    refuse_combinations(config, make_strategy(config.strategy, costs))
    if costs.ranks_per_failure > costs.num_ps:
        raise ConfigError(
            f"{where}profile.ranks_per_failure: expected at most cluster.num_ps = {costs.num_ps}, "
            f"got {costs.ranks_per_failure:g}"
        )
    return configs, law, costs, f"{source}: {_facts(costs)}"


def _load(overrides: Sequence[str]) -> dict[str, Config]:
    """Configurations by strategy: of ``PLANNED``, of plugins, and the named one. Constants of a trace are filled in."""
    added = [name for name in STRATEGIES if name not in BUILT_IN]
    found = load_each(None, overrides, [*PLANNED, *added])
    return {name: with_profile_of_trace(config) for name, config in found.items()}


def _others(simulated: Collection[str]) -> Iterator[str]:
    """The built-in strategies that are neither simulated nor covered by the label of ``cpr_mfu``."""
    return (name for name in BUILT_IN if name not in {*simulated, *_LABELLED})


def _costs(config: Config) -> Costs:
    batch_size = config.trainer.batch_size
    return job_costs(config, KAGGLE_TRAIN_SAMPLES // batch_size * batch_size)


def _costs_of(trace: Trace, costs: Costs, given: Collection[str], *, has_repairs: bool) -> Costs:
    """``costs`` with the MTBF, ranks, ranks per failure and mean wait for repairs of ``trace``, except keys ``given``.

    Raises ConfigError for a trace without failures or hours, TraceError for a header that contradicts its entries.
    """
    observed = observe(trace)
    mtbf_h, ranks_per_failure = mtbf_and_ranks(observed)
    values = {
        "profile.mtbf_h": mtbf_h,
        "profile.ranks_per_failure": ranks_per_failure,
        "cluster.num_ps": observed.num_ranks,
        "profile.o_res_h": _mean_wait_h(trace, costs.o_res_h) if has_repairs else None,
    }
    changes = {key: value for key, value in values.items() if value is not None and key not in given}
    return replace(costs, **{key.partition(".")[2]: value for key, value in changes.items()})


def _mean_wait_h(trace: Trace, o_res_h: float) -> float:
    """Mean rescheduling hours of a failure: its longest repair, or O_res if the trace gives none, as in a run."""
    longest = longest_repairs(trace)
    waits = [longest.get(hour, o_res_h) for hour in {entry.hour for entry in trace.failures}]
    return math.fsum(waits) / len(waits)


def _facts(costs: Costs) -> str:
    return (
        f"a job of {costs.job_h:g} h, MTBF {costs.mtbf_h:.3g} h, {costs.num_ps} PS ranks, "
        f"{costs.ranks_per_failure:.3g} lost per failure, O_save {_minutes(costs.o_save_h)}, "
        f"O_load {_minutes(costs.o_load_h)}, O_res {_minutes(costs.o_res_h)}, PLS target {costs.pls_target:g}"
        + "".join(f", {price}" for price in _prices(costs))
    )


def _prices(costs: Costs) -> Iterator[str]:
    """Phrases on the cost rules that differ from the default."""
    if costs.load == "by_bytes":
        yield "loads by bytes"
    if costs.o_save_fixed_h:
        yield f"{_minutes(costs.o_save_fixed_h)} more a save"
    if costs.snapshot_frac is not None:
        yield f"a save in the background stalls {costs.snapshot_frac:.3g} of its write"


def _minutes(hours: float) -> str:
    return f"{hours * 60:.3g} min"


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    headings = (Column(name, justify="right" if place else "left") for place, name in enumerate(columns))
    table = Table(*headings, title=title, title_justify="left", box=None)
    for row in rows:
        table.add_row(*row)
    return table


def _show_advice(advice: Advice) -> None:
    full, partial = advice.full, advice.partial
    console.show(_table("expected, by CPR's closed forms", ("", "full", "partial"), _advice_rows(advice)))
    saved = 1 - partial.overhead.total_h / full.overhead.total_h if full.overhead.total_h else 0.0
    if advice.decision == "partial":
        console.say(f"decision: partial recovery; it removes {saved:.1%} of full recovery's overhead")
    else:
        console.say("decision: full recovery; at this PLS target partial recovery would have to save too often")
    for line in _cautions(advice):
        console.say(f"note: {line}")
    flips = advice.flips
    console.say("partial recovery is cheaper, all else equal, above:")
    console.say(f"  PLS target {flips.pls_target:.3g}   MTBF {flips.mtbf_h:.3g} h   {_ranks(flips.num_ps)}")
    console.say(f"  {_ranks(flips.num_ps_scaled)} if the MTBF falls as 1/N")
    sizes = (f"{each.name} {each.num_bytes / 1e6:,.1f} MB ({each.frac:.2%})" for each in advice.trackers)
    console.say(f"memory of trackers and replicas, and as a fraction of the tables: {'   '.join(sizes)}")


def _advice_rows(advice: Advice) -> Iterator[tuple[str, ...]]:
    options, job_h = (advice.full, advice.partial), advice.costs.job_h
    yield "save every", *(f"{option.interval_h:.3g} h" for option in options)
    for bucket in ("save", "load", "lost", "reschedule", "total"):
        hours = (getattr(option.overhead, f"{bucket}_h") for option in options)
        label = {"lost": "lost computation", "total": "overhead"}.get(bucket, bucket)
        yield label, *(f"{value:.3g} h  {value / job_h:.3%}" for value in hours)
    if advice.costs.num_trainers is not None:
        num_nodes = advice.costs.num_ps + advice.costs.num_trainers
        yield "node-hours", *(f"{option.overhead.total_h * num_nodes:.3g}" for option in options)
    yield "PLS", *(f"{option.pls:.3g}" for option in options)


def _cautions(advice: Advice) -> Iterator[str]:
    job_h, interval_h = advice.costs.job_h, advice.partial.interval_h
    if min(advice.full.overhead.total_h, advice.partial.overhead.total_h) > job_h:
        yield "either overhead is longer than the job itself, which no real job would accept; see the MTBF"
    if interval_h > job_h:
        yield f"{interval_h:.3g} h is longer than the job: nothing is saved, and PLS stays below the target"
    elif interval_h > job_h / 4:
        yield "the interval is not far below the job's length, as E[PLS] assumes; --simulate shows the actual spread"
    if advice.full.interval_h > advice.costs.mtbf_h:
        yield "failures are more frequent than the saves of full recovery; Young's optimum assumes rare failures"


def _rest_of_a_save(sizes: SaveSizes, options: StrategyOptions) -> str | None:
    """A note if the rows that the tracker chooses are less than half of a priority save's bytes; else None."""
    assert isinstance(options, CprPriority.Options)
    waits = options.untracked == "interval"
    chosen_bytes = sizes.of("tracked") - sizes.dense
    rest_bytes = sizes.of("tracked" if waits else "priority") - chosen_bytes
    if rest_bytes <= chosen_bytes:
        return None
    rest, hint = ("dense network", "") if waits else ("untracked tables, dense network", "; see strategy.untracked")
    return (
        f"a priority save chooses {chosen_bytes / 1e6:.3g} MB of rows and writes {rest_bytes / 1e6:.3g} MB besides "
        f"({rest}): strategies differ by the smaller part{hint}"
    )


def _ranks(number: float) -> str:
    return f"N {number:.3g} PS ranks" if number >= 1 else "N any number of PS ranks"


def _spread_table(spreads: Sequence[Spread], num_traces: int, law: Law, clock: FailureClock) -> Table:
    clocked = ", on the wall clock" * (clock == "wall")
    title = f"{num_traces:,} traces ({law.name}{clocked}), means with 95 % confidence intervals"
    columns = ("strategy", "save every", "overhead", "median", "5–95 %", "PLS", "median", "5–95 %")
    return _table(title, columns, map(_spread_row, spreads))


def _spread_row(spread: Spread) -> tuple[str, ...]:
    overhead, pls = spread.overhead, spread.pls
    return (
        _LABELS.get(spread.name, spread.name) + (" (falls back to full)" if spread.falls_back else ""),
        "never" if spread.interval_h is None else f"{spread.interval_h:.3g} h",
        f"{overhead.mean:.3%} ±{1.96 * overhead.error:.3%}",
        f"{overhead.median:.3%}",
        f"{overhead.low:.3%}–{overhead.high:.3%}",
        f"{pls.mean:.4f} ±{1.96 * pls.error:.4f}",
        f"{pls.median:.4f}",
        f"{pls.low:.4f}–{pls.high:.4f}",
    )
