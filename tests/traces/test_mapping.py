"""From a cluster's log to a job's trace."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from harness.core.errors import TraceError
from harness.traces.importers.findings import FailureLog, Outage
from harness.traces.mapping import MapSpec, map_log, natural
from harness.traces.trace import Trace, parse_trace, to_text


def make_log(*outages: tuple[float, str, float | None], length_h: float = 100.0, num_nodes: int = 12) -> FailureLog:
    ordered = sorted(Outage(start_h=start, node=node, end_h=end) for start, node, end in outages)
    return FailureLog(
        format="made",
        source="made.csv",
        licence="none",
        checksum="0",
        outages=tuple(ordered),
        nodes=tuple(f"n{k}" for k in range(1, num_nodes + 1)),
        length_h=length_h,
        began="2026-01-01T00:00:00",
        dropped={"records with down time <= 0 dropped": 2},
    )


@pytest.fixture
def log() -> FailureLog:
    """Five failures, two of them at one instant."""
    return make_log((10, "n2", 12), (10, "n11", None), (40, "n2", 41), (60, "n10", 60), (90, "n1", 95))


def lines(trace: Trace) -> list[tuple[float, str | int, float | None]]:
    return [(entry.hour, entry.who, entry.repair_h) for entry in trace.entries]


def read_back(trace: Trace) -> Trace:
    return parse_trace(to_text(trace, command="run.py trace import").splitlines(), "trace.csv")


def test_without_options_every_node_is_a_rank(log: FailureLog) -> None:
    """In natural order of names; every failure is kept, at its hour, with its repair."""
    every = [(10, "ps1", 2), (10, "ps10", None), (40, "ps1", 1), (60, "ps9", 0), (90, "ps0", 5)]
    assert lines(map_log(log, MapSpec())) == every
    assert sorted(["n10", "n2", "m3", "7", "n"], key=natural) == ["7", "m3", "n", "n2", "n10"]


def test_a_log_of_spot_instances_gets_their_notice(log: FailureLog) -> None:
    """Logs do not say it: the option is for each failure, in a column that reads back, and is not stretched."""
    trace = map_log(log, MapSpec(notice_s=120, stretch_h=25))
    assert [entry.notice_s for entry in read_back(trace).entries] == [120] * 5
    assert "notice_s" not in to_text(map_log(log, MapSpec()))


def test_a_window_begins_at_hour_zero_and_stretches(log: FailureLog) -> None:
    """Hours count from the window's beginning; hours and repairs are scaled alike. Dates are hours since the log began.

    The last failure of a window may fall on its last hour, and not behind it.
    """
    trace = map_log(log, MapSpec(from_=30, to=80, stretch_h=25))
    assert lines(trace) == [(5, "ps1", 0.5), (15, "ps9", 0)]
    assert (trace.header["length_h"], trace.header["began"]) == ("25", "2026-01-02T06:00:00")
    dates = MapSpec(from_=datetime(2026, 1, 2, 6), to=datetime(2026, 1, 4, 8), stretch_h=25)
    assert lines(map_log(log, dates)) == lines(trace)
    with pytest.raises(TraceError, match="has no calendar"):
        map_log(replace(log, began=None), dates)
    at_the_end = read_back(map_log(make_log((99.99999, "n1", None)), MapSpec(stretch_h=56)))
    assert [entry.hour for entry in at_the_end.entries] == [56]


@pytest.mark.parametrize(("kind", "expected"), [("densest", 2), ("quietest", 0), ("median", 1)])
def test_a_window_is_found_by_its_failures(log: FailureLog, kind: Any, expected: int) -> None:
    trace = map_log(log, MapSpec(window=kind, length_h=16))
    assert (len(trace.entries), trace.header["length_h"]) == (expected, "16")


def test_failures_at_one_instant_stay_together(log: FailureLog) -> None:
    """Whatever the mapping; a rank that would die twice at one instant dies once, with the longer repair."""
    apart = map_log(log, MapSpec(ranks=2))
    assert [line[:2] for line in lines(apart)[:2]] == [(10, "ps0"), (10, "ps1")]
    together = map_log(make_log((10, "n1", 12), (10, "n3", 19)), MapSpec(ranks=2))
    assert lines(together) == [(10, "ps0", 9)]
    assert "1 failures of a node whose rank dies at that instant already" in together.header.values()


def test_keep_rate_keeps_the_rate_of_a_node() -> None:
    """4,000 failures of 400 nodes, thinned to 8 ranks: about 80, ten for each rank as for each node."""
    rng = np.random.default_rng(0)
    drawn = zip(rng.uniform(0, 999, 4000), rng.integers(1, 401, 4000), strict=True)
    log = make_log(*((float(hour), f"n{node}", None) for hour, node in drawn), length_h=1000, num_nodes=400)
    counts = [len(map_log(log, MapSpec(keep_rate=8, seed=s)).entries) for s in range(20)]
    assert abs(np.mean(counts) - 80) < 3 * np.sqrt(80 / 20)
    told = map_log(log, MapSpec(keep_rate=8, num_nodes=800))
    assert len(told.entries) < 60, "nodes that never failed count, too"


def test_nodes_are_hosts_that_are_lost_once(log: FailureLog) -> None:
    """At the first failure of a node of theirs; what comes later is counted. What is written reads back as it was."""
    of_ranks, of_hosts = map_log(log, MapSpec(ranks=3)), map_log(log, MapSpec(hosts=3))
    first = {entry.who: entry.hour for entry in reversed(of_ranks.entries)}
    assert {f"ps{entry.host}": entry.hour for entry in of_hosts.entries} == first
    num_later = len(of_ranks.entries) - len(of_hosts.entries)
    assert num_later > 0
    assert f"{num_later} failures of a host that was lost before left out" in of_hosts.header.values()
    for trace in (of_ranks, of_hosts):
        again = read_back(trace)
        for name in ("hour", "who", "host", "repair_h", "extra"):
            assert [getattr(e, name) for e in again.entries] == [getattr(e, name) for e in trace.entries], name
        assert again.header == {**trace.header, "command": "run.py trace import"}
        assert again.header["rule 1"] == "2 records with down time <= 0 dropped"
    assert (of_hosts.header["hosts"], of_hosts.header.get("ranks")) == ("3", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"from_": 50.0, "to": 20.0}, "from, to: expected ascending hours from 0 to 100 (made.csv), got 50 to 20"),
        ({"to": "0.001"}, "length_h: expected a trace of 0.01 to 1e+09 hours, got 0.001; stretch_h scales it"),
        ({"nodes": "m.*"}, "nodes: expected a pattern that matches a node of made.csv"),
        ({"nodes": "("}, "nodes: expected a regular expression, got '('"),
        ({"keep_rate": 20}, "keep_rate: expected at least 1 node per rank, got 0.6; lower it"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(log: FailureLog, words: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        map_log(log, MapSpec(**words))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
