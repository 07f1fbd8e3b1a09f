"""Draws the trace of a job from a law of failures (``trace.law``)."""

import json
import shlex
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from harness.config.laws import GIVEN, LAWS, PUBLISHED, Law, Sizes
from harness.config.profiles import Profile
from harness.core.errors import TraceError
from harness.core.plans import ps_rank
from harness.core.seeds import generator
from harness.traces.generate import generate, lemons_line, order_of_ranks
from harness.traces.learn import learned
from harness.traces.spec import GeneratorSpec, Lemons
from harness.traces.trace import Trace, parse_trace, with_notice

WALL_LENGTH = 4
"""Length of a generated trace on the wall clock, in lengths of the job without overhead. It begins as the trace of the
same seed by the clock of samples does."""


def draw(
    law: Law, profile: Profile, num_ps: int, seed: int, *, goes_on: bool = False, is_typical: bool = False
) -> Trace:
    """The trace that ``seed`` draws from ``law`` for a job with this profile and number of PS ranks.

    The header has the keys that draw it again, and the sources of a published law.

    Args:
        goes_on: make it ``WALL_LENGTH`` times as long, for a job that overhead makes longer. Traces of the models
            ``fixed`` and ``at`` keep the job's length.
        is_typical: as in ``generate``.

    Raises:
        TraceError: keys that do not fit the job, a trace that cannot be learned from, or as ``generate``.
    """
    if law.model in GIVEN:
        if is_typical:
            raise TraceError(f"--typical: expected a law of gaps, got model {law.model}, with given failures")
        trace = _given(law, profile, num_ps, seed)
    else:
        spec = spec_of(law, profile.mtbf_h, profile.ranks_per_failure, ranks=num_ps, job_h=profile.job_h)
        trace = generate(spec.times(WALL_LENGTH) if goes_on else spec, seed, is_typical=is_typical)
    job = profile.model_dump(include={"job_h", *_of_profile(law)})
    keys = {"trace.law": law.model_dump(exclude_defaults=True), "cluster.num_ps": num_ps, "profile": job}
    keys |= {"trace.clock": "wall"} if goes_on and law.model not in GIVEN else {}
    parameters = shlex.join(f"{key}={json.dumps(value)}" for key, value in keys.items())
    header = {**trace.header, **_origin(law), "parameters": parameters, "seed": str(seed)}
    return with_notice(replace(trace, source=f"trace.law {law.name}, draw {seed}", header=header), law.notice_s)


def _of_profile(law: Law) -> set[str]:
    """The constants of the profile, besides ``job_h``, on which a draw of ``law`` depends."""
    has_rate = law.model in GIVEN or law.mtbf_h is not None or law.node_mtbf_h is not None
    unset = {"mtbf_h": not has_rate, "ranks_per_failure": law.group_probability is None}
    return {key for key, is_used in unset.items() if is_used and law.trace is None}


def spec_of(law: Law, mtbf_h: float, ranks_per_failure: float, *, ranks: int, job_h: float) -> GeneratorSpec:
    """A law of gaps for a job, whose MTBF and mean number of ranks per failure stand for those that the law lacks.

    What a law learns from its trace comes first. A group larger than the ranks of its rack, or of the job, is all of
    them. Raises TraceError as :func:`draw`.
    """
    gaps_h, repairs_h = (), ()
    if law.trace is not None:
        law, gaps_h, repairs_h = learned(law)
    probability, sizes = law.group_probability, law.group_sizes
    if probability is None:
        sizes = group_sizes(ranks_per_failure, ranks)
        probability = min(1.0, sum(weight for _, weight in sizes))
    weights: dict[int, float] = defaultdict(float)
    room = min(ranks, law.rack_size or ranks)
    for size, weight in sizes if room > 1 else ():
        weights[min(size, room)] += weight
    changes: dict[str, Any] = {
        "group_probability": probability if weights else 0.0,
        "group_sizes": tuple(weights.items()),
    }
    if law.mtbf_h is None and law.node_mtbf_h is None:
        changes["mtbf_h"] = mtbf_h
    law = law.model_copy(update=changes)
    return GeneratorSpec(law=law, ranks=ranks, job_h=job_h, gaps_h=gaps_h, repairs_h=repairs_h)


def group_sizes(ranks_per_failure: float, ranks: int) -> Sizes:
    """(size, probability) of the groups of a mixture of two neighbouring sizes with this mean; size 1 is left out.

    Raises TraceError for a size above ``ranks``.
    """
    low = int(ranks_per_failure)
    sizes = {low: 1 - (ranks_per_failure - low), low + 1: ranks_per_failure - low}
    found = tuple((size, weight) for size, weight in sizes.items() if size > 1 and weight > 1e-9)
    if found and found[-1][0] > ranks:
        raise TraceError(f"profile.ranks_per_failure: expected at most {ranks} ranks, got {ranks_per_failure:g}")
    return found


def _given(law: Law, profile: Profile, num_ps: int, seed: int) -> Trace:
    """The trace of model ``fixed`` or ``at``: failures of random ranks at random or given hours.

    For one seed, ``fixed`` with ``within_h`` loses the same ranks as without it, at hours scaled to that. The ranks
    that ``at`` loses do not depend on its hours.
    """
    last_h = max(law.hours, default=law.within_h or 0.0)
    if last_h > profile.job_h:
        key = "hours" if law.hours else "within_h"
        raise TraceError(f"trace.law.{key}: expected at most the job's {profile.job_h:g} h, got {last_h:g}")
    if law.number is not None:
        rng = generator(seed, "fixed", law.number)
        hours = sorted(rng.uniform(0, law.within_h or profile.job_h, law.number).round(6).tolist())
        title = f"{law.number} failure{'s' * (law.number != 1)} at random hours"
    else:
        rng, hours = generator(seed, "at"), law.hours
        title = f"failures at hours {', '.join(f'{hour:g}' for hour in hours)}"
    lemons = Lemons.of(law, num_ps)
    struck = [-1] * len(hours)
    if lemons:  # from a stream of its own, so that hours, sizes and companions are those of the law without lemons
        places_E = lemons.places(generator(seed, "struck").uniform(size=len(hours)))
        struck = order_of_ranks(num_ps, seed, np.array([0]))[0, places_E].tolist()
    sizes = group_sizes(profile.ranks_per_failure, num_ps)
    rows: list[tuple[float, str]] = []
    for hour, first in zip(hours, struck, strict=True):
        draw_size = rng.uniform()
        size = next((size for size, weight in sizes if (draw_size := draw_size - weight) < 0), 1)
        chosen = rng.choice(num_ps, size, replace=False).tolist()
        if lemons and first not in chosen:
            chosen[0] = first
        rows += [(hour, ps_rank(k)) for k in sorted(chosen)]
    header = {"title": title, "source": "generated", "length_h": f"{profile.job_h:g}", "ranks": str(num_ps)}
    header |= lemons_line(lemons, seed)
    read = parse_trace(["hour,rank", *(f"{hour:.12g},{rank}" for hour, rank in rows)], "generated")
    return replace(read, header=header)


def _origin(law: Law) -> dict[str, str]:
    """Lines of a header on where the law is from."""
    published = PUBLISHED.get(law.name)
    if published is None or law != LAWS[law.name]:
        return {} if law.trace is None else {"source": f"generated after {law.trace}"}
    return {
        "title": published.title,
        "source": f"generated from figures of {published.source}",
        **{f"figure {number}": figure for number, figure in enumerate(published.figures, start=1)},
    }
