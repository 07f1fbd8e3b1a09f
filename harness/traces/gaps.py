"""What a trace tells of time: when which ranks died, how long was watched, and the times between failures.

Two kinds of gap. Of a *rank*: from 0 to its first failure, then from failure to failure; the last one is cut short by
the end of the trace, and a rank that never fails is one gap, cut short. Of the *system*: the same for instants at which
any rank fails; ranks that die at one instant are one event, or every such group would add gaps of zero, which no family
of distributions has. Gaps include the time of repair.

That a first gap begins at 0 is right where clocks start at 0. In a process that has long been running, as in a window
of a log, it is the rest of a gap that began earlier, and long gaps are met more often than short ones: counted as a
whole one it would bias a fit. ``first="left_out"`` begins at each process's first failure instead, from which on it is
a renewal process again; ranks that never fail then say nothing.

Lines of arrays: E deaths, I instants, R ranks, N gaps.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import TraceError
from harness.core.plans import ps_index
from harness.traces.families import F64, Sample
from harness.traces.survival import I64
from harness.traces.trace import MAX_HOURS, MAX_RANKS, Trace

_ROUNDING = 1e-5  # relative: headers give six digits
Per = Literal["rank", "system"]
First = Literal["counted", "left_out"]


@dataclass(frozen=True, eq=False)
class Observed:
    """The deaths of a trace, and how long how many ranks were watched.

    ``rank_E`` is None where an entry says how many ranks died but not which; then ``num_E`` counts them. ``num_ranks``
    is None where the trace does not say.
    """

    hour_E: F64
    num_E: I64
    rank_E: I64 | None
    length_h: float
    num_ranks: int | None

    @property
    def num_deaths(self) -> int:
        """Of ranks."""
        return int(self.num_E.sum())

    @cached_property
    def instants(self) -> tuple[F64, I64]:
        """The different hours of failure, and how many ranks died at each."""
        hour_I, place_E = np.unique(self.hour_E, return_inverse=True)
        return hour_I, np.bincount(place_E, self.num_E, len(hour_I)).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaps:
    """Times between failures, in order of (process, time). ``process_N``: the rank's number; 0 for the system.

    ``num_zero`` gaps of no length were left out: a failure at hour 0, or a rank that fails twice at one hour.
    ``watched_R``: for how long each process was watched, those that say nothing left out.
    """

    hours_N: F64
    is_cut_N: NDArray[np.bool_]
    process_N: I64
    num_zero: int
    watched_R: F64

    @property
    def sample(self) -> Sample:
        """By whether they ended; those cut short at once are left out."""
        return Sample(self.hours_N[~self.is_cut_N], self.hours_N[self.is_cut_N & (self.hours_N > 0)])


def observe(trace: Trace) -> Observed:
    """As in the class. ``length_h``: the header's, else its ``job_h``, else the last hour; ranks: the header's, else up
    to the highest named.

    Raises TraceError if the header is no number there, or contradicts the entries.
    """
    hour_E = np.array([entry.hour for entry in trace.entries], np.float64)
    names = [entry.who for entry in trace.entries if isinstance(entry.who, str)]
    is_named = len(names) == len(trace.entries)
    rank_E = np.array([ps_index(name) for name in names], np.int64) if is_named else None
    num_E = np.array([1 if isinstance(entry.who, str) else entry.who for entry in trace.entries], np.int64)
    last_h = float(hour_E.max(initial=0.0))
    length_h = _number(trace, "length_h") or _number(trace, "job_h") or last_h
    if length_h < last_h * (1 - _ROUNDING):
        raise TraceError(f"{trace.source}: a failure at hour {last_h:g}; its header says {length_h:g} h were observed")
    highest = max((ps_index(name) for name in names), default=-1)
    told = _number(trace, "ranks")
    if told is not None and (told != int(told) or not max(highest, 0) < told <= MAX_RANKS):
        right = f"a whole number, {max(highest + 1, 1)} to {MAX_RANKS}, would be right"
        raise TraceError(f"{trace.source}: ranks {told:g} in its header; {right}")
    num_ranks = int(told) if told is not None else (highest + 1 if is_named and names else None)
    return Observed(hour_E, num_E, rank_E, max(length_h, last_h), num_ranks)


def gaps_of(trace: Trace, per: Per = "rank", *, first: First = "counted") -> Gaps:
    """Times between failures of each rank, or of any. Raises TraceError as ``observe``, and if ranks are not named."""
    observed = observe(trace)
    if per == "system":
        return system_gaps(observed, first=first)
    if observed.rank_E is None or observed.num_ranks is None:
        raise TraceError(f"{trace.source}: it does not say which ranks died, so there are no gaps of a rank")
    return rank_gaps(observed, first=first)


def first_of(trace: Trace) -> First:
    """Whether first gaps are whole ones: not in a window of a log, nor where the trace was made as if from one."""
    is_running = "window_h" in trace.header or trace.header.get("start") == "equilibrium"
    return "left_out" if is_running else "counted"


def system_gaps(observed: Observed, *, first: First = "counted") -> Gaps:
    """Between instants."""
    hour_I = observed.instants[0]
    return _gaps(hour_I, np.zeros(len(hour_I), np.int64), 1, observed.length_h, first)


def rank_gaps(observed: Observed, *, first: First = "counted") -> Gaps:
    """Of each rank; ranks must be named."""
    assert observed.rank_E is not None
    assert observed.num_ranks is not None
    order_E = np.lexsort((observed.hour_E, observed.rank_E))
    hour_E, rank_E = observed.hour_E[order_E], observed.rank_E[order_E]
    return _gaps(hour_E, rank_E, observed.num_ranks, observed.length_h, first)


def _gaps(hour_E: F64, process_E: I64, num_processes: int, length_h: float, first: First) -> Gaps:
    """Of processes whose events come in order of (process, hour)."""
    is_first_E = np.append(True, process_E[1:] != process_E[:-1])[: len(process_E)]
    since_E = np.where(is_first_E, 0.0, np.append(0.0, hour_E[:-1])[: len(hour_E)])
    last_R = np.zeros(num_processes)
    last_R[process_E] = hour_E  # of equal indices the last one stays
    start_R = np.zeros(num_processes)
    if first == "left_out":
        start_R[process_E[is_first_E]] = hour_E[is_first_E]
    has_events_R = np.bincount(process_E, minlength=num_processes) > 0
    is_kept_E = (first == "counted") | ~is_first_E
    is_kept_R = (first == "counted") | has_events_R
    hours_N = np.append((hour_E - since_E)[is_kept_E], (length_h - last_R)[is_kept_R])
    process_N = np.append(process_E[is_kept_E], np.arange(num_processes)[is_kept_R])
    is_cut_N = np.arange(len(hours_N)) >= is_kept_E.sum()
    is_zero_N = (hours_N <= 0) & ~is_cut_N
    order_N = np.lexsort((is_cut_N, process_N))  # stable: a process's events stay in order, its end comes last
    order_N = order_N[~is_zero_N[order_N]]
    return Gaps(
        hours_N=hours_N[order_N],
        is_cut_N=is_cut_N[order_N],
        process_N=process_N[order_N],
        num_zero=int(is_zero_N.sum()),
        watched_R=(length_h - start_R)[is_kept_R],
    )


def _number(trace: Trace, key: str) -> float | None:
    text = trace.header.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_HOURS:  # nan is not
        right = f"a number above 0, at most {MAX_HOURS:g}, would be right"
        raise TraceError(f"{trace.source}: {key} {text!r} in its header; {right}")
    return value
