"""Laws of `run.py sync` and `run.py dashboard`, against a stand-in of the server."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import run
from analysis import workspace
from harness.config.experiment import load_experiment
from harness.core.events import BUCKETS
from harness.grid.experiments import prepared
from harness.wandb import server
from tests.made_runs import made_config, write_run
from tests.wandb.stand_in import WandbServer

_DEADLINE_S = 60.0
_STRATEGIES = ("none", "full", "cpr_mfu")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Three finished runs of one seed."""
    for strategy in _STRATEGIES:
        write_run(tmp_path / "grid" / strategy, made_config(strategy, name="demo"))
    return tmp_path / "grid"


def test_sync_sends_what_can_be_read(wandb_server: WandbServer, grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Law: a damaged run costs its own line, and the exit code; each other one is sent, and that once.

    All runs land in one group, with their difference from the reference of their seed.
    """
    words, project = ["sync", str(grid), "--project", "mine"], f"{wandb_server.url}/someone/mine"
    events = grid / "full" / "events.jsonl"
    whole = events.read_bytes()
    events.write_text("")
    assert run.main(words) == 2
    out, err = capsys.readouterr()
    assert out == f"wandb: 2 sent {project}\n"
    assert err.startswith(f"error: {events}: expected what the run wrote")
    assert err.count("\n") == 1
    events.write_bytes(whole)
    assert run.main(words) == 0
    assert capsys.readouterr().out == f"wandb: 2 sent before, 1 sent {project}\n"
    assert {sent["displayName"] for sent in wandb_server.runs.values()} == {*_STRATEGIES}
    assert len({sent["groupName"] for sent in wandb_server.runs.values()}) == 1
    summaries = {wandb_server.runs[key]["displayName"]: values for key, values in wandb_server.summary.items()}
    for name, summary in summaries.items():
        assert summary["delta_auc"] == pytest.approx(summary["auc"] - summaries["none"]["auc"]), name
    wandb_server.operations.clear()
    assert run.main(words) == 0
    assert wandb_server.operations == []
    assert capsys.readouterr().out == f"wandb: 3 sent before {project}\n"


@pytest.mark.slow
def test_sync_goes_on_past_a_run_that_the_server_refuses(
    wandb_server: WandbServer, grid: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a run that was deleted at the server costs its own line, and the exit code; each other one is sent."""
    wandb_server.deleted = {"cpr_mfu"}
    monkeypatch.setitem(server.LIMITS_S, "init", 5.0)  # wandb asks again until then
    assert run.main(["sync", str(grid)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("wandb: 1 refused, 2 sent http")
    (line,) = err.splitlines()
    assert line.startswith(f"failed: {grid / 'cpr_mfu'}: ")
    assert "previously created and deleted" in line
    assert "--project" in line
    assert {sent["displayName"] for sent in wandb_server.runs.values()} == {"full", "none"}


def test_sync_to_a_silent_server_fails_in_one_line(
    silent_server: str, grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and one line in time."""
    began_s = time.monotonic()
    assert run.main(["sync", str(grid)]) == 1
    assert time.monotonic() - began_s < _DEADLINE_S
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("failed: ")
    assert f"wandb: {silent_server}: expected an answer, got none within 1 s; " in line


def test_a_grid_with_a_silent_server_goes_offline(
    silent_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is asked once for all cells: one line, and cells whose wandb is offline."""
    file = tmp_path / "grid.yaml"
    file.write_text("wandb: {mode: online}\ngrids:\n- {seed: [0, 1, 2]}\n")
    experiment = load_experiment(file, cell_hash=lambda config: f"{config.seed:x}")
    with caplog.at_level("INFO"):
        found = prepared(experiment)
    assert [cell.config.wandb.mode for cell in found.cells] == ["offline"] * 3
    (line,) = caplog.messages
    assert silent_server in line
    assert "the runs go on offline" in line


def test_a_group_is_of_an_experiment_and_its_settings(tmp_path: Path) -> None:
    """More seeds stay in the group; fewer samples do not."""
    file = tmp_path / "grid.yaml"
    file.write_text("grids:\n- {seed: [0, 1], strategy.name: [none, full], cache.staleness: [1, 2]}\n")

    def groups(*overrides: str) -> set[str | None]:
        experiment = load_experiment(file, overrides, cell_hash=lambda config: config.model_dump_json())
        return {cell.config.wandb.group for cell in prepared(experiment).cells}

    assert len(groups()) == 1
    assert groups("seed=[5,6,7]", "resume.every_s=60") == groups()
    assert groups("data.max_train_samples=20000").isdisjoint(groups())
    assert groups("wandb.group=mine") == {"mine"}


def test_the_dashboard_has_every_view(wandb_server: WandbServer, grid: Path) -> None:
    """The saved workspace has curves by both axes, bars, scatters, marks, columns, filters; saved again, it is one."""
    pytest.importorskip("wandb_workspaces")
    assert run.main(["sync", str(grid)]) == 0
    (grid / "wandb-workspace.json").write_text("[]")  # of something else: as none
    assert run.main(["dashboard", str(grid)]) == 0
    assert run.main(["dashboard", str(grid)]) == 0
    first, again = wandb_server.views
    assert (again["id"], again["name"]) == ("view1", first["name"])
    section = json.loads(again["spec"])["section"]
    panels = [panel for part in section["panelBankConfig"]["sections"] for panel in part["panels"]]
    logged = {key for lines in wandb_server.history.values() for row in lines.values() for key in row}
    curves = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert {(c["xAxis"], *c["metrics"]) for c in curves if c.get("aggregate")} >= {
        (axis, key) for axis in ("samples", "hours") for key in ("curve/auc", "train/loss", "curve/log_loss")
    }
    assert {key for curve in curves for key in (curve["xAxis"], *curve["metrics"])} <= logged
    marks = [mark for curve in curves for mark in curve.get("overrideMarks", {})]
    assert {mark.partition(":")[0] for mark in marks} == {*wandb_server.runs}
    summaries = [{f"summary:{key}" for key in summary} for summary in wandb_server.summary.values()]
    known = set.union(*summaries) | {"summary:steps_frac"}  # of which this profile has no price
    assert _summary_keys(panels) <= known
    columns = set(section["runSets"][0]["runFeed"]["columnOrder"])
    assert {key for key in columns if key.startswith("summary:")} <= known
    filters = section["runSets"][0]["filters"]["filters"]
    assert [one["key"]["name"] for one in filters] == ["group", "engine", "trace_name", "profile_name"]
    configs = [json.loads(sent["config"]) for sent in wandb_server.runs.values()]
    assert all({"engine", "trace_name", "profile_name"} <= config.keys() for config in configs)


def test_a_dashboard_says_which_runs_it_leaves_out(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: of more runs than a panel shows, those without a place are counted by strategy."""
    pytest.importorskip("wandb_workspaces")
    monkeypatch.setattr(workspace, "_MAX_RUNS", 1)
    assert run.main(["dashboard", str(grid), "--offline", str(grid / "views.json")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: curves, bars and kills show 1 of these 3 runs, and leave out 1 of full, 1 of none; ")


def _summary_keys(panels: list[dict[str, Any]]) -> set[str]:
    """Keys of the summary that bars and scatters show, with the prefix ``summary:``."""
    scatters = [panel["config"] for panel in panels if panel["viewType"] == "Scatter Plot"]
    bars = [panel["config"] for panel in panels if panel["viewType"] == "Bar Chart"]
    assert {scatter["xAxis"] for scatter in scatters} >= {"summary:pls", "summary:update_pls", "summary:overhead_frac"}
    assert len(bars[0]["metrics"]) == len(BUCKETS)
    in_bars = {key.replace("summary_metrics.", "summary:") for bar in bars for key in bar["metrics"]}
    return in_bars | {scatter[axis] for scatter in scatters for axis in ("xAxis", "yAxis")}


def test_a_workspace_can_be_written_without_a_server(grid: Path, tmp_path: Path) -> None:
    """``--offline`` writes the same views to a file."""
    pytest.importorskip("wandb_workspaces")
    assert run.main(["dashboard", str(grid), "--offline", str(tmp_path / "views.json"), "--entity", "us"]) == 0
    view = json.loads((tmp_path / "views.json").read_text())
    assert (view["entity"], view["project"]) == ("us", "cpr-harness")
    assert len(view["spec"]["section"]["panelBankConfig"]["sections"]) == 4
    assert run.main(["dashboard", str(grid), "--offline", str(tmp_path / "views.json" / "a.json")]) == 2


def test_a_missing_package_is_named(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without wandb-workspaces the command says what to install."""
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert run.main(["dashboard", str(grid), "--offline", "views.json"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("which is missing; pip install -r requirements-dashboard.txt")
