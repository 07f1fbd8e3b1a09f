"""What `run.py reproduce` rests on besides cells: benchmarks that are run once, and the scale of the data."""

import json
import shlex
from pathlib import Path

import pytest

from analysis.claims.claim import Benchmark
from harness.cli import inputs
from harness.cli.inputs import BenchmarkRun
from harness.config.experiment import load_experiment
from harness.core.errors import ConfigError, DataError, StoreError
from harness.data.prepare import prepare
from harness.record.folder import claim_grid
from tests import started
from tests.forked import ran

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from benchmarks._common import parser, report
made = parser("measures")
made.add_argument("--value", type=int)
made.add_argument("--ends", default="well")
options = made.parse_args()
if options.ends == "badly":
    sys.exit("no such wire")
if options.ends == "well":
    report(options, ["measured"], {{"results": [{{"value": options.value}}]}})
elif options.ends == "bare":  # which waits for no torch
    options.json.write_text('{{"machine": {{}}, "results": [{{"value": 3}}]}}')
elif options.ends == "garbled":
    sys.stdout.buffer.write(b"skipped: \\xff")
else:
    print("skipped: no namespaces")
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark, by its path from a root of its own."""
    (tmp_path / "it.py").write_text(SCRIPT.format(root=str(ROOT)))
    monkeypatch.setattr(inputs, "_ROOT", tmp_path)
    return Path("it.py")


def made(script: Path, folder: Path, *arguments: str) -> BenchmarkRun:
    """The run of the benchmark with these arguments."""
    return BenchmarkRun(
        Benchmark(script=script, arguments=shlex.join(arguments)), folder / "claims" / "it.json", "demo/data"
    )


def test_results_of_a_benchmark_stand_until_it_changes(script: Path, tmp_path: Path) -> None:
    """Law: kept results are those of the script and the arguments that they were made with."""
    run = made(script, tmp_path, "--value", "3")
    assert not run.is_done
    assert run.run(1, 1)
    assert run.is_done
    assert run.results() == [{"value": 3}]
    assert "cores, load average" in run.machine()
    assert run.difference() is None
    assert made(script, tmp_path, "--value", "4").difference() == "it.py or its arguments"
    (tmp_path / "it.py").write_text(SCRIPT.format(root=str(ROOT)) + "# changed\n")
    assert run.difference() == "it.py or its arguments"
    assert [path.name for path in sorted((tmp_path / "claims").iterdir())] == ["it.json", "it.txt"]


def test_kept_results_are_as_written(script: Path, tmp_path: Path) -> None:
    """Law: a figure that was changed in the file of a benchmark is named, not shown."""
    run = made(script, tmp_path, "--ends", "bare")
    assert run.run(1, 1)
    assert run.results() == [{"value": 3}]
    written = run.file.read_text()
    for content in (written.replace('"value": 3', '"value": 4'), "{}", written.replace('"machine"', '"engine"')):
        run.file.write_text(content)
        for read in (run.difference, run.results, run.machine):
            with pytest.raises(StoreError, match=r"it\.json: expected the results as they were written"):
                read()


def test_a_benchmark_is_run_by_one_command_at_a_time(tmp_path: Path) -> None:
    """Law: a benchmark is run by one command at a time."""
    (tmp_path / "demo" / "long").mkdir(parents=True)
    (tmp_path / "demo" / "long" / "meta.json").touch()  # otherwise two million rows are made first
    with claim_grid(tmp_path / "runs" / "claims" / "benchmarks"):
        locked = ran(started.command, "reproduce", "accesses", "data.path=none", folder=tmp_path)
    assert locked.returncode == 2
    assert "is writing to it" in locked.stderr


@pytest.mark.parametrize(
    ("ends", "succeeds", "line"),
    [("badly", False, "no such wire"), ("skipped", True, "skipped:"), ("garbled", True, "skipped: \ufffd")],
)
def test_a_benchmark_without_results_says_why(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: str, *, succeeds: bool, line: str
) -> None:
    """A failure, and a machine that cannot run it, which is none; either leaves no results."""
    run = made(script, tmp_path, "--ends", ends)
    assert run.run(1, 1) == succeeds
    assert line in capsys.readouterr().err
    assert not run.is_done
    assert run.results() == []


def test_paper_scale_needs_real_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, prepared, and said to be a part where it is one; keys that are given stay."""
    with pytest.raises(ConfigError, match=r"data\.path: expected a folder of real data"):
        inputs.say_data(None)
    assert "45,840,617 rows, 7.3 GB" in capsys.readouterr().err
    with pytest.raises(DataError, match="no such folder"):
        inputs.say_data(str(tmp_path / "none"))
    source = tmp_path / "rows.tsv"
    source.write_text("\t".join(["1", *["2"] * 13, *["0a"] * 26]) + "\n")
    prepare([source], tmp_path / "data")
    given = [f"data.path={tmp_path / 'data'}", "model.size=terabyte"]
    assert inputs.paper_overrides(given) == [*given, "data.max_train_samples=null"]
    inputs.say_data(str(tmp_path / "data"))
    assert "1 rows, 0.0 GB; Kaggle's has 45,840,617" in capsys.readouterr().err
    assert inputs.samples_factor(given, "demo/data") == 1 / 250_000


def test_numbers_of_samples_follow_the_data(tmp_path: Path) -> None:
    """An interval in samples is scaled in the axes of a file; its other keys are not."""
    file = tmp_path / "grid.yaml"
    axes = "{strategy.name: [cpr_mfu], strategy.interval_samples: [1000, null], strategy.r: [0.5]}"
    file.write_text(f"data: {{path: demo/data}}\ngrids:\n- {axes}\n")
    cells = load_experiment(file, cell_hash=lambda config: config.model_dump_json(), samples_factor=2.5).cells
    options = [cell.config.strategy.model_dump() for cell in cells]
    assert [(each["interval_samples"], each["r"]) for each in options] == [(2500, 0.5), (None, 0.5)]


def test_a_missing_log_is_made_and_a_present_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only folders that the project knows; the same bytes as the commands of the data make."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "LOGS", {"demo/few": inputs.Log("demo/few.tsv", rows=200, flat=True)})
    assert inputs.missing(["demo/few", "elsewhere"]) == ["demo/few"]
    inputs.make(["demo/few"])
    meta = Path("demo/few/meta.json")
    assert json.loads(meta.read_text())["num_rows"] == 200
    assert not inputs.missing(["demo/few", "elsewhere"])
