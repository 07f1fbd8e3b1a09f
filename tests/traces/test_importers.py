"""Logs of clusters in their original form."""

import itertools
import json
import math
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import harness.traces.importers
from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.importers import FORMATS, doubts, findings, infinitehbd, lanl, read_log, slurm, spot
from harness.traces.importers.findings import LogFormat
from tests.traces import made_logs
from tests.traces.made_logs import LANL_NAMES, MADE, NUM_NODES, WRITERS, events, lanl_line, minutes, read

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"

# --- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not REAL.exists(), reason=f"no logs of real clusters at {REAL}")
@pytest.mark.parametrize(
    ("format", "name", "options", "num_read", "num_nodes", "gap_h", "rules"),
    [
        ("infinitehbd", "infinitehbd/fault_trace.json", {}, 584, 231, 14.2, {findings.ZERO: 14, findings.DOWN: 2}),
        (
            *("lanl", "lanl/LA-UR-05-7318-system20.csv", {"system": 20}, 2478, 512, 13.2),
            {findings.SAME: 4, lanl.DIFFERS: 5, findings.DOWN: 11},
        ),
        ("bamboo", "bamboo/p3-trace.csv", {}, 167, 32, 0.065, {}),
        ("bamboo", "bamboo/g4dn-trace.csv", {}, 74, 24, 0.14, {}),
    ],
)
def test_logs_of_real_clusters(  # noqa: PLR0917
    format: str, name: str, options: dict[str, Any], num_read: int, num_nodes: int, gap_h: float, rules: dict[str, int]
) -> None:
    """Records, nodes, hours between failures and the records of each rule, of the logs as they are published."""
    log = read_log(REAL / name, LogFormat(format=format, **options))
    assert (log.num_read, len(log.nodes)) == (num_read, num_nodes)
    assert log.num_kept == len(log.outages) == num_read - rules.get(findings.SAME, 0)
    assert {**log.dropped, **log.changed} == rules
    gaps = [after.start_h - before.start_h for before, after in itertools.pairwise(log.outages)]
    assert statistics.mean(gaps) == pytest.approx(gap_h, rel=0.05)
    assert sum(outage.end_h is None for outage in log.outages) < num_read
    assert log.began == ("2001-12-20T00:00:00" if format == "lanl" else None)
    assert log.licence != "not stated"


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"skypilot"}))
def test_what_is_written_is_read(tmp_path: Path, format: str) -> None:
    """A made log in the format's words gives the outages that it was made from, without a rule.

    Nodes that never failed are known where the format tells of them: 8 nodes, four of which failed. Hour 0 is the
    midnight before the first record, with its date, where the log has a calendar.
    """
    log = read(tmp_path, format, WRITERS[format](MADE))
    assert minutes(log) == sorted(MADE)
    assert not {**log.dropped, **log.changed}
    assert (log.num_read, log.num_kept, log.format, log.source) == (5, 5, format, f"made.{format}")
    assert log.licence == "not stated"
    assert log.checksum.startswith("sha256:")
    assert len(log.nodes) == (NUM_NODES if format in ("lanl", "bamboo") else 4)
    assert log.began == ("2004-10-01T00:00:00" if format in ("lanl", "slurm") else None)


@pytest.mark.parametrize("with_prices", [True, False])
def test_counts_are_read(tmp_path: Path, *, with_prices: bool) -> None:
    """Slots that are not down are as many as the file counts, at every tick; every fall by one is a failure."""
    log = read(tmp_path, "skypilot", made_logs.skypilot(MADE, tick=1, with_prices=with_prices))
    spans = [(outage.start_h * 60, (outage.end_h or math.inf) * 60) for outage in log.outages]
    here = [len(log.nodes) - sum(start < tick + 0.5 < end for start, end in spans) for tick in range(1600)]
    assert here == made_logs.counts(MADE, tick=1)
    assert (log.num_read, round(log.length_h * 60)) == (5, 1599)


@pytest.mark.parametrize(
    ("format", "text", "found"),
    [
        (
            *("skypilot", '{"metadata": {"gap_seconds": 3600}, "data": [3, 1, 2, 3, 2]}'),
            [(1, "slot0", 2), (1, "slot1", 3), (4, "slot2", None)],
        ),
        ("bamboo", "3600000,remove,a\n7200000,remove,b\n10800000,add,c", [(1, "slot0", 3), (2, "slot1", None)]),
    ],
)
def test_instances_take_slots(tmp_path: Path, format: str, text: str, found: list[tuple[float, str, Any]]) -> None:
    """A newcomer takes the slot that has been empty for the longest; without names, who came first goes first.

    Two instances that are removed without having been added are two slots, and not one that fails twice.
    """
    log = read(tmp_path, format, text)
    assert [(outage.start_h, outage.node, outage.end_h) for outage in log.outages] == found
    assert log.nodes == tuple(dict.fromkeys(slot for _, slot, _ in found))


@pytest.mark.parametrize(("unit", "per_minute"), [("ms", 60_000), ("s", 60), ("m", 1), ("h", 1 / 60), ("d", 1 / 1440)])
def test_intervals_in_any_unit(tmp_path: Path, unit: str, per_minute: float) -> None:
    """The unit is an option; times count from the log's beginning, or from 1970, and then there is a date."""
    since_1970 = (made_logs.BEGAN - datetime(1970, 1, 1)).total_seconds() / 60 * per_minute
    for base, began in ((0, None), (since_1970, "2004-10-01T00:00:00")):
        text = made_logs.intervals(MADE, per_minute=per_minute, base=base)
        log = read(tmp_path, "intervals", text, unit=unit)
        assert (minutes(log), log.began) == (sorted(MADE), began)


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_that_do_not_matter(tmp_path: Path, format: str) -> None:
    text = WRITERS[format](MADE).replace("\r\n", "\n")
    plain = read(tmp_path, format, text)
    for dressed in (f"\ufeff{text}", text.replace("\n", "\r\n"), text.replace("\n", "\r"), f"{text}\n\n"):
        log = read(tmp_path, format, dressed)
        assert (log.outages, log.nodes, log.num_read) == (plain.outages, plain.nodes, plain.num_read)
        assert (log.checksum == plain.checksum) == (dressed == text)


# --- rules ------------------------------------------------------------------------------------------------------------

HALF = lanl_line("1/1/2002 1:00", "1/1/2002 2:00", "60", node="1")  # a second, faultless record

Counts = tuple[dict[str, int], dict[str, int]]  # dropped, changed
EVENTS = "NodeName|TimeStart|TimeEnd|State|Reason"  # of Slurm
DAY = "2026-01-05T00:00:00|2026-01-06T00:00:00"

RULES = [
    ("intervals", "a,9,5\nb,6,7", 1, ({findings.NEGATIVE: 1}, {})),
    ("intervals", "b,6,7\na,5,5", 2, ({}, {findings.ZERO: 1})),
    ("intervals", "a,5,7\na,5,9\nb,5,6", 2, ({findings.SAME: 1}, {})),
    ("intervals", "a,5,20\na,7,9", 2, ({}, {findings.DOWN: 1})),
    ("bamboo", "0,add,a\n9,add,b\n5,remove,a", 1, ({}, {findings.ORDER: 1})),
    ("bamboo", "0,add,a\n5,remove,a\n6,remove,a", 1, ({spot.GONE: 1}, {})),
    ("bamboo", "0,add,a\n5,add,a\n6,remove,a", 1, ({}, {spot.THERE: 1})),
    ("infinitehbd", events((1, "end", "a"), (2, "start", "a")), 1, ({infinitehbd.NO_START: 1}, {})),
    ("infinitehbd", events((2, "start", "a"), (1, "start", "a")), 2, ({}, {findings.ORDER: 1})),
    ("lanl", f"{HALF}\n{lanl_line('1/2/2002 3:00', '1/2/2002 2:00', '-60')}", 1, ({lanl.NOT_POSITIVE: 1}, {})),
    ("lanl", f"{HALF}\n{lanl_line('1/2/2002 3:00', '1/2/2002 3:00', '0')}", 1, ({lanl.NOT_POSITIVE: 1}, {})),
    ("lanl", f"{HALF}\n{lanl_line('', '1/2/2002 3:00', '9')}", 1, ({lanl.NO_TIME: 1}, {})),
    ("lanl", f"{HALF}\n{lanl_line('1/2/2002 3:00', '', '9', node='')}", 1, ({lanl.NO_NODE: 1}, {})),
    ("lanl", f"{HALF}\n{lanl_line('1/2/2002 3:00', '1/2/2002 4:00', '120')}", 2, ({}, {lanl.DIFFERS: 1})),
    ("slurm", f"{EVENTS}\n|{DAY}||Cluster Registered TRES\na|{DAY}|DOWN|", 1, ({slurm.NO_NODE: 1}, {})),
    ("slurm", f"{EVENTS}\na|{DAY}|IDLE~|\nb|{DAY}|DOWN|", 1, ({slurm.UP: 1}, {})),
    ("slurm", f"{EVENTS}\na|{DAY}|MAINT|\nb|{DAY}|DOWN|", 1, ({slurm.PLANNED: 1}, {})),
]


@pytest.mark.parametrize(("format", "text", "num_kept", "counts"), RULES)
def test_every_rule_is_counted(tmp_path: Path, format: str, text: str, num_kept: int, counts: Counts) -> None:
    """A record that needs a rule is dropped or mended, and told of by the rule's sentence."""
    log = read(tmp_path, format, text)
    assert (log.num_kept, (log.dropped, log.changed)) == (num_kept, counts)
    assert log.num_read == num_kept + sum(log.dropped.values())


REASON = "Hardware Failure: GPU: GPU xid Error"


def test_overlaps_end_and_the_down_time_stays(tmp_path: Path) -> None:
    """Of outages of a node that overlap each is kept and none overlaps; it is down when any record says so."""
    rng = generator(5, "overlaps")
    starts_E, lengths_E = rng.permutation(900)[:60], rng.integers(1, 60, 60)
    spans = [(int(start), int(start + length)) for start, length in zip(starts_E, lengths_E, strict=True)]
    log = read(tmp_path, "intervals", "\n".join(f"a,{start},{end}" for start, end in spans))
    assert (log.num_kept, log.changed[findings.DOWN] > 20) == (60, True)
    kept = [(round(each.start_h * 3600), round((each.end_h or 0) * 3600)) for each in log.outages]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(kept))
    assert {second for span in spans for second in range(*span)} == {second for span in kept for second in range(*span)}


@pytest.mark.parametrize(
    ("format", "text", "censored", "left", "counts"),
    [
        (
            *("intervals", "node,start,end,reason\na,1,2,Owner stop\na,5,6,preempted\nb,7,8,Maintenance"),
            *("owner|maint", ["a"], {"Owner stop": 1, "Maintenance": 1}),
        ),
        (
            *("bamboo", "0,add,a\n0,add,b\n60000,remove,a,owner\n90000,remove,b,preempted\n95000,add,c"),
            *("owner", ["slot1"], {"owner": 1}),
        ),
        ("lanl", f"{HALF}\n{lanl_line('1/2/2002 1:00', '', '9').replace('CPU', 'Fan')}", "cpu", ["20-3"], {"CPU": 1}),
        ("infinitehbd", events((1, "start", "a"), (2, "end", "a"), (3, "start", "b")), "gpu xid", [], {REASON: 2}),
    ],
)
def test_ends_that_are_no_failures_are_counted_apart(  # noqa: PLR0917
    tmp_path: Path, format: str, text: str, censored: str, left: list[str], counts: dict[str, int]
) -> None:
    """An end whose reason says that it is no failure makes no outage, and its node stays known; no record is lost."""
    plain, log = read(tmp_path, format, text), read(tmp_path, format, text, censored=censored)
    assert log.nodes == plain.nodes
    assert log.num_read == plain.num_read
    assert log.num_kept + sum(log.censored.values()) == plain.num_kept
    assert [outage.node for outage in log.outages] == left
    assert log.censored == counts


def test_reports_of_a_broken_machine_are_one_failure(tmp_path: Path) -> None:
    """Law: seven machines that report every two hours are seven failures, each down until its last report's end."""
    lines = [f"m{m},{9 * m + 2 * k},{9 * m + 2 * k + 0.5}" for m in range(7) for k in range(6 if m < 4 else 5)]
    text = "\n".join(lines)
    plain = read(tmp_path, "intervals", text, unit="h")
    assert (plain.num_kept, len(plain.nodes)) == (39, 7)
    (said,) = doubts(plain)
    assert said == (
        "32 of 32 times between failures of one node are 2 h, as of a machine that reports again and again: merge_h=3 "
        "makes such reports one failure"
    )
    log = read(tmp_path, "intervals", text, unit="h", merge_h=3)
    assert [(each.node, each.start_h, each.end_h) for each in log.outages] == [
        (f"m{m}", 9 * m, 9 * m + (10.5 if m < 4 else 8.5)) for m in range(7)
    ]
    assert (log.num_read, *log.dropped.values()) == (39, 32)
    assert not [*doubts(log)]
    assert read(tmp_path, "intervals", text, unit="h", merge_h=1.4).num_kept == 39
    assert read(tmp_path, "intervals", text, unit="h", merge_h=1.5).num_kept == 7


@pytest.mark.parametrize(("text", "end_h"), [("a,1,2\na,2,5", 5), ("a,1,9\na,2,5", 9), ("a,1,2\na,2,", None)])
def test_an_outage_that_begins_where_another_ends_is_named(tmp_path: Path, text: str, end_h: float | None) -> None:
    """Down, then drained for its repair: two records, one failure with merge_h=0, its end that of the last record."""
    plain = read(tmp_path, "intervals", text, unit="h")
    assert plain.num_kept == 2
    assert any("merge_h=0" in line for line in doubts(plain)) == (not plain.changed)
    (outage,) = read(tmp_path, "intervals", text, unit="h", merge_h=0).outages
    assert (outage.start_h, outage.end_h) == (1, end_h)


MADE_EVENTS = """\
NodeName|Start|End|State|Reason|User
a1|2026-01-05T22:00:00|2026-01-06T08:11:03|DOWN*|Not responding|slurm(64030)
a1|2026-01-06T08:11:03|2026-01-06T10:00:00|DRAIN|scheduled swap of DIMM "B3"|root(0)
b1|2026-01-06T12:00:00|2026-01-06T18:00:00|MAINT|quarterly maintenance|root(0)
b2|2026-01-06T12:00:00|2026-01-06T15:00:00|DRAINED$|racks 3 and 4|root(0)
b2|2026-01-06T15:00:00|2026-01-06T18:00:00|DOWN*|Not responding|slurm(64030)
|2026-01-06T12:00:00|2026-01-06T18:00:00||Cluster Registered TRES|
b1|2026-01-07T00:00:00|2026-01-07T01:00:00|DRAIN|Kernel upgrade|root(0)
b1|2026-01-07T06:00:00|2026-01-07T07:00:00|DRNG@|Reboot ASAP|root(0)
a2|2026-01-08T00:00:00|Unknown|DRNG@|GPU 3 fell off the bus (Xid 79)|healthcheck(995)
a1|2026-01-08T06:00:00|2026-01-08T07:00:00|IDLE+DRAIN|unscheduled maintenance|root(0)
a1|2026-01-08T12:00:00|2026-01-08T13:00:00|INVAL||slurm(64030)
"""


def test_events_of_slurm(tmp_path: Path) -> None:
    """Law: a failure is an outage that did not begin as planned, by the state or by the reason of its first event.

    Down and then drained is one failure; a node that is switched off for maintenance has none. An end may be unknown.
    """
    log = read(tmp_path, "slurm", MADE_EVENTS)
    found = [(each.start_h, each.node, each.end_h) for each in log.outages]
    assert found == [(22, "a1", 34), (72, "a2", None), (78, "a1", 79), (84, "a1", 85)]
    assert log.dropped == {slurm.NO_NODE: 1, slurm.PLANNED: 5, slurm.SAME: 1}
    assert log.reasons == {"Not responding": 1, "GPU 3 fell off the bus (Xid 79)": 1, "unscheduled maintenance": 1}
    assert (log.began, log.nodes, log.num_read) == ("2026-01-05T00:00:00", ("a1", "a2", "b1", "b2"), 11)
    assert log.columns.startswith("columns: NodeName as node, Start as start, End as end, Reason as reason, State as s")
    commas = MADE_EVENTS.replace('"', "").replace("|", ",")
    assert read(tmp_path, "slurm", commas).outages == log.outages


@pytest.mark.skipif(not REAL.exists(), reason=f"no logs of real clusters at {REAL}")
def test_the_sample_of_slurm() -> None:
    """The same of the sample: four failures of two nodes, the maintenance of two others, a line of the cluster."""
    log = read_log(REAL / "slurm" / "events.txt", LogFormat(format="slurm"))
    assert [each.node for each in log.outages] == ["node017", "node021", "node021", "node017"]
    assert [each.repair_h and round(each.repair_h, 3) for each in log.outages] == [11.622, 0.207, None, 0.041]
    assert (log.num_read, log.dropped[slurm.PLANNED], log.dropped[slurm.NO_NODE]) == (8, 2, 1)


def test_an_empty_beginning_is_named(tmp_path: Path) -> None:
    """Hours before the first record count as hours without a failure: said if they are more than 5 % of the log."""
    text = "\n".join(f"m{k},{39_600 + k * k * 90}," for k in range(21))
    (said,) = doubts(read(tmp_path, "intervals", text))
    hours = "the first 11 h of 21 have no record and count as hours without a failure"
    assert said == f"{hours}: if nobody watched, from=11 leaves them out"
    assert not [*doubts(read(tmp_path, "intervals", f"a,99,\n{text}"))]


def test_reasons_that_may_be_no_failures_are_named(tmp_path: Path) -> None:
    """Owner, maintenance, cancel and such, with their numbers, until the reader says what they are."""
    text = "node,start,end,reason\na,0,2,stopped by owner\nb,2,3,ECC\nc,3,4,unplanned reboot\nd,4,5,Planned reboot"
    (said,) = doubts(read(tmp_path, "intervals", text, unit="h", merge_h=0))
    assert said == (
        "reasons that may be no failures: Planned reboot 1, stopped by owner 1; censored=REGEX leaves records with "
        "such a reason out"
    )
    assert not [*doubts(read(tmp_path, "intervals", text, unit="h", censored="owner|^planned"))]


def test_a_licence_is_that_of_the_file_and_not_of_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not stated, unless the file is a published one byte for byte."""
    log = read(tmp_path, "bamboo", "0,add,a\n9,remove,a")
    assert log.licence == "not stated"
    monkeypatch.setitem(harness.traces.importers.LICENCES, log.checksum.removeprefix("sha256:"), "MIT")
    assert read(tmp_path, "bamboo", "0,add,a\n9,remove,a").licence == "MIT"


OPERATOR = """\
reason;downAt;Cores;Host Name;Up
GPU Xid 79;2026-03-02 09:14;8;gpu-37;2026-03-02T15:40:30
preempted;2026-03-04T02:11:30.5;8;gpu-05;Unknown
"""


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_columns_are_found_by_name_and_dates_are_read(tmp_path: Path, delimiter: str) -> None:
    """Any order, other columns beside, ISO dates, ends that are not known; what was read is said."""
    log = read(tmp_path, "intervals", OPERATOR.replace(";", delimiter))
    assert (log.began, log.nodes) == ("2026-03-02T00:00:00", ("gpu-05", "gpu-37"))
    found = [(each.node, round(each.start_h * 3600, 1), each.repair_h) for each in log.outages]
    assert found == [("gpu-37", 33_240, pytest.approx(6 + 26.5 / 60)), ("gpu-05", 180_690.5, None)]
    assert log.reasons == {"GPU Xid 79": 1, "preempted": 1}
    assert log.columns == "columns: Host Name as node, downAt as start, Up as end, reason; not read: Cores"


def test_columns_of_other_names_are_mapped(tmp_path: Path) -> None:
    """``columns`` names them; what it leaves out is not read; a date with a zone counts in UTC."""
    text = "was,wann,node,bis\nx,2026-03-02T09:00+01:00,a,2026-03-02T10:00:00Z"
    log = read(tmp_path, "intervals", text, columns="node:node,start:wann,end:bis")
    (outage,) = log.outages
    assert (outage.start_h, outage.end_h, log.reasons) == (8, 10, {})
    with pytest.raises(TraceError, match=r"intervals:1: expected one column named node, got 'the columns was, w"):
        read(tmp_path, "intervals", text, columns="start:wann")


def test_an_end_belongs_to_the_fault_of_its_type(tmp_path: Path) -> None:
    """A long fault of one type stays open while another one of the same server comes and goes."""
    records = json.loads(events((1, "start", "a"), (3, "start", "a"), (4, "end", "a"), (9, "end", "a")))
    for record in records[1:3]:
        record["fault_type"] = "another"
    log = read(tmp_path, "infinitehbd", json.dumps(records))
    assert [(outage.start_h / 24, (outage.end_h or 0) / 24) for outage in log.outages] == [(1, 3), (3, 9)]


def test_one_system_of_many(tmp_path: Path) -> None:
    """With a system its records alone are read; without, nodes of all carry their system's number."""
    text = f"{HALF}\n{lanl_line('1/2/2002 3:00', '1/2/2002 4:00', '60', node='1', system=2)}"
    assert read(tmp_path, "lanl", text, system=20).num_read == 1
    every = read(tmp_path, "lanl", text)
    assert [outage.node for outage in every.outages] == ["20-1", "2-1"]
    assert len(every.nodes) == 2 * NUM_NODES


# --- what is no log ---------------------------------------------------------------------------------------------------


SKY = '{"metadata": {"gap_seconds": 60}, "data": '
YEARS = "expected times from 0 (or 1970) to the year 2100, got "
STATE = ":2: state: expected a node state of Slurm such as DOWN*, DRAIN or MAINT, got "

WRONG = [
    ("intervals", b" \r\n ", ": expected a log of failures, got an empty file"),
    ("intervals", "node,start,end\nk\xe9,1,2".encode("latin-1"), ":2: expected UTF-8, got the byte 0xe9"),
    ("intervals", "node,start,end", ": expected at least one outage, got column names only"),
    ("intervals", "a,1", ":1: expected 3 columns (node,start,end), or column names first, got 2"),
    ("intervals", "a,1,2\n1,a,2", ":2: start: expected a finite number, or a date like 2026-01-31T06:00, got 'a'"),
    ("intervals", "a,nan,2", ":1: start: expected a finite number, or a date like 2026-01-31T06:00, got 'nan'"),
    ("intervals", "a,1_0,2", ":1: start: expected a finite number, or a date like 2026-01-31T06:00, got '1_0'"),
    ("intervals", "a,1,1e300", f":1: {YEARS}1e+300 s; check their unit"),
    ("intervals", "a,-1,2", f":1: {YEARS}-1 s; check their unit"),
    ("intervals", "a,1,2\nb,1700000000,", ": expected all times since 1970 or all since the log's beginning, got 1 s"),
    ("intervals", '"a,b",1,2', ":1: node: expected a printable name of 1 to 128 characters without commas"),
    ("intervals", 'a,1,2\n"b,1,2', ":2: expected a line of CSV"),
    ("intervals", "host,from\na,1", ":1: expected one column named start, got 'the columns host, from'; columns=node:"),
    ("intervals", "host,node,start\na,1,2", ":1: expected one column named node, got 'host and node'; columns=node:"),
    ("intervals", "node,start\na,1,2", ":2: expected 2 columns as in the first line, got 3"),
    ("intervals", "node,start\na,", ":2: start: expected a finite number, or a date like 2026-01-31T06:00, got null"),
    ("intervals", "a,1/2/2026,9", ":1: start: expected a finite number, or a date like 2026-01-31T06:00, got '1/2/202"),
    (
        *("intervals", "node,start\na,2026-03-02\nb,2026-03-02T01:00Z"),
        ":3: expected a date as before, got a date with a zone; write all times in one way",
    ),
    ("intervals", "node,start\n,1", ":2: node: expected the name of a machine, got null"),
    ("slurm", "Node|Start\na|1", ":1: expected one column named state, got 'the columns Node, Start'; columns=node:N"),
    ("slurm", f"{EVENTS}\na|{DAY}|up 3 days|", f"{STATE}'up 3 days'"),
    ("slurm", f"{EVENTS}\na|{DAY}||", f"{STATE}''"),
    ("slurm", f"{EVENTS}\na|{DAY}|DOWN|fan | disk", ":2: expected 5 columns as in the first line, got 6"),
    ("slurm", f"{EVENTS}\na|Jan 5|Unknown|DOWN|", ":2: start: expected a finite number, or a date like 2026-01-31"),
    ("slurm", f"{EVENTS}\n|{DAY}||", ": expected at least one event of a node, got none"),
    ("bamboo", "add,0,a", ":1: expected 'milliseconds,add|remove,instance', got 'add,0,a'"),
    ("bamboo", ",", ": expected lines 'milliseconds,add|remove,instance', got empty ones only"),
    ("lanl", "a,b,c", ":1: expected 26 columns, got 3"),
    ("lanl", LANL_NAMES.replace("Down Time", "Up Time"), ":1: column 19: expected 'Down Time', got 'Up Time'"),
    ("lanl", LANL_NAMES, ": expected at least one failure, got none"),
    ("lanl", lanl_line("31/12/2001 1:00", "", "9"), ":1: Prob Started: expected a date and time like 6/21/2005 10:54"),
    ("lanl", lanl_line("1/1/9999 1:00", "", "9"), f":1: {YEARS}2533"),
    ("lanl", lanl_line("1/1/2002 1:00", "", "9", node="1e9"), ":1: nodenumz: expected a valid integer"),
    ("infinitehbd", '[{"node_id": "a"', ": expected JSON, got an error: EOF while parsing an object at line 1"),
    ("infinitehbd", "[" * 100_000, ": expected JSON, got an error: recursion limit exceeded"),
    ("infinitehbd", "[]", ": expected at least one event, got none"),
    ("infinitehbd", "{}", ": expected a list, got a mapping"),
    ("infinitehbd", '[{"node": 3}]', ": record 1: event_type: expected this key, got the keys 'node'"),
    ("infinitehbd", events((True, "start", "a")), ": record 1: event_time: expected a number, got true"),
    ("infinitehbd", events((1, "stop", "a")), ": record 1: event_type: expected 'fault_start' or 'fault_end', got "),
    ("skypilot", f"{SKY}[1]}}", ": expected at least 2 counts in the list 'data', got 1"),
    ("skypilot", f"{SKY}[0, 0]}}", ": data: expected a count of instances above 0"),
    ("skypilot", f"{SKY}[1, 1e9]}}", ": data.1: expected less than or equal to 10000, got 1000000000.0"),
]


@pytest.mark.parametrize(("format", "content", "message"), WRONG)
def test_what_is_no_log_is_one_line(tmp_path: Path, format: str, content: str | bytes, message: str) -> None:
    with pytest.raises(TraceError) as refused:
        read(tmp_path, format, content)
    assert str(refused.value).startswith(f"{tmp_path}/made.{format}{message}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("log", {"format": "lanl", "system": 2}, "FOLDER/log: system: expected one of '20', got 2"),
        ("log", {"format": "skypilot", "censored": "a"}, "format=skypilot: expected one of its options (none), got"),
        ("log", {"format": "lanl", "censored": "("}, "censored: expected a regular expression, got '(': missing"),
        (
            *("log", {"format": "lanl", "censored": "zz"}),
            "FOLDER/log: censored: expected a pattern found in a reason (CPU), got 'zz'",
        ),
        ("", {"format": "lanl"}, "FOLDER: expected a log of failures, got a folder or device"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, path: str, options: dict[str, Any], message: str) -> None:
    (tmp_path / "log").write_text(lanl_line("1/2/2002 3:00", "", "9"))
    with pytest.raises(TraceError) as refused:
        read_log(tmp_path / path, LogFormat(**options))
    assert str(refused.value).startswith(message.replace("FOLDER", str(tmp_path)))
