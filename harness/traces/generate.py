"""Generated failure traces: renewal processes of ranks or of the system, groups, early failures, repair times.

Every draw is the quantile of a uniform number from a counter-based generator, which is keyed by (seed, what is drawn,
trace, rank or instant). Trace k of a seed is therefore the same however many are made at once, and all settings share
their uniform numbers.

Array letters: K traces, S streams (a renewal process each), A streams not yet at their end, D draws, E instants or
deaths, G instants of a group, C ranks to choose from.
"""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.core.errors import TraceError
from harness.core.plans import ps_rank
from harness.core.seeds import derive, words
from harness.traces.spec import GeneratorSpec, Lemons
from harness.traces.trace import MAX_HOURS, Trace, parse_trace

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_STREAMS_AT_ONCE = 1 << 15  # bounds memory; results do not depend on it
_DRAWS_AT_ONCE = 1 << 20
_STREAMS = derive(0, "generate", "streams")  # not of the seed, which is in what is drawn from a stream
_DECIMALS = 6  # of hours in a file: 4 ms
_TRACES_TO_TRY = 10_000


@dataclass(frozen=True)
class Deaths:
    """The deaths of K traces, in order of (trace, hour, rank); those of one instant have exactly the same hour.

    ``repairs_E`` are repair times in hours, None where the spec has none.
    """

    num_traces: int
    traces_E: I64
    hours_E: F64
    ranks_E: I64
    repairs_E: F64 | None

    @cached_property
    def starts_K1(self) -> I64:
        """Bounds of the traces: the deaths of trace k are ``starts_K1[k]`` to ``starts_K1[k + 1]``, exclusive."""
        return np.searchsorted(self.traces_E, np.arange(self.num_traces + 1))

    def of(self, k: int) -> tuple[F64, I64]:
        part = slice(self.starts_K1[k], self.starts_K1[k + 1])
        return self.hours_E[part], self.ranks_E[part]

    def repairs_of(self, k: int) -> list[float | None] | None:
        """The repair times of trace k in hours; None where the spec has none."""
        if self.repairs_E is None:
            return None
        return self.repairs_E[self.starts_K1[k] : self.starts_K1[k + 1]].tolist()


def generate_many(spec: GeneratorSpec, seed: int, num_traces: int, *, first: int = 0) -> Deaths:
    """Traces ``first`` to ``first + num_traces - 1`` of ``seed``, as arrays, numbered from 0; hours after stretching.

    Raises TraceError for fewer than 1 trace.
    """
    per_block = max(1, _STREAMS_AT_ONCE // (spec.ranks if spec.law.per == "rank" else 1))
    blocks = [
        _generate_block(spec, seed, np.arange(start, min(start + per_block, first + num_traces)))
        for start in range(first, first + num_traces, per_block)
    ]
    if not blocks:
        raise TraceError(f"num_traces: expected at least 1, got {num_traces}")
    traces_E, hours_E, ranks_E = (np.concatenate(parts) for parts in zip(*(block[:3] for block in blocks), strict=True))
    repairs = [repairs_E for *_, repairs_E in blocks if repairs_E is not None]
    repairs_E = np.concatenate(repairs) if repairs else None
    return Deaths(num_traces, traces_E - first, hours_E, ranks_E, repairs_E)


def generate(spec: GeneratorSpec, seed: int, *, is_typical: bool = False) -> Trace:
    """Trace number 0 of ``seed``.

    ``is_typical``: instead the first trace that has the expected number of instants, rounded, so that a single trace
    represents its law. Raises TraceError if none of the first 10,000 traces has.
    """
    number = _typical(spec, seed) if is_typical else 0
    deaths = generate_many(spec, seed, 1, first=number)
    seen: dict[tuple[float, int], float | None] = {}  # gaps below 4 ms are none: a rank dies once at an instant
    for index, (hour, rank) in enumerate(zip(deaths.hours_E.tolist(), deaths.ranks_E.tolist(), strict=True)):
        repair_h = None if deaths.repairs_E is None else float(deaths.repairs_E[index])
        seen.setdefault((min(round(hour, _DECIMALS), spec.job_h), rank), repair_h)
    rows = [
        f"{hour:.12g},{ps_rank(rank)},{'' if repair_h is None else f'{repair_h:.{_DECIMALS}g}'},"
        for (hour, rank), repair_h in sorted(seen.items(), key=lambda item: item[0])
    ]
    read = parse_trace(
        ["hour,rank,repair_h,node", *rows], f"generated ({spec.law.model})"
    )  # as a file of it would be read
    return replace(read, header=_header(spec, seed, number, is_typical))


def _header(spec: GeneratorSpec, seed: int, number: int, is_typical: bool) -> dict[str, str]:
    is_exact = spec.law.start == "equilibrium" or spec.law.model == "exponential"
    doubt = "" if is_exact else " at the rate of the long run, other than that of a fresh start"
    k = f"{spec.ranks_per_instant:.6g} ranks in each on average"
    return {
        "title": f"{spec.law.model} failures of {spec.ranks} ranks, generated",
        "source": "generated",
        "format": "generated",
        **({} if spec.law.length_h is None else {"stretch": f"{spec.length_h:g} h to {spec.job_h:g} h"}),
        "length_h": f"{spec.job_h:g}",
        "ranks": str(spec.ranks),
        "expected": f"{spec.expected_instants:.6g} failures{doubt}, {k}",
        "start": spec.law.start,
        **lemons_line(spec.lemons, seed, number),
        **({"number": f"{number}, the first trace of the seed with the expected number"} if is_typical else {}),
        "seed": str(seed),
    }


def lemons_line(lemons: Lemons | None, seed: int, number: int = 0) -> dict[str, str]:
    """The line of a header that names the lemons of trace ``number``, by number of the rank; empty without any."""
    if lemons is None:
        return {}
    order_R = order_of_ranks(lemons.ranks, seed, np.array([number]))[0]
    return {"lemons": ", ".join(ps_rank(rank) for rank in sorted(order_R[: lemons.num].tolist()))}


def _typical(spec: GeneratorSpec, seed: int) -> int:
    wanted = round(spec.expected_instants)
    step = 64
    for first in range(0, _TRACES_TO_TRY, step):
        deaths = generate_many(spec, seed, step, first=first)
        for k, (start, end) in enumerate(itertools.pairwise(deaths.starts_K1.tolist())):
            if len(np.unique(deaths.hours_E[start:end])) == wanted:
                return first + k
    tried = f"got none among {_TRACES_TO_TRY} traces of seed {seed}"
    raise TraceError(f"--typical: expected a trace with {wanted} failures, {tried}; try another seed or length")


# --- instants ---------------------------------------------------------------------------------------------------------


def _generate_block(spec: GeneratorSpec, seed: int, numbers_K: I64) -> tuple[I64, F64, I64, F64 | None]:
    """The deaths of the traces ``numbers_K``: trace, hour, rank and repair time of each."""
    traces_E, hours_E, ranks_E = _instants(spec, seed, numbers_K)
    order = np.lexsort((ranks_E, hours_E, traces_E))
    traces_E, hours_E, ranks_E = traces_E[order], hours_E[order], ranks_E[order]
    if spec.law.group_sizes:
        traces_E, hours_E, ranks_E = _with_groups(spec, seed, traces_E, hours_E, ranks_E)
    scale = spec.job_h / spec.length_h
    repairs_E = _repairs(spec, seed, traces_E)
    return traces_E, hours_E * scale, ranks_E, None if repairs_E is None else repairs_E * scale


def _instants(spec: GeneratorSpec, seed: int, numbers_K: I64) -> tuple[I64, F64, I64]:
    """Trace, hour and failed rank of every instant; for ``per`` rank not sorted."""
    if spec.law.per == "rank":
        traces_S = np.repeat(numbers_K, spec.ranks)
        ranks_S = np.tile(np.arange(spec.ranks), len(numbers_K))
        stream_E, busy_E = _renewals(spec, seed, _streams(traces_S, ranks_S), spec.instant_mtbf_h * spec.ranks)
        return traces_S[stream_E], _wall_hours(spec, busy_E), ranks_S[stream_E]
    stream_E, busy_E = _renewals(spec, seed, _streams(numbers_K), spec.instant_mtbf_h)
    traces_E, hours_E = numbers_K[stream_E], _wall_hours(spec, busy_E)
    order = np.lexsort((hours_E, traces_E))
    traces_E, hours_E = traces_E[order], hours_E[order]
    struck_E = _uniform(seed, "struck", _streams(traces_E), _places(traces_E))
    if spec.lemons:
        orders_KR = order_of_ranks(spec.ranks, seed, numbers_K)
        return traces_E, hours_E, orders_KR[np.searchsorted(numbers_K, traces_E), spec.lemons.places(struck_E)]
    return traces_E, hours_E, (struck_E * spec.ranks).astype(np.int64)


def order_of_ranks(ranks: int, seed: int, numbers_K: I64) -> I64:
    """The ranks of each trace in a random order, lemons first, (K, ranks). The number of lemons does not change it."""
    lots_KR = words(
        words(derive(seed, "generate", "lemons"), _streams(numbers_K))[:, None], np.arange(ranks).astype(np.uint64)
    )
    return np.argsort(lots_KR, axis=1, kind="stable")


def _renewals(spec: GeneratorSpec, seed: int, streams_S: U64, mean_h: float) -> tuple[I64, F64]:
    """The stream and time of every renewal until ``busy_h``, not sorted. ``mean_h``: the mean gap of each stream."""
    gaps = spec.gaps
    first_S = _uniform(seed, "gap", streams_S, np.uint64(0))
    if spec.law.start == "equilibrium":  # the rest, at a random moment, of the gap into which it falls
        now_S = _uniform(seed, "left", streams_S, np.uint64(0)) * gaps.met(first_S) * mean_h
    else:
        now_S = gaps.gap(first_S) * mean_h
    going_A = np.flatnonzero(now_S <= spec.busy_h)
    which, when = [going_A], [now_S[going_A]]
    place = 1
    while going_A.size:
        expected = (spec.busy_h - now_S[going_A].min()) / mean_h
        num = int(min(expected + 2 * expected**0.5 + 1, max(1, _DRAWS_AT_ONCE // going_A.size)))
        draws = np.arange(place, place + num, dtype=np.uint64)
        gaps_AD = gaps.gap(_uniform(seed, "gap", streams_S[going_A, None], draws)) * mean_h
        gaps_AD[:, 0] += now_S[going_A]  # one sum from left to right, to the bit, however many draws are made at once
        times_AD = np.cumsum(gaps_AD, axis=1)
        row, column = np.nonzero(times_AD <= spec.busy_h)
        which.append(going_A[row])
        when.append(times_AD[row, column])
        now_S[going_A] = times_AD[:, -1]
        going_A = going_A[times_AD[:, -1] <= spec.busy_h]
        place += num
    return np.concatenate(which), np.concatenate(when)


def _wall_hours(spec: GeneratorSpec, busy_E: F64) -> F64:
    """Convert hours on the time scale of ``GeneratorSpec.busy_h`` to hours of the trace."""
    early_h = min(spec.law.early_h, spec.length_h)
    early_busy_h = early_h * spec.law.early_factor
    hours_E = np.where(busy_E < early_busy_h, busy_E / spec.law.early_factor, busy_E - early_busy_h + early_h)
    return np.minimum(hours_E, spec.length_h)


# --- groups and repairs -----------------------------------------------------------------------------------------------


def _with_groups(spec: GeneratorSpec, seed: int, traces_E: I64, hours_E: F64, ranks_E: I64) -> tuple[I64, F64, I64]:
    """The deaths, with those of groups: at some instants more ranks of the rack (without racks, any ranks) die too."""
    streams_E, places_E = _streams(traces_E), _places(traces_E)
    is_group_E = _uniform(seed, "group", streams_E, places_E) < (spec.law.group_probability or 0.0)
    sizes, weights = (np.array(values) for values in zip(*spec.law.group_sizes, strict=True))
    shares = np.cumsum(weights / weights.sum())
    index_E = np.searchsorted(shares, _uniform(seed, "size", streams_E, places_E), side="right")
    size_E = np.where(is_group_E, sizes[np.minimum(index_E, len(sizes) - 1)], 1)

    room = spec.law.rack_size or spec.ranks
    group_G = np.flatnonzero(is_group_E)
    keys_G = words(words(derive(seed, "generate", "members"), streams_E[group_G]), places_E[group_G])
    lots_GC = words(keys_G[:, None], np.arange(room, dtype=np.uint64))
    lots_GC[np.arange(len(group_G)), ranks_E[group_G] % room] = 0  # the failed rank is in its group
    members_GC = np.argsort(lots_GC, axis=1, kind="stable") + (ranks_E[group_G] // room * room)[:, None]
    is_in_GC = np.arange(room) < size_E[group_G, None]

    alone_E = np.flatnonzero(~is_group_E)
    instant_E = np.concatenate([alone_E, np.repeat(group_G, size_E[group_G])])
    dying_E = np.concatenate([ranks_E[alone_E], members_GC[is_in_GC]])
    order = np.lexsort((dying_E, instant_E))
    return traces_E[instant_E[order]], hours_E[instant_E[order]], dying_E[order]


def _repairs(spec: GeneratorSpec, seed: int, traces_E: I64) -> F64 | None:
    """The repair time of every death in hours, before stretching; None if the spec has none."""
    median_h, mean_h = spec.law.repair_median_h, spec.law.repair_mean_h
    if not spec.repairs_h and (median_h is None or mean_h is None):
        return None
    u_E = _uniform(seed, "repair", _streams(traces_E), _places(traces_E))
    if spec.repairs_h or median_h is None or mean_h is None:
        return np.array(spec.repairs_h)[(u_E * len(spec.repairs_h)).astype(np.int64)]
    sigma = (2 * np.log(mean_h / median_h)) ** 0.5  # mean = median · exp(sigma² / 2)
    return median_h * np.exp(np.minimum(sigma * special.ndtri(u_E), np.log(MAX_HOURS / median_h)))


# --- chance -----------------------------------------------------------------------------------------------------------


def _streams(traces_S: I64, ranks_S: I64 | int = 0) -> U64:
    """The key of each trace's random stream, or of a rank's stream in it; hashed, as small counters mix badly."""
    return words(words(_STREAMS, traces_S.astype(np.uint64)), np.asarray(ranks_S).astype(np.uint64))


def _places(traces_E: I64) -> U64:
    """The index of each element within its trace: 0, 1, …; ``traces_E`` ascends."""
    return (np.arange(len(traces_E)) - np.searchsorted(traces_E, traces_E)).astype(np.uint64)


def _uniform(seed: int, what: str, streams_S: U64, places_S: U64 | np.uint64) -> F64:
    """Uniform numbers in the open interval (0, 1), from the arguments alone. ``what``: what they decide."""
    word_S = words(words(derive(seed, "generate", what), streams_S), np.asarray(places_S))
    return ((word_S >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
