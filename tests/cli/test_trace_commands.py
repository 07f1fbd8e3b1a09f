"""`run.py trace`: from a log to a trace, to a replayed run, in the words of the command line."""

import re
import shlex
from pathlib import Path

import pytest

import run as command_line
from harness.config.experiment import load_config
from harness.traces.job_trace import job_trace
from harness.traces.trace import read_trace

LOG = """\
node,start,end
a1,2,3
a2,10,9
a10,12,20
a2,12,13
a1,30,31.5
a3,44,
a3,55,56
"""
UNITS = "format=intervals unit=h"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of four nodes over 56 hours, one record of which cannot be."""
    path = tmp_path / "jobs.csv"
    path.write_text(LOG)
    return path


def trace_command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `run.py trace`."""
    code = command_line.main(["trace", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_an_import_tells_what_it_kept_and_overwrites_nothing_unasked(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    """Records by rule on the console and in the header; with --force the same command gives the same trace.

    What is read is not overwritten under another name: a log cannot be made again.
    """
    out, words, before = tmp_path / "trace.csv", ("import", log, *UNITS.split()), log.read_bytes()
    code, said, _ = trace_command(capsys, *words, "--out", out)
    assert code == 0
    assert "kept 6 of 7 records" in said
    rates = r"(?sm)^in the log: 6 failures of .*, one every .*^wrote .* 6 deaths at 5 instants, .*, an instant every "
    assert re.search(rates, said)
    trace = read_trace(out)
    assert [entry.who for entry in trace.entries] == ["ps0", "ps1", "ps3", "ps0", "ps2", "ps2"]
    assert trace.header["records"] == "kept 6 of 7"
    assert trace.header["command"].startswith("run.py trace import")
    first = out.read_text().splitlines()
    assert trace_command(capsys, *words, "--out", out, "--force")[0] == 0
    changes = [pair for pair in zip(first, out.read_text().splitlines(), strict=True) if pair[0] != pair[1]]
    assert changes == [(line, f"{line} --force") for line in first if line.startswith("# command")]
    other = tmp_path / "other.csv"
    other.symlink_to(log)
    for asked in (words, ("generate", "trace.law.model=fit", f"trace.law.trace={log}")):
        assert trace_command(capsys, *asked, "--out", other, "--force")[0] == 2
    assert log.read_bytes() == before


def test_a_link_stays_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its target holds the trace."""
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    assert trace_command(capsys, "generate", "trace.law=llama3", "--out", link)[0] == 0
    assert link.is_symlink()
    assert read_trace(target).header["ranks"] == "8"


OPERATOR = """\
reason,down at,Hostname,back at
hardware error: Xid 79,2026-03-02 09:14,gpu-37,2026-03-02 15:40
owner stop,2026-03-03T18:00:00,gpu-12,2026-03-04T08:00:00
preempted,2026-03-04T02:11:30,gpu-05,
maintenance,2026-03-05T07:00,gpu-05,2026-03-05T11:30
hardware error: ECC,2026-03-06 01:02,gpu-37,2026-03-06 04:00
hardware error: ECC,2026-03-06 04:02,gpu-37,2026-03-06 05:00
"""


def test_a_log_of_an_operator_is_imported_with_what_it_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Dates, host names and reasons: what may be no failure is named, then left out, and so are repeated reports.

    The header says both, the console which columns were read. Hours that a window leaves out are not named.
    """
    log, out = tmp_path / "cluster.csv", tmp_path / "out.csv"
    log.write_text(OPERATOR)
    words = ("import", log, "format=intervals", "--out", out, "--force")
    code, said, notes = trace_command(capsys, *words)
    assert code == 0
    assert "kept 6 of 6 records" in said
    assert "columns: Hostname as node, down at as start, back at as end, reason" in said
    told = notes.splitlines()
    assert len(told) == 2
    assert "reasons that may be no failures: maintenance 1, owner stop 1; censored=REGEX" in told[0]
    assert "the first 9.23 h of 101 have no record" in told[1]
    clean = ("censored=owner|maintenance", "merge_h=1", "from=9.2333")
    code, said, notes = trace_command(capsys, *words, *clean)
    assert (code, notes) == (0, "")
    assert "2 that are no failures (censored): maintenance 1, owner stop 1" in said
    assert "1 reports within 1 h of the node's last one: one failure with it" in said
    trace = read_trace(out)
    assert [(entry.who, entry.extra["node"]) for entry in trace.entries] == [
        *(("ps2", "gpu-37"), ("ps0", "gpu-05"), ("ps2", "gpu-37")),
    ]
    assert [round(entry.repair_h or 0, 2) for entry in trace.entries] == [6.43, 0, 3.97]
    assert trace.header["censored"] == "maintenance 1, owner stop 1"
    assert trace.header["records"] == "kept 3 of 6"


def test_help_explains_every_word_and_show_tells_of_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Help: what a word takes, its default, what it does. Show: numbers on the console, pictures in a folder."""
    code, said, _ = trace_command(capsys, "show", "failure_traces/preset-llama3.csv", "--figures", tmp_path / "new")
    assert code == 0
    assert "MTBF" in said
    assert list((tmp_path / "new").glob("*.svg"))
    with pytest.raises(SystemExit):
        command_line.main(["trace", "import", "--help"])
    words = "  unit=  one of ms, s, m, h, d (default: s)\n        For `intervals`, `slurm`: unit of start and end"
    assert words in capsys.readouterr().out


EVERY_KEY = (
    "trace.law.model=gamma trace.law.shape=0.6 trace.law.mtbf_h=3.3333333333333335 trace.law.nodes=16 "
    "trace.law.per=rank trace.law.start=fresh trace.law.group_probability=0.3 trace.law.group_sizes=[[2,3],[4,1]] "
    "trace.law.rack_size=4 trace.law.early_factor=2.5 trace.law.early_h=3 trace.law.repair_median_h=1 "
    "trace.law.repair_mean_h=2 trace.law.length_h=20 cluster.num_ps=8 profile.job_h=60"
)
LEARNED_FROM = "trace.law.trace=failure_traces/preset-llama3.csv"


@pytest.mark.parametrize(
    "asked",
    [
        EVERY_KEY,
        "trace.law=spot_p3 profile=poster50",
        "trace.law=llama3 --typical",
        "trace.law=llama3 trace.clock=wall",
        "trace.law.mtbf_h=5 profile.ranks_per_failure=1.5",
        "trace.law.model=fixed trace.law.number=3 trace.law.within_h=9",
        "trace.law.model=at trace.law.hours=[7,14.5]",
        *(f"trace.law.model={model} {LEARNED_FROM}" for model in ("fit", "empirical --typical")),
    ],
)
def test_a_file_has_the_failures_of_a_run_and_the_command_that_makes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: str
) -> None:
    """Law: byte for byte by its command; by its parameters the same entries, as in a run; other seeds give others."""
    out, first, other = (tmp_path / name for name in ("out.csv", "first.csv", "other.csv"))
    words, typical = asked.replace(" --typical", "").split(), ["--typical"] * ("--typical" in asked)
    assert trace_command(capsys, "generate", *words, *typical, "trace.seed=3", "--out", out)[0] == 0
    out.rename(first)
    trace = read_trace(first)
    parameters = shlex.split(trace.header["parameters"])
    assert command_line.main(shlex.split(trace.header["command"])[1:]) == 0
    assert out.read_bytes() == first.read_bytes()
    for path, seed in ((out, "trace.seed=3"), (other, "trace.seed=4")):
        assert trace_command(capsys, "generate", *parameters, *typical, seed, "--out", path, "--force")[0] == 0
    assert rows(out) == rows(first) != rows(other)
    drawn = job_trace(load_config(None, [*words, "trace.seed=3"]), goes_on="trace.clock=wall" in words)
    assert drawn is not None
    met = [[(entry.hour, entry.who, entry.repair_h) for entry in each.entries] for each in (drawn, trace)]
    assert met[0] == met[1] or typical


@pytest.mark.parametrize(
    ("per", "last", "notes"),
    [
        ("system", "1", ["4 gaps between failures are few to learn a law from"]),
        (
            *("rank", ""),
            [
                "3 gaps between failures are few to learn a law from",
                "1 rank is not known to have come back from its last failure; the hours after it count as up",
            ],
        ),
    ],
)
def test_doubts_about_a_learned_law_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, per: str, last: str, notes: list[str]
) -> None:
    """Few gaps, with their number; ranks that may have died for good, whose time out of service is fitted."""
    trace = tmp_path / "log.csv"
    trace.write_text(f"# length_h: 99\nhour,rank,repair_h\n1,ps0,1\n5,ps1,\n9,ps0,\n20,ps0,3\n30,ps1,{last}\n")
    words = ("trace.law.model=fit", f"trace.law.trace={trace}", f"trace.law.per={per}", "--out", tmp_path / "out.csv")
    code, _, said = trace_command(capsys, "generate", *words)
    assert (code, said.splitlines()) == (0, [f"note: {trace}: {note}" for note in notes])


def rows(path: Path) -> list[str]:
    """The lines that are no header."""
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]
