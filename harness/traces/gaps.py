"""The deaths of a trace as arrays, how long how many ranks were watched, and the times between failures.

There are two kinds of gap. Of a *rank*: from hour 0 to its first failure, then from failure to failure; the last gap is
right-censored by the end of the trace, and a rank that never fails is one censored gap. Of the *system*: the same for
instants at which any rank fails; ranks that die at one instant are one event, since every such group would add gaps of
zero, which no distribution family has. Gaps include the time of repair.

A first gap that starts at hour 0 is whole if the process started there. In a process that has long been running, such
as a window of a log, it is the rest of a gap that began earlier, and long gaps are met more often than short ones:
counted as a whole one it would bias a fit. ``first="left_out"`` therefore observes each process from its first failure
on; a rank that never fails is then left out.

Array letters: E deaths, I instants, R processes, N gaps, M points in time.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import TraceError
from harness.core.plans import ps_index
from harness.traces.survival import F64, I64, Sample
from harness.traces.trace import MAX_HOURS, MAX_RANKS, Trace

_ROUNDING = 1e-5  # relative: headers give six digits
Per = Literal["rank", "system"]
First = Literal["counted", "left_out"]


@dataclass(frozen=True, eq=False)
class Observed:
    """The deaths of a trace, and how many ranks were watched for how many hours.

    ``rank_E`` is None where an entry gives a number of ranks instead of a name; ``num_E`` counts them. ``num_ranks`` is
    None where it is unknown.
    """

    hour_E: F64
    num_E: I64
    rank_E: I64 | None
    length_h: float
    num_ranks: int | None
    source: str = "trace"

    @property
    def num_deaths(self) -> int:
        """The number of deaths of ranks."""
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
    ``watched_R``: the hours for which each process was watched.
    """

    hours_N: F64
    is_cut_N: NDArray[np.bool_]
    process_N: I64
    num_zero: int
    watched_R: F64

    @property
    def sample(self) -> Sample:
        """The gaps by whether they ended, without those censored at zero."""
        return Sample(self.hours_N[~self.is_cut_N], self.hours_N[self.is_cut_N & (self.hours_N > 0)])


def observe(trace: Trace) -> Observed:
    """The arrays of ``trace``.

    ``length_h`` is the header's, else its ``job_h``, else the last hour; the number of ranks is the header's, else up
    to the highest named. Raises TraceError if the header holds no number there, or contradicts the entries.
    """
    hour_E = np.array([entry.hour for entry in trace.entries], np.float64)
    indices = [ps_index(entry.who) for entry in trace.entries if isinstance(entry.who, str)]
    is_named = len(indices) == len(trace.entries)
    num_E = np.array([1 if isinstance(entry.who, str) else entry.who for entry in trace.entries], np.int64)
    last_h = float(hour_E.max(initial=0.0))
    length_h = _number(trace, "length_h") or _number(trace, "job_h") or last_h
    if length_h < last_h * (1 - _ROUNDING):
        raise TraceError(f"{trace.source}: a failure at hour {last_h:g}, but its header says length_h {length_h:g}")
    num_ranks, least = _number(trace, "ranks"), max(indices, default=-1) + 1
    if num_ranks is None:
        num_ranks = least if is_named and indices else None
    elif num_ranks != int(num_ranks) or not max(least, 1) <= num_ranks <= MAX_RANKS:
        expected = f"expected a whole number from {max(least, 1)} to {MAX_RANKS}"
        raise TraceError(f"{trace.source}: ranks {num_ranks:g} in its header; {expected}")
    return Observed(
        hour_E=hour_E,
        num_E=num_E,
        rank_E=np.array(indices, np.int64) if is_named else None,
        length_h=max(length_h, last_h),
        num_ranks=None if num_ranks is None else int(num_ranks),
        source=trace.source,
    )


def first_of(trace: Trace) -> First:
    """Whether first gaps are whole: not in a window of a log, nor in a trace generated in equilibrium."""
    is_running = "window_h" in trace.header or trace.header.get("start") == "equilibrium"
    return "left_out" if is_running else "counted"


def gaps_of(observed: Observed, per: Per = "rank", *, first: First = "counted") -> Gaps:
    """Times between failures of each rank, or of any rank. Raises TraceError if ranks are asked for but not named."""
    if per == "system":
        hour_E, num_processes = observed.instants[0], 1
        process_E = np.zeros(len(hour_E), np.int64)
    elif observed.rank_E is None or observed.num_ranks is None:
        raise TraceError(f"{observed.source}: it does not say which ranks died, so there are no gaps of a rank")
    else:
        hour_E, process_E, num_processes = observed.hour_E, observed.rank_E, observed.num_ranks
    every_R = np.arange(num_processes)
    hour_M = np.concatenate([np.zeros(num_processes), hour_E, np.full(num_processes, observed.length_h)])
    process_M = np.concatenate([every_R, process_E, every_R])
    kind_M = np.repeat([0, 1, 2], [num_processes, len(hour_E), num_processes])  # beginning, failure, end
    order_M = np.lexsort((kind_M, hour_M, process_M))
    hour_M, process_M, kind_M = hour_M[order_M], process_M[order_M], kind_M[order_M]

    hours_N, is_cut_N, is_first_N = np.diff(hour_M), kind_M[1:] == 2, kind_M[:-1] == 0
    is_gap_N = (kind_M[:-1] != 2) & ((first == "counted") | ~is_first_N)
    is_zero_N = is_gap_N & ~is_cut_N & (hours_N <= 0)
    kept_N = is_gap_N & ~is_zero_N
    start_R = np.zeros(num_processes) if first == "counted" else hour_M[1:][is_first_N & ~is_cut_N]
    return Gaps(
        hours_N=hours_N[kept_N],
        is_cut_N=is_cut_N[kept_N],
        process_N=process_M[1:][kept_N],
        num_zero=int(is_zero_N.sum()),
        watched_R=observed.length_h - start_R,
    )


def _number(trace: Trace, key: str) -> float | None:
    """The number under ``key`` of the header; None if there is none."""
    text = trace.header.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_HOURS:  # nan is not
        raise TraceError(
            f"{trace.source}: {key} {text!r} in its header; expected a number above 0, at most {MAX_HOURS:g}"
        )
    return value
