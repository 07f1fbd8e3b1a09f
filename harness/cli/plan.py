"""`run.py plan`: what the closed forms advise for a profile or a trace, and how far chance carries a run from them."""

# ruff: noqa: PLC0415 - matplotlib takes a second

import argparse
import difflib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Column, Table

from harness.cli import console
from harness.config.costs import job_costs
from harness.config.experiment import load_each
from harness.config.model import Config
from harness.config.profiles import PROFILES
from harness.core.criteo import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES, TERABYTE_CARDINALITIES
from harness.core.errors import ConfigError
from harness.core.plans import Costs
from harness.core.strategies import CprPriority
from harness.model.sizes import model_size
from harness.planning.advisor import PLANNED, Advice, Option, Spread, advise
from harness.planning.spread import job_of, simulate_all, spec_of
from harness.traces.gaps import observe
from harness.traces.spec import GeneratorSpec
from harness.traces.trace import Trace, read_trace

_LARGE = ("terabyte", "mlperf")
_LABELS = {"cpr_mfu": "cpr_mfu, cpr_ssu, cpr_random"}  # the ledger cannot tell them apart


def plan(options: argparse.Namespace) -> int:
    """Print the advice, perhaps the spread, perhaps a figure."""
    configs, costs, source = _subject(options.subject, options.overrides)
    config = configs["cpr_mfu"]
    spec = spec_of(costs, model=options.model, shape=options.shape)
    _check(options, costs)
    cardinalities = TERABYTE_CARDINALITIES if config.model.size in _LARGE else KAGGLE_CARDINALITIES
    assert isinstance(config.strategy, CprPriority.Options)
    advice = advise(
        costs,
        config.strategy,
        cardinalities,
        embedding_dim=model_size(config.model).embedding_dim,
        num_tracked=config.metrics.num_tracked,
    )
    console.say(source)
    _tell(advice)
    spreads: list[Spread] = []
    if options.simulate:
        job = job_of(config, costs, cardinalities)
        with console.amount_progress("simulate") as progress:
            strategies = [each.strategy for each in configs.values()]
            spreads = simulate_all(strategies, job, spec, options.simulate, options.seed, on_progress=progress)
        console.show(_spread_table(spreads, options.simulate, spec))
    if options.figure is not None:
        from analysis.plan_figure import write_plan_figure

        write_plan_figure(options.figure, advice, spreads)
        console.say(f"figure: {options.figure}")
    return 0


def _check(options: argparse.Namespace, costs: Costs) -> None:
    """Before anything is computed or printed. Raises ConfigError."""
    if options.simulate == 1:
        raise ConfigError("--simulate: one trace has no spread; 2 or more")
    if options.simulate is None and (options.model, options.shape) != ("exponential", None):
        raise ConfigError("--model, --shape: the law of simulated traces; --simulate K is missing")
    if options.figure is None:
        return
    from analysis.plan_figure import check_plan_figure

    check_plan_figure(options.figure, costs)


# --- of what ----------------------------------------------------------------------------------------------------------


def _subject(name: str, overrides: Sequence[str]) -> tuple[dict[str, Config], Costs, str]:
    """The configuration under each planned strategy, its costs, and a line on where they come from.

    Raises ConfigError, TraceError.
    """
    if name in PROFILES:
        configs = load_each(None, [f"profile={name}", *overrides], PLANNED)
        config = configs["cpr_mfu"]
        costs = _costs(config)
        _refuse_too_many(costs)
        return configs, costs, f"profile {config.emulated.name}: {_facts(costs)}"
    if not (name.endswith(".csv") or Path(name).exists()):
        near = difflib.get_close_matches(name, PROFILES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(PROFILES))}"
        raise ConfigError(f"{name!r} is neither a profile nor a trace file (TRACE.csv); {hint}")
    configs = load_each(None, overrides, PLANNED)
    config = configs["cpr_mfu"]
    trace = read_trace(Path(name))
    asked = {word.partition("=")[0] for word in overrides}
    costs = _costs_of(trace, _costs(config), asked, has_repairs=config.trace.repair != "ignore")
    _refuse_too_many(costs, f"{name}: ")
    return configs, costs, f"trace {name}, other costs of profile {config.emulated.name}: {_facts(costs)}"


def _costs(config: Config) -> Costs:
    batch_size = config.trainer.batch_size
    return job_costs(config, KAGGLE_TRAIN_SAMPLES // batch_size * batch_size)


def _costs_of(trace: Trace, costs: Costs, asked: Collection[str], *, has_repairs: bool) -> Costs:
    """``costs`` with what the trace shows: MTBF, ranks, ranks per failure, and hours that failures wait for repairs.

    Keys in ``asked`` are left as they are. Raises TraceError for a header that contradicts the trace, or no failures.
    """
    if not trace.entries:
        raise ConfigError(f"{trace.source}: no failures, so nothing to plan for")
    observed = observe(trace)
    if not observed.length_h:
        raise ConfigError(f"{trace.source}: no hours observed; '# length_h: HOURS' in its header would be right")
    num_instants = len(observed.instants[0])
    shown = {
        "profile.mtbf_h": observed.length_h / num_instants,
        "profile.ranks_per_failure": observed.num_deaths / num_instants,
        "cluster.num_ps": observed.num_ranks,
        "profile.o_res_h": _mean_wait_h(trace, costs.o_res_h) if has_repairs else None,
    }
    found = {key: value for key, value in shown.items() if value is not None and key not in asked}
    return replace(costs, **{key.partition(".")[2]: value for key, value in found.items()})


def _mean_wait_h(trace: Trace, o_res_h: float) -> float:
    """What a failure is charged for rescheduling, as a run is: its longest repair, O_res where the trace says none."""
    longest: dict[float, float] = {}
    for entry in trace.entries:
        if entry.repair_h is not None:
            longest[entry.hour] = max(longest.get(entry.hour, 0.0), entry.repair_h)
    waits = [longest.get(hour, o_res_h) for hour in {entry.hour for entry in trace.entries}]
    return math.fsum(waits) / len(waits)


def _refuse_too_many(costs: Costs, where: str = "") -> None:
    if costs.ranks_per_failure > costs.num_ps:
        raise ConfigError(
            f"{where}{costs.ranks_per_failure:g} ranks die in a failure, of {costs.num_ps} PS ranks; "
            "profile.ranks_per_failure at most cluster.num_ps would be right"
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


def _spread_table(spreads: Sequence[Spread], num_traces: int, spec: GeneratorSpec) -> Table:
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
