"""Laws of the command line: exit codes, one line per mistake, nothing half-written."""

# ruff: noqa: E501 - the messages under test are single lines

import errno
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

import analysis
import run
from harness.cli import console, record_commands
from harness.cli.arguments import parser
from harness.config.experiment import load_config
from harness.config.model import Config
from harness.core.strategies import STRATEGIES
from harness.data.records import read_meta
from harness.record.code import current_code
from harness.record.folder import claim_run
from harness.run.assemble import RunStatus
from harness.run.verify import OnRunStatus
from tests.cli.conftest import Cli
from tests.forked import said_by
from tests.made_runs import made_config, write_run

ROOT = Path(__file__).resolve().parents[2]


def _said_without_imports(commands: Sequence[str], *modules: str) -> "subprocess.CompletedProcess[str]":
    """What a new Python says that runs ``commands``; after each its exit code, and which of ``modules`` are imported."""
    code = (
        "import sys, run\n"
        f"for words in {commands!r}:\n"
        "    try: code = run.main(words.split())\n"
        "    except SystemExit as stop: code = stop.code\n"
        f"    print(code, sorted({set(modules)!r} & sys.modules.keys()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def test_a_file_of_the_repository_is_found_from_elsewhere(cli: Cli) -> None:
    """Law: the line names the file that was meant, where the command runs outside of the repository."""
    for words in ("train experiments/one.yaml", "trace show failure_traces/busy.csv"):
        (line,) = cli(*words.split()).errors
        assert line.endswith(f"no such file; did you mean {ROOT / words.split()[-1]}?")


def test_a_finished_run_is_shown_without_the_imports_of_a_run(cli: Cli, finished: Path) -> None:
    """Law: `show` of a finished run imports no torch, numba, pandas or scipy, so it takes a second."""
    shutil.copytree(finished, "out")
    shown = _said_without_imports(["show out"], "torch", "numba", "pandas", "scipy")
    assert shown.stdout.count(": none on local, seed 0, ") == 1
    assert shown.stdout.splitlines()[-1] == "0 []", shown.stderr


def test_help_numbers_of_a_trace_and_missing_files_do_not_wait_for_libraries(cli: Cli) -> None:
    """Law: --help imports none of the libraries that take long, a wrong path and `trace show` none that they do not need."""
    heavy = ("torch", "numba", "wandb", "matplotlib", "pandas", "scipy", "numpy", "pydantic", "yaml", "rich")
    helps, trace = ("--help", "grid --help", "data synth --help"), ROOT / "failure_traces" / "busy.csv"
    words = [f"{each} data.path=none" for each in ("train one.yaml", "grid grid.yaml", "verify one.yaml")]
    words += ["train one.yaml trace.path=none.csv", "plan none.csv"]
    done = _said_without_imports((*helps, *words, f"trace show {trace}"), *heavy)
    assert done.stdout.count("\n0 []\n") == done.stdout.count("usage: run.py") == done.stdout.count("examples:") == 3
    codes = [line for line in done.stdout.splitlines() if line[1:3] == " ["]
    assert "".join(code[0] for code in codes) == "000222220"
    assert not [code for code in codes for name in heavy[:4] if f"'{name}'" in code]
    assert "pandas" not in codes[-1]
    errors = done.stderr.splitlines()
    assert len(errors) == 5
    assert all(re.fullmatch(r"error: .*none.*: .*no such f(ile|older).*", line) for line in errors)


def test_names_of_an_option_may_have_commas_between_them(cli: Cli, finished: Path) -> None:
    """Law: `--columns a,b c` are three names, in order, and `--figures svg,png` two; texts of `--labels` stay whole."""
    said = [
        cli("table", str(finished), "--format", "markdown", "--columns", *names).out
        for names in (["n,auc", "pls"], ["n", "auc", "pls"])
    ]
    assert said[0] == said[1] != ""
    options = parser().parse_args(["report", "x", "--figures", "svg,png"])
    assert options.figures == ["svg", "png"]
    assert parser().parse_args(["table", "x", "--labels", "a=b,c"]).labels == [("a", "b,c")]


def test_a_command_without_descriptors_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: where the system allows no more open files, the command says so, wherever it meets that."""
    refused = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr(record_commands, "show", refused)
    result = cli("show", "out")
    assert (result.code, result.errors) == (2, ["error: a limit of the system (ulimit -n): Too many open files"])


def test_memory_that_ends_is_one_line_and_another_error_a_bug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the line says what could not be had; a bug is raised, and shown with its traceback."""
    for error, words in (
        (MemoryError(), "MemoryError"),
        (MemoryError("Unable to allocate 8 TiB"), "Unable to allocate 8 TiB"),
    ):
        monkeypatch.setattr(record_commands, "show", Mock(side_effect=error))
        result = cli("show", "out")
        assert (result.code, result.errors) == (2, [f"error: out of memory: {words}"])
    for error in (OSError(errno.EBADF, "x"), ImportError("no module"), RuntimeError("CUDA")):
        monkeypatch.setattr(record_commands, "show", Mock(side_effect=error))
        with pytest.raises(type(error)):
            cli("show", "out")


@pytest.mark.parametrize(
    "name", ["events.jsonl", "config.yaml", "env.json", "DONE", "error.txt", "output.txt", ".lock"]
)
def test_a_device_in_the_place_of_a_file_is_not_read(cli: Cli, finished: Path, name: str) -> None:
    """Law: a file of a run that has no end costs no memory, whoever shows the run or goes on with it."""
    shutil.copytree(finished, "out")
    if name in {"error.txt", "output.txt", ".lock"}:
        Path("out/DONE").unlink()
    Path("out", name).unlink(missing_ok=True)
    Path("out", name).symlink_to("/dev/zero")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = 1024 * int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0])
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (1 << 30), before[1]))
    try:
        results = [cli(*words.split()) for words in ("show out", "table out", "train one.yaml strategy.name=none")]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    for result in results:
        assert result.code in {0, 1, 2}
        assert len([line for line in result.errors if line.startswith("error:")]) <= 1


def test_prepare_tells_the_order_of_files_and_that_it_begins_anew(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: numbers in names order files, or the command line if it says so; what is interrupted is not made."""
    rows = [f"{row % 2}" + f"\t{row}" * 39 + "\n" for row in range(11)]
    for day in (0, 10, 9):
        Path(f"day_{day}").write_text("".join(rows[day:]) * 9)
    shell = ("data", "prepare", "day_0", "day_10", "day_9")
    for order, names in ((), ["day_0", "day_9", "day_10"]), (("--order", "given"), ["day_0", "day_10", "day_9"]):
        made, out = cli(*shell, "--out", f"made{len(order)}", *order), Path(f"made{len(order)}")
        note = f"note: 3 files in this order, the last seventh of all rows for evaluation: {', '.join(names)}"
        assert (made.code, made.errors[0]) == (0, note)
        assert [source.name for source in read_meta(out).sources] == names
    refused = cli("data", "prepare", "day_0", "one.yaml", "--out", "made")
    assert (refused.code, len(refused.errors)) == (2, 1)
    assert "one.yaml, day_0: numbers in these names do not tell which rows are earlier; " in refused.errors[0]
    monkeypatch.setattr("harness.data.prepare.RowReader.rows", Mock(side_effect=KeyboardInterrupt))
    stopped = cli(*shell, "--out", "made")
    anew = f"interrupted; nothing is kept, and the same command begins anew: run.py {' '.join(shell)} --out made"
    assert (stopped.code, stopped.errors[-1], Path("made").exists()) == (130, anew, False)


def test_a_log_of_a_schema_is_prepared_and_described(cli: Cli) -> None:
    """Law: `info` shows its columns by name."""
    Path("own.yaml").write_text("label: y\ndense: {age: none}\ncategories: [shop, item]\n")
    Path("own.csv").write_text("y,age,shop,item\n" + "1,-2.5,a,x\n0,,b,x\n" * 20)
    made = cli("data", "prepare", "own.csv", "--out", "own", "--format", "csv", "--schema", "own.yaml")
    assert made.out.startswith("own: 40 samples, 20 positive, 3 embedding rows\n")
    shown = cli("data", "info", "own")
    assert (shown.code, shown.errors) == (0, [])
    assert {"shop", "item", "all"} < {line.split()[0] for line in shown.out.splitlines() if line.strip()}
    assert "40 samples, 50.0% positive\n" in shown.out
    assert shown.out.endswith(
        "3 embedding rows; the largest tables are shop, item\nlabel y; dense features: age (none)\n"
    )
    assert not any("values up to" in line for line in made.errors)
    Path("old.csv").write_text("y,age,shop,item\n" + "1,93,a,x\n0,,b,x\n" * 20)
    made = cli("data", "prepare", "old.csv", "--out", "old", "--format", "csv", "--schema", "own.yaml")
    assert made.errors[-1].startswith(
        "note: age: values up to 93, with which training may diverge; log1p in the schema"
    )


def test_schema_is_json_and_of_a_key_text(cli: Cli) -> None:
    """Law: `schema` documents every key; `schema KEY` says what it takes, its default, and what it does."""
    definitions = json.loads(cli("schema").out)["$defs"]
    assert definitions["FullOptions"]["properties"].keys() == {"name", "interval_samples"}
    first, second = cli("schema", "strategy.r").out.splitlines()
    assert first.startswith("strategy.r of cpr_random, cpr_mfu, ")
    assert first.endswith(": a number > 0 and <= 1 (default: 0.125)")
    assert second.startswith("    Fraction of each tracked table that a priority save writes")
    assert "trainer.batch_size: a whole number >= 1 (default: 128)" in cli("schema", "trainer").out


def test_a_path_begins_at_home_wherever_it_is_given(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: ``~`` and variables are expanded in keys, in files, in options and in Python, and no folder is named ``~``."""
    home = cli.folder / "home"
    shutil.move("data", home / "data")
    (home / "mine.csv").write_text("hour,rank\n8.5,ps1\n20,ps0\n30,ps1\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TRACES", str(home))
    shutil.copy("one.yaml", home)
    commands = [
        "train ~/one.yaml data.path=~/data trace.path=$TRACES/mine.csv out=~/run",
        "table ~/run",
        "trace generate trace.law.model=fit trace.law.trace=${TRACES}/mine.csv trace.seed=1 --out=~/made.csv",
        "plan ~/made.csv data.path=~/data --simulate 2",
        "data synth --rows 9 --out=~/rows.tsv",
    ]
    for command in commands:
        result = cli(*command.split())
        assert result.code == 0, (command, result.errors)
    assert {"run", "made.csv", "rows.tsv"} <= {path.name for path in home.iterdir()}
    law = load_config(Path("one.yaml"), ["trace.law.model=fit", "trace.law.trace=~/mine.csv"]).trace.law
    assert law is not None
    assert law.trace == f"{home}/mine.csv", "a cell's process, or a job on another machine, may have another home"
    assert len(analysis.load("~/run")) == 1
    monkeypatch.undo()
    assert {path.name for path in cli.folder.iterdir()} == {"home", "one.yaml", "grid.yaml"}


def test_train_then_again_then_otherwise(cli: Cli) -> None:
    """Law: a finished run is shown and not touched, neither by the same command nor by another config.

    While another process writes to the folder, the only message is that error.
    """
    first = cli("train", "one.yaml")
    assert (first.code, first.errors) == (0, [])
    before = {path: path.stat().st_mtime_ns for path in cli.files()}
    again = cli("train", "one.yaml")
    assert (again.code, again.errors) == (0, ["out: this run is finished already; its results follow"])
    assert again.out == first.out
    other = cli("train", "one.yaml", "seed=1", "store.keep=3", "out=out")
    assert other.code == 2
    assert len(other.errors) == 1
    assert "holds a run of another config" in other.errors[0]
    assert other.errors[0].endswith("what differs: seed")
    assert {path: path.stat().st_mtime_ns for path in cli.files()} == before
    Path("out/DONE").unlink()
    with claim_run(Path("out"), Path("out/.lock").read_text().split()[2]):
        [line] = cli("train", "one.yaml").errors
    assert re.fullmatch(
        r"error: out: process \d+ on \S+ is writing to it; wait for it to end or set out to another folder", line
    )


WITH_SGD = tuple(name for name in STRATEGIES if name != "cpr_state")  # which needs another optimizer


@pytest.mark.parametrize(("overrides", "expected"), [([], WITH_SGD), (["strategy.name=full"], ("full",))])
def test_verify_runs_all_strategies_or_the_one_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, overrides: list[str], expected: tuple[str, ...]
) -> None:
    """Law: a line for each strategy that was run, and exit code 1 as soon as one of them differs.

    Runs that differ stay, and their folder is named; others do not.
    """
    for differences, code, word in (([], 0, "identical"), (["event 3: auc"], 1, "DIFFERENT")):

        def verify(config: Config, work: Path, *, on_status: OnRunStatus, found: list[str] = differences) -> list[str]:
            (work / "local-none").mkdir(parents=True)
            on_status(1, 8, RunStatus(step=3, num_steps=9, loss=0.5, phase="train", generation=0))
            return found if config.strategy.name == "full" else []

        monkeypatch.setattr("harness.run.verify.verify", verify)
        result = cli("verify", "one.yaml", *overrides)
        lines = [line.split() for line in result.out.splitlines() if not line.startswith(" ")]
        assert result.code == code
        assert lines == [[name, word if name == "full" else "identical"] for name in expected]
        left = sorted(path.name for path in Path("out-verify").glob("*"))
        assert left == (["full"] if differences else [])
        assert Path("out-verify").exists() == ("  the runs stay: out-verify/full" in result.out) == bool(differences)


def test_a_damaged_run_is_shown_as_such(cli: Cli, finished: Path) -> None:
    """Law: a changed record is no success, neither of `show` nor of the same `train` again."""
    shutil.copytree(finished, "out")
    Path("out/events.jsonl").write_text("")
    for words in ("show out", "train one.yaml strategy.name=none out=out"):
        result = cli(*words.split())
        assert (result.code, result.out) == (2, "")
        (line,) = (line for line in result.errors if not line.startswith("note: "))
        assert line.startswith("error: out/events.jsonl: expected what the run wrote (")


def test_tables_have_formats_and_a_report_has_files(cli: Cli, finished: Path) -> None:
    """Law: `table` and `compare` write CSV, LaTeX and Markdown; `report` writes its files beside the page, or where told."""
    shutil.copytree(finished, "runs/none")
    cli("train", "one.yaml", "strategy.name=full", "out=runs/full")
    for command in ("table runs", "compare runs --to none"):
        starts = {"csv": ("engine,", "base,"), "latex": ("\\begin{tabular}",) * 2, "markdown": ("| ",) * 2}
        for kind, expected in starts.items():
            assert cli(*command.split(), "--format", kind).out.startswith(expected)
    assert " total" in cli("table", "runs").out
    words = ("--columns", "strategy", "total", "--labels", "full=Full", "--caption", "Costs.")
    text = cli("table", "runs", "--format", "latex", *words).out
    assert text.startswith("\\begin{table}")
    assert "Full &" in text
    assert cli("table", "runs", *words).code == 2
    for command in ("table runs", "compare runs --to none"):
        look = ("--columns", "total", "pls")
        assert "stall" not in cli(*command.split(), *look).out
        assert cli(*command.split(), *look, "--format", "markdown").out.splitlines()[0].endswith("PLS, % |")
        assert cli(*command.split(), *look, "--format", "csv").code == 2
        assert cli(*command.split(), "--columns", "totl").errors[0].startswith("error: --columns: expected some of ")
    result = cli("report", "runs", "--files", "paper", "--figures", "svg", "pdf")
    assert (result.code, result.errors) == (0, [])
    names = {path.name for path in Path("paper").iterdir()}
    assert {"tradeoff.svg", "tradeoff.pdf", "table.tex"} <= names
    assert "tradeoff.png" not in names
    Path("runs/none/events.jsonl").write_text("")
    damage = "runs/none/events.jsonl: expected what the run wrote ("
    (note,) = cli("report", "runs").errors
    assert note.startswith(f"left out, damaged: {damage}")
    shown, text = cli("table", "runs"), cli("table", "runs", "--format", "csv")
    assert (shown.code, text.code) == (0, 0), "what is left out is named, and the table is of the others"
    assert f"damaged: none: {damage}" in shown.out
    assert f"damaged: none: {damage}" in text.errors[0]
    assert (
        "ΔAUC is unknown: there is no finished cell of none; the same grid with strategy.name=none adds them."
        in text.errors
    ), "what is said below a table is said here"


@pytest.mark.parametrize(("is_terminal", "term", "width"), [(0, "xterm", 160), (1, "xterm", 60), (1, "dumb", 80)])
def test_tables_are_as_wide_as_they_need(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: int, term: str, width: int
) -> None:
    """Law: no number is cut or broken on a narrow console, which is told, nor in a file; text beside the table is."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", str(is_terminal))
    cells = [f"+0.{number:06d} ± 0.{number:06d}" for number in range(30)]
    table = Table(*(Column(f"name {number}") for number in range(len(cells))))
    table.add_row(*cells)
    console.show(Group(table, Text("word " * 40)))
    said = capsys.readouterr()
    wider = re.fullmatch(rf"note: tables of \d+ columns, a terminal of {width}: .*less -S.*\n", said.err)
    assert bool(wider) == is_terminal
    shown = re.sub(r"\x1b\[[0-9;]*m", "", said.out)
    assert all(cell in shown for cell in cells)
    widest = max(len(line.rstrip()) for line in shown.splitlines() if "word" in line)
    assert widest <= width


@pytest.mark.parametrize("width", [52, 80, 110, 300])
def test_a_table_of_strategies_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int
) -> None:
    """Law: no line is wider than the terminal, no number is cut, and each column is shown or named. A file has all."""
    for strategy in ("none", "full", "cpr_mfu"):
        for seed in range(2):
            write_run(tmp_path / f"{strategy}-{seed}", made_config(strategy, seed=seed))
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("LINES", raising=False)
    shown: dict[str, list[str]] = {}
    for is_terminal in "10":
        monkeypatch.setenv("TTY_COMPATIBLE", is_terminal)
        console.show(analysis.show_table(analysis.load(tmp_path)))
        said = capsys.readouterr()
        assert said.err == ""
        shown[is_terminal] = re.sub(r"\x1b\[[0-9;]*m", "", said.out).splitlines()
    assert max(len(line.rstrip()) for line in shown["1"]) <= width
    whole, cells = (
        next(line.replace(" ± ", "±").split() for line in shown[each] if "cpr_mfu" in line) for each in "01"
    )
    assert not Counter(cells) - Counter(whole)
    left = re.search(r"Left out at a width of \d+: (.*?)\. --columns", " ".join("\n".join(shown["1"]).split()))
    assert len(cells) + (len(left[1].split(", ")) if left else 0) == len(whole) > 14
    assert bool(left) == (width < 160)
    assert "Left out" not in "".join(shown["0"])


def _train_where_streams_take_nothing(folder: Path) -> None:
    """Body of a process: stdout takes nothing; stderr gets the error and the exit code. Then all streams are closed."""
    os.chdir(folder)
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), 1)
        code = run.main(["train", "one.yaml", "out=full"])
        sys.stderr.write(f"exit code {code}\n")
    error = os.dup(2)
    for stream in range(3):
        os.close(stream)
    code = run.main(["train", "one.yaml", "out=closed"])
    os.write(error, f"exit code {code}".encode())
    for stream in range(3):
        os.write(stream, b"!")
    os.dup2(error, 1)


def test_streams_that_take_nothing(cli: Cli) -> None:
    """Law: what a command has done stands, whatever stdout takes; a full disk behind it is one line.

    No file of a run ever gets the number of a closed stream: a child's words would be written into it.
    """
    error = "error: stdout: cannot be written: No space left on device\n"
    assert said_by(_train_where_streams_take_nothing, cli.folder) == f"{error}exit code 2\nexit code 0"
    for name in ("full", "closed"):
        assert Path(name, "DONE").exists()
        assert all(json.loads(event) for event in Path(name, "events.jsonl").read_text().splitlines())


def test_a_stream_of_few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: where stdout cannot take a character of ours, something else stands there."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    console.open_streams()
    console.say("AUC ± 1")
    stdout.seek(0)
    assert stdout.read() == "AUC ? 1\n"


def test_results_of_other_code_are_named_and_not_taken(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a grid computes cells of other code beside those, and its table takes the newest; a run is refused."""
    words = ("grid", "grid.yaml", "strategy.name=none", "seed=0")
    assert cli(*words).errors[-1] == "1 cell: 1 run, 0 done before, 0 failed"
    assert cli("train", "one.yaml", "out=one").code == 0
    now = current_code()
    edited = replace(now, sources={**now.sources, "harness/core/strategies.py": "edited"})
    with monkeypatch.context() as patch:
        for module in ("record.code", "run.spec"):
            patch.setattr(f"harness.{module}.current_code", lambda: edited)
        assert cli(*words, "--dry-run").out.startswith("to do  ")
        anew = cli(*words)
        (line,) = [line for line in anew.errors if "of other code, plugins included, and computed anew" in line]
        assert line.endswith(": harness/core/strategies.py")
        assert anew.errors[-1] == "1 cell: 1 run, 0 done before, 0 failed"
        assert "copy: " in anew.out
        assert cli(*words).errors[-1] == "1 cell: 0 run, 1 done before, 0 failed"
        refused = cli("train", "one.yaml", "out=one")
        assert refused.code == 2
        (line,) = [line for line in refused.errors if line.startswith("error: ")]
        assert line.startswith("error: one: holds this run by other code (harness/core/strategies.py); --afresh")
        assert cli("train", "one.yaml", "out=one", "--afresh").code == 0
    assert cli(*words).errors[-1] == "1 cell: 0 run, 1 done before, 0 failed"


@pytest.mark.slow
def test_none_is_run_once_a_seed_and_serves_all_laws(cli: Cli) -> None:
    """Law: a grid over laws and profiles runs `none` under the first of them; every other cell is paired with it."""
    axes = ("trace.law.model=fixed", "trace.law.number=[2,3]", "profile=[busy,cpr56]")
    other = cli("grid", "grid.yaml", "seed=[0]", "strategy.name=[none]", "trace.law={model: fixed, number: 3}")
    assert other.code == 0
    result = cli("grid", "grid.yaml", "seed=[0]", *axes)
    assert result.code == 0
    (found,) = filter(
        None, (re.match(r"out: .* 1 finished run of other settings, .*\((.*), …\)", e) for e in result.errors)
    )
    shutil.rmtree(Path("out", found[1]))
    assert result.errors[-1].startswith("5 cells: 5 run")
    frame = analysis.load("out")
    assert [*frame[frame["strategy"] == "none"]["trace_law"]] == ["fixed2"]
    table = analysis.table(frame)
    assert [*table[["trace", "profile", "strategy", "num_pairs"]].itertuples(index=False, name=None)] == [
        (law, profile, strategy, 1)
        for law in ("fixed2", "fixed3")
        for profile in ("busy", "cpr56")
        for strategy in ("none", "partial")
    ]


def test_a_cell_keeps_no_checkpoints_unless_asked(cli: Cli) -> None:
    """Law: a grid removes the checkpoints of cells that it ran; of other runs, and of what it did not run, none."""
    assert cli("train", "one.yaml", "strategy.name=partial", "out=out/alone").code == 0
    words, kept = ("grid", "grid.yaml", "seed=0"), "2 cells: 2 run, 0 done before, 0 failed"
    assert cli(*words, "store.keep_finished=true").errors[-1] == kept
    checkpoints = [*Path("out").rglob("*.bin")]
    assert {path.relative_to("out").parts[0].partition("-seed")[0] for path in checkpoints} == {
        "alone",
        "local-none",  # its model
        "local-partial",
    }
    assert cli(*words).errors[-1] == "2 cells: 0 run, 2 done before, 0 failed"
    assert cli(*words[:2], "seed=1").errors[-1] == kept
    assert [*Path("out").rglob("*.bin")] == checkpoints


def test_dry_run_writes_nothing_then_grid_runs_then_all_is_done(cli: Cli) -> None:
    """Law: --dry-run lists what the grid then does; the grid's own grid.yaml describes the same cells."""
    before = cli.files()
    planned = cli("grid", "grid.yaml", "--dry-run", "seed=3")
    assert planned.code == 0
    assert cli.files() == before
    lines = [line.split() for line in planned.out.splitlines()]
    assert [(*line[:2], line[3]) for line in lines] == [
        ("to", "do", "local-none-seed3"),
        ("to", "do", "local-partial-seed3"),
    ]
    result = cli("grid", "grid.yaml", "--parallel", "2", "seed=3")
    assert result.code == 0
    assert result.errors[-1].startswith("2 cells: 2 run, 0 done before, 0 failed")
    assert f"report: {Path('out/report.html')}" in result.out
    assert sorted(path.name for path in Path("out").iterdir() if path.is_dir()) == [
        f"{line[3]}-{line[2]}" for line in sorted(lines, key=lambda line: line[3])
    ]
    after = cli("grid", "out/grid.yaml", "--dry-run")
    assert [line.split()[0] for line in after.out.splitlines()] == ["done", "done"]
    (events,) = Path("out").glob("*none*/events.jsonl")
    events.write_bytes(events.read_bytes()[:-1])
    damaged = cli("grid", "grid.yaml", "seed=3")
    assert damaged.code == 1, "a finished cell whose record has changed is not done"
    assert damaged.errors[-2] == "2 cells: 0 run, 1 done before, 0 failed, 1 damaged"
    assert damaged.errors[-1].startswith(f"damaged: {events}: expected what the run wrote")


def test_a_run_under_a_trace_says_what_does_not_fit_and_offers_the_mapping(cli: Cli) -> None:
    """A line each before the run, in a folder of its own; with the trace stretched and its constants taken, nothing is left to say."""
    Path("t.csv").write_text(
        "# length_h: 11\n# ranks: 2\nhour,rank\n" + "".join(f"{k},ps{k % 2}\n" for k in range(1, 11))
    )
    first = cli("train", "one.yaml", "trace.path=t.csv", "strategy.name=partial", "profile.mtbf_h=40")
    assert first.code == 0
    (folder,) = Path().glob("out-*")
    kills = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines() if '"kill"' in line]
    assert [kill["rank"] for kill in kills] == ["ps0", "ps1"] * 3 + ["ps0"]
    assert [line.partition(";")[0] for line in first.errors if line.startswith("note: ")] == [
        "note: 10 failure instants of trace t fall on 4 boundaries between steps, and instants at one boundary are one failure: the run has 18 steps of 3.11 h each",
        "note: the trace lasts 11 h, the job 56 h: no failure after hour 10",
        "note: MTBF 1.1 h in the trace (10 failures in 11 h), 40 h in profile busy*, by which intervals are chosen",
    ]
    words = ("strategy.name=partial", "profile.from_trace=true", "out=fitted")
    fitted = cli("train", "one.yaml", "trace.path=t.csv", "trace.stretch=true", *words)
    assert fitted.code == 0
    assert not [line for line in fitted.errors if line.startswith("note: ")]
    assert Path("fitted").is_dir()
    assert "profile busy*(t)" in fitted.out
    Path("fitted/.report.html.tmp").mkdir()
    refused = cli("report", "fitted")
    assert (refused.code, refused.errors) == (2, ["error: fitted/report.html: cannot be written: Is a directory"])
    Path("fitted/.report.html.tmp").rmdir()
    assert cli("report", "fitted").code == 0
    assert "Failure trace t, stretched to 56 h</h2>" in Path("fitted/report.html").read_text()
    assert Path("fitted/report/table.tex").exists()


def test_a_plan_of_a_trace_takes_the_mapped_hours(cli: Cli) -> None:
    """A stretched trace has the MTBF of the job's hours."""
    Path("t.csv").write_text("# length_h: 14\n# ranks: 2\nhour,rank\n3,ps0\n9,ps1\n")
    plain, stretched = (cli("plan", "t.csv", "--simulate", "2", *words) for words in ((), ("trace.stretch=true",)))
    assert "MTBF 7 h" in plain.out
    assert plain.errors[0].startswith(
        "note: the trace lasts 14 h, the job 56 h: the trace's MTBF is taken for the job; "
    )
    assert "MTBF 28 h" in stretched.out
    assert len(stretched.errors) == len(plain.errors) - 1


@pytest.mark.slow
def test_a_claim_of_ones_own_is_run_judged_and_shown(cli: Cli) -> None:
    """The file of docs/EXTENDING.md: its cells, a row for each expectation, the page with figure; then nothing is run."""
    page = (ROOT / "docs" / "EXTENDING.md").read_text()
    (example,) = re.findall(r"```yaml\n# fewer_saves.yaml\n(.*?)```", page, re.DOTALL)
    assert example.count("\n") <= 25
    (beside,) = re.findall(r"```python\n# fewer_saves.py\n(.*?)```", page, re.DOTALL)
    Path("fewer_saves.yaml").write_text(example)
    Path("fewer_saves.py").write_text(beside)
    words = ("reproduce", "fewer_saves.yaml", "data.path=data", "trainer.batch_size=32", "seed=[0]", "--parallel", "1")
    first = cli(*words)
    assert first.code == 0
    assert "4 cells: 4 run, 0 done before, 0 failed" in first.errors[-1]
    text = Path("runs/claims/fewer_saves.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `") and "recalled" in line]
    rows += [line.split(" | ") for line in text.splitlines() if line.startswith("| `") and "(own claim)" in line]
    verdicts = {"reproduced", "not reproduced", "cannot be told"}
    assert [row[4] in verdicts for row in rows] == [True] * 5
    assert "All commands with data.path=data trainer.batch_size=32 'seed=[0]'." in " ".join(text.split())
    assert re.search(r"Claim `fewer_saves`: (not reproduced|cannot be told|reproduced)\.", text)
    assert "(fewer_saves/fewer_saves.svg)" in text
    assert Path("runs/claims/fewer_saves/fewer_saves.svg").read_text().startswith("<?xml")
    again = cli(*words)
    assert "4 cells: 0 run, 4 done before, 0 failed" in again.errors[-1]
    assert Path("runs/claims/fewer_saves.md").read_text() == text
    other = next(folder for folder in Path("runs/fewer_saves").glob("*seed0*"))
    other.rename(other.with_name(f"other-0123456789-{other.name[-8:]}"))
    assert "runs/fewer_saves: 1 runs of other settings are left out" in cli(*words, "--no-run").errors
    Path("sub").mkdir()
    Path("sub/fewer_saves.yaml").write_text(example)
    Path("sub/fewer_saves.py").write_text(beside)
    assert "names, got two of fewer_saves" in cli("reproduce", "fewer_saves.yaml", "sub/fewer_saves.yaml").errors[0]
