"""Regimes of failures: laws from which the traces of a job are drawn (``trace.law``)."""

import math
import re
from collections import defaultdict
from dataclasses import replace

from harness.config.profiles import Profile
from harness.core.errors import ConfigError, TraceError, printable
from harness.core.plans import ps_rank
from harness.core.seeds import generator
from harness.traces.generate import generate
from harness.traces.learn import spec_of_model
from harness.traces.presets import PRESETS
from harness.traces.spec import GeneratorSpec, Sizes
from harness.traces.trace import Trace, parse_trace

WALL_LENGTH = 4
"""On the wall clock a trace is so many times as long as the job without overhead; its beginning is the same."""
_MOST_FIXED = 10_000
_MOST_SHOWN = 60  # characters of a law
_COUNT = re.compile(r"[0-9]{1,5}")


def draw(law: str, profile: Profile, num_ps: int, seed: int, *, goes_on: bool = False) -> Trace:
    """The trace that ``seed`` draws from ``law`` for a job with this profile and number of PS ranks.

    ``goes_on``: make it ``WALL_LENGTH`` times as long, for a job that overhead makes longer. Raises ConfigError for an
    unknown law, TraceError for bad parameters of it or a trace that cannot be learned from.
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

    For one seed, ``fixed:N@H`` loses the ranks of ``fixed:N`` at hours scaled to H, and ``at:`` loses the same ranks
    whatever its hours are.
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
    """N and H of ``N@H``: N failures are drawn uniformly from the first H hours (default: the job's; as CPR does)."""
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
    """The generator's parameters for ``law`` and a job with this profile. Raises as :func:`draw`."""
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
        return spec.changed(ranks=num_ps, group_sizes=tuple(weights.items()), **hours)
    if ":" in law and (learned := spec_of_model(law, job)) is not None:
        return learned
    expected = ("exponential", "fixed:N", "fixed:N@H", "at:H+H", *PRESETS, "fit:TRACE.csv", "empirical:TRACE.csv")
    raise ConfigError(f"trace.law: expected one of {', '.join(expected)}, got {law!r}")


def group_sizes(ranks_per_failure: float) -> Sizes:
    """(size, probability) of groups with this mean, a mixture of the two nearest whole numbers; size 1 is left out."""
    low = int(ranks_per_failure)
    sizes = {low: 1 - (ranks_per_failure - low), low + 1: ranks_per_failure - low}
    return tuple((size, weight) for size, weight in sizes.items() if size > 1 and weight > 1e-9)
