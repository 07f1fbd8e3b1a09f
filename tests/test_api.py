"""The functions for Python do what the command line does."""

from pathlib import Path
from typing import Any

import pytest
import torch

import analysis
from harness import api
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.record.rundir import read_config
from tests import started
from tests.forked import ran
from tests.runs import changed

ROOT = Path(__file__).resolve().parents[1]


def test_a_run_from_python_is_recorded_and_not_run_twice(config: Config, tmp_path: Path) -> None:
    """The second call returns the recorded result, and leaves the record as it is.

    Law: engine ``local`` changes no setting of the process that calls it.
    """
    threads = torch.get_num_threads()
    short = changed(config, data__max_train_samples=64, trace__path=None, strategy__name="none", engine="local")
    short = changed(short, out=str(tmp_path / "run"), trainer__num_threads=threads + 1)
    first = api.run(short.model_dump(mode="json"))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, False)
    before = (tmp_path / "run" / "events.jsonl").stat().st_mtime_ns
    assert api.run(short.model_dump(mode="json")) == first
    assert (tmp_path / "run" / "events.jsonl").stat().st_mtime_ns == before
    assert analysis.load(tmp_path)["auc"].tolist() == [first.auc]


def test_the_example_of_the_guide_runs(click_data: Path, tmp_path: Path) -> None:
    """As it stands on the page, on a small log: the results are those on record; each step has one loss."""
    page = (ROOT / "docs" / "GUIDE.md").read_text(encoding="utf-8")
    code = page.partition("### In Python")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "data").symlink_to(click_data)
    (tmp_path / "failure_traces").symlink_to(ROOT / "failure_traces")
    done = ran(started.program, code + "\nprint(len(curve), len(losses), finished.step)", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    results, counts = done.stdout.splitlines()
    (row,) = analysis.load(tmp_path / "runs").to_dict("records")
    assert [float(word) for word in results.split()] == [
        row[name] for name in ("auc", "log_loss", "train_loss", "pls", "overhead_frac")
    ]
    num_points, num_losses, num_steps = map(int, counts.split())
    assert num_points > 1
    assert num_losses == num_steps


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"trainer": {"batch_size": 0}}, r"trainer\.batch_size: 0 is not a whole number >= 1"),
        ({"trainer": {"batchsize": 1}}, r"unknown key trainer\.batchsize; did you mean trainer\.batch_size\?"),
        ({"trainer.batch_size": 1}, r"trainer\.batch_size: expected a mapping in a mapping, got a dotted key"),
        ({"trainer": 1}, r"trainer: takes no value such as 1; it holds trainer\.batch_size, .*"),
        ({"strategy": {"name": "partail"}}, r"strategy\.name: 'partail' is not one of .*; did you mean partial\?"),
        ({"model": {"name": "dlmr"}}, r"model\.name: 'dlmr' is not one of .*; did you mean dlrm\?"),
        ({"strategy": {"name": "none", "r": 0.5}}, r"strategy\.r: not an option of strategy none; .* have it"),
        ({"profile": {"base": "busy", "job_h": "x"}}, r"profile\.job_h: 'x' is not a number > 0"),
        ({1: 2}, "unknown key 1; .*"),
    ],
)
def test_a_wrong_key_is_a_line(tmp_path: Path, values: dict[Any, Any], line: str) -> None:
    """A ConfigError has the words of the command line."""
    with pytest.raises(ConfigError, match=f"^{line}$"):
        api.run({"out": str(tmp_path / "run"), **values})


GRID = """\
out: {out}
model: {{size: tiny}}
wandb: {{mode: offline}}
trainer: {{batch_size: 32}}
store: {{fsync: false}}
data: {{path: {data}, max_train_samples: 64}}
grids: [{{strategy.name: [none], seed: [0, 1]}}]
"""


@pytest.mark.slow
def test_a_grid_from_python_is_one_of_the_command_line(
    click_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cells run once, in a folder with grid.yaml, in one wandb group; damage is seen. The remarks are warnings."""
    file = tmp_path / "grid.yaml"
    file.write_text(GRID.format(out=tmp_path / "out", data=click_data))
    done = api.grid(file)
    assert [outcome.status for outcome in done] == ["done", "done"]
    assert [outcome.status for outcome in api.grid(file)] == ["skipped", "skipped"]
    assert "seed" in (tmp_path / "out" / "grid.yaml").read_text()
    groups = {read_config(outcome.cell.run_dir)["wandb"]["group"] for outcome in done}
    assert len(groups) == 1
    assert str(groups.pop()).startswith("grid-")
    with (done[0].cell.run_dir / "events.jsonl").open("a") as events:
        events.write("{}\n")
    assert [outcome.status for outcome in api.grid(file)] == ["damaged", "skipped"]
    caplog.clear()
    for call in (
        lambda: api.grid(file, ["eval.max_samples=9999", "seed=0"]),
        lambda: api.run(
            read_config(done[1].cell.run_dir) | {"out": str(tmp_path / "one"), "eval": {"max_samples": 9999}}
        ),
    ):
        call()
        warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert warned[0].startswith("note: eval.max_samples=9999: there are"), warned
    assert any("tables also show" in record.message for record in caplog.records)


NOTEBOOK = """
import sys
from harness import api
from harness.core.strategies import STRATEGIES
from harness.core.strategies import Partial

class Mine(Partial):
    pass

STRATEGIES["mine"] = Mine
base = {{"out": "{out}", "model": {{"size": "tiny"}}, "wandb": {{"mode": "disabled"}}, "trainer": {{"batch_size": 32}}}}
print(api.run(base | {{"data": {{"path": "{data}", "max_train_samples": 64}}, "strategy": {{"name": "mine"}}}}).step)
print("torch._inductor" in sys.modules)
"""


def test_a_notebook_adds_a_strategy_after_the_import(click_data: Path, tmp_path: Path) -> None:
    """Law: importing the functions makes no configuration, whose strategies are those that there are by then.

    Torch's compiler is not imported either: that takes a second, and leaves a folder.
    """
    text = NOTEBOOK.format(out=tmp_path / "out", data=click_data)
    done = ran(started.fresh_program, text)
    assert (done.stdout, done.returncode) == ("2\nFalse\n", 0), done.stderr
