"""Failure regimes by name, each from published figures; none contains a record of a log.

Every figure is marked with its certainty: [read] in the source, [log] computed from the log published with it, [2nd]
read in a secondary source, [recalled] from memory, [derived] from other figures, [ours] a choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.core.errors import TraceError
from harness.traces.generate import generate
from harness.traces.spec import GeneratorSpec
from harness.traces.trace import Trace


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


def generate_preset(name: str, seed: int, *, is_typical: bool = False) -> Trace:
    """A trace of the regime, with its sources in the header; ``is_typical`` as in ``generate``.

    Raises TraceError for an unknown name.
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
