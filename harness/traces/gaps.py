"""The deaths of a trace as arrays, the observed hours and ranks, and the times between failures.

There are two kinds of gap. The gaps of a *rank* last from hour 0 to its first failure, then from failure to failure.
The end of the trace right-censors the last gap; a rank that never fails has one censored gap. The gaps of the *system*
are the same for instants at which any rank fails. Ranks that die at one instant are one event, since gaps of zero
between them would fit no family of distributions. Gaps include the time of repair.

The first gap, from hour 0, is a whole one if the process started at hour 0. If the process has long been running, as in
a window of a log, it is only the rest of a gap that began earlier, and hour 0 falls into long gaps more often than into
short ones. Counted as a whole gap it would bias a fit. ``first="left_out"`` therefore observes each process from its
first failure on; a rank that never fails is then left out.

Array letters: E deaths, or gaps that ended; C censored gaps, I instants, R processes.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import TraceError
from harness.core.plans import Rank, is_trainer, ps_index
from harness.traces.trace import MAX_HOURS, MAX_RANKS, Entry, Trace

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
_ROUNDING = 1e-5  # relative: headers give six digits
Per = Literal["rank", "system"]
First = Literal["counted", "left_out"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Durations in hours, above zero. ``ended_E`` have ended; ``cut_C`` are right-censored: they last longer."""

    ended_E: F64
    cut_C: F64

    @property
    def num_events(self) -> int:
        return len(self.ended_E)

    @property
    def exposure_h(self) -> float:
        """Hours observed: the sum of all durations."""
        return math.fsum(self.ended_E) + math.fsum(self.cut_C)


@dataclass(frozen=True, eq=False)
class Observed:
    """The deaths of PS ranks in a trace, and how many ranks were watched for how many hours.

    Entry e of E: at ``hour_E[e]`` PS rank number ``rank_E[e]`` died, or ``num_E[e]`` ranks. ``rank_E`` is None if any
    entry gives only a number of ranks. ``num_ranks`` is None where it is unknown.
    """

    hour_E: F64
    num_E: I64
    rank_E: I64 | None
    length_h: float
    num_ranks: int | None
    source: str = "trace"
    num_repeated: int = 0
    """Entries left out, as they name a rank that another entry of the same hour names."""
    num_of_trainers: int = 0
    """Entries left out, as they name trainers."""

    @property
    def num_deaths(self) -> int:
        return int(self.num_E.sum())

    @cached_property
    def instants(self) -> tuple[F64, I64]:
        """The different hours of failure, ascending, and how many ranks died at each."""
        hour_I, place_E = np.unique(self.hour_E, return_inverse=True)
        return hour_I, np.bincount(place_E, self.num_E, len(hour_I)).astype(np.int64)


def without_repeats(trace: Trace) -> Trace:
    """The failures of ``trace``; of several entries of one rank at one hour only the first, as a rank dies once."""
    first: dict[tuple[float, Rank | int], Entry] = {}
    for place, entry in enumerate(trace.failures):
        first.setdefault((entry.hour, entry.who if isinstance(entry.who, str) else place), entry)
    return replace(trace, entries=tuple(first.values()))


def observe(trace: Trace) -> Observed:
    """The deaths of PS ranks in ``trace`` as arrays, without repeats of a rank at one hour. Trainers are left out.

    ``length_h``: see :func:`length_of`. The number of ranks is the header's ``ranks``, else that up to the highest
    named rank; it is unknown if an entry gives only a number. Raises TraceError if an entry names a host, or if
    ``ranks`` or a length in the header is no valid number or contradicts the entries.
    """
    if hosts := [entry for entry in trace.failures if entry.names_host]:
        raise TraceError(
            f"{trace.source}:{hosts[0].line}: rank: expected names or numbers of ranks, got {hosts[0].who}; how many "
            "ranks a host has is known where cluster.hosts is: run.py plan, train"
        )
    length_h, num_all = length_of(trace), len(trace.failures)
    of_ps = tuple(each for each in trace.failures if not (isinstance(each.who, str) and is_trainer(each.who)))
    trace = without_repeats(replace(trace, entries=of_ps))
    hour_E = np.array([entry.hour for entry in trace.entries], np.float64)
    indices = [ps_index(entry.who) for entry in trace.entries if isinstance(entry.who, str)]
    is_named = len(indices) == len(trace.entries)
    num_E = np.array([1 if isinstance(entry.who, str) else entry.who for entry in trace.entries], np.int64)
    num_ranks, least = _number(trace, "ranks"), max(indices, default=-1) + 1
    if num_ranks is None:
        num_ranks = least if is_named and indices else None
    elif num_ranks != int(num_ranks) or not max(least, 1) <= num_ranks <= MAX_RANKS:
        expected = f"expected a whole number from {max(least, 1)} to {MAX_RANKS}"
        raise TraceError(f"{trace.source}: ranks {num_ranks:g} in its header; {expected}")
    rank_E = np.array(indices, np.int64) if is_named else None
    num_ranks = None if num_ranks is None else int(num_ranks)
    num_repeated, num_of_trainers = len(of_ps) - len(trace.entries), num_all - len(of_ps)
    return Observed(hour_E, num_E, rank_E, length_h, num_ranks, trace.source, num_repeated, num_of_trainers)


def longest_repairs(trace: Trace) -> dict[float, float]:
    """The longest known repair time in hours, by the hour of a failure; hours without a known one are absent."""
    longest: dict[float, float] = {}
    for entry in trace.failures:
        if entry.repair_h is not None:
            longest[entry.hour] = max(longest.get(entry.hour, 0.0), entry.repair_h)
    return longest


def length_of(trace: Trace) -> float:
    """Hours that a trace lasts: its header's ``length_h``, else its ``job_h``, else the hour of its last failure.

    Raises TraceError if the header's value is no number above 0, or less than the hour of the last failure.
    """
    last_h = max((entry.hour for entry in trace.failures), default=0.0)
    length_h = _number(trace, "length_h") or _number(trace, "job_h") or last_h
    if length_h < last_h * (1 - _ROUNDING):
        length = f"its header gives a length of {length_h:g} h (length_h, else job_h)"
        raise TraceError(f"{trace.source}: a failure at hour {last_h:g}, but {length}")
    return max(length_h, last_h)


def first_of(trace: Trace) -> First:
    """``left_out`` for a window of a log and for a trace generated in equilibrium, otherwise ``counted``."""
    is_running = "window_h" in trace.header or trace.header.get("start") == "equilibrium"
    return "left_out" if is_running else "counted"


def gaps_of(observed: Observed, per: Per = "rank", *, first: First = "counted") -> Sample:
    """Times between failures of each rank, or of any rank, in order of (process, time).

    A gap of no length, from hour 0 to a failure at hour 0, is left out.

    Raises TraceError for ``per="rank"`` if the trace does not name the ranks, or their number is unknown.
    """
    if per == "system":
        hour_E, num_processes = observed.instants[0], 1
        process_E = np.zeros(len(hour_E), np.int64)
    elif observed.rank_E is None or observed.num_ranks is None:
        raise TraceError(f"{observed.source}: it does not say which ranks died, so there are no gaps of a rank")
    else:
        hour_E, process_E, num_processes = observed.hour_E, observed.rank_E, observed.num_ranks
    order_E = np.lexsort((hour_E, process_E))
    hour_E, process_E = hour_E[order_E], process_E[order_E]
    is_first_E = np.diff(process_E, prepend=-1) > 0
    gap_E = np.where(is_first_E, hour_E, np.diff(hour_E, prepend=0.0))
    last_R = np.zeros(num_processes)
    last_R[process_E] = hour_E  # of several, the last
    if first == "left_out":
        last_R, gap_E = last_R[process_E[is_first_E]], gap_E[~is_first_E]
    rest_R = observed.length_h - last_R
    return Sample(gap_E[gap_E > 0], rest_R[rest_R > 0])


def _number(trace: Trace, key: str) -> float | None:
    """The number under ``key`` of the header; None without it. Raises TraceError if it is not in (0, MAX_HOURS]."""
    text = trace.header.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_HOURS:  # nan is not
        expected = f"expected a number above 0, at most {MAX_HOURS:g}"
        raise TraceError(f"{trace.source}: {key} {text!r} in its header; {expected}")
    return value
