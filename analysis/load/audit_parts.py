"""Parts of the audit of a run: its first event, hours of slow ranks and of copies, and writes that fail."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.events import Injected, Saved, Started
from harness.record.rundir import flatten


def contradictions(started: Started, config: Mapping[str, Any]) -> list[str]:
    """What the first event says of the run, and its config says otherwise.

    The run's name and the path of its trace are not compared: a run may go on under others.
    """
    cluster, profile, trace = config["cluster"], config["profile"], config["trace"]
    configured: dict[str, object] = {
        "strategy": config["strategy"]["name"],
        "seed": config["seed"],
        "profile": profile["name"],
        "num_ps": cluster["num_ps"] or profile["num_ps"],
        "trace_clock": trace.get("clock", "samples"),
        "trace_inject": trace.get("inject", "boundary"),
    }
    claimed = {name: getattr(started, name) for name in configured}
    return [
        f"{name} is {claimed[name]}, the config says {value}"
        for name, value in configured.items()
        if claimed[name] != value
    ]


def slow_h(spans: Sequence[tuple[float, float, float]]) -> float:
    """Hours by which a job is longer that waits for the slowest of its ranks, of (first hour, last hour, factor)."""
    hours = sorted({hour for first_h, last_h, _ in spans for hour in (first_h, last_h)})
    factors = ((s, e, [f for a, b, f in spans if a <= s and e <= b]) for s, e in itertools.pairwise(hours))
    return math.fsum((end - start) * (max(slow, default=1.0) - 1) for start, end, slow in factors)


def copy_frac(config: Mapping[str, Any]) -> float | None:
    """Hours that the copy of a save in the background takes, by those of its write; None if saves are waited for."""
    profile = config["profile"]
    network_gbps, snapshot_gbps = profile.get("network_gbps"), profile.get("snapshot_gbps")
    is_async = flatten(config).get("save.mode") == "async"
    return network_gbps / snapshot_gbps if is_async and network_gbps and snapshot_gbps else None


class FailedWrites:
    """The writes that failed, and whose save is not on record yet."""

    def __init__(self) -> None:
        self._ranks: list[str] = []

    def add(self, event: Injected) -> None:
        """Take a write that failed."""
        self._ranks.append(event.rank)

    def problem_of(self, event: Saved) -> str | None:
        """What is wrong with the bytes that a save says were written again; the writes before it belong to it."""
        ranks, self._ranks = self._ranks, []
        if len(set(ranks)) < len(ranks):
            return f"a write failed twice of one save: {', '.join(ranks)}"
        if event.repeated_bytes and not ranks:
            return f"{event.repeated_bytes} bytes were written again, but no write that failed is on record"
        if not 0 <= 2 * event.repeated_bytes <= event.payload_bytes:
            return f"{event.repeated_bytes} of {event.payload_bytes} bytes were written again: more than half"
        return None

    def problem_at_end(self) -> str | None:
        """What is wrong with a result: writes of which no save followed."""
        return f"a write of {', '.join(self._ranks)} failed, but no save follows it" if self._ranks else None
