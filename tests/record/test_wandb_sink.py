"""wandb as a view of the record: what a dashboard shows, silence, and no process left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.spawn import fork_server
from harness.core.events import Event, Finished, Trained
from harness.record.recorder import Recorder, read_events
from harness.record.rundir import RunDir
from tests.made_runs import made_config, made_events, write_run

_REPOSITORY = Path(__file__).resolve().parents[2]
_PATIENCE_S = 60.0


def record(run_dir: Path, mode: str = "offline", *, breaks: bool = False, waits: bool = False) -> None:
    """Record a run. ``breaks``: kill every child in the middle; ``waits``: at the end, until killed."""
    warnings.simplefilter("error")
    config = made_config("cpr_mfu", wandb={"mode": mode})
    with Recorder(run_dir, config) as recorder:
        for number, event in enumerate(made_events(config)):
            if number == 9 and breaks:
                for pid in _children(os.getpid()):
                    os.kill(pid, signal.SIGKILL)
            recorder.record(event)
        if waits:
            (run_dir / "recorded").touch()
            signal.pause()
        recorder.done()
    assert ("wandb" in sys.modules) == (mode != "disabled")


def _recording(*arguments: Any, **options: Any) -> BaseProcess:
    """A process of its own that calls :func:`record`, and so far has not imported wandb."""
    process = fork_server().Process(target=record, args=arguments, kwargs=options)
    process.start()
    return process


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _inspect(run_dir: Path, *options: str) -> Any:
    file = next((run_dir / "wandb").glob("offline-run-*/*.wandb"))
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *options, "--json", str(file)]
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A run under its wandb, offline."""
    path = tmp_path_factory.mktemp("grid") / "cpr_mfu-s3"
    config = made_config("cpr_mfu", seed=3, name="my_grid", wandb={"mode": "offline"})
    return path, write_run(path, config)


def test_summary_holds_the_final_figures(recorded: tuple[Path, list[Event]]) -> None:
    """AUC, PLS, overhead and its buckets in wandb's summary are those of the Finished event."""
    run_dir, events = recorded
    finished = events[-1]
    assert isinstance(finished, Finished)
    summary = _inspect(run_dir, "--summary")["summary"]
    names = ("auc", "log_loss", "accuracy", "pls", "update_pls", "update_pls_tracked", "overhead_frac")
    for name in (*names, "save_h", "load_h", "lost_h", "reschedule_h", "num_failures"):
        assert summary[name] == pytest.approx(getattr(finished, name), rel=1e-12), name
    assert summary["measured_stall_s"] == pytest.approx(sum(finished.machine["overhead_seconds"].values()))


def test_a_run_is_found_by_what_it_is(recorded: tuple[Path, list[Event]]) -> None:
    """Name, tags, config and project of the wandb run say which cell it is."""
    run_dir, _ = recorded
    facts = _inspect(run_dir, "--summary")
    assert (facts["name"], facts["project"], facts["state"]) == ("cpr_mfu-s3", "cpr-harness", "finished")
    assert set(facts["tags"]) == {"local", "trace:busy", "profile:busy"}
    assert facts["config"]["strategy"]["name"] == "cpr_mfu"
    assert facts["config"]["seed"] == 3


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to watch system calls")
def test_offline_reaches_no_network_and_no_console(tmp_path: Path) -> None:
    """Over a whole run, neither this process nor wandb-core connects to an internet address or prints."""
    calls = tmp_path / "calls.txt"
    traced = ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg", "-o", str(calls)]
    code = (
        "import sys; from pathlib import Path; from tests.record.test_wandb_sink import record;"
        "record(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [*traced, sys.executable, "-W", "error", "-c", code, str(tmp_path / "run")],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    trace = calls.read_text()
    assert "AF_UNIX" in trace, "wandb-core was not seen at work"
    assert [line for line in trace.splitlines() if "AF_INET" in line] == []


def test_a_killed_owner_leaves_no_wandb_process(tmp_path: Path) -> None:
    """SIGKILL of the recording process ends its wandb-core within two seconds."""
    process = _recording(tmp_path / "run", waits=True)
    assert process.pid is not None
    until = time.monotonic() + _PATIENCE_S
    while not (tmp_path / "run" / "recorded").exists():
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    cores = [pid for pid in _children(process.pid) if "wandb-core" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(cores) == 1
    watch = os.pidfd_open(cores[0])
    try:
        process.kill()
        process.join(10)
        assert process.exitcode == -signal.SIGKILL
        deadline = time.monotonic() + 2
        while Path(f"/proc/{cores[0]}").exists() and _state(cores[0]) != "Z":
            assert time.monotonic() < deadline, "wandb-core outlived its owner by two seconds"
            time.sleep(0.01)
    finally:
        os.close(watch)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_sample_position_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run again after a rollback are not logged: losses in wandb's history have rising sample positions."""
    import wandb

    logged: list[dict[str, Any]] = []
    real = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, data: (logged.append(dict(data)), real(run, data)))
    events = write_run(tmp_path / "run", made_config("full", wandb={"mode": "offline"}))
    assert any(isinstance(event, Trained) and event.rerun for event in events), "nothing was run again"
    positions = [values["samples"] for values in logged if "train/loss" in values]
    assert positions == [e.samples for e in made_events(made_config("full")) if isinstance(e, Trained) and not e.rerun]
    assert positions == sorted(set(positions))


def test_a_dead_wandb_does_not_cost_the_run(tmp_path: Path) -> None:
    """With wandb-core killed in the middle, the run is recorded to its end."""
    process = _recording(tmp_path / "run", breaks=True)
    process.join(_PATIENCE_S)
    assert process.exitcode == 0
    run = RunDir(tmp_path / "run")
    assert run.status == "done"
    assert isinstance(read_events(run.events)[-1], Finished)


def test_disabled_does_not_even_import_wandb(tmp_path: Path) -> None:
    """``wandb.mode=disabled`` leaves no folder, and wandb is not imported."""
    process = _recording(tmp_path / "run", "disabled")
    process.join(_PATIENCE_S)
    assert process.exitcode == 0
    assert not (tmp_path / "run" / "wandb").exists()
