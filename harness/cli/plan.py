"""`run.py plan`: what each strategy costs under a profile or a trace: overhead, PLS, memory, over simulated traces."""

import argparse
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.cli import console
from harness.cli.advice import show_advice
from harness.cli.progress import amount_progress
from harness.config.combinations import fitting, refuse_combinations
from harness.config.derived import job_costs
from harness.config.experiment import load_config, load_each
from harness.config.laws import GIVEN, LAWS, Law
from harness.config.model import Config
from harness.config.profiles import PROFILES
from harness.config.words import suggest
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES, TERABYTE_CARDINALITIES
from harness.core.errors import ConfigError
from harness.core.events import BUCKETS, STALLS
from harness.core.plans import Costs
from harness.core.strategies import STRATEGIES, CprMirror, CprPriority, make_strategy
from harness.planning.spread import Spread, job_of, memory_bytes, simulate_all
from harness.traces.draw import spec_of
from harness.traces.gaps import longest_repairs, observe
from harness.traces.job_trace import job_trace, mtbf_and_ranks, with_profile_of_trace
from harness.traces.mismatch import mismatches
from harness.traces.trace import Trace

_LARGE = ("terabyte", "mlperf")
_UNKNOWN = "–"


def plan(options: argparse.Namespace) -> None:
    """Print a table of what each strategy costs, and what cpr_* strategies decide; with ``--advise`` the advice."""
    if options.simulate == 1:
        raise ConfigError("--simulate: expected 2 or more traces, got 1; a single trace has no spread")
    every, law, costs, source = _subject(options.subject, options.overrides)
    if law.model in GIVEN:
        raise ConfigError(f"trace.law.model: expected a law of gaps, got {law.model}, with given failures")
    spec = spec_of(law, costs.mtbf_h, costs.ranks_per_failure, ranks=costs.num_ps, job_h=costs.job_h)

    def check(config: Config) -> Sequence[str]:
        refuse_combinations(config, make_strategy(config.strategy, costs))
        return ()

    named = [word.partition("=")[2] for word in options.overrides if word.startswith("strategy.name=")]
    fit, remarks = fitting(every, check, named[-1] if named else None)
    config = max(fit, key=_sized)
    cardinalities = TERABYTE_CARDINALITIES if config.model.size in _LARGE else KAGGLE_CARDINALITIES
    job = job_of(config, costs, cardinalities)
    console.say(source)
    for line in (*mismatches(config, costs, is_planned=True), *remarks):
        console.note(f"note: {line}")
    strategies = [each.strategy for each in fit]
    with amount_progress("simulate") as progress:
        spreads = simulate_all(strategies, job, spec, options.simulate, config.trace_seed, on_progress=progress)
    if options.advise is not None:
        show_advice(spreads, strategies, job, spec, seed=config.trace_seed, margin=options.advise)
        return
    clocked = ", on the wall clock" * (job.clock == "wall")
    title = f"{options.simulate:,} traces ({law.name}{clocked}), means with 95 % confidence intervals, % of the job"
    buckets = STALLS if costs.step_frac is None else BUCKETS
    of_buckets = ["resch." if bucket == "reschedule" else bucket for bucket in buckets]
    names = ["strategy", "save every", "overhead", "5–95 %", *of_buckets, "PLS", "5–95 %", "memory"]
    memory = {each.strategy.name: memory_bytes(each, costs, cardinalities) for each in fit}
    console.show_numbers(title, names, (_row(spread, memory[spread.name], len(buckets)) for spread in spreads))
    console.say(_decision(spreads))
    console.say("priority and differential saves are charged as the largest possible, cpr_mirror without its uploads")
    if job.on_notice != "none":
        console.say("on notice a rank is charged as if all its rows had updates that are not saved")


def _sized(config: Config) -> int:
    """How many options of the strategy sizes of saves depend on: a tracker's ``r``, the mirror's ``share``."""
    return isinstance(config.strategy, CprPriority.Options) + isinstance(config.strategy, CprMirror.Options)


def _row(spread: Spread, memory: int | None, num_buckets: int) -> Iterator[str]:
    overhead, pls = spread.overhead, spread.pls
    yield spread.name
    yield "never" if spread.interval_h is None else f"{spread.interval_h:.3g} h"
    is_known = not math.isnan(overhead.mean)
    yield f"{overhead.mean:.3%} ±{overhead.half:.3%}" if is_known else _UNKNOWN
    yield f"{overhead.low:.3%}–{overhead.high:.3%}" if is_known else _UNKNOWN
    yield from (_UNKNOWN if math.isnan(mean) else f"{mean:.2%}" for mean in spread.buckets[:num_buckets])
    yield f"{pls.mean:.4f} ±{pls.half:.4f}"
    yield f"{pls.low:.4f}–{pls.high:.4f}"
    yield "?" if memory is None else f"{memory / 1e6:,.1f} MB"


def _decision(spreads: Sequence[Spread]) -> str:
    """What cpr_* strategies decide by CPR's closed forms, in words."""
    full, vanilla = (next(each for each in spreads if each.name == name) for name in ("full", "cpr_vanilla"))
    if vanilla.falls_back:
        return "decision: full recovery; at this PLS target partial recovery would have to save too often"
    removed = 1 - vanilla.overhead.mean / full.overhead.mean if full.overhead.mean else 0.0
    return f"decision: partial recovery; cpr_vanilla has {removed:.1%} less overhead than full recovery"


# --- the profile or trace ---------------------------------------------------------------------------------------------


def _subject(name: str, overrides: Sequence[str]) -> tuple[list[Config], Law, Costs, str]:
    """The configuration of each strategy, the law of simulated traces, the job's costs, and a line on them.

    ``name``: a profile or a trace file. Raises ConfigError, TraceError.
    """
    laws = [word for word in overrides if word.startswith("trace.law")]
    law = load_config(None, laws).trace.law or LAWS["exponential"]
    if name in PROFILES or name.endswith(".yaml"):
        configs = _load([f"profile={name}", *overrides])
        config = configs["cpr_mfu"]
        costs = _costs(config)
        source, where = f"profile {config.profile.name}", ""
    elif name.endswith(".csv") or Path(name).exists():
        others = [word for word in overrides if word not in laws]  # a run has a law or a file
        configs = _load([*others, f"trace.path={json.dumps(name)}"])
        config = configs["cpr_mfu"]
        trace = job_trace(config)
        assert trace is not None, "its path is given"
        given = {word.partition("=")[0] for word in overrides}
        costs = _costs_of(trace, _costs(config), given, has_repairs=config.trace.repair == "reschedule")
        source, where = f"trace {name}, other costs of profile {config.profile.name}", f"{name}: "
    else:
        hint = suggest(name, PROFILES) or f"; profiles: {', '.join(sorted(PROFILES))}"
        raise ConfigError(f"{name!r}: expected a profile (or FILE.yaml of one) or a trace file (TRACE.csv){hint}")
    if costs.ranks_per_failure > costs.num_ps:
        raise ConfigError(
            f"{where}profile.ranks_per_failure: expected at most cluster.num_ps = {costs.num_ps}, "
            f"got {costs.ranks_per_failure:g}"
        )
    return [*configs.values()], law, costs, f"{source}: {_facts(costs)}"


def _load(overrides: Sequence[str]) -> dict[str, Config]:
    """The configuration of each strategy but ``none``, by name. A profile ``from_trace`` has its trace's constants."""
    found = load_each(None, overrides, [name for name in STRATEGIES if STRATEGIES[name].injects_failures])
    return {name: with_profile_of_trace(config) for name, config in found.items()}


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
    )


def _minutes(hours: float) -> str:
    return f"{hours * 60:.3g} min"
