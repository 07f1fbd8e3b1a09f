"""`run.py trace`: from a log to a trace, to a replayed run, in the words of the command line."""

import re
import shlex
from pathlib import Path

import pytest

import run as command_line
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

    What is read is not overwritten even so, nor under another name: a log cannot be made again.
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
    code, _, error = trace_command(capsys, *words, "--out", out)
    assert code == 2
    assert "which exists; --force" in error
    assert trace_command(capsys, *words, "--out", out, "--force")[0] == 0
    changes = [pair for pair in zip(first, out.read_text().splitlines(), strict=True) if pair[0] != pair[1]]
    assert changes == [(line, f"{line} --force") for line in first if line.startswith("# command")]
    other = tmp_path / "other.csv"
    other.symlink_to(log)
    for path in (log, other):
        for asked in (words, ("generate", f"model=fit:{log}")):
            code, _, error = trace_command(capsys, *asked, "--out", path, "--force")
            assert code == 2
            assert "expected another file than the input" in error
    assert log.read_bytes() == before


def test_only_files_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A device or a folder is refused also with --force; a link stays one, and its target holds the trace."""
    for out, what in (("/dev/null", "device"), (tmp_path, "folder")):
        code, _, error = trace_command(capsys, "generate", "mtbf_h=5", "--out", out, "--force")
        assert code == 2
        assert f"--out: expected a file, got the {what} {out}" in error
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    assert trace_command(capsys, "generate", "mtbf_h=5", "--out", link)[0] == 0
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
    clean = ("censored=owner|maintenance", "merge_h=1", "from=9.2333", "licence=ours")
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
    assert (trace.header["licence"], trace.header["records"]) == ("ours", "kept 3 of 6")


@pytest.mark.parametrize("words", ["one.yaml busy.csv", "one.yaml one.yml", "busy.csv busy.csv"])
def test_the_arguments_of_a_replay_in_another_order_are_one_line(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """A configuration where the trace should be, or a trace in place of the configuration."""
    assert command_line.main(["replay", *words.split()]) == 2
    expected = f"expected a trace (CSV) and then a configuration (YAML), got {' and then '.join(words.split())}"
    assert capsys.readouterr().err == f"error: {expected}\n"


def test_every_bad_word_has_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Three mistakes are told at once."""
    code, _, error = trace_command(capsys, "generate", "rank=3", "seed=x", "fresh", "--out", tmp_path / "out.csv")
    assert code == 2
    assert {line.removeprefix("error: ") for line in error.strip().splitlines()} == {
        "unknown key rank; did you mean ranks?",
        "seed: expected a whole number, got 'x'",
        "fresh: expected key=value",
    }


def test_help_explains_every_word_and_show_tells_of_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Help: what a word takes, its default, what it does. Show: numbers on the console, pictures in a folder."""
    code, said, _ = trace_command(capsys, "show", "failure_traces/preset-llama3.csv", "--figures", tmp_path / "new")
    assert code == 0
    assert "MTBF" in said
    assert list((tmp_path / "new").glob("*.svg"))
    for command, expected in (
        ("generate", "  per=  one of system, rank (default: system)\n        Whose gaps follow the law."),
        ("import", "  map=  one of by-node, round-robin, seeded\n        Node to rank;"),
    ):
        with pytest.raises(SystemExit):
            command_line.main(["trace", command, "--help"])
        assert expected in capsys.readouterr().out


EVERY_WORD = (
    "model=gamma shape=0.6 ranks=8 length_h=20 mtbf_h=3.3333333333333335 nodes=16 per=rank start=fresh "
    "group_probability=0.3 group_sizes=2:3,4:1 rack_size=4 early_factor=2.5 early_h=3 repair_median_h=1 "
    "repair_mean_h=2 stretch_h=60"
)
AS_OPTIONS = re.sub(r"(\S+)=(\S+)", lambda word: f"--{word[1].replace('_', '-')} {word[2]}", EVERY_WORD)


@pytest.mark.parametrize(
    "asked",
    [
        EVERY_WORD,
        AS_OPTIONS,
        "preset=spot_p3",
        "--preset llama3 --typical",
        *("model=fit:{trace}", "model=empirical:{trace} typical=true"),
    ],
)
def test_a_header_gives_its_file_again(capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: str) -> None:
    """Law: byte for byte by its command; by its parameters the same entries; another seed gives others.

    Whatever was asked for: by words or by the options of older headers, by name, or after another trace.
    """
    out, first, other = (tmp_path / name for name in ("out.csv", "first.csv", "other.csv"))
    words = asked.format(trace="failure_traces/preset-llama3.csv").split()
    assert trace_command(capsys, "generate", *words, "seed=3", "--out", out)[0] == 0
    out.rename(first)
    header = read_trace(first).header
    assert header["parameters"] == EVERY_WORD or asked not in (EVERY_WORD, AS_OPTIONS)
    assert command_line.main(shlex.split(header["command"])[1:]) == 0
    assert out.read_bytes() == first.read_bytes()
    typical = ("typical=true",) if "number" in header else ()
    for path, seed in ((out, "seed=3"), (other, "seed=4")):
        words = (*header["parameters"].split(), *typical, seed, "--out", path, "--force")
        assert trace_command(capsys, "generate", *words)[0] == 0
    assert rows(out) == rows(first) != rows(other)


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
    words = (f"model=fit:{trace}", f"per={per}", "--out", tmp_path / "out.csv")
    code, _, said = trace_command(capsys, "generate", *words)
    assert (code, said.splitlines()) == (0, [f"note: {trace}: {note}" for note in notes])


def rows(path: Path) -> list[str]:
    """The lines that are no header."""
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]
