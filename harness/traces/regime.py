"""Regimes of failures: laws from which the traces of a job are drawn (``trace.law``)."""

from collections import defaultdict
from dataclasses import replace

from harness.config.profiles import Profile
from harness.core.errors import ConfigError, TraceError
from harness.traces.generate import generate
from harness.traces.learn import spec_of_model
from harness.traces.presets import PRESETS
from harness.traces.spec import GeneratorSpec, Sizes
from harness.traces.trace import Trace

WALL_LENGTH = 4
"""On the wall clock a trace is so many times as long as the job without overhead; its beginning is the same."""


def draw(law: str, profile: Profile, num_ps: int, seed: int, *, goes_on: bool = False) -> Trace:
    """Draw ``seed`` of ``law`` for a job with this profile and number of ranks; hours are the job's.

    ``goes_on``: ``WALL_LENGTH`` times as long, for a job that overhead makes longer. Raises ConfigError for an unknown
    law, TraceError for a trace that cannot be learned from.
    """
    try:
        spec = spec_of_law(law, profile, num_ps)
    except TraceError as error:
        raise TraceError(f"trace.law={law}: {error}") from error
    if goes_on:
        stretch_h = None if spec.stretch_h is None else WALL_LENGTH * spec.stretch_h
        spec = replace(spec, length_h=WALL_LENGTH * spec.length_h, stretch_h=stretch_h)
    trace = generate(spec, seed)
    return replace(trace, source=f"trace.law={law}, draw {seed}")


def spec_of_law(law: str, profile: Profile, num_ps: int) -> GeneratorSpec:
    """The parameters of ``law`` for such a job. Raises as :func:`draw`."""
    job = {"ranks": num_ps, "length_h": profile.job_h}
    if law == "exponential":
        sizes = group_sizes(profile.ranks_per_failure)
        probability = min(1.0, sum(weight for _, weight in sizes))
        return GeneratorSpec(mtbf_h=profile.mtbf_h, group_probability=probability, group_sizes=sizes, **job)
    if law in PRESETS:
        spec = PRESETS[law].spec
        weights: dict[int, float] = defaultdict(float)
        for size, weight in spec.group_sizes:
            weights[min(size, num_ps)] += weight  # a larger group is all ranks
        hours = {"length_h": profile.job_h} if spec.stretch_h is None else {"stretch_h": profile.job_h}
        return replace(spec, ranks=num_ps, group_sizes=tuple(weights.items()), **hours)
    if ":" in law and (learned := spec_of_model(law, job)) is not None:
        return learned
    expected = ("exponential", *PRESETS, "fit:TRACE.csv", "empirical:TRACE.csv")
    raise ConfigError(f"trace.law: expected one of {', '.join(expected)}, got {law!r}")


def group_sizes(ranks_per_failure: float) -> Sizes:
    """Sizes of groups and their probabilities: a fractional mean mixes the two nearest whole numbers. 1 is no group."""
    low = int(ranks_per_failure)
    sizes = {low: 1 - (ranks_per_failure - low), low + 1: ranks_per_failure - low}
    return tuple((size, weight) for size, weight in sizes.items() if size > 1 and weight > 1e-9)
