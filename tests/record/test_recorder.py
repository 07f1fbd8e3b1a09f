"""The run directory and the event log."""

import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import RunFailed, RunStopped, StoreError
from harness.record.event_log import EventLog, read_events
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir, read_config
from tests.made_runs import altered, made_config, made_events, write_run


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    """Events bit by bit, the resolved config, and the versions, the command and the machine that figures depend on."""
    config, run = made_config("cpr_mfu", profile={"base": "busy", "mtbf_h": 7.0}), RunDir(tmp_path / "run")
    assert write_run(run.path, config) == read_events(run.events)
    assert Config.model_validate(read_config(run.path)) == config
    env = json.loads(run.env.read_text())
    assert env["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert (env["command"], env["backend"]) == ("run.py grid made.yaml", "auto"), "the run's caller resolves auto"
    assert (env["num_cores"] >= 1, len(env["load_average"])) == (True, 3)
    assert env["variables"].keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}, "how threads wait is on record"


@pytest.mark.parametrize(("given", "expected"), [({}, True), ({"OMP_WAIT_POLICY": "PASSIVE"}, False)])
def test_threads_wait_briefly_unless_told_otherwise(given: dict[str, str], expected: bool) -> None:
    """Importing the harness bounds how long OpenMP's threads spin, before torch is loaded; what the user set stands."""
    script = "import sys, os, harness; print('GOMP_SPINCOUNT' in os.environ, 'torch' in sys.modules)"
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = {**kept, **given, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, env=environment, capture_output=True, check=True, text=True, timeout=60).stdout
    assert printed == f"{expected} False\n"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RunFailed("out of luck"), "failed", "RunFailed: out of luck"),
        (RunStopped(3), "unfinished", "RunStopped: asked to stop; a resume point of step 3 is kept"),
        (None, "failed", "the run ended before it was done"),
    ],
    ids=str,
)
def test_a_passing_error_is_the_reason(tmp_path: Path, error: Exception | None, status: str, reason: str) -> None:
    """It goes on its way, and is kept. A run that was asked to stop has not failed: it is unfinished, as if killed.

    A run whose result does not count has its Finished event, and an error instead of DONE.
    """
    recorder = Recorder(tmp_path / "run", made_config())
    with pytest.raises(type(error)) if error else nullcontext(), recorder:
        for event in made_events(made_config()):
            recorder.record(event)
        if error:
            raise error
    assert (recorder.run.status, recorder.run.reason()) == (status, reason)
    assert recorder.run.failure() == (reason if status == "failed" else None)


def test_a_full_disk_hides_no_failure(tmp_path: Path) -> None:
    """An error goes on its way though error.txt cannot be written; a DONE that cannot be is an error that names it."""
    failed, done = Recorder(tmp_path / "failed", made_config()), Recorder(tmp_path / "done", made_config())
    (failed.run.path / ".error.txt.tmp").symlink_to("/dev/full")
    with pytest.raises(RunFailed, match="out of luck"), failed:
        raise RunFailed("out of luck")
    (done.run.path / ".DONE.tmp").symlink_to("/dev/full")
    for event in made_events(made_config()):
        done.record(event)
    with pytest.raises(StoreError, match=r"done/DONE: cannot be written: No space left on device"):
        done.done()


def test_no_record_is_overwritten(tmp_path: Path) -> None:
    """A folder that holds a record is refused in one line, and not a byte of it changes."""
    write_run(tmp_path / "run", made_config())
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    with pytest.raises(StoreError, match="already holds the record of a run"):
        Recorder(tmp_path / "run", made_config("full"))
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")} == before


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_json_cannot_say_are_refused(tmp_path: Path, value: float) -> None:
    """A loss that is not finite fails the run, names its place, and writes no line."""
    with Recorder(tmp_path / "run", made_config()) as recorder:
        trained = next(event for event in made_events(made_config()) if event.kind == "train")
        with pytest.raises(RunFailed, match=rf"step {trained.step}: losses\[1\] of event train is not finite"):
            recorder.record(altered(trained, losses=[0.5, value]))
    assert read_events(recorder.run.events) == []


def test_a_damaged_log_is_torn_or_named(tmp_path: Path) -> None:
    """A record cut anywhere in its last line gives all events before that line, and ``is_torn``.

    A line that is no event, before the last, and anything after the finish event are one line with file and number.
    """
    events = write_run(tmp_path / "run", made_config())
    file = tmp_path / "run" / "events.jsonl"
    content = file.read_bytes()
    *lines, last = content.splitlines(keepends=True)
    assert not EventLog.read(file).is_torn
    for num_cut in (1, 2, len(last) // 2, len(last) - 1):
        file.write_bytes(content[:-num_cut])
        assert EventLog.read(file) == EventLog(events[:-1], is_torn=True)
    broken = ("{", "[]", '{"event": "party"}', '{"event": "train", "step": 1}', '"train"', "", "\x80")
    damages = [([*lines[:4], line.encode("latin-1") + b"\n", *lines[5:], last], 5) for line in broken]
    damages += [([content, more], len(events) + 1) for more in (b"garbage", b"garbage\n", b"\n", last)]
    for damaged, number in damages:
        file.write_bytes(b"".join(damaged))
        with pytest.raises(StoreError, match=rf"events\.jsonl:{number}: [ -~]*$"):
            EventLog.read(file)


@pytest.mark.parametrize(("key", "value"), [("o_load_h", {"a": 1}), ("detect_h", [1])])
def test_a_mapping_in_the_place_of_a_number_is_named(tmp_path: Path, key: str, value: object) -> None:
    """A key that the analysis computes with is a number, or is optional and absent, or is named."""
    values = made_config().model_dump(mode="json")
    values["profile"][key] = value
    (tmp_path / "config.yaml").write_text(to_yaml(values))
    with pytest.raises(StoreError, match=rf"config\.yaml: profile\.{key}: expected a valid number"):
        read_config(tmp_path)
