"""Spot availability and preemption by counts: ``{"metadata": {"gap_seconds": 300}, "data": [4, 4, 2, ...]}``.

Source: github.com/skypilot-org/spot-traces (Wu et al., "Can't Be Late", NSDI 2024), its README. Some files have a list
``prices`` beside ``data``, one for each tick; it must fit and is not used.
"""

from typing import Any

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import LAST_S, Cleaning, Failure, Observed
from harness.traces.importers.reading import as_count, as_list, as_number, member, parse_json
from harness.traces.importers.slots import Slots

LICENCE = "skypilot-org/spot-traces (NSDI 2024); it names no licence: ask before passing it on, and cite"

_MAX_INSTANCES = 10_000


def read(text: str, source: str, cleaning: Cleaning) -> Observed:
    """A record is a preemption: where the count falls by n, n instances are gone at that tick.

    Instances have no names. Of those that are there, the ones that came first are said to go first, and a newcomer
    takes the slot that has been empty for the longest: gaps between failures of the cluster are the log's, those of a
    node are this rule's. An instant is that of the tick that counts less; it lies anywhere since the tick before.
    """
    log = parse_json(text, source)
    gap_s = as_number(member(member(log, "metadata", source), "gap_seconds", source), "gap_seconds", source)
    counts = as_list(member(log, "data", source), "data", source)
    if len(counts) < 2:
        raise TraceError(f"{source}: {len(counts)} ticks in data; at least 2 are a log")
    last_s = gap_s * (len(counts) - 1)
    if not 0 < last_s <= LAST_S:
        raise TraceError(f"{source}: gap_seconds is {gap_s:g} for {len(counts)} ticks; it is more than 0, some minutes")
    _check_prices(log, len(counts), source)
    failures, nodes = _preemptions(counts, gap_s, source, cleaning)
    return Observed(failures=failures, nodes=nodes, first_s=0.0, last_s=last_s, has_calendar=False)


def _preemptions(counts: list[Any], gap_s: float, source: str, cleaning: Cleaning) -> tuple[list[Failure], list[str]]:
    slots = Slots()
    failures: list[Failure] = []
    last: dict[str, Failure] = {}
    num_here = num_ever = 0
    for tick, value in enumerate(counts):
        where = f"{source}: data[{tick}]"
        count = as_count(value, "the count", where, most=_MAX_INSTANCES)
        for _ in range(num_here - count):
            cleaning.num_read += 1
            slot = slots.leave(slots.oldest())
            failures.append(Failure(slot, tick * gap_s, None, where))
            last[slot] = failures[-1]
        for _ in range(count - num_here):
            slot = slots.enter(str(num_ever))
            num_ever += 1
            if slot in last:
                last.pop(slot).end_s = tick * gap_s
        num_here = count
    if not num_ever:
        raise TraceError(f"{source}: data is all zeros: no instance that could fail")
    return failures, slots.names


def _check_prices(log: dict[str, Any], num_ticks: int, source: str) -> None:
    if "prices" not in log:
        return
    prices = as_list(log["prices"], "prices", source)
    if len(prices) != num_ticks:
        raise TraceError(f"{source}: {len(prices)} prices for {num_ticks} ticks of data")
    for tick, price in enumerate(prices):
        if price is not None:
            as_number(price, "the price", f"{source}: prices[{tick}]")
