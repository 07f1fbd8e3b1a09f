"""Traces with known properties."""

import numpy as np

from harness.core.plans import ps_rank
from harness.traces.trace import Entry, Trace


def trace_of(deaths: list[tuple[float, int]], *, node: str = "", **header: object) -> Trace:
    """Deaths as (hour, rank), in any order."""
    entries = tuple(
        Entry(hour=hour, who=ps_rank(rank), line=number, extra={"node": node})
        for number, (hour, rank) in enumerate(sorted(deaths), start=1)
    )
    return Trace(source="made.csv", entries=entries, header={key: str(value) for key, value in header.items()})


def renewal_trace(gaps_N: np.ndarray, num_ranks: int, seed: int) -> Trace:
    """One system process of these gaps; each instant strikes a rank at random. Watched for 1 h longer."""
    hours_N = np.cumsum(gaps_N)
    ranks_N = np.random.default_rng(seed).integers(num_ranks, size=len(hours_N))
    deaths = list(zip(hours_N.tolist(), ranks_N.tolist(), strict=True))
    return trace_of(deaths, length_h=float(hours_N[-1]) + 1, ranks=num_ranks)
