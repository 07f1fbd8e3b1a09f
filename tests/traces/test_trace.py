"""Reading failure traces, and the faults that they plan at the boundaries of a run, of ranks and of hosts."""

from pathlib import Path
from typing import Any

import pytest

from failure_traces.generate import SEED, TRACES
from harness.config.model import Config
from harness.core.errors import TraceError
from harness.core.faults import PlannedFault, Strike, merge_faults
from harness.run.spec import RunSpec
from harness.traces.gaps import observe
from harness.traces.job_trace import job_trace
from harness.traces.schedule import schedule as plan
from harness.traces.trace import Trace, parse_trace, read_trace
from tests.runs import changed

FOLDER = Path(__file__).parents[2] / "failure_traces"


def read(text: str) -> Trace:
    return parse_trace(text.splitlines(keepends=True), "busy.csv")


def schedule(trace: Trace | str, **changes: Any) -> tuple[PlannedFault, ...]:
    """Schedule a trace, or lines of hour and rank, on a job of 100 h, 1000 samples, batches of 10, 4 ranks."""
    values = {"job_h": 100, "total_samples": 1000, "batch_size": 10, "num_steps": 100, "num_ps": 4, "seed": 0}
    trace = read(f"hour,rank\n{trace}") if isinstance(trace, str) else trace
    return plan(trace, **{**values, **changes})


def test_entries_keep_hour_rank_line_header_and_further_columns() -> None:
    """What is in the file is in the trace; blank lines, CRLF, a byte-order mark and spaces are not."""
    text = '\ufeff# seed: 7\r\n# a remark\r\n\r\nhour,rank,note\r\n1.5, ps3 ,"early, alone"\r\n\r\n2e1,2,\r\n'
    trace = read(text)
    assert trace.header == {"seed": "7"}
    assert [(e.hour, e.who, e.line) for e in trace.entries] == [(1.5, "ps3", 5), (20.0, 2, 7)]
    assert [e.extra for e in trace.entries] == [{"note": "early, alone"}, {"note": ""}]


WHO = "rank: expected a name ('ps3', 'trainer1', 'host1') or a number of ranks >= 1, got "
FAULTS = "kill, hang, disk_full, disk_error, bitflip"
PHASES = "boundary, lookup, forward, apply, save, manifest, restore, regroup, eval"
HOURS = "expected hours from 0 to 1e+09, got"
NO_COLUMNS = "expected column names that begin with 'hour,rank', got"
OF_A_HOST = "fault, phase: expected nothing for a host, got {}; a host is lost between two steps"
MAPPING = "trace.window=densest takes a part of the trace, trace.stretch=true scales it to the job"
NO_NOTICE = "notice_s: expected nothing for {}, got {}; only the loss of PS ranks between two steps has a notice"

WRONG_LINES = [
    ("", "1", "expected 2 values (hour,rank), got 1"),
    ("", "1,ps0,x", "expected 2 values (hour,rank), got 3"),
    ("", '1,"ps0', "expected a line of CSV, got text that the reader rejects (unexpected end of data)"),
    ("", "soon,ps0", "hour: expected a number, got 'soon'"),
    *(("", f"{hour},ps0", f"hour: {HOURS} {hour}") for hour in ("-1", "nan", "1e999")),
    (",repair_h", "1,ps0,1e10", f"repair_h: {HOURS} 1e10"),
    (",notice_s", "1,ps0,-1", "notice_s: expected seconds from 0 to 1e+09, got -1"),
    (",notice_s", "1,trainer0,30", NO_NOTICE.format("trainer0 with kill in phase boundary", 30)),
    (",notice_s,phase", "1,ps0,30,save", NO_NOTICE.format("ps0 with kill in phase save", 30)),
    (",notice_s,fault", "1,ps0,30,bitflip", NO_NOTICE.format("ps0 with bitflip in phase boundary", 30)),
    ("", "1,ps1000000", "rank: expected ps0 to ps999999, got ps1000000"),
    ("", "1,1000001", "rank: expected a number of ranks from 1 to 1000000, got 1000001"),
    ("", f"1,{'9' * 5000}", f"rank: expected a number of ranks from 1 to 1000000, got {'9' * 20}…"),
    ("", "1,trainer256", "rank: expected trainer0 to trainer255, got trainer256"),
    ("", "1,host256", "rank: expected host0 to host255, got host256"),
    (",fault", "1,trainer0,bitflip", "rank: expected a PS rank for the fault bitflip, got trainer0"),
    (",fault", "1,ps0,stop", f"fault: expected nothing or one of {FAULTS}, got 'stop'"),
    (",phase", "1,ps0,load", f"phase: expected nothing or one of {PHASES}, got 'load'"),
    (",fault,phase", "1,ps0,disk_full,lookup", "phase: expected nothing or save for the fault disk_full, got lookup"),
    (",phase", "1,host1,save", OF_A_HOST.format("kill, save")),
    (",fault", "1,host1,hang", OF_A_HOST.format("hang, boundary")),
    (",fault", "1,host1,disk_full", OF_A_HOST.format("disk_full, save")),
    *(("", f"1,{who}", f"{WHO}'{who}'") for who in ("host", "0", "1.5", "ps", "ps²", "")),
    *(("", f"1,{who}", f"{WHO}'{who}'; did you mean ps3?") for who in ("PS3", "ps03", "Ps-3", "ps 3", "ps_3")),
    ("", "1,Trainer1", f"{WHO}'Trainer1'; did you mean trainer1?"),
    ("", "1;ps0", "expected 2 values (hour,rank), got 1; write commas between values"),
    ("", "1,ps9", "expected a rank of this run (ps0 … ps3), got ps9; cluster.num_ps=10 or more has it"),
    ("", "1,5", "expected at most 4 ranks, since this run has ps0 … ps3, got 5"),
    ("", "100.5,ps0", f"expected an hour up to the end of the job (100 h), got 100.5; {MAPPING}"),
]
WRONG_FILES = [
    ("", f"1: {NO_COLUMNS} none"),
    ("# seed: 1\n\n", f"2: {NO_COLUMNS} none"),
    ("1.5,ps0\n", f"1: {NO_COLUMNS} '1.5,ps0'"),
    *(
        (f"{names}\n1,ps0\n", f"1: {NO_COLUMNS} {names!r}; write names in small letters, with commas between them")
        for names in ("hour;rank", "Hour,Rank", "hour\trank\tnote", "HOUR | rank", "hour rank")
    ),
    ("hour,rank,a,a\n", "1: expected distinct column names, got 'hour,rank,a,a'"),
    ("hour,rank\n5,ps0\n\n3,ps1\n", "4: expected an hour >= 5.0, got 3.0; sort the lines by hour"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [*((f"hour,rank{columns}\n{row}\n", f"2: {said}") for columns, row, said in WRONG_LINES), *WRONG_FILES],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, message: str) -> None:
    """The whole message, for every way in which a line, a file, or a trace for a run can be wrong."""
    with pytest.raises(TraceError) as caught:
        schedule(read(text))
    assert str(caught.value) == f"busy.csv:{message}"


def test_a_kill_strikes_at_the_first_boundary_that_holds_its_samples() -> None:
    """Hour h is sample 10 h here, a boundary every 10; at the latest the boundary before the last step.

    k tenths of a job of 0.7 h strike after k tenths of the steps, for every k: no float decides.
    """
    steps = {"0": 0, "0.001": 1, "1": 1, "1.0001": 2, "50": 50, "98.5": 99, "99.5": 99, "100": 99}
    for hour, step in steps.items():
        assert schedule(f"{hour},ps1") == (PlannedFault(step=step, strikes={"ps1": Strike(float(hour), 2)}),)
    for tenth in range(1, 10):
        assert schedule(f"{7 * tenth / 100},ps1", job_h=0.7)[0].step == 10 * tenth


def test_entries_at_one_boundary_are_one_failure_in_each_phase() -> None:
    """Ranks in order of their number; a rank named twice dies once, of its first line."""
    assert schedule("1.1,ps3\n1.2,ps0\n1.3,ps3\n5,ps1\n") == (
        PlannedFault(step=2, strikes={"ps0": Strike(1.2, 3), "ps3": Strike(1.1, 2)}),
        PlannedFault(step=5, strikes={"ps1": Strike(5.0, 5)}),
    )
    assert schedule("1,ps10\n1,ps9\n", num_ps=12)[0].ranks == ("ps9", "ps10")
    phased = read("hour,rank,phase,repair_h\n1,ps1,,\n1,ps2,save,3\n1,ps0,boundary,2\n1,ps1,save,\n")
    lines = [[strike.line for strike in kill.strikes.values()] for kill in schedule(phased)]
    assert [(kill.phase, kill.ranks, kill.repair_h) for kill in schedule(phased)] == [
        ("boundary", ("ps0", "ps1"), 2.0),
        ("save", ("ps1", "ps2"), 3.0),
    ]
    assert lines == [[4, 2], [5, 3]]
    with pytest.raises(TraceError, match=r"busy.csv:3: phase: expected none with trace.clock=wall, got save; .* only"):
        schedule(phased, clock="wall")


def test_drawn_ranks_depend_on_seed_and_line_alone() -> None:
    """Entries before or after change nothing; another seed or line does, somewhere in twenty draws."""
    alone = schedule(read("\nhour,rank\n\n9,2\n"))
    among = schedule(read("hour,rank\n1,3\n\n9,2\n10,4\n"))
    assert alone[0] == among[1]
    assert [len(kill.ranks) for kill in among] == [3, 2, 4]
    many = read("hour,rank\n" + "".join(f"{hour},2\n" for hour in range(1, 21)))
    assert len({kill.ranks for kill in schedule(many)}) > 1
    assert schedule(many, seed=0) == schedule(many, seed=0) != schedule(many, seed=1)


def test_the_traces_are_what_their_script_writes() -> None:
    """Byte for byte; every CSV of the folder has its provenance in the script. The busy one has all sorts of kills."""
    found = {path.name: path.read_bytes() for path in FOLDER.glob("*.csv")}
    assert found == {name: make(SEED).encode() for name, make in TRACES.items()}
    busy = schedule(read_trace(FOLDER / "busy.csv"), job_h=56)
    assert sorted(len(kill.ranks) for kill in busy) == [1] * 9 + [2]
    deaths = [(rank, int(strike.hour // 4.48)) for kill in busy for rank, strike in kill.strikes.items()]
    assert len({rank for rank, _ in deaths}) == 4
    assert len(deaths) > len(set(deaths)), "one rank dies twice within a CPR interval (4.48 h)"


# --- hosts ------------------------------------------------------------------------------------------------------------

HOSTS = {"cluster__num_ps": 6, "cluster__hosts": ("a", "b", "c")}


def under(config: Config, folder: Path, lines: str, **dotted: Any) -> Config:
    path = folder / "trace.csv"
    path.write_text(f"hour,rank,repair_h\n{lines}\n")
    return changed(config, trace__path=str(path), **(HOSTS | dotted))


def test_a_host_is_the_ranks_on_it_at_its_hour(config: Config, tmp_path: Path) -> None:
    """By turn or by ``cluster.place``; once a host is lost its ranks are elsewhere, and may be lost again.

    Ranks, numbers of ranks and hosts at one boundary are one failure, in which each rank dies once, with its host if
    that is lost. On the wall clock entries of two hours may meet at one boundary.
    """
    keys: dict[str, Any] = {"cluster__place": {"trainer0": "c"}, "trace__repair": "reschedule"}
    first, second = RunSpec(under(config, tmp_path, "5,host1,2\n20,host0,", **keys)).planned_faults
    assert first.strikes == dict.fromkeys(("ps1", "ps4"), Strike(5.0, 2, host=1, repair_h=2.0))
    assert first.hosts == (1,)
    assert (first.repair_h, second.ranks, second.hosts) == (2.0, ("ps0", "ps1", "ps3", "ps4"), (0,))
    (kill,) = RunSpec(under(config, tmp_path, "5,ps1,\n5,ps2,\n5,host1,3")).planned_faults
    assert kill.strikes == {
        **dict.fromkeys(("ps1", "ps4"), Strike(5.0, 4, host=1, repair_h=3.0)),
        "ps2": Strike(5.0, 3),
    }
    kills = RunSpec(under(config, tmp_path, "5,host1,\n6,host2,\n6,ps0,", trace__clock="wall")).planned_faults
    assert [kill.ranks for kill in kills] == [("ps1", "ps4"), ("ps0", "ps1", "ps2", "ps5")]
    together = merge_faults(9, [*kills])
    found = {rank: (strike.line, strike.host) for rank, strike in together.strikes.items()}
    assert found == {"ps0": (4, None), "ps1": (2, 1), "ps2": (3, 2), "ps4": (2, 1), "ps5": (3, 2)}
    assert together.hosts == (1, 2)


@pytest.mark.parametrize(
    ("lines", "keys", "words"),
    [
        ("5,host1,", {"cluster__hosts": ()}, "host1 is an index into cluster.hosts, which names none; set"),
        ("5,host3,", {}, "expected a host of cluster.hosts (host0 … host2), got host3"),
        ("4,ps1,\n5,host1,\n6,host1,", {}, "host1 was lost at line 3 already, and does not come back"),
        ("5,host2,", {"cluster__num_ps": 1}, "host2 (c) has no rank at that hour; name a host that has one"),
        ("5,host1,", {"cluster__spares": 1}, "host1: expected cluster.spares=0, got 1; on which host"),
    ],
)
def test_a_host_that_cannot_be_lost_is_one_line(
    config: Config, tmp_path: Path, lines: str, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(TraceError) as caught:
        RunSpec(under(config, tmp_path, lines, **keys)).validate()
    line = 1 + len(lines.splitlines())
    assert str(caught.value).startswith(f"{tmp_path}/trace.csv:{line}: rank: {words}")
    assert "\n" not in str(caught.value)


def test_results_depend_on_the_placement_only_where_a_trace_names_a_host(config: Config, tmp_path: Path) -> None:
    named, other = under(config, tmp_path, "5,host1,"), {"cluster__hosts": ("x", "y", "z", "w")}
    renamed, moved = (changed(named, **keys) for keys in ({"cluster__hosts": ("x", "y", "z")}, other))
    assert RunSpec(named).result_hash == RunSpec(renamed).result_hash != RunSpec(moved).result_hash
    assert RunSpec(config).result_hash == RunSpec(changed(config, **other)).result_hash


def test_statistics_count_the_ranks_of_a_host(config: Config, tmp_path: Path) -> None:
    """Where the run is known; without it one line says what is missing. Windows and scales move hosts too."""
    lines = "5,host1,\n20,ps0,\n30,host2,"
    for is_stretched in (False, True):
        trace = job_trace(under(config, tmp_path, lines, trace__stretch=is_stretched))
        assert trace is not None
        assert observe(trace).num_deaths == 6
    with pytest.raises(TraceError, match=r"^x:2: rank: expected names or numbers of ranks, got host1; how many ranks"):
        observe(parse_trace(f"hour,rank,repair_h\n{lines}".splitlines(), "x"))
