"""Sending runs to a wandb server: all of a run arrives, once, and a dead server costs one line and nothing else."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError, RunFailed, StoreError
from harness.core.events import Evaluated, Recovered, Started, Trained
from harness.record import wandb_sink, wandb_worker
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir, read_config
from harness.record.wandb_session import Session
from harness.record.wandb_sync import Uploader, view_of
from harness.record.wandb_view import sent_marker
from harness.record.wandb_worker import core_pids
from tests.injected import is_loss
from tests.made_runs import altered, made_config, made_events, write_run
from tests.wandb_server import WandbServer

_DEADLINE_S = 60.0


def test_a_recorded_run_arrives_whole(wandb_server: WandbServer, tmp_path: Path) -> None:
    """Every point of the curves, every kill and recovery, the summary and what identifies a run reach the server."""
    config = made_config("cpr_mfu", seed=3, name="my_grid")
    events = write_run(tmp_path / "cpr_mfu-s3", config)
    assert Uploader({"project": "mine"}).send(tmp_path / "cpr_mfu-s3", {"delta_auc": -0.002}) == "sent"
    ((run_id, run),) = wandb_server.runs.items()
    assert (run["displayName"], run["project"], run["jobType"]) == ("cpr_mfu-s3", "mine", "cpr_mfu")
    assert set(run["tags"]) == {"local", "trace:busy", "profile:busy"}
    assert run["groupName"].startswith("my_grid-")
    assert '"config_hash"' in run["config"]
    assert wandb_server.complete == {run_id: 0}
    rows = list(wandb_server.history[run_id].values())
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == sum(isinstance(event, Trained) and not event.rerun for event in events)
    hours = [row["hours"] for row in rows]
    assert hours == sorted(hours)
    assert hours[-1] == pytest.approx(config.emulated.job_h * (1 + wandb_server.summary[run_id]["overhead_frac"]))
    kills = [row["kill/hour"] for row in rows if "kill/hour" in row]
    assert kills == [event.hour for event in events if is_loss(event)]
    recoveries = [row for row in rows if "recovery/rank" in row]
    assert len(recoveries) == len(kills) == wandb_server.summary[run_id]["num_lost_ranks"]
    assert {row["recovery/latency_s"] for row in recoveries} == {0.19}
    assert wandb_server.summary[run_id]["delta_auc"] == -0.002


@pytest.mark.parametrize(
    "text", ["{", "[]", b"\xff", '{"git": 3}', '{"git": {"commit": []}}', '{"code": {"fingerprint": 7}}']
)
def test_a_damaged_environment_is_one_line(tmp_path: Path, text: str | bytes) -> None:
    """Law: sync, dashboard and a run that goes on name the file; its record has no digest of it, as one of before."""
    started, *_ = made_events(made_config())
    recorder = Recorder(tmp_path, made_config())
    recorder.record(started)
    position = recorder.position()
    recorder.close(ok=False, reason="RunFailed: out of luck")
    recorder.run.env.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StoreError, match=rf"^{recorder.run.env}: ") as caught:
        view_of(recorder.run, {}, {})
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match=rf"^{recorder.run.env}: "):
        Recorder(tmp_path, made_config("full", wandb={"mode": "offline"}), since=position)


def test_a_damaged_config_is_a_line_a_mistake(tmp_path: Path) -> None:
    """Law: a key that the config does not have is named with its file, as is a strategy that is not loaded."""
    recorder = Recorder(tmp_path, made_config())
    recorder.record(made_events(made_config())[0])
    recorder.close(ok=False)
    before = recorder.run.config.read_text()
    for changed in (f"unknown: 3\n{before}", before.replace("name: cpr_vanilla", "name: of_a_plugin")):
        recorder.run.config.write_text(changed)
        with pytest.raises(StoreError) as caught:
            view_of(recorder.run, {}, {})
        assert all(line.startswith(f"{recorder.run.config}: ") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(("key", "value"), [("detect_h", {}), ("o_load_h", {"a": 1}), ("detect_h", [1])])
def test_a_mapping_in_the_place_of_a_number_is_named(tmp_path: Path, key: str, value: object) -> None:
    """Law: a key that the analysis computes with is a number, or is optional and absent, or is named."""
    values = made_config().model_dump(mode="json")
    values["profile"][key] = value
    (tmp_path / "config.yaml").write_text(to_yaml(values))
    with pytest.raises(StoreError, match=rf"config\.yaml: profile\.{key}: expected a number"):
        read_config(tmp_path)


def test_a_damaged_name_of_a_rank_is_no_number(tmp_path: Path) -> None:
    """Law: a record that is not sealed has a view, whatever its ranks are called."""
    with Recorder(tmp_path, made_config()) as recorder:
        for event in made_events(made_config()):
            recorder.record(altered(event, rank="psnull") if is_loss(event) else event)
    view = view_of(recorder.run, {}, {})
    assert view is not None
    assert {row["kill/rank"] for row in view.rows if "kill/rank" in row} == {None}


def test_a_trainer_has_a_number_of_its_own(tmp_path: Path) -> None:
    """Law: of each death and recovery the number is that of a PS rank or of a trainer, and what the network lacks."""
    num_recovered = 0
    with Recorder(tmp_path, made_config()) as recorder:
        for event in made_events(made_config()):
            changes: dict[str, Any] = {}
            if is_loss(event):
                changes = {"rank": "trainer1"}
            elif isinstance(event, Recovered):
                ranks, num_recovered = [*event.ranks, "trainer1"], num_recovered + 1
                changes = {"ranks": ranks, "dense": "checkpoint", "lost_dense_samples": 7}
            recorder.record(altered(event, **changes) if changes else event)
    view = view_of(recorder.run, {}, {})
    assert view is not None
    assert {row["kill/trainer"] for row in view.rows if "kill/hour" in row} == {1}
    recoveries = [row for row in view.rows if "recovery/rows" in row]
    assert [row["recovery/trainer"] for row in recoveries if "recovery/rank" not in row] == [1] * num_recovered
    assert {row["recovery/lost_dense_samples"] for row in recoveries} == {7}


def test_a_marker_that_cannot_be_used_is_none(tmp_path: Path) -> None:
    """Law: a run whose marker is damaged is sent again."""
    run = RunDir(tmp_path)
    run.wandb.mkdir()
    for text in ("", "[" * 100_000, "[]", '{"server": "a", "digest": "b", "id": "c", "url": 3}'):
        (run.wandb / "sent.json").write_text(text)
        assert sent_marker(run) == {}


def test_a_run_is_sent_once(wandb_server: WandbServer, tmp_path: Path) -> None:
    """A second call sends nothing; a figure that has become known since then is sent, to the same run."""
    write_run(tmp_path / "run", made_config("full"))
    assert Uploader({}).send(tmp_path / "run", {}) == "sent"
    wandb_server.operations.clear()
    assert Uploader({}).send(tmp_path / "run", {}) == "sent before"
    assert wandb_server.operations == ["Viewer"]  # the question whether the server answers
    assert Uploader({}).send(tmp_path / "run", {"delta_auc": 0.0}) == "sent"
    assert len(wandb_server.runs) == 1


def test_a_rerun_replaces_and_a_cell_of_another_engine_does_not(wandb_server: WandbServer, tmp_path: Path) -> None:
    """Ids of wandb runs follow from config hash and engine, not from folder or time."""
    for name, engine in (("first", "local"), ("again", "local"), ("other", "rpc")):
        write_run(tmp_path / name, made_config("full", engine=engine))
        Uploader({}).send(tmp_path / name, {})
    assert sorted(run["displayName"] for run in wandb_server.runs.values()) == ["again", "other"]


def test_an_online_run_need_not_be_sent(
    wandb_server: WandbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was online to its end logs its address, and is marked as sent."""
    with caplog.at_level(logging.INFO, "harness"):
        write_run(tmp_path / "run", made_config("full", wandb={"mode": "online"}))
    (run_id,) = wandb_server.runs
    assert _lines(caplog) == [f"wandb: {wandb_server.url}/someone/cpr-harness/runs/{run_id}"]
    assert Uploader({}).send(tmp_path / "run", {}) == "sent before"


def test_a_curve_is_of_one_sample_set(wandb_server: WandbServer, tmp_path: Path) -> None:
    """The evaluation of the whole set, which gives the result, is no point of a curve over a part of it."""
    config = made_config("full")
    events = made_events(config)
    whole = next(event for event in events if isinstance(event, Evaluated))
    with Recorder(tmp_path / "run", config) as recorder:
        for event in events:
            if event is whole:
                recorder.record(altered(whole, num_samples=100, auc=0.7, final=False))
            recorder.record(event)
        recorder.done()
    Uploader({}).send(tmp_path / "run", {})
    ((run_id, lines),) = wandb_server.history.items()
    assert [row["eval/auc"] for row in lines.values() if "eval/auc" in row] == [0.7]
    assert wandb_server.summary[run_id]["auc"] == whole.auc


def test_runs_that_go_on_are_left_alone(wandb_server: WandbServer, tmp_path: Path) -> None:
    """An unfinished run is not sent."""
    config = made_config("full")
    recorder = Recorder(tmp_path / "run", config)
    recorder.record(next(event for event in made_events(config) if isinstance(event, Started)))
    assert Uploader({}).send(tmp_path / "run", {}) == "not ended"
    recorder.close(ok=False)
    assert wandb_server.runs == {}


def test_a_silent_server_costs_sync_one_line(silent_server: str, tmp_path: Path) -> None:
    """A server that accepts and never answers: one line in time, nothing is marked as sent."""
    write_run(tmp_path / "run", made_config("full"))
    began_s = time.monotonic()
    with pytest.raises(RunFailed, match=rf"{silent_server}: expected an answer, got none within .*; nothing was sent"):
        Uploader({})
    assert time.monotonic() - began_s < _DEADLINE_S
    assert sent_marker(RunDir(tmp_path / "run")) == {}


@pytest.mark.parametrize("mute_after", ["Viewer", "UpsertBucket"])
def test_a_server_that_falls_mute_costs_sync_one_line(
    wandb_server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mute_after: str
) -> None:
    """A server that answers once or twice and never again: one line in time for all of it, no wandb-core is left."""
    monkeypatch.setattr(wandb_worker, "DEADLINE_S", 4.0)
    monkeypatch.setattr(wandb_worker, "_GRACE_S", 0.5)
    write_run(tmp_path / "run", made_config("full"))
    uploader = Uploader({})
    wandb_server.mute_after = mute_after
    with pytest.raises(RunFailed, match=r"wandb: no answer within 4 s; the same command sends the rest$"):
        uploader.send(tmp_path / "run", {})
    assert wandb_server.mute_s is not None
    assert time.monotonic() - wandb_server.mute_s < 7.5, "two calls would have had 8 s"
    assert sent_marker(RunDir(tmp_path / "run")) == {}
    await_no_core()


def test_a_call_that_never_ends_costs_sync_one_deadline(
    wandb_server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the session does not wait for a deadline of its own after a call that was given up."""
    monkeypatch.setattr(wandb_worker, "DEADLINE_S", 4.0)
    monkeypatch.setattr(wandb_worker, "_GRACE_S", 0.5)
    never, asked_s = threading.Event(), []

    def log(self: Session, row: object) -> None:
        asked_s.append(time.monotonic())
        never.wait()

    monkeypatch.setattr(Session, "log", log)
    write_run(tmp_path / "run", made_config("full"))
    with pytest.raises(RunFailed, match=r"wandb: no answer within 4 s; the same command sends the rest$"):
        Uploader({}).send(tmp_path / "run", {})
    assert time.monotonic() - asked_s[0] < 7.5, "two calls would have had 8 s"
    never.set()
    for thread in threading.enumerate():
        if thread.name == "wandb":  # it ends the session now
            thread.join(_DEADLINE_S)
    await_no_core()


def test_a_silent_server_costs_a_run_one_line(
    silent_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An online run goes on offline, with one line in time; its record is complete and can be sent later."""
    config = made_config("full", wandb={"mode": "online"})
    began_s = time.monotonic()
    with Recorder(tmp_path / "run", config) as recorder:
        events = iter(made_events(config))
        recorder.record(next(events))
        assert time.monotonic() - began_s < _DEADLINE_S
        for event in events:
            recorder.record(event)
        recorder.done()
    (line,) = _lines(caplog)
    assert silent_server in line
    assert "the run goes on offline" in line
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    await_no_core()


def test_a_dead_server_and_a_mute_wandb_cost_the_start_of_a_run_one_line(
    silent_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: probe, online and offline session share one deadline, and all that fails is one line."""
    never = threading.Event()
    monkeypatch.setattr(wandb_sink, "Session", lambda *_, **__: never.wait())
    monkeypatch.setattr(wandb_sink, "START_S", 2.0)
    monkeypatch.setattr(wandb_worker, "_GRACE_S", 0.5)
    events = list(made_events(config := made_config("full", wandb={"mode": "online"})))
    problems = (f"{silent_server}: expected an answer, got none within 1 s; no answer within ", "no answer within ")
    for number, problem in enumerate(problems):
        caplog.clear()
        if number:
            monkeypatch.setattr(wandb_sink, "server_problem", lambda: None)
        began_s = time.monotonic()
        with Recorder(tmp_path / str(number), config) as recorder:
            recorder.record(events[0])
            assert time.monotonic() - began_s < 20.0, "a call alone has 60 s in tests"
        (line,) = _lines(caplog)
        assert line.startswith(f"note: wandb: {problem}")
        assert line.endswith(f"; the run goes on; send it later by `run.py sync {tmp_path / str(number)}`")
    never.set()


def test_online_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mistake is said before a step is run."""
    import wandb

    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb.teardown()
    with pytest.raises(ConfigError, match=r"expected an API key for \S+, got none"):
        Recorder(tmp_path / "run", made_config("full", wandb={"mode": "online"}))
    wandb.teardown()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("WANDB_BASE_URL", url) for url in ("nonsense", "ftp://127.0.0.1", "http://127.0.0.1:99999")),
        ("WANDB_PROJECT", "a/b"),
        ("WANDB_HTTPS_PROXY", "http://user:secret@127.0.0.1:99999"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Law: online it is refused before a step is run, and by sync; an offline run goes on without its view."""
    import wandb

    wandb.teardown()
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"wandb: .*; its settings are WANDB_") as refused:
        Recorder(tmp_path / "online", made_config("full", wandb={"mode": "online"}))
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"wandb: .*; its settings are WANDB_"):
        Uploader({})
    write_run(tmp_path / "offline", made_config("full", wandb={"mode": "offline"}))
    (line,) = _lines(caplog)
    assert line.startswith("note: wandb: ")
    assert RunDir(tmp_path / "offline").status == "done"
    monkeypatch.undo()
    wandb.teardown()


def await_no_core() -> None:
    """Wait until no wandb-core of this process is left: one that was killed may take a moment to end."""
    until_s = time.monotonic() + _DEADLINE_S
    while core_pids(os.getpid()):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package has logged; on a busy machine it also says for what it waits."""
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("harness.")]
    return [line for line in lines if not line.startswith("wandb: waiting for ")]
