"""The functions for Python do what the command line does."""

from pathlib import Path

import pytest

import analysis
from harness import api
from harness.config.model import Config
from harness.core.errors import ConfigError, UserError
from tests.runs import changed


def test_a_run_from_python_is_recorded_and_not_run_twice(config: Config, tmp_path: Path) -> None:
    """The second call returns the recorded result, and leaves the record as it is."""
    short = changed(config, data__max_train_samples=64, trace__path=None, strategy__name="none")
    short = changed(short, out=str(tmp_path / "run"))
    first = api.run(short.model_dump(mode="json"))
    before = (tmp_path / "run" / "events.jsonl").stat().st_mtime_ns
    assert api.run(short) == first
    assert (tmp_path / "run" / "events.jsonl").stat().st_mtime_ns == before
    assert analysis.load(tmp_path)["auc"].tolist() == [first.auc]


def test_a_wrong_key_is_a_line(tmp_path: Path) -> None:
    """A ConfigError names the dotted key."""
    with pytest.raises(ConfigError, match=r"^trainer\.batch_size: "):
        api.run({"trainer": {"batch_size": 0}, "out": str(tmp_path / "run")})


def test_a_grid_from_python_resumes_and_knows_other_code(
    click_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells run once; after a change of code the call is refused, or keeps them, as asked."""
    file = tmp_path / "grid.yaml"
    base = "model: {size: tiny}\nwandb: {mode: disabled}\ntrainer: {batch_size: 32}\nstore: {fsync: false}\n"
    data = f"data: {{path: {click_data}, max_train_samples: 64}}\n"
    file.write_text(f"out: {tmp_path / 'out'}\n{base}{data}grids: [{{strategy.name: [none]}}]\n")
    assert [outcome.status for outcome in api.grid(file)] == ["done"]
    assert [outcome.status for outcome in api.grid(file)] == ["skipped"]
    monkeypatch.setattr(api, "difference_of", lambda _: "harness/core/strategies.py")
    with pytest.raises(UserError, match=r"harness/core/strategies\.py\); stale='rerun'"):
        api.grid(file)
    assert [outcome.status for outcome in api.grid(file, stale="keep")] == ["skipped"]
