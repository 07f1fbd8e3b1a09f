"""wandb as a follower of a run that goes on: what it shows, silence, and no process left behind."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.core.events import Finished
from harness.processes.forked import ForkedProcess
from harness.processes.spawn import fork_server
from harness.record.event_log import read_events
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir
from harness.wandb import exporter
from harness.wandb.exporter import Exporter, end_of, export_of, followed
from harness.wandb.facts import read_facts
from tests.made_runs import made_config, made_events, made_hash, write_run
from tests.wandb.stand_in import be_patient, ends, parent_of, started_core

_REPOSITORY = Path(__file__).resolve().parents[2]
_PATIENCE_S = 100.0


def record(
    run_dir: Path, mode: str = "offline", *, struck: str | None = None, number: int = 0, waits: bool = False
) -> None:
    """Record a run. ``struck``: ``core``, ``exporter`` or both get the signal ``number`` in the middle of the run.

    ``waits``: at the end, until killed.
    """
    be_patient(pytest.MonkeyPatch())  # for good: this process is the run's own
    warnings.simplefilter("error")
    logging.basicConfig(filename=run_dir.parent / "log.txt", level=logging.INFO, format="%(message)s")
    config = made_config("cpr_mfu", wandb={"mode": mode})
    with ExitStack() as views, Recorder(run_dir, config) as recorder:
        views.enter_context(followed(recorder.run, config, made_hash(config)))
        for at, event in enumerate(made_events(config)):
            if at == 9 and struck is not None:
                core = started_core(os.getpid())
                (run_dir.parent / "core.txt").write_text(str(core))
                for pid in {"core": [core], "exporter": [parent_of(core)]}.get(struck, [core, parent_of(core)]):
                    os.kill(pid, number)
                exporter.DEADLINE_S = 1.0  # from here on: to start takes longer on a busy machine
            recorder.record(event)
        if waits:
            started_core(os.getpid())
            (run_dir / "recorded").touch()
            signal.pause()
        recorder.done()


def _recording(*arguments: Any, **options: Any) -> ForkedProcess:
    """A process of its own that calls :func:`record`."""
    return fork_server().fork(partial(record, **options), *arguments)


def _inspected(folder: Path, *options: str) -> str:
    """All that wandb has of its offline run in ``folder``, as JSON."""
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, str(file)]
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def _records(folder: Path) -> dict[str, Any]:
    """Names of files, and the records of an offline run by kind, but times and places."""
    records = [json.loads(line, object_hook=_without_times) for line in _inspected(folder).splitlines()]
    found = {kind: [each[kind] for each in records if kind in each] for kind in ("history", "metric", "run", "exit")}
    return {"files": sorted(path.name for path in (folder / "wandb").glob("offline-run-*/**/*")), **found}


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    times = {"_timestamp", "_runtime", "runtime", "start_time", "last_write", "file", "telemetry", "_wandb"}
    return {key: value for key, value in values.items() if key not in times}


@pytest.mark.slow
def test_wandb_gets_the_same_offline_from_a_run_that_goes_on_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: config, history, summary, files of both exports are equal; the figures are those of the last event.

    Over the whole run, neither its process nor wandb-core connects to an internet address or prints.
    """
    be_patient(monkeypatch)
    path, later, calls = tmp_path / "run", tmp_path / "later", tmp_path / "calls.txt"
    code = "import sys; from pathlib import Path; from tests.wandb.test_follow import record; record(Path(sys.argv[1]))"
    traced = ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg", "-o", str(calls)]
    has_strace = shutil.which("strace") is not None
    done = subprocess.run(
        [*traced * has_strace, sys.executable, "-W", "error", "-c", code, str(path)],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    trace = calls.read_text() if has_strace else "AF_UNIX"
    assert "AF_UNIX" in trace, "wandb-core was not seen at work"
    assert [line for line in trace.splitlines() if "AF_INET" in line] == []
    facts, finished = read_facts(run := RunDir(path), {}), read_events(run.events)[-1]
    assert facts is not None
    assert isinstance(finished, Finished)
    later.mkdir()
    process = Exporter()
    process.send(export_of(run, facts, "offline", folder=later), end_of(run, is_ok=True, figures={}))
    assert process.await_sent() is None, "offline"
    process.close()
    assert _records(path) == _records(later)
    found = json.loads(_inspected(later, "--summary"))
    assert (found["name"], found["project"], found["state"]) == ("run", "cpr-harness", "finished")
    assert set(found["tags"]) == {"local", "trace:busy", "profile:busy"}
    assert (found["config"]["strategy"]["name"], found["config"]["seed"]) == ("cpr_mfu", 0)
    names = ("auc", "log_loss", "accuracy", "pls", "update_pls", "update_pls_tracked", "overhead_frac")
    for name in (*names, "save_h", "load_h", "lost_h", "reschedule_h", "num_failures"):
        assert found["summary"][name] == pytest.approx(getattr(finished, name), rel=1e-12), name
    stalls = finished.machine["overhead_seconds"]
    assert found["summary"]["measured_stall_s"] == pytest.approx(sum(stalls.values()))


def test_a_killed_run_leaves_no_wandb_process(tmp_path: Path) -> None:
    """SIGKILL of the recording process ends its exporter, and wandb-core."""
    process = _recording(tmp_path / "run", waits=True)
    until = time.monotonic() + _PATIENCE_S
    while not (tmp_path / "run" / "recorded").exists():
        assert process.exitcode is None
        assert time.monotonic() < until
        time.sleep(0.01)
    core = started_core(process.pid)
    its_exporter = parent_of(core)
    process.kill()
    process.join(_PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    assert ends(its_exporter)
    assert ends(core), "wandb-core outlived its owner"


@pytest.mark.parametrize(
    ("struck", "number", "problem"),
    [
        ("core", signal.SIGKILL, None),
        ("both", signal.SIGSTOP, "no answer within 1 s"),
        ("exporter", signal.SIGKILL, "its process has ended"),
    ],
)
def test_a_wandb_that_ends_or_hangs_does_not_cost_the_run(
    tmp_path: Path, struck: str, number: signal.Signals, problem: str | None
) -> None:
    """The run ends with its record and one line, and leaves no process; DONE does not wait for wandb."""
    process = _recording(tmp_path / "run", struck=struck, number=number)
    process.join(_PATIENCE_S)
    exit_code = process.exitcode
    process.kill()
    core = int((tmp_path / "core.txt").read_text())
    if not (is_ended := ends(core)):
        os.kill(core, signal.SIGKILL)
    assert (exit_code, is_ended) == (0, True)
    assert [*Path(tempfile.gettempdir()).glob(f"wandb-*-{core}-*")] == []
    run = RunDir(tmp_path / "run")
    assert run.status == "done"
    assert isinstance(read_events(run.events)[-1], Finished)
    (line,) = [line for line in (tmp_path / "log.txt").read_text().splitlines() if "waiting for its end" not in line]
    assert line.startswith(f"note: wandb: {problem or ''}")
    assert line.endswith(f"; send it later by `run.py sync {run.path}`")


def test_a_wandb_that_cannot_be_started_does_not_cost_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the system has no process or descriptor left for it, the run goes on, and says so in one line."""

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    config = made_config(wandb={"mode": "offline"})
    with ExitStack() as views, Recorder(tmp_path / "run", config) as recorder:
        views.enter_context(followed(recorder.run, config, made_hash(config)))
        for event in made_events(config):
            recorder.record(event)
        recorder.done()
    assert recorder.run.status == "done"
    words = "Too many open files; the run goes on; send it later by `run.py sync"
    assert [record.getMessage() for record in caplog.records] == [f"note: wandb: {words} {recorder.run.path}`"]


def test_disabled_and_a_run_without_an_event_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``wandb.mode=disabled`` starts no process; nor does bad input that ends a run before its first event."""
    be_patient(monkeypatch)
    config = made_config(wandb={"mode": "offline"})
    with ExitStack() as views, Recorder(tmp_path / "bad", config) as recorder:
        views.enter_context(followed(recorder.run, config, "0" * 16))
    monkeypatch.setattr(exporter, "Exporter", None)
    write_run(tmp_path / "run", made_config())
    assert not [*tmp_path.glob("*/wandb")]
