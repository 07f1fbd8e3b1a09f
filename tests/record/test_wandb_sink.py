"""wandb as a view of the record: what a dashboard shows, silence, and no process left behind."""

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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from harness.core.events import Event, Finished, Trained
from harness.processes.spawn import fork_server
from harness.record import wandb_worker
from harness.record.recorder import Recorder, read_events
from harness.record.rundir import RunDir
from harness.record.wandb_worker import core_pids
from tests.made_runs import made_config, made_events, write_run
from tests.wandb_server import be_patient

_REPOSITORY = Path(__file__).resolve().parents[2]
_PATIENCE_S = 100.0
_ENDS_S = 20.0


def record(
    run_dir: Path, mode: str = "offline", *, signal_number: int | None = None, waits: bool = False, fails: bool = False
) -> None:
    """Record a run. ``signal_number``: sent to wandb-core in the middle; ``waits``: at the end, until killed.

    ``fails``: the run is interrupted after the signal.
    """
    be_patient(pytest.MonkeyPatch())  # for good: this process is the run's own
    warnings.simplefilter("error")
    logging.basicConfig(filename=run_dir.parent / "log.txt", level=logging.INFO, format="%(message)s")
    config = made_config("cpr_mfu", wandb={"mode": mode})
    with Recorder(run_dir, config) as recorder:
        for number, event in enumerate(made_events(config)):
            if number == 9 and signal_number is not None:
                (pid,) = core_pids(os.getpid())
                (run_dir.parent / "core.txt").write_text(str(pid))
                os.kill(pid, signal_number)
                wandb_worker.DEADLINE_S = 1.0  # from here on: to start takes longer on a busy machine
            recorder.record(event)
            if number == 20 and fails:
                raise KeyboardInterrupt
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
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        return path, write_run(path, config)


@pytest.fixture(scope="module")
def facts(recorded: tuple[Path, list[Event]]) -> Any:
    """What wandb says of that run."""
    return _inspect(recorded[0], "--summary")


def test_summary_holds_the_final_figures(recorded: tuple[Path, list[Event]], facts: Any) -> None:
    """AUC, PLS, overhead and its buckets in wandb's summary are those of the Finished event."""
    _, events = recorded
    finished = events[-1]
    assert isinstance(finished, Finished)
    summary = facts["summary"]
    names = ("auc", "log_loss", "accuracy", "pls", "update_pls", "update_pls_tracked", "overhead_frac")
    for name in (*names, "save_h", "load_h", "lost_h", "reschedule_h", "num_failures"):
        assert summary[name] == pytest.approx(getattr(finished, name), rel=1e-12), name
    assert summary["measured_stall_s"] == pytest.approx(sum(finished.machine["overhead_seconds"].values()))


def test_a_run_is_found_by_what_it_is(facts: Any) -> None:
    """Name, tags, config and project of the wandb run say which cell it is."""
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
    """SIGKILL of the recording process ends its wandb-core."""
    process = _recording(tmp_path / "run", waits=True)
    assert process.pid is not None
    until = time.monotonic() + _PATIENCE_S
    while not (tmp_path / "run" / "recorded").exists():
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    cores = core_pids(process.pid)
    process.kill()
    process.join(_PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    assert len(cores) == 1
    assert _ends(cores[0]), "wandb-core outlived its owner"


def _ends(pid: int) -> bool:
    """Whether a process has ended, or does so soon."""
    until_s = time.monotonic() + _ENDS_S
    while _state(pid) != "Z":
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_sample_position_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run again after a rollback are not logged: losses in wandb's history have rising sample positions."""
    import wandb

    logged: list[dict[str, Any]] = []
    be_patient(monkeypatch)
    real = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, data: (logged.append(dict(data)), real(run, data)))
    events = write_run(tmp_path / "run", made_config("full", wandb={"mode": "offline"}))
    assert any(isinstance(event, Trained) and event.rerun for event in events), "nothing was run again"
    positions = [values["samples"] for values in logged if "train/loss" in values]
    assert positions == [e.samples for e in made_events(made_config("full")) if isinstance(e, Trained) and not e.rerun]
    assert positions == sorted(set(positions))


def test_a_dead_wandb_does_not_cost_the_run(tmp_path: Path) -> None:
    """With wandb-core killed in the middle, the run is recorded to its end."""
    process = _recording(tmp_path / "run", signal_number=signal.SIGKILL)
    process.join(_PATIENCE_S)
    assert process.exitcode == 0
    run = RunDir(tmp_path / "run")
    assert run.status == "done"
    assert isinstance(read_events(run.events)[-1], Finished)


@pytest.mark.parametrize("fails", [False, True])
def test_a_stopped_wandb_does_not_cost_the_run(tmp_path: Path, fails: bool) -> None:
    """With wandb-core stopped, a run, interrupted or not, ends with its record and one line, and leaves no process."""
    process = _recording(tmp_path / "run", signal_number=signal.SIGSTOP, fails=fails)
    process.join(_PATIENCE_S)
    exit_code = process.exitcode
    process.kill()
    core = int((tmp_path / "core.txt").read_text())
    if not (is_ended := _ends(core)):
        os.kill(core, signal.SIGKILL)
    assert (exit_code, is_ended) == (int(fails), True)
    assert [*Path(tempfile.gettempdir()).glob(f"wandb-*-{core}-*")] == []
    assert RunDir(tmp_path / "run").status == ("failed" if fails else "done")
    state = "the record is kept" if fails else "the run is complete"
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line for line in lines if "waiting for its process" not in line] == [
        f"note: wandb: no answer within 1 s; {state}; send it later by `run.py sync {tmp_path / 'run'}`"
    ]


def test_disabled_does_not_even_import_wandb(tmp_path: Path) -> None:
    """``wandb.mode=disabled`` leaves no folder, and wandb is not imported."""
    process = _recording(tmp_path / "run", "disabled")
    process.join(_PATIENCE_S)
    assert process.exitcode == 0
    assert not (tmp_path / "run" / "wandb").exists()
