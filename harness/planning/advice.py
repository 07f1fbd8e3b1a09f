"""Advice: the strategy of least overhead among those whose PLS is shown to be at most a margin.

All strategies are simulated under the same traces, so their hours are compared in pairs. What the ledger has no price
for, the work of trackers, replicas and mirrors in each step, is unknown: the hours of such a strategy are a lower
bound, and it is never the best one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.core.events import BUCKETS
from harness.core.plans import Costs
from harness.core.strategies import StrategyOptions, make_strategy
from harness.planning.spread import Spread, Summary

MAX_FACTOR = 16
"""Another best strategy is searched at factors from 1 / MAX_FACTOR to MAX_FACTOR."""
_NUM_HALVINGS = 3  # of the interval between two powers of 2: a turn is known to 2 ** (1 / 8), 9 %
_ROUNDING_H = 1e-9


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One strategy under all traces: hours of overhead, node-hours (None: unknown), PLS, hours of repeated steps.

    ``more_h``: its hours less those of the first strategy, in pairs. ``unpriced``: what its hours leave out for want of
    a price. ``is_safe``: the upper bound of its PLS (95 % interval) is at most the margin.
    """

    name: str
    hours: Summary
    node_h: Summary | None
    pls: Summary
    repeated_h: Summary
    more_h: Summary
    unpriced: tuple[str, ...]
    is_safe: bool


def best_of(standings: Iterable[Standing]) -> list[Standing]:
    """The candidate of least hours, and those not shown to cost more (95 %); empty without a candidate."""
    candidates = [each for each in standings if each.is_safe and not each.unpriced]
    return [each for each in candidates if each.more_h.mean <= each.more_h.half + _ROUNDING_H]


def advise(
    spreads: Sequence[Spread], strategies: Sequence[StrategyOptions], costs: Costs, margin: float
) -> list[Standing]:
    """All strategies: candidates, then safe ones without all prices, then the others; each by mean hours, by name."""
    parts, prices = {each.name: make_strategy(each, costs).step_parts for each in strategies}, costs.step_frac or {}
    unknown = {name: tuple(part for part in parts[name] if part not in prices) for name in parts}
    is_safe = {each.name: each.pls.mean + each.pls.half <= margin for each in spreads}
    hours = {each.name: np.nansum(each.outcomes[:, 2:-1], axis=1) for each in spreads}  # NaN: no price
    found = {each.name: each for each in spreads}
    order = sorted(found, key=lambda name: (not is_safe[name], bool(unknown[name]), hours[name].mean(), name))
    return [
        Standing(
            name=name,
            hours=Summary.of(hours[name]),
            node_h=None if np.isnan(found[name].outcomes[0, -1]) else Summary.of(found[name].outcomes[:, -1]),
            pls=found[name].pls,
            repeated_h=Summary.of(found[name].outcomes[:, 2 + BUCKETS.index("lost")]),
            more_h=Summary.of(hours[name] - hours[order[0]]),
            unpriced=unknown[name],
            is_safe=is_safe[name],
        )
        for name in order
    ]


def turns(first: str, at: Callable[[float], Sequence[Standing]]) -> list[tuple[float, Sequence[str]]]:
    """The factors of a quantity, below and above 1 and nearest to it, with which others than ``first`` are best; which.

    ``at``: the advice with the quantity times a factor. Others are best where ``first`` is not among the best. Factors
    are doubled until that is so, and then the interval is halved: what turns twice between two powers of 2 is not seen.
    """

    def others(exponent: float) -> Sequence[str]:
        names = [each.name for each in best_of(at(2.0**exponent))]
        return () if first in names else names or ("none",)

    found: list[tuple[float, Sequence[str]]] = []
    for sign in (-1, 1):
        same, other, names = 0.0, 0.0, ()
        while not names and other < math.log2(MAX_FACTOR):
            same, other = other, other + 1
            names = others(sign * other)
        for _ in range(_NUM_HALVINGS if names else 0):
            middle = (same + other) / 2
            between = others(sign * middle)
            same, other, names = (same, middle, between) if between else (middle, other, names)
        found += [(2.0 ** (sign * other), names)] if names else []
    return found
