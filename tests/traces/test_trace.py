"""Reading failure traces and turning hours into boundaries."""

from pathlib import Path

import pytest

from failure_traces.generate import SEED, TRACES
from harness.core.errors import TraceError
from harness.core.faults import PlannedFault, Strike
from harness.traces.gaps import observe
from harness.traces.schedule import schedule as plan
from harness.traces.trace import Trace, parse_trace, read_trace

MAPPING = "trace.window=densest takes a part of the trace, trace.stretch=true scales it to the job"
FOLDER = Path(__file__).parents[2] / "failure_traces"


def read(text: str) -> Trace:
    """Parse a text as ``busy.csv``."""
    return parse_trace(text.splitlines(keepends=True), "busy.csv")


def lines_of(planned: PlannedFault) -> tuple[int, ...]:
    """The line by which each rank is struck."""
    return tuple(strike.line for strike in planned.strikes.values())


def schedule(trace: Trace, **changes: float) -> tuple[PlannedFault, ...]:
    """Schedule on a job of 100 h, 1000 samples, batches of 10, 4 ranks."""
    values = {"job_h": 100, "total_samples": 1000, "batch_size": 10, "num_steps": 100, "num_ps": 4, "seed": 0}
    return plan(trace, **{**values, **changes})  # pyright: ignore[reportArgumentType]  # ints, but for job_h


def test_entries_keep_hour_rank_line_header_and_further_columns() -> None:
    """What is in the file is in the trace; blank lines, CRLF, a byte-order mark and spaces are not."""
    text = '\ufeff# seed: 7\r\n# a remark\r\n\r\nhour,rank,note\r\n1.5, ps3 ,"early, alone"\r\n\r\n2e1,2,\r\n'
    trace = read(text)
    assert trace.header == {"seed": "7"}
    assert [(e.hour, e.who, e.line) for e in trace.entries] == [(1.5, "ps3", 5), (20.0, 2, 7)]
    assert [e.extra for e in trace.entries] == [{"note": "early, alone"}, {"note": ""}]


WHO = "rank: expected a name ('ps3', 'trainer1', 'host1') or a number of ranks >= 1, got "
FAULTS = "kill, hang, partition, slow, disk_full, disk_error, bitflip"
PHASES = "boundary, lookup, forward, apply, save, manifest, restore, regroup, eval"
HOURS = "expected hours from 0 to 1e+09, got"
SLOW = ",fault,factor,repair_h"
NO_COLUMNS = "expected column names that begin with 'hour,rank', got"
NOT_OF_A_HOST = "fault, phase: expected nothing for a host, got"


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ("", "1", "expected 2 values (hour,rank), got 1"),
        ("", "1,ps0,x", "expected 2 values (hour,rank), got 3"),
        ("", '1,"ps0', "expected a line of CSV, got text that the reader rejects (unexpected end of data)"),
        ("", "soon,ps0", "hour: expected a number, got 'soon'"),
        ("", ",ps0", "hour: expected a number, got ''"),
        *(("", f"{hour},ps0", f"hour: {HOURS} {hour}") for hour in ("-1", "nan", "inf", "1e999", "1e308")),
        (",repair_h", "1,ps0,1e10", f"repair_h: {HOURS} 1e10"),
        ("", "1,ps1000000", "rank: expected ps0 to ps999999, got ps1000000"),
        ("", "1,1000001", "rank: expected a number of ranks from 1 to 1000000, got 1000001"),
        ("", f"1,{'9' * 5000}", f"rank: expected a number of ranks from 1 to 1000000, got {'9' * 20}…"),
        ("", "1,trainer256", "rank: expected trainer0 to trainer255, got trainer256"),
        ("", "1,host256", "rank: expected host0 to host255, got host256"),
        (",fault", "1,trainer0,bitflip", "rank: expected a PS rank for the fault bitflip, got trainer0"),
        (",fault", "1,ps0,stop", f"fault: expected nothing or one of {FAULTS}, got 'stop'"),
        (",phase", "1,ps0,load", f"phase: expected nothing or one of {PHASES}, got 'load'"),
        (
            ",fault,phase",
            "1,ps0,disk_full,lookup",
            "phase: expected nothing or save for the fault disk_full, got lookup",
        ),
        (",fault,phase", "1,ps0,bitflip,save", "phase: expected nothing for the fault bitflip, got save"),
        (f"{SLOW},phase", "1,ps0,slow,2,1,save", "phase: expected nothing for the fault slow, got save"),
        (SLOW, "1,ps0,slow,1,2", "factor: expected a number above 1, up to 100, got 1"),
        (SLOW, "1,ps0,slow,fast,2", "factor: expected a number, got 'fast'"),
        (SLOW, "1,ps0,slow,,2", "factor: expected a number above 1 for the fault slow, got nothing"),
        (SLOW, "1,ps0,hang,2,2", "factor: expected nothing for the fault hang, got 2"),
        (SLOW, "1,ps0,partition,2,2", "factor: expected nothing for the fault partition, got 2"),
        (SLOW, "1,ps0,slow,2,", "repair_h: expected the hours for which the rank is slow, got nothing"),
        *(
            (f"{SLOW},phase", f"1,host1,{fault},1,{phase}", f"{NOT_OF_A_HOST} {got}; a host is lost between two steps")
            for fault, phase, got in (
                (",", "save", "kill, save"),
                ("hang,", "", "hang, boundary"),
                ("slow,2", "", "slow, boundary"),
                ("disk_full,", "", "disk_full, save"),
                ("bitflip,", "", "bitflip, boundary"),
            )
        ),
        *(
            ("", f"1,{who}", f"{WHO}'{who}'")
            for who in ("host", "host01", "host-1", "0", "-1", "1.5", "ps", "ps03", "PS1", "ps-1", "ps²", "all", "")
        ),
    ],
)
def test_what_is_wrong_in_a_line_is_said_with_file_and_line(columns: str, row: str, message: str) -> None:
    """The whole message, for every way in which a line can be wrong by itself."""
    with pytest.raises(TraceError) as caught:
        read(f"hour,rank{columns}\n{row}\n")
    assert str(caught.value) == f"busy.csv:2: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"1: {NO_COLUMNS} none"),
        ("# seed: 1\n\n", f"2: {NO_COLUMNS} none"),
        ("rank,hour\n", f"1: {NO_COLUMNS} 'rank,hour'"),
        ("1.5,ps0\n", f"1: {NO_COLUMNS} '1.5,ps0'"),
        ("hour,rank,a,a\n", "1: expected distinct column names, got 'hour,rank,a,a'"),
        ("hour,rank\n5,ps0\n\n3,ps1\n", "4: expected an hour >= 5.0, got 3.0; sort the lines by hour"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_file_and_line(text: str, message: str) -> None:
    """Of columns and the order of lines."""
    with pytest.raises(TraceError) as caught:
        read(text)
    assert str(caught.value) == f"busy.csv:{message}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,ps9", "busy.csv:2: expected a rank of this run (ps0 … ps3), got ps9; cluster.num_ps=10 or more has it"),
        ("1,5", "busy.csv:2: expected at most 4 ranks, since this run has ps0 … ps3, got 5"),
        ("100.5,ps0", f"busy.csv:2: expected an hour up to the end of the job (100 h), got 100.5; {MAPPING}"),
    ],
)
def test_what_does_not_fit_the_run_is_said_with_file_and_line(row: str, message: str) -> None:
    """The whole message, for every way in which a trace can be wrong for a run."""
    with pytest.raises(TraceError) as caught:
        schedule(read(f"hour,rank\n{row}\n"))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("hour", "step"),
    [("0", 0), ("0.001", 1), ("1", 1), ("1.0001", 2), ("50", 50), ("98.5", 99), ("99.5", 99), ("100", 99)],
)
def test_a_kill_strikes_at_the_first_boundary_that_holds_its_samples(hour: str, step: int) -> None:
    """Hour h is sample 10 h here, a boundary every 10; at the latest the boundary before the last step."""
    (planned_kill,) = schedule(read(f"hour,rank\n{hour},ps1\n"))
    assert planned_kill == PlannedFault(step=step, strikes={"ps1": Strike(float(hour), 2)})


def test_entries_of_several_phases_are_several_kills() -> None:
    """Each phase of a boundary is a planned kill of its own; the ranks of one phase are one."""
    trace = read("hour,rank,phase,repair_h\n1,ps1,,\n1,ps2,save,3\n1,ps0,boundary,2\n1,ps1,save,\n")
    kills = [(kill.phase, kill.ranks, lines_of(kill), kill.repair_h) for kill in schedule(trace)]
    assert kills == [("boundary", ("ps0", "ps1"), (4, 2), 2.0), ("save", ("ps1", "ps2"), (5, 3), 3.0)]


def test_a_phase_is_refused_on_the_wall_clock() -> None:
    """The line is named, with the key that allows it."""
    said = r"busy.csv:2: phase: expected none with trace.clock=wall, got eval; .* only trace.clock=samples allows"
    with pytest.raises(TraceError, match=said):
        schedule(read("hour,rank,phase\n1,ps1,eval\n"), clock="wall")  # pyright: ignore[reportArgumentType]


def test_a_slow_rank_is_no_failure() -> None:
    """Statistics of a trace count the ranks that are lost, and no others."""
    trace = read(
        "# length_h: 10\nhour,rank,fault,factor,repair_h\n1,ps0,slow,2,3\n2,ps1,hang,,\n2,ps0,bitflip,,\n"
        "2,1,disk_full,,\n3,ps0,,,1\n4,ps1,partition,,\n"
    )
    observed = observe(trace)
    assert (observed.hour_E.tolist(), observed.num_deaths, observed.num_repeated) == ([2.0, 3.0, 4.0], 3, 0)


def test_an_hour_right_on_a_boundary_is_not_pushed_past_it_by_rounding() -> None:
    """k tenths of a job of 0.7 h strike after k tenths of the steps, for every k: no float decides."""
    for tenth in range(1, 10):
        (planned_kill,) = schedule(read(f"hour,rank\n{7 * tenth / 100},ps1\n"), job_h=0.7)
        assert planned_kill.step == 10 * tenth


def test_entries_at_one_boundary_are_one_strike_with_the_union_of_ranks() -> None:
    """Ranks in order of their number; a rank named twice dies once, of its first line."""
    (first, second) = schedule(read("hour,rank\n1.1,ps3\n1.2,ps0\n1.3,ps3\n5,ps1\n"))
    assert first == PlannedFault(step=2, strikes={"ps0": Strike(1.2, 3), "ps3": Strike(1.1, 2)})
    assert second == PlannedFault(step=5, strikes={"ps1": Strike(5.0, 5)})
    (planned_kill,) = schedule(read("hour,rank\n1,ps10\n1,ps9\n"), num_ps=12)
    assert planned_kill.ranks == ("ps9", "ps10")


def test_drawn_ranks_depend_on_seed_and_line_alone() -> None:
    """Entries before or after change nothing; another seed or line does, somewhere in twenty draws."""
    alone = schedule(read("\nhour,rank\n\n9,2\n"))
    among = schedule(read("hour,rank\n1,3\n\n9,2\n10,4\n"))
    assert alone[0] == among[1]
    assert [len(planned_kill.ranks) for planned_kill in among] == [3, 2, 4]
    many = read("hour,rank\n" + "".join(f"{hour},2\n" for hour in range(1, 21)))
    assert len({planned_kill.ranks for planned_kill in schedule(many)}) > 1
    assert schedule(many, seed=0) == schedule(many, seed=0)
    assert schedule(many, seed=0) != schedule(many, seed=1)


def test_the_traces_are_what_their_script_writes() -> None:
    """Byte for byte; every CSV of the folder has its provenance in the script."""
    found = {path.name: path.read_bytes() for path in FOLDER.glob("*.csv")}
    assert found == {name: make(SEED).encode() for name, make in TRACES.items()}


def test_the_published_schedules_have_the_published_shape() -> None:
    """Two single failures in 56 h; five of four of 18 ranks in 50 h; none. The busy trace has at least 8 failures of
    one rank, one of two, all ranks, and one rank twice within a CPR interval (4.48 h).
    """
    names = {"two_in_56h": (56, 8), "ten_in_56h": (56, 4), "poster50": (50, 18), "empty": (56, 8), "busy": (56, 4)}
    kills = {
        name: schedule(
            read_trace(FOLDER / f"{name}.csv"), job_h=job_h, num_ps=num_ps, total_samples=10**4, num_steps=1000
        )
        for name, (job_h, num_ps) in names.items()
    }
    sizes = {name: [len(kill.ranks) for kill in some] for name, some in kills.items()}
    busy = sizes.pop("busy")
    assert sizes == {"two_in_56h": [1, 1], "ten_in_56h": [1] * 10, "poster50": [4] * 5, "empty": []}
    assert (busy.count(1) >= 8, busy.count(2)) == (True, 1)
    assert {rank for kill in kills["busy"] for rank in kill.ranks} == {f"ps{k}" for k in range(4)}
    deaths = [(rank, int(strike.hour // 4.48)) for kill in kills["busy"] for rank, strike in kill.strikes.items()]
    assert len(deaths) > len(set(deaths))
