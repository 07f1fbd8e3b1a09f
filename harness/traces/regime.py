"""Regimes of failures: laws from which the traces of a job are drawn (``trace.law``), and published ones by name.

No published regime contains a record of a log. Every figure is marked with its certainty: [read] in the source, [log]
computed from the log published with it, [2nd] read in a secondary source, [recalled] from memory, [derived] from other
figures, [ours] a choice.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.config.profiles import Profile
from harness.core.errors import ConfigError, TraceError, printable
from harness.core.plans import ps_rank
from harness.core.seeds import generator
from harness.traces.generate import generate
from harness.traces.learn import spec_of_model
from harness.traces.spec import GeneratorSpec, Sizes
from harness.traces.trace import Trace, parse_trace


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A failure regime: the parameters of its traces, the profile of its job, and the source of every number."""

    title: str
    profile: str
    spec: GeneratorSpec
    source: str
    figures: tuple[str, ...]
    """A sentence for each figure that was taken, derived or chosen."""


PRESETS: Mapping[str, Preset] = {
    "cpr56": Preset(
        title="CPR's emulation: two failures of one rank in 56 h",
        profile="cpr56",
        spec=GeneratorSpec(mtbf_h=28.0, ranks=8, length_h=56.0),
        source="Maeng et al., CPR, MLSys 2021, arXiv 2011.02999",
        figures=(
            "56 h, 8 PS ranks, 2 failures [recalled], so an MTBF of 28 h [derived]; 14 to 30 h in production [2nd]",
            "exponential gaps [ours]: the gamma law of production, early failures and then a flat hazard [recalled]",
            "has parameters that are not known here, so none are made up [ours]",
        ),
    ),
    "poster50": Preset(
        title="CPR's test at production scale: five failures of 4 of 18 ranks in 50 h",
        profile="poster50",
        spec=GeneratorSpec(mtbf_h=10.0, ranks=18, length_h=50.0, group_probability=1.0, group_sizes=((4, 1.0),)),
        source="Maeng et al., CPR, MLSys 2021, arXiv 2011.02999 and its poster",
        figures=(
            "50 h, 18 embedding PS, 5 failures, each of 4 randomly chosen PS [read], so an MTBF of 10 h [derived]",
            "exponential gaps [ours]",
        ),
    ),
    "llama3": Preset(
        title="pre-training of Llama 3 405B: a failure every three hours",
        profile="cpr56",
        spec=GeneratorSpec(mtbf_h=round(54 * 24 / 419, 2), ranks=8, length_h=56.0),
        source="The Llama 3 Herd of Models, arXiv 2407.21783",
        figures=(
            "16,384 GPUs, 54 days, 466 interruptions, 419 of them unexpected [2nd]: one in 3.09 h [derived]",
            "exponential gaps, one rank each [ours]: no law was published",
            "each rank stands for 2,048 GPUs; hours are not scaled: 56 h of it [ours]",
        ),
    ),
    "infinitehbd": Preset(
        title="an LLM cluster of 400 servers: bursts of failures",
        profile="cpr56",
        spec=GeneratorSpec(model="weibull", shape=0.63, mtbf_h=14.2, ranks=8, length_h=56.0),
        source="InfiniteHBD, arXiv 2502.03885, and its fault log (Apache-2.0)",
        figures=(
            "400 servers, 348 days, gaps of 14.2 h on average with a median of 5.6 h [log]",
            "the Weibull law with this mean and median has shape 0.63 [derived]; one rank each [ours]",
            "each rank stands for 50 servers; hours are not scaled: 56 h of it [ours]",
            "servers' repairs (median 20.4 h, mean 133 h [log]) are left out: no job waits that long [ours]",
        ),
    ),
    "lanl20": Preset(
        title="LANL system 20: a job that waits for the repair",
        profile="cpr56",
        spec=GeneratorSpec(
            model="weibull",
            shape=0.75,
            mtbf_h=13.2,
            ranks=8,
            length_h=56.0,
            repair_median_h=1.25,
            repair_mean_h=3.5,
        ),
        source="Schroeder & Gibson, DSN 2006, and the log LA-UR-05-7318, released by Los Alamos National Laboratory",
        figures=(
            "512 nodes, a failure every 13.2 h, 75 min down in the median and 3.5 h on average [log]",
            "Weibull gaps with a falling hazard, lognormal repairs [read]; shapes 0.7 to 0.8 [2nd], 0.75 taken [ours]",
            "each rank stands for 64 nodes, one rank each; hours are not scaled: 56 h of it [ours]",
        ),
    ),
    "spot_p3": Preset(
        title="AWS spot p3 instances: frequent preemptions, half of them of several at once",
        profile="cpr56",
        spec=GeneratorSpec(
            mtbf_h=0.144,
            nodes=32,
            ranks=8,
            length_h=11.37,
            group_probability=0.506,
            group_sizes=((2, 13.0), (3, 15.0), (4, 7.0), (5, 1.0), (6, 4.0)),
            stretch_h=56.0,
        ),
        source="Bamboo, NSDI 2023, and its trace of p3 (MIT)",
        figures=(
            "32 nodes, 11.37 h, 167 preemptions at 79 instants, 40 of them of 2 to 6 nodes [log]",
            "so 0.144 h between instants [derived]",
            "8 of the 32 nodes: a quarter of the instants, groups as large [ours]; exponential gaps [ours]",
            "hours are scaled: 11.37 h became 56 h, 4.9 times as long, so that they fill the job [ours]",
        ),
    ),
}

WALL_LENGTH = 4
"""Length of a generated trace on the wall clock, in lengths of the job without overhead. It begins as the trace of the
same seed by the clock of samples does."""
_MOST_FIXED = 10_000
_MOST_SHOWN = 60  # characters of a law
_COUNT = re.compile(r"[0-9]{1,5}")


def draw(law: str, profile: Profile, num_ps: int, seed: int, *, goes_on: bool = False) -> Trace:
    """The trace that ``seed`` draws from ``law`` for a job with this profile and number of PS ranks.

    ``goes_on``: make it ``WALL_LENGTH`` times as long, for a job that overhead makes longer. Traces of the laws
    ``fixed:`` and ``at:`` keep the job's length. Raises ConfigError for an unknown law, and TraceError for bad
    parameters of a law, or a trace that cannot be learned from.
    """
    try:
        if law.startswith(("fixed:", "at:")):
            trace = _given(law, profile, num_ps, seed)
        else:
            spec = spec_of_law(law, profile, num_ps)
            if goes_on:
                stretch_h = None if spec.stretch_h is None else WALL_LENGTH * spec.stretch_h
                spec = spec.changed(length_h=WALL_LENGTH * spec.length_h, stretch_h=stretch_h)
            trace = generate(spec, seed)
    except TraceError as error:
        raise TraceError(f"trace.law={printable(law, _MOST_SHOWN)}: {error}") from error
    return replace(trace, source=f"trace.law={law}, draw {seed}")


def _given(law: str, profile: Profile, num_ps: int, seed: int) -> Trace:
    """The trace of law ``fixed:N``, ``fixed:N@H`` or ``at:H+H``: failures of random ranks at random or given hours.

    For one seed, ``fixed:N@H`` loses the same ranks as ``fixed:N``, at hours scaled to H. The ranks that ``at:`` loses
    do not depend on its hours. Raises TraceError for a malformed law, or a failure of more ranks than the job has.
    """
    kind, _, text = law.partition(":")
    if kind == "fixed":
        number, within_h = _number(text, profile.job_h)
        rng = generator(seed, "fixed", number)
        hours = sorted(rng.uniform(0, within_h, number).round(6).tolist())
        title = f"{number} failure{'s' * (number != 1)} at random hours"
    else:
        rng, hours = generator(seed, "at"), _hours(text, profile.job_h)
        title = f"failures at hours {text.replace('+', ', ')}"
    sizes = group_sizes(profile.ranks_per_failure)
    rows: list[tuple[float, str]] = []
    for hour in hours:
        draw_size = rng.uniform()
        size = next((size for size, weight in sizes if (draw_size := draw_size - weight) < 0), 1)
        if size > num_ps:
            raise TraceError(f"profile.ranks_per_failure: expected at most {num_ps} ranks, got {size}")
        rows += [(hour, ps_rank(k)) for k in sorted(rng.choice(num_ps, size, replace=False).tolist())]
    header = {"title": title, "length_h": f"{profile.job_h:g}", "ranks": str(num_ps)}
    read = parse_trace(["hour,rank", *(f"{hour:.12g},{rank}" for hour, rank in rows)], law)
    return replace(read, header=header)


def _number(text: str, job_h: float) -> tuple[int, float]:
    """N and H of ``N@H``; H is the job's length if it is left out, as in CPR.

    Raises TraceError for other text, for an N that is not 1 to ``_MOST_FIXED``, and unless 0 < H <= ``job_h``.
    """
    number, has_first, first = text.partition("@")
    if not _COUNT.fullmatch(number) or not 1 <= int(number) <= _MOST_FIXED:
        raise TraceError(
            f"expected fixed:N with 1 to {_MOST_FIXED} failures, got {printable(repr(number), _MOST_SHOWN)}"
        )
    try:
        within_h = float(first) if has_first else job_h
    except ValueError:
        within_h = math.nan
    if not 0 < within_h <= job_h:
        raise TraceError(f"expected fixed:N@H with H above 0 and at most {job_h:g} hours, got {first!r}")
    return int(number), within_h


def _hours(text: str, job_h: float) -> list[float]:
    """The ascending hours of a text such as ``3+7.5``. Raises TraceError for any other text."""
    try:
        hours = [float(hour) for hour in text.split("+")]
    except ValueError:
        hours = []
    if not hours or hours != sorted(set(hours)) or not (hours[0] >= 0 and hours[-1] <= job_h):
        raise TraceError(f"expected at:H or at:H+H+… with ascending hours from 0 to {job_h:g}, got {text!r}")
    return hours


def spec_of_law(law: str, profile: Profile, num_ps: int) -> GeneratorSpec:
    """The generator's parameters for ``law``, other than ``fixed:`` and ``at:``, and a job with this profile.

    Raises as :func:`draw`.
    """
    job = {"ranks": num_ps, "length_h": profile.job_h}
    if law == "exponential":
        return GeneratorSpec(mtbf_h=profile.mtbf_h, **groups_of(profile.ranks_per_failure), **job)
    if law in PRESETS:
        spec = PRESETS[law].spec
        weights: dict[int, float] = defaultdict(float)
        for size, weight in spec.group_sizes if num_ps > 1 else ():
            weights[min(size, num_ps)] += weight  # a larger group is all ranks
        groups = {"group_probability": spec.group_probability if weights else 0, "group_sizes": tuple(weights.items())}
        hours = {"length_h": profile.job_h} if spec.stretch_h is None else {"stretch_h": profile.job_h}
        return spec.changed(ranks=num_ps, **groups, **hours)
    if law.startswith(("fit:", "empirical:")) and (learned := spec_of_model(law, job)) is not None:
        return learned
    expected = ("exponential", "fixed:N", "fixed:N@H", "at:H+H", *PRESETS, "fit:TRACE.csv", "empirical:TRACE.csv")
    raise ConfigError(f"trace.law: expected one of {', '.join(expected)}, got {law!r}")


def groups_of(ranks_per_failure: float) -> dict[str, Any]:
    """The generator's parameters of groups with this mean number of ranks."""
    sizes = group_sizes(ranks_per_failure)
    return {"group_probability": min(1.0, sum(weight for _, weight in sizes)), "group_sizes": sizes}


def group_sizes(ranks_per_failure: float) -> Sizes:
    """(size, probability) of the groups of a mixture of two neighbouring sizes with this mean; size 1 is left out."""
    low = int(ranks_per_failure)
    sizes = {low: 1 - (ranks_per_failure - low), low + 1: ranks_per_failure - low}
    return tuple((size, weight) for size, weight in sizes.items() if size > 1 and weight > 1e-9)


def generate_preset(name: str, seed: int, *, is_typical: bool = False) -> Trace:
    """A trace of a published regime, with its sources in the header; ``is_typical`` as in ``generate``.

    Raises TraceError for an unknown name, and as ``generate``.
    """
    if name not in PRESETS:
        raise TraceError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    preset = PRESETS[name]
    trace = generate(preset.spec, seed, is_typical=is_typical)
    origin = {
        "title": preset.title,
        "source": f"generated from figures of {preset.source}",
        **{f"figure {number}": figure for number, figure in enumerate(preset.figures, start=1)},
        "profile": preset.profile,
    }
    command = f"run.py trace generate preset={name} seed={seed}" + (" typical=true" if is_typical else "")
    header = {**origin, **{key: value for key, value in trace.header.items() if key not in origin}, "command": command}
    return replace(trace, source=f"preset {name}", header=header)
