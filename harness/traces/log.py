"""What every importer gives: which node of a cluster was down, from when to when. Hours since the log begins."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, order=True)
class Outage:
    """``node`` failed at ``start_h`` and was back at ``end_h``; None where the log does not say or ends before."""

    start_h: float
    node: str
    end_h: float | None = None

    def __post_init__(self) -> None:
        assert math.isfinite(self.start_h), self
        assert self.end_h is None or self.start_h <= self.end_h < math.inf, self

    @property
    def repair_h(self) -> float | None:
        """Hours down, if known."""
        return None if self.end_h is None else self.end_h - self.start_h


@dataclass(frozen=True, kw_only=True)
class FailureLog:
    """A log, cleaned: every outage lies within it, in order of (start, node), none of a node overlaps another of it.

    ``nodes`` are all that are known, those without an outage too, where the format tells of them. ``began`` is the
    calendar time of hour 0 (ISO 8601), None where the log has none. What the cleaning did to the ``num_read`` records
    is told by rule, as a sentence: ``dropped`` records are gone, ``changed`` ones were kept and mended.
    """

    format: str
    source: str
    licence: str
    checksum: str
    outages: tuple[Outage, ...]
    nodes: tuple[str, ...]
    length_h: float
    began: str | None = None
    num_read: int
    num_kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.num_read == self.num_kept + sum(self.dropped.values()), "every record is kept or dropped by a rule"
        assert all(0 <= outage.start_h <= self.length_h for outage in self.outages), "outages lie within the log"
