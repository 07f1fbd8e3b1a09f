"""Parts of the audit of a run: hours of slow ranks and of copies, and writes that fail."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.events import Saved, WriteFailed


def slow_h(spans: Sequence[tuple[float, float, float]]) -> float:
    """Hours by which a job is longer that waits for the slowest of its ranks, of (first hour, last hour, factor)."""
    hours = sorted({hour for first_h, last_h, _ in spans for hour in (first_h, last_h)})
    factors = ((s, e, [f for a, b, f in spans if a <= s and e <= b]) for s, e in itertools.pairwise(hours))
    return math.fsum((end - start) * (max(slow, default=1.0) - 1) for start, end, slow in factors)


def copy_frac(config: Mapping[str, Any]) -> float | None:
    """Hours that the copy of a save in the background takes, by those of its write; None if saves are waited for."""
    profile = config["profile"]
    network_gbps, snapshot_gbps = profile.get("network_gbps"), profile.get("snapshot_gbps")
    is_async = config.get("save", {}).get("mode") == "async"
    return network_gbps / snapshot_gbps if is_async and network_gbps and snapshot_gbps else None


class FailedWrites:
    """The writes that failed, and whose save is not on record yet."""

    def __init__(self) -> None:
        self._ranks: list[str] = []

    def add(self, event: WriteFailed) -> None:
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
