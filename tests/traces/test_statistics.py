"""Statistics of traces whose properties are known."""

import math
import time
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.trace_show import remarks
from harness.core.errors import TraceError
from harness.traces.gaps import gaps_of, observe
from harness.traces.statistics import describe
from harness.traces.trace import parse_trace
from harness.traces.verdict import verdict
from tests.traces.made_traces import renewal_trace, trace_of

THREE = [(2.0, 0), (5.0, 0), (4.0, 1)]


@pytest.mark.parametrize(
    ("deaths", "per", "first", "ended", "cut", "num_zero"),
    [
        (THREE, "rank", "counted", [2, 3, 4], [5, 6, 10], 0),  # an idle rank is one gap, cut at the trace's end
        (THREE, "rank", "left_out", [3], [5, 6], 0),  # each watched from its first failure on, an idle one not at all
        (THREE, "system", "left_out", [2, 1], [5], 0),
        ([(2.0, 0), (2.0, 1), (5.0, 0)], "system", "counted", [2, 3], [5], 0),  # ranks of one hour are one event
        (
            [(0.0, 0), (3.0, 0), (10.0, 1)],
            "rank",
            "counted",
            [3, 10],
            [7, 10],
            1,
        ),  # no gap before hour 0, after the end
    ],
)
def test_gaps(  # noqa: PLR0917
    deaths: list[tuple[float, int]], per: Any, first: Any, ended: list[float], cut: list[float], num_zero: int
) -> None:
    """Times between failures of each of three ranks, or of any, in 10 hours."""
    gaps = gaps_of(observe(trace_of(deaths, length_h=10, ranks=3)), per, first=first)
    assert (gaps.ended_E.tolist(), gaps.cut_C.tolist(), gaps.num_zero) == (ended, cut, num_zero)
    assert first == "left_out" or gaps.exposure_h == (30 if per == "rank" else 10)


def test_what_the_header_does_not_say_is_read_from_the_entries() -> None:
    """Without length and ranks the trace ends with its last failure, and has the ranks up to the highest."""
    told = describe(trace_of([(2.0, 0), (5.0, 3)]))
    assert (told.observed.length_h, told.observed.num_ranks) == (5.0, 4)
    assert describe(trace_of([(2.0, 0)], job_h=56)).observed.length_h == 56


def test_mtbf_is_hours_by_failures() -> None:
    """Of a rank: ranks x length / deaths; of the system: length / instants; the exact interval of Poisson counts."""
    told = describe(trace_of([(1.0, 0), (1.0, 1), (30.0, 2), (70.0, 0)], length_h=100, ranks=4))
    assert told.rank is not None
    assert told.rank.mtbf_h == 4 * 100 / 4
    assert told.system.mtbf_h == pytest.approx(100 / 3)
    interval = told.system.poisson
    ends = 200 / stats.chi2.ppf(0.975, 8), 200 / stats.chi2.ppf(0.025, 6)
    assert (interval.low, interval.high) == pytest.approx(ends)
    assert dict(told.group_sizes) == {1: 2, 2: 1}


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_few_failures_are_no_obstacle(num: int) -> None:
    """Deaths at one distance give what can be known, and None for the rest; none at all give a bound of the MTBF."""
    told = describe(trace_of([(10.0 * (1 + n), 0) for n in range(num)], length_h=100, ranks=2))
    assert told.observed.num_deaths == num
    assert {fit.family for fit in told.system.fits} == ({"exponential"} if num else set())
    assert set(told.system.refused) == ({"gamma", "weibull", "lognormal"} if num else set())
    if not num:
        assert (told.system.mtbf_h, told.system.poisson.high, told.num_R) == (math.inf, math.inf, None)
        assert told.system.poisson.low == pytest.approx(100 / -math.log(0.025))
        assert verdict(told.system.fits).startswith("No family can be fitted")


def test_counted_deaths_have_no_ranks() -> None:
    """Where a line says how many die but not which, the system's figures stand and those of ranks are unknown."""
    told = describe(parse_trace(["# length_h: 50", "hour,rank", "10,4", "20,1", "40,4"], "counts.csv"))
    assert (told.rank, told.num_R, told.observed.num_ranks) == (None, None, None)
    assert told.observed.num_deaths == 9
    assert dict(told.group_sizes) == {1: 1, 4: 2}


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
    """One line says where and what would be right."""
    with pytest.raises(TraceError, match=f"made.csv: {message}"):
        describe(trace_of([(2.0, 0), (5.0, 3)], **header))
    with pytest.raises(TraceError, match="no hours observed"):
        describe(trace_of([]))


def test_bursts_widen_the_interval_of_the_mtbf() -> None:
    """Of Poisson failures both intervals are alike; the scatter of bursts over windows doubles the second."""
    rng = np.random.default_rng(0)
    poisson, bursts = (
        describe(renewal_trace(gaps_N, 8, seed=1)).system
        for gaps_N in (rng.exponential(10, 400), 10 * rng.weibull(0.4, 400))
    )
    ratios = [
        math.log(level.dispersed.high / level.dispersed.low) / math.log(level.poisson.high / level.poisson.low)
        for level in (poisson, bursts)
        if level.dispersed is not None
    ]
    assert 0.9 < ratios[0] < 1.3
    assert ratios[1] > 1.5


def test_repairs_are_told_as_far_as_they_are_known() -> None:
    """Those given, in a sentence with their mean, median and longest."""
    lines = ["# length_h: 100", "# ranks: 2", "hour,rank,repair_h,node", "10,ps0,4,a", "20,ps1,,b", "98,ps0,6,a"]
    told = describe(parse_trace(lines, "repairs.csv"))
    assert (told.repair_K.tolist(), told.num_unknown_repairs) == ([4.0, 6.0], 1)
    assert "Repairs: 2 known, 1 unknown; 5.00 h on average, median 5.00, nine in ten within 5.80, longest 6.00." in [
        *remarks(told)
    ]


def test_a_rank_that_fails_again_and_again_is_named() -> None:
    """The worst comes first, with its node; ranks that are alike give no small p."""
    deaths = [(float(n), 5 if n % 2 else n % 40) for n in range(1, 80)]
    told = describe(trace_of(deaths, length_h=80, ranks=40, node="x"))
    assert any(line.startswith("Again and again: ps5 (x) 40×, ") for line in remarks(told))
    assert told.p_alike is not None
    assert told.p_alike < 1e-9
    alike = describe(renewal_trace(np.ones(400), 40, seed=3)).p_alike
    assert alike is not None
    assert alike > 0.01


def test_a_large_trace_is_described_at_once() -> None:
    """24,000 events of 4,000 ranks: 1.2 s of this process's own time; a slow machine may take several times as long."""
    trace = renewal_trace(np.random.default_rng(0).weibull(0.7, 24_000), 4000, seed=1)
    before_s = time.process_time()
    told = describe(trace)
    assert time.process_time() - before_s < 10
    assert len(told.system.fits) == 4


def test_a_window_of_a_log_leaves_first_gaps_out() -> None:
    """A log's window begins in the middle of gaps; a trace that says so has its first gaps left out of fits."""
    deaths = [(2.0, 0), (5.0, 0), (4.0, 1)]
    of_log = describe(trace_of(deaths, length_h=10, ranks=3, window_h="100-110"))
    made = describe(trace_of(deaths, length_h=10, ranks=3))
    assert (of_log.first, made.first) == ("left_out", "counted")
    assert of_log.rank is not None
    assert made.rank is not None
    assert (of_log.rank.sample.num_events, made.rank.sample.num_events) == (1, 3)
    assert of_log.rank.mtbf_h == made.rank.mtbf_h


def test_failures_of_trainers_are_left_out() -> None:
    """Law: statistics are of PS ranks, and say how many lines they do not count; a trace of trainers alone has none."""
    trace = parse_trace(["# length_h: 9", "hour,rank", "3,ps1", "3,trainer1", "4,ps0", "9,trainer0"], "mine.csv")
    found = describe(trace)
    assert (found.observed.num_deaths, found.observed.num_of_trainers, found.observed.num_repeated) == (2, 2, 0)
    assert found.observed.length_h == 9
    assert "Trainers: 2 lines name one; statistics are of PS ranks." in [*remarks(found)]
    alone = observe(parse_trace(["hour,rank", "3,trainer1"], "mine.csv"))
    assert (alone.num_deaths, alone.num_of_trainers, alone.length_h) == (0, 1, 3)


def test_a_rank_dies_once_at_an_hour() -> None:
    """The same line twice is one death with the first line's repair, as in a run; counts without names all count."""
    trace = parse_trace(["hour,rank,repair_h", "3,ps1,1", "3,ps1,5", "3,ps0,", "4,ps1,"], "mine.csv")
    found = describe(trace)
    assert (found.observed.num_deaths, found.observed.num_repeated) == (3, 1)
    assert found.group_sizes == {1: 1, 2: 1}
    assert found.repair_K.tolist() == [1.0]
    assert "1 line names a rank that dies at that hour already" in " ".join(remarks(found))
    counted = observe(parse_trace(["hour,rank", "3,1", "3,1"], "mine.csv"))
    assert (counted.num_deaths, counted.num_repeated) == (2, 0)
