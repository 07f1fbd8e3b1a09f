"""Statistics of traces whose properties are known."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.trace_show import remarks
from harness.core.errors import TraceError
from harness.core.plans import ps_rank
from harness.traces.fits import verdict
from harness.traces.gaps import gaps_of, observe
from harness.traces.statistics import TraceStatistics, describe
from harness.traces.trace import Entry, Trace, parse_trace


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


def described(*lines: str) -> TraceStatistics:
    return describe(parse_trace(lines, "mine.csv"))


THREE = [(2.0, 0), (5.0, 0), (4.0, 1)]


@pytest.mark.parametrize(
    ("deaths", "per", "first", "ended", "cut"),
    [
        (THREE, "rank", "counted", [2, 3, 4], [5, 6, 10]),  # an idle rank is one gap, cut at the trace's end
        (THREE, "rank", "left_out", [3], [5, 6]),  # each watched from its first failure on, an idle one not at all
        (THREE, "system", "left_out", [2, 1], [5]),
        ([(2.0, 0), (2.0, 1), (5.0, 0)], "system", "counted", [2, 3], [5]),  # ranks of one hour are one event
        ([(0.0, 0), (3.0, 0), (10.0, 1)], "rank", "counted", [3, 10], [7, 10]),  # none before hour 0, after the end
    ],
)
def test_gaps(deaths: list[tuple[float, int]], per: Any, first: Any, ended: list[float], cut: list[float]) -> None:
    """Times between failures of each of three ranks, or of any, in 10 hours.

    First gaps are whole, except in a window of a log, or a trace in equilibrium, which begins in the middle of them.
    """
    gaps = gaps_of(observe(trace_of(deaths, length_h=10, ranks=3)), per, first=first)
    assert (gaps.ended_E.tolist(), gaps.cut_C.tolist()) == (ended, cut)
    assert first == "left_out" or gaps.exposure_h == (30 if per == "rank" else 10)
    header = {} if first == "counted" else {"start": "equilibrium"} if per == "rank" else {"window_h": "100-110"}
    told = describe(trace_of(deaths, length_h=10, ranks=3, **header))
    assert told.rank is not None
    assert told.first == first
    assert (told.rank if per == "rank" else told.system).sample.ended_E.tolist() == ended
    assert told.rank.mtbf_h == 30 / len(deaths)


def test_what_the_header_does_not_say_is_read_from_the_entries() -> None:
    """Without length and ranks the trace ends with its last failure, and has the ranks up to the highest."""
    told = describe(trace_of([(2.0, 0), (5.0, 3)]))
    assert (told.observed.length_h, told.observed.num_ranks) == (5.0, 4)
    assert describe(trace_of([(2.0, 0)], job_h=56)).observed.length_h == 56


def test_mtbf_is_hours_by_failures() -> None:
    """Of a rank: ranks x length / deaths; of the system: length / instants; the exact interval of Poisson counts."""
    told = describe(trace_of([(1.0, 0), (1.0, 1), (30.0, 2), (70.0, 0)], length_h=100, ranks=4))
    assert told.rank is not None
    assert (told.rank.mtbf_h, told.system.mtbf_h) == (4 * 100 / 4, pytest.approx(100 / 3))
    ends = 200 / stats.chi2.ppf(0.975, 8), 200 / stats.chi2.ppf(0.025, 6)
    assert (told.system.poisson.low, told.system.poisson.high) == pytest.approx(ends)
    assert dict(told.group_sizes) == {1: 2, 2: 1}


@pytest.mark.parametrize("num", [0, 1, 5])
def test_few_failures_are_no_obstacle(num: int) -> None:
    """Deaths at one distance give what can be known, and None for the rest; none at all give a bound of the MTBF."""
    told = describe(trace_of([(10.0 * (1 + n), 0) for n in range(num)], length_h=100, ranks=2))
    assert told.observed.num_deaths == num
    assert {fit.family for fit in told.system.fits} == ({"exponential"} if num else set())
    if not num:
        assert (told.system.mtbf_h, told.system.poisson.high, told.num_R) == (math.inf, math.inf, None)
        assert told.system.poisson.low == pytest.approx(100 / -math.log(0.025))
        assert verdict(told.system.fits, told.system.sample).startswith("0 times between failures: too few")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"length_h": "soon"}, "length_h 'soon' in its header; expected a number above 0"),
        ({"length_h": "4"}, "a failure at hour 5, but its header gives a length of 4 h"),
        ({"ranks": "2"}, "ranks 2 in its header; expected a whole number from 4 to 1000000"),
        ({"ranks": "99999999"}, r"ranks 1e\+08 in its header; expected a whole number from 4 to 1000000"),
        ({"length_h": "1e300"}, r"length_h '1e300' in its header; expected a number above 0, at most 1e\+09"),
    ],
)
def test_a_header_that_contradicts_the_entries_is_refused(header: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=f"made.csv: {message}"):
        describe(trace_of([(2.0, 0), (5.0, 3)], **header))
    with pytest.raises(TraceError, match="no hours observed"):
        describe(trace_of([]))


def test_bursts_widen_the_interval_of_the_mtbf() -> None:
    """Of Poisson failures both intervals are alike; the scatter of bursts over windows doubles the second."""
    rng = np.random.default_rng(0)
    ratios: list[float] = []
    for gaps_N in (rng.exponential(10, 400), 10 * rng.weibull(0.4, 400)):
        level = describe(renewal_trace(gaps_N, 8, seed=1)).system
        assert level.dispersed is not None
        widths = (math.log(each.high / each.low) for each in (level.dispersed, level.poisson))
        ratios.append(next(widths) / next(widths))
    assert 0.9 < ratios[0] < 1.3
    assert ratios[1] > 1.5


def test_a_rank_that_fails_again_and_again_is_named() -> None:
    deaths = [(float(n), 5 if n % 2 else n % 40) for n in range(1, 80)]
    told = describe(trace_of(deaths, length_h=80, ranks=40, node="x"))
    assert any(line.startswith("Again and again: ps5 (x) 40×, ") for line in remarks(told))
    alike = describe(renewal_trace(np.ones(400), 40, seed=3))
    assert (told.p_alike or 1) < 1e-9
    assert (alike.p_alike or 0) > 0.01


def test_what_counts_is_the_loss_of_a_ps_rank_once_at_an_hour() -> None:
    """Failures of trainers are left out, and so are faults that lose no rank.

    The same line twice is one death with the first line's repair, as in a run. Repairs are told as far as known.
    """
    lines = ["# length_h: 9", "hour,rank,repair_h,fault", "3,ps1,4,", "3,trainer1,,", "3,ps1,5,", "3,ps0,,"]
    found = described(*lines, "4,ps1,6,hang", "6,ps0,,bitflip", "7,1,,disk_full", "9,trainer0,,")
    observed = found.observed
    assert observed.hour_E.tolist() == [3, 3, 4]
    assert (observed.num_deaths, observed.num_of_trainers, observed.num_repeated) == (3, 2, 1)
    assert (observed.length_h, found.group_sizes) == (9, {1: 1, 2: 1})
    assert (found.repair_K.tolist(), found.num_unknown_repairs) == ([4.0, 6.0], 3)
    told = [*remarks(found)]
    assert "Trainers: 2 lines name one; statistics are of PS ranks." in told
    assert "1 line names a rank that dies at that hour already" in told[0]
    assert "Repairs: 2 known, 3 unknown; 5.00 h on average, median 5.00, nine in ten within 5.80, longest 6.00." in told
    alone = observe(parse_trace(["hour,rank", "3,trainer1"], "mine.csv"))
    assert (alone.num_deaths, alone.num_of_trainers, alone.length_h) == (0, 1, 3)


def test_deaths_with_a_notice_are_counted() -> None:
    found = described("# length_h: 50", "hour,rank,notice_s", "10,4,120", "20,ps1,30", "40,3,", "40,1,0")
    assert "Notice: 5 of 9 deaths had one." in [*remarks(found)]


def test_counted_deaths_have_no_ranks() -> None:
    """Where a line says how many die but not which, all count, and figures of ranks are unknown."""
    found = described("# length_h: 50", "hour,rank", "10,4", "20,1", "40,3", "40,1")
    assert (found.rank, found.num_R, found.observed.num_ranks) == (None, None, None)
    assert (found.observed.num_deaths, found.observed.num_repeated) == (9, 0)
    assert dict(found.group_sizes) == {1: 1, 4: 2}
