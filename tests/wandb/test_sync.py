"""Sending runs to a wandb server: all of a run arrives, once, and a dead server costs one line and nothing else."""

import logging
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import ConfigError, RunFailed, StoreError
from harness.core.events import Evaluated, Event, Recovered, Trained
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir
from harness.wandb import exporter
from harness.wandb.exporter import Outcome, Uploader, followed
from harness.wandb.facts import read_facts, sent_marker
from harness.wandb.history import History, Row
from tests.injected import is_loss
from tests.made_runs import altered, made_config, made_events, with_drops, write_run
from tests.wandb.stand_in import WandbServer, ends, started_core


def _send(path: Path, **figures: float) -> Outcome:
    with closing(Uploader({"project": "mine"})) as uploader:
        return uploader.send(path, figures)


def test_a_recorded_run_arrives_whole_and_once(wandb_server: WandbServer, tmp_path: Path) -> None:
    """Every point of the curves, every kill and recovery, the summary and what identifies a run reach the server.

    A second call sends nothing, and a run that goes on is left alone.
    """
    with Recorder(tmp_path / "unfinished", made_config()) as recorder:
        recorder.record(made_events(made_config())[0])
        assert _send(tmp_path / "unfinished") == "not ended"
    assert wandb_server.runs == {}
    config = made_config("cpr_mfu", seed=3, name="my_grid")
    events = write_run(tmp_path / "cpr_mfu-s3", config)
    assert _send(tmp_path / "cpr_mfu-s3", delta_auc=-0.002) == "sent"
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
    assert hours[-1] == pytest.approx(config.profile.job_h * (1 + wandb_server.summary[run_id]["overhead_frac"]))
    kills = [row["kill/hour"] for row in rows if "kill/hour" in row]
    assert kills == [event.hour for event in events if is_loss(event)]
    assert not any(key.startswith("eval/") for key in wandb_server.summary[run_id])
    assert wandb_server.summary[run_id]["auc"] == events[-1].to_json()["auc"]  # of the whole test set
    recoveries = [row for row in rows if "recovery/rank" in row]
    assert len(recoveries) == len(kills) == wandb_server.summary[run_id]["num_lost_ranks"]
    assert {row["recovery/latency_s"] for row in recoveries} == {0.19}
    assert wandb_server.summary[run_id]["delta_auc"] == -0.002
    wandb_server.operations.clear()
    assert _send(tmp_path / "cpr_mfu-s3", delta_auc=-0.002) == "sent before"
    assert wandb_server.operations == []
    assert _send(tmp_path / "cpr_mfu-s3", delta_auc=0.0) == "sent", "a figure has become known"
    assert len(wandb_server.runs) == 1


def test_the_hours_have_what_every_step_pays() -> None:
    """Law: the axis ends at the hours of the job and all its overhead; a part without a price adds nothing."""
    config = made_config("cpr_mfu", profile={"base": "busy", "step_frac": {"mfu": 0.03}})
    events, job_h = made_events(config), config.profile.job_h
    ends: list[float] = []
    for prices in (config.profile.step_frac, {}):
        history = History(job_h, prices)
        ends.append([row["hours"] for event in events for row in history.rows(event)][-1])
    overhead_frac = history.summary(events[-1])["overhead_frac"]
    assert ends == pytest.approx([job_h * (1 + overhead_frac), job_h * (1 + overhead_frac - 0.03)], rel=1e-3)


@pytest.mark.parametrize(
    "text", ["{", "[]", b"\xff", '{"git": 3}', '{"git": {"commit": []}}', '{"code": {"fingerprint": 7}}']
)
def test_a_damaged_environment_is_one_line(tmp_path: Path, text: str | bytes) -> None:
    """Law: sync, dashboard and a run that goes on name the file; its record has no digest of it, as one of before."""
    started, *_ = made_events(made_config())
    recorder = Recorder(tmp_path, made_config())
    recorder.record(started)
    position = recorder.position()
    recorder.fail("RunFailed: out of luck")
    recorder.run.env.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StoreError, match=rf"^{recorder.run.env}: ") as caught:
        read_facts(recorder.run, {})
    assert "\n" not in str(caught.value)
    config = made_config("full", wandb={"mode": "offline"})
    with (
        Recorder(tmp_path, config, since=position),
        pytest.raises(StoreError, match=rf"^{recorder.run.env}: "),
        followed(recorder.run, config, "0" * 16),
    ):
        pass


def test_a_damaged_config_is_a_line(tmp_path: Path) -> None:
    """Law: the line names the file and the key. A strategy of a plugin that is not loaded is no damage."""
    recorder = Recorder(tmp_path, made_config())
    recorder.record(made_events(made_config())[0])
    recorder.fail()
    before = recorder.run.config.read_text()
    recorder.run.config.write_text(before.replace("project: cpr-harness", "project: 3"))
    with pytest.raises(StoreError, match=rf"^{recorder.run.config}: wandb\.project: expected text, got 3"):
        read_facts(recorder.run, {})
    recorder.run.config.write_text(before.replace("name: cpr_vanilla", "name: of_a_plugin"))
    assert (facts := read_facts(recorder.run, {"project": "mine"})) is not None
    assert (facts.job_type, facts.project) == ("of_a_plugin", "mine")


def test_a_marker_that_cannot_be_used_is_none(tmp_path: Path) -> None:
    """Law: a run whose marker is damaged is sent again."""
    run = RunDir(tmp_path)
    run.wandb.mkdir()
    for text in ("", "[" * 100_000, "[]", '{"server": "a", "digest": "b", "id": "c", "url": 3}'):
        (run.wandb / "sent.json").write_text(text)
        assert sent_marker(run) == {}


def test_a_rerun_replaces_and_a_cell_of_another_engine_does_not(tmp_path: Path) -> None:
    """Ids of wandb runs follow from config hash and engine, not from folder or time."""
    ids = []
    for name, engine in (("first", "local"), ("again", "local"), ("other", "rpc")):
        write_run(tmp_path / name, made_config("full", engine=engine))
        facts = read_facts(RunDir(tmp_path / name), {})
        assert facts is not None
        ids.append(facts.id)
    assert ids[0] == ids[1] != ids[2]


def test_an_online_run_need_not_be_sent(
    wandb_server: WandbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was online to its end logs its address, and is marked as sent."""
    with caplog.at_level(logging.INFO, "harness"):
        write_run(tmp_path / "run", made_config("full", wandb={"mode": "online", "project": "mine"}))
    (run_id,) = wandb_server.runs
    assert _lines(caplog) == [f"wandb: {wandb_server.url}/someone/mine/runs/{run_id}"]
    assert _send(tmp_path / "run") == "sent before"


@pytest.mark.slow
def test_a_server_that_falls_mute_costs_sync_one_line(
    wandb_server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers twice and never again: one line in time for all of it, no wandb-core is left."""
    write_run(tmp_path / "before", made_config("none"))
    write_run(tmp_path / "run", made_config("full"))
    with closing(Uploader({})) as uploader:
        uploader.send(tmp_path / "before", {})
        core = started_core(os.getpid())
        monkeypatch.setattr(exporter, "DEADLINE_S", 4.0)
        wandb_server.operations.clear()
        wandb_server.mute_after = "UpsertBucket"
        with pytest.raises(RunFailed, match=r"wandb: no answer within 4 s; the same command sends the rest$"):
            uploader.send(tmp_path / "run", {})
        assert wandb_server.mute_s is not None
        assert time.monotonic() - wandb_server.mute_s < 7.5, "two deadlines would be 8 s"
    assert sent_marker(RunDir(tmp_path / "run")) == {}
    assert ends(core)


def test_a_silent_server_costs_a_run_one_line(
    silent_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An online run goes on offline, with one line; its record is complete and can be sent later."""
    write_run(tmp_path / "run", made_config("full", wandb={"mode": "online"}))
    (line,) = _lines(caplog)
    assert silent_server in line
    assert "the run goes on offline" in line
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert RunDir(tmp_path / "run").status == "done"


def test_online_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mistake is said before a step is run."""
    import wandb

    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb.teardown()
    with pytest.raises(ConfigError, match=r"expected an API key for \S+, got none"):
        write_run(tmp_path / "run", made_config("full", wandb={"mode": "online"}))
    wandb.teardown()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_BASE_URL", "http://127.0.0.1:99999"),
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
        write_run(tmp_path / "online", made_config("full", wandb={"mode": "online"}))
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


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package has logged; on a busy machine it also says for what it waits."""
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("harness.")]
    return [line for line in lines if not line.startswith("wandb: waiting for ")]


def _rows(events: list[Event]) -> list[Row]:
    history = History(made_config().profile.job_h)
    return [row for event in events for row in history.rows(event)]


def test_a_position_is_seen_once_and_of_one_sample_set() -> None:
    """Steps run again after a rollback are not logged: losses have rising sample positions.

    The evaluation of the whole set, which gives the result, is no point of a curve over a part of it.
    """
    events = made_events(made_config("full"))
    assert any(isinstance(event, Trained) and event.rerun for event in events), "nothing was run again"
    at = next(number for number, event in enumerate(events) if isinstance(event, Evaluated))
    rows = _rows(
        [
            *events[:at],
            altered(events[at], samples=events[at].samples - 1, num_samples=100, auc=0.7, final=False),
            *events[at:],
        ]
    )
    positions = [row["samples"] for row in rows if "train/loss" in row]
    assert positions == [event.samples for event in events if isinstance(event, Trained) and not event.rerun]
    assert positions == sorted(set(positions))
    assert [(row["curve/auc"], row["curve/num_samples"]) for row in rows if "curve/auc" in row] == [(0.7, 100)]


def test_drops_of_auc_are_in_history_and_summary() -> None:
    """Law: the sum, mean and last drop so far, as `analysis.load` has them; unknown is left out, of `none` 0."""
    events = [*with_drops(made_events(made_config()), 1e-3)]
    sums = dict.fromkeys(row["drop/sum"] for row in _rows(events) if "drop/sum" in row)
    assert [*sums] == pytest.approx([1e-3 * number for number in range(6)])
    for strategy, made, expected in (
        ("cpr_vanilla", events, {"drop/sum": 5e-3, "drop/mean": 1e-3, "drop/last": 1e-3}),
        ("cpr_vanilla", made_events(made_config()), {}),
        ("none", made_events(made_config("none")), {"drop/sum": 0.0}),
    ):
        history = History(made_config(strategy).profile.job_h)
        assert [row for event in made for row in history.rows(event)]
        summary = {key: value for key, value in history.summary(made[-1]).items() if key.startswith("drop/")}
        assert summary == pytest.approx(expected)


def test_a_trainer_has_a_number_of_its_own() -> None:
    """Law: of each death and recovery the number is that of a PS rank or of a trainer, and what the network lacks.

    A record that is not sealed has a view, whatever its ranks are called.
    """
    num_recovered, events = 0, []
    for event in made_events(made_config()):
        changes: dict[str, Any] = {}
        if is_loss(event):
            changes = {"rank": "trainer1"}
        elif isinstance(event, Recovered):
            ranks, num_recovered = [*event.ranks, "trainer1"], num_recovered + 1
            changes = {"ranks": ranks, "dense": "checkpoint", "lost_dense_samples": 7}
        events.append(altered(event, **changes) if changes else event)
    rows = _rows(events)
    assert {row["kill/trainer"] for row in rows if "kill/hour" in row} == {1}
    recoveries = [row for row in rows if "recovery/rows" in row]
    assert [row["recovery/trainer"] for row in recoveries if "recovery/rank" not in row] == [1] * num_recovered
    assert {row["recovery/lost_dense_samples"] for row in recoveries} == {7}
    damaged = [altered(event, rank="psnull") if is_loss(event) else event for event in events]
    assert {row["kill/rank"] for row in _rows(damaged) if "kill/rank" in row} == {None}
