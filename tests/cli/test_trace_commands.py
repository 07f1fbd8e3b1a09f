"""`run.py trace`: from a log to a trace, to a replayed run, in the words of the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

import run as command_line
from harness.config.model import Config
from harness.traces.trace import read_trace
from tests.injected import is_loss
from tests.runs import changed, run

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
UNITS = ("--format", "intervals", "--unit", "h")


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


def test_an_import_tells_what_it_kept(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    """Records by rule on the console and in the header; the file reads back."""
    out = tmp_path / "trace.csv"
    code, said, _ = trace_command(capsys, "import", log, "--format", "intervals", "--unit", "h", "--out", out)
    assert code == 0
    assert "kept 6 of 7 records" in said
    trace = read_trace(out)
    assert [entry.who for entry in trace.entries] == ["ps0", "ps1", "ps3", "ps0", "ps2", "ps2"]
    assert trace.header["records"] == "kept 6 of 7"
    assert trace.header["command"].startswith("run.py trace import")


def test_strict_refuses_what_a_rule_would_mend(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    """One line names the record; nothing is written."""
    out = tmp_path / "trace.csv"
    words = ("import", log, "--format", "intervals", "--unit", "h", "--strict", "--out", out)
    code, _, error = trace_command(capsys, *words)
    assert code == 2
    assert "jobs.csv" in error
    assert len(error.strip().splitlines()) == 1
    assert not out.exists()


def test_a_trace_is_not_overwritten(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    """Unless --force says so; then the same command gives the same trace."""
    out = tmp_path / "trace.csv"
    words = ("import", log, "--format", "intervals", "--unit", "h", "--out", out)
    assert trace_command(capsys, *words)[0] == 0
    first = out.read_text().splitlines()
    code, _, error = trace_command(capsys, *words)
    assert code == 2
    assert "which exists; --force" in error
    assert trace_command(capsys, *words, "--force")[0] == 0
    changes = [pair for pair in zip(first, out.read_text().splitlines(), strict=True) if pair[0] != pair[1]]
    assert changes == [(line, f"{line} --force") for line in first if line.startswith("# command")]


def test_only_files_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A device or a folder is refused also with --force; a link stays one, and its target holds the trace."""
    for out, what in (("/dev/null", "device"), (tmp_path, "folder")):
        code, _, error = trace_command(capsys, "generate", "--mtbf-h", "5", "--out", out, "--force")
        assert code == 2
        assert f"--out: expected a file, got the {what} {out}" in error
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    assert trace_command(capsys, "generate", "--mtbf-h", "5", "--out", link)[0] == 0
    assert link.is_symlink()
    assert read_trace(target).header["ranks"] == "8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", "nowhere.csv", "--format", "lanl"], "nowhere.csv"),
        (["import", "LOG", "--format", "csv"], "--format: expected one of infinitehbd, lanl"),
        (
            ["import", "LOG", "--format", "lanl", "--unit", "h"],
            "format lanl: expected one of its options (system), got 'unit'",
        ),
        (["import", "LOG", "--format", "intervals", "--unit", "h", "--window", "densest"], "expected --length HOURS"),
        (["import", "LOG", *UNITS, "--window", "densest", "--length", "1e-9"], "the length of jobs.csv, got 1e-09"),
        (["import", "LOG", *UNITS, "--stretch", "1e-300"], "expected a trace of 0.01 to 1e+09 hours, got 1e-300"),
        (["import", "LOG", *UNITS, "--stretch", "1e300"], "expected a trace of 0.01 to 1e+09 hours, got 1e+300"),
        (
            ["import", "LOG", *UNITS, "--ranks", "99999999"],
            "--ranks, --keep-rate, --num-nodes: expected at most 1000000, got 99999999",
        ),
        (
            ["import", "LOG", *UNITS, "--num-nodes", "1"],
            "--num-nodes: expected at least the 4 that the log names, got 1",
        ),
        (
            ["import", "LOG", *UNITS, "--keep-rate", "2", "--ranks", "1"],
            "--keep-rate, --ranks: expected one number of ranks, got 2 and 1",
        ),
        (
            ["import", "LOG", *UNITS, "--hosts", "2", "--ranks", "1"],
            "--hosts: expected neither --ranks nor --keep-rate: ",
        ),
        (["generate"], "--mtbf-h, --node-mtbf-h: expected exactly one"),
        (
            ["generate", "--preset", "llama3", "--ranks", "9"],
            "--preset: expected no option that the preset sets, got --ranks",
        ),
        (["generate", "--preset", "llama"], "--preset: expected one of"),
        (["generate", "--mtbf-h", "5", "--model", "pareto"], "--model: 'pareto' is none of"),
        (["generate", "--model", "like:x.csv"], "expected fit:TRACE.csv or empirical:TRACE.csv"),
        (["generate", "--model", "fit:"], "expected fit:TRACE.csv or empirical:TRACE.csv"),
        (["generate", "--model", "fit:missing.csv"], "missing.csv"),
        (
            ["generate", "--mtbf-h", "5", "--group-sizes", "two"],
            "--group-sizes: expected SIZE:WEIGHT,… such as 2:3,4:1, got 'two'",
        ),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    """What, where, what would be right; exit code 2, nothing written."""
    out = tmp_path / "out.csv"
    code, _, error = trace_command(capsys, *(log if word == "LOG" else word for word in words), "--out", out)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not out.exists()


def test_what_is_read_is_never_overwritten(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    """Not even by force, nor under another name: a log cannot be made again."""
    before = log.read_bytes()
    other = tmp_path / "other.csv"
    other.symlink_to(log)
    for out in (log, other):
        for words in (("import", log, *UNITS), ("generate", "--model", f"fit:{log}")):
            code, _, error = trace_command(capsys, *words, "--out", out, "--force")
            assert code == 2
            assert "expected another file than the input" in error
    assert log.read_bytes() == before


def test_a_generated_trace_can_be_made_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Options and seed make the same bytes; another seed others; and a model may be learned from a trace."""
    options = ("--model", "weibull", "--shape", "0.7", "--mtbf-h", "4", "--ranks", "6", "--group-probability", "0.3")
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv", "d.csv")]
    for path, seed in zip(paths[:3], ("1", "1", "2"), strict=True):
        words = ("generate", *options, "--group-sizes", "2:3,4:1", "--seed", seed, "--out", path)
        assert trace_command(capsys, *words)[0] == 0
    entries = [[(entry.hour, entry.who) for entry in read_trace(path).entries] for path in paths[:3]]
    assert entries[0] == entries[1] != entries[2]
    assert trace_command(capsys, "generate", "--model", f"fit:{paths[0]}", "--out", paths[3])[0] == 0
    assert read_trace(paths[3]).header["ranks"] == "6"


EVERY_OPTION = (
    "--model gamma --shape 0.6 --ranks 8 --length-h 20 --mtbf-h 3.3333333333333335 --nodes 16 --per rank --start fresh "
    "--group-probability 0.3 --group-sizes 2:3,4:1 --rack-size 4 --early-factor 2.5 --early-h 3 --repair-median-h 1 "
    "--repair-mean-h 2 --stretch-h 60"
)


@pytest.mark.parametrize(
    "asked", [EVERY_OPTION, "--preset spot_p3", "--model fit:{trace}", "--model empirical:{trace}"]
)
def test_the_parameters_in_a_header_make_the_trace_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: str
) -> None:
    """Whatever was asked for, by name or after another trace, which the header then names."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    asked = asked.format(trace="failure_traces/preset-llama3.csv")
    code, _, err = trace_command(capsys, "generate", *asked.split(), "--seed", "3", "--out", first)
    assert (code, err) == (0, "")
    header = read_trace(first).header
    assert header["parameters"] == asked or asked != EVERY_OPTION
    assert trace_command(capsys, "generate", *header["parameters"].split(), "--seed", "3", "--out", second)[0] == 0
    assert read_trace(second).entries
    assert rows(second) == rows(first)


def rows(path: Path) -> list[str]:
    """The lines that are no header."""
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def test_show_tells_of_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Numbers on the console, pictures in a folder."""
    code, said, _ = trace_command(capsys, "show", "failure_traces/preset-llama3.csv", "--figures", tmp_path / "new")
    assert code == 0
    assert "MTBF" in said
    assert list((tmp_path / "new").glob("*.svg"))


def test_show_waits_for_nothing_that_it_does_not_need() -> None:
    """torch, pandas, wandb and matplotlib take seconds; a table of a trace takes none of them."""
    code = (
        "import sys, run\n"
        "assert run.main(['trace', 'show', 'failure_traces/busy.csv']) == 0\n"
        "assert 'scipy' in sys.modules\n"
        "assert not {'torch', 'pandas', 'wandb', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_imported_trace_is_replayed_to_the_bit(
    capsys: pytest.CaptureFixture[str], config: Config, log: Path, tmp_path: Path
) -> None:
    """On rpc with 8 PS ranks every kill of the trace happens and none else; local gives the same events."""
    out = tmp_path / "trace.csv"
    words = ("import", log, "--format", "intervals", "--unit", "h", "--stretch", "56", "--ranks", "8", "--out", out)
    assert trace_command(capsys, *words)[0] == 0
    config = changed(
        config,
        trace__path=str(out),
        cluster__num_ps=8,
        strategy__name="cpr_mfu",
        strategy__interval_samples=48,
        data__max_train_samples=240,
    )
    (local, events), (remote, killed) = (run(changed(config, engine=e), tmp_path / e) for e in ("local", "rpc"))
    assert local.digests == remote.digests
    kills = [(event.rank, event.hour, event.repair_h) for event in killed if is_loss(event)]
    planned = [(entry.who, entry.hour) for entry in read_trace(out).entries]
    assert [(rank, hour) for rank, hour, _ in kills] == planned
    assert kills == [(event.rank, event.hour, event.repair_h) for event in events if is_loss(event)]
    assert remote.num_unplanned == 0
    assert local.reschedule_h == remote.reschedule_h
