"""A run that ended early goes on from its resume point, to the record of the uninterrupted run, bit by bit."""

import errno
import io
import logging
import os
import shutil
import signal
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import analysis
import run as command_line
from harness.config.model import Config
from harness.core.errors import StoreError
from harness.record import code
from harness.record.event_log import read_events
from harness.run import assemble, resume_points
from harness.run.verify import compare_records
from tests.injected import is_failed_write
from tests.run.stops import resumed, signalled, stopped
from tests.runs import changed, saving_every, small_config, under

NUM_STEPS = 60


@pytest.fixture(scope="module")
def short(click_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """60 steps with five planned kills and a few saves, evaluated four times."""
    trace = tmp_path_factory.mktemp("short") / "trace.csv"
    trace.write_text("hour,rank\n9,ps1\n20,ps0\n21,ps2\n37,ps3\n37,ps1\n")
    return changed(
        small_config(click_data),
        trace__path=str(trace),
        data__max_train_samples=4 * NUM_STEPS,
        eval__every_steps=15,
        cache__lookahead=8,
        cache__staleness=3,
        cache__workers=2,
        metrics__log_every_steps=7,
        resume__every_s=None,
    )


def resumptions(run_dir: Path) -> list[dict[str, Any]]:
    """What the record says of each resume, in order."""
    return [each for event in read_events(run_dir / "events.jsonl") for each in event.machine.get("resumed", [])]


def case(config: Config, strategy: str, cache: str, mode: str, **dotted: Any) -> Config:
    config = changed(config, strategy__name=strategy, cache__mode=cache, save__mode=mode, **dotted)
    return saving_every(config, 36)


class Left:
    """A run of 20 steps that was not interrupted, in ``whole``, and copies of one that stopped after 12."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.whole, self._stopped = config, folder / "whole", folder / "stopped"
        assemble.run(config, self.whole)
        assert stopped(config, self._stopped, 12) is not None

    def copy(self, folder: Path) -> Path:
        """The stopped run, in ``folder``."""
        shutil.copytree(self._stopped, folder / "again")
        return folder / "again"


@pytest.fixture(scope="module")
def left(short: Config, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What several tests go on from."""
    return Left(case(short, "full", "none", "sync", data__max_train_samples=80), tmp_path_factory.mktemp("left"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("env.json", "expected what the run wrote"), ("events.jsonl", r"expected the \d+ bytes that were recorded")],
)
def test_a_run_with_another_record_does_not_go_on(
    left: Left, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, message: str
) -> None:
    """Law: the record is as the run left it, or the command ends in one line and the resume point stays."""
    run_dir = left.copy(tmp_path)
    before = (run_dir / name).read_text()
    (run_dir / name).write_text(before.replace('"digest":', '"digost":', 1).replace('"seed":', '"sead":', 1))
    with caplog.at_level(logging.INFO, "harness"):
        for _ in range(2):
            with pytest.raises(
                StoreError, match=rf"{name}: {message}.*; the resume point stays: put this right, or remove .*resume"
            ):
                assemble.run(left.config, run_dir, resumes=True)
    assert "goes on" not in caplog.text
    (run_dir / name).write_text(before)
    resumed(left.config, run_dir)
    assert analysis.is_sound(run_dir)


@pytest.mark.parametrize(("mode", "num_stops"), [("sync", 15), ("async", 4)])
def test_a_run_that_stops_at_every_step_ends_with_the_same_record(
    short: Config, tmp_path: Path, mode: str, num_stops: int
) -> None:
    """Law: any number of interruptions changes nothing; each start goes on where the last one ended. While a save is
    written in the background, the run goes on to the next boundary at which something is due."""
    config = case(short, "cpr_mass", "lookahead", mode)
    config = changed(config, data__max_train_samples=80, trainer__optimizer="adagrad", cache__max_rows=400)
    assemble.run(config, tmp_path / "whole")
    steps: list[int] = []
    while (step := stopped(config, tmp_path / "again", 1, resumes=bool(steps))) is not None:
        steps.append(step)
    assert len(steps) >= num_stops
    assert steps == sorted(set(steps))
    assert steps[-1] == 20, "the last boundary is one like the others"
    assert len(resumptions(tmp_path / "again")) == len(steps), "though no event was due before the next"
    assert compare_records(tmp_path / "whole", tmp_path / "again") == []


def test_resume_points_change_no_event(short: Config, tmp_path: Path) -> None:
    """Law: a run with a resume point at every boundary has the record of one without, and its checkpoints."""
    config = case(short, "cpr_mfu", "lookahead", "async")
    assemble.run(config, tmp_path / "none")
    assemble.run(changed(config, resume__every_s=1e-9), tmp_path / "many")
    assert compare_records(tmp_path / "none", tmp_path / "many") == []
    finished = read_events(tmp_path / "many" / "events.jsonl")[-1]
    assert finished.machine["resume_seconds"] > 0


WAITING = "hour,rank,phase,fault\n11,ps1,,disk_full\n12,2,,disk_error\n20,ps2,,kill\n30,ps0,,disk_full\n"
"""Of 60 steps 11 is armed at 12 and strikes at the save of step 18; 30 is armed at 33 and strikes at 36."""


@pytest.mark.parametrize(("strategy", "mode", "on_rpc"), [("cpr_mfu", "sync", False), ("partial", "async", True)])
def test_a_write_that_is_to_fail_strikes_where_it_would_have(
    short: Config, tmp_path: Path, strategy: str, mode: str, on_rpc: bool
) -> None:
    """Law: a fault of a disk that waits for a save when the run stops strikes that save when it goes on, and once."""
    (tmp_path / "faults.csv").write_text(WAITING)
    config = case(short, strategy, "none", mode, trace__path=str(tmp_path / "faults.csv"))
    assemble.run(config, tmp_path / "whole")
    whole = read_events(tmp_path / "whole" / "events.jsonl")
    assert len([event for event in whole if is_failed_write(event)]) >= 3
    again = changed(config, engine="rpc") if on_rpc else config
    for at in (13,) if on_rpc else (12, 18):  # waiting, at its save
        run_dir = tmp_path / f"again-{at}"
        assert stopped(again, run_dir, at) is not None
        before = read_events(run_dir / "events.jsonl")
        assert at >= 18 or not any(is_failed_write(event) for event in before)
        resumed(again, run_dir)
        assert compare_records(tmp_path / "whole", run_dir) == []


# --- points that cannot be used -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Change the last bit of a file."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


FILES_OF_A_POINT = (
    *("resume/point-*.json", "resume/ps2/state-*.bin", "resume/trainer0/state-*.bin"),
    *("checkpoints/manifest-*.json", "checkpoints/ps1/base-*.bin"),
)


def test_the_point_before_is_used_where_it_is_still_there(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: after a crash between a commit and the removal of the point before, either will do."""
    config = case(short, "partial", "none", "sync", resume__every_s=1e-9)
    assemble.run(config, tmp_path / "whole")
    monkeypatch.setattr(resume_points.ResumeFolder, "keep_only", lambda *_: None)
    stopped(config, tmp_path / "again", 20)
    monkeypatch.undo()
    flip(max((tmp_path / "again" / "resume" / "ps0").iterdir()))
    with caplog.at_level(logging.INFO, "harness"):
        resumed(config, tmp_path / "again")
    assert "goes on from step" in caplog.text
    assert compare_records(tmp_path / "whole", tmp_path / "again") == []


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        *zip(FILES_OF_A_POINT, cycle((errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOENT)), strict=False),
        ("events.jsonl", errno.EIO),
        ("env.json", errno.EACCES),
    ],
)
def test_a_point_that_cannot_be_read_is_kept_and_a_damaged_one_is_named(  # noqa: PLR0917 - pytest's
    left: Left,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pattern: str,
    number: int,
) -> None:
    """Law: what the system does not show is not damaged: the run stops with one line, and goes on later.

    A changed bit of anything that a point needs is one line, the run starts afresh, and there is never a wrong result.
    """
    run_dir = left.copy(tmp_path)
    file = max(run_dir.glob(pattern))
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    with monkeypatch.context() as patch:
        for owner, name in ((os, "open"), (io, "open")):
            patch.setattr(owner, name, partial(refuse, file, number, getattr(owner, name)))
        with pytest.raises(StoreError, match=rf"{file.name}: cannot be read: .*; the resume point stays: put this"):
            resumed(left.config, run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before
    if pattern in FILES_OF_A_POINT:
        flip(file)
    caplog.clear()
    with caplog.at_level(logging.INFO, "harness"):
        resumed(left.config, run_dir)
    assert compare_records(left.whole, run_dir) == []
    notes = [record.getMessage() for record in caplog.records if record.name.startswith("harness.")]
    if pattern in FILES_OF_A_POINT:
        assert len(notes) == 2
        assert str(run_dir) in notes[0]
        assert notes[1].endswith("starts afresh")
    else:
        assert "goes on from step" in caplog.text


def refuse(refused: Path, number: int, opens: Any, file: Any, *args: Any, **values: Any) -> Any:
    """What ``opens`` does, but for the file ``refused``."""
    if not isinstance(file, int) and os.path.realpath(file) == str(refused):
        raise OSError(number, os.strerror(number), str(file))
    return opens(file, *args, **values)


def test_a_point_of_other_code_is_kept(left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: an edit of the package between two starts is one line, which says what differs; undone, the run goes on."""
    run_dir = left.copy(tmp_path)
    now = code.current_code()
    edited = code.Code(now.versions, {**now.sources, "harness/core/shard.py": "edited"})
    with monkeypatch.context() as patch:
        for module in (code, resume_points):
            patch.setattr(module, "current_code", lambda: edited)
        with pytest.raises(
            StoreError, match=r"written by other code \(harness/core/shard.py\); the resume point stays"
        ):
            resumed(left.config, run_dir)
    resumed(left.config, run_dir)


# --- signals to a real command --------------------------------------------------------------------------------------


def test_a_command_that_was_killed_goes_on(config: Config, tmp_path: Path) -> None:
    """Law: SIGKILL at some step, and the run goes on from its last periodic point, to the same record."""
    config = under(config, tmp_path, "hour,rank\n9,ps1\n37,ps3\n", strategy__name="cpr_mfu", metrics__log_every_steps=1)
    config = saving_every(changed(config, data__max_train_samples=512), 80)
    assemble.run(config, tmp_path / "whole")
    config = changed(config, engine="rpc", out=str(tmp_path / "again"), resume__every_s=0)
    exit_code, _ = signalled(config, tmp_path, signal.SIGKILL, 57)
    assert exit_code == -signal.SIGKILL
    resumed(config, tmp_path / "again")
    assert compare_records(tmp_path / "whole", tmp_path / "again") == []


@pytest.mark.parametrize(("engine", "number"), [("local", signal.SIGINT), ("rpc", signal.SIGTERM)])
def test_a_command_that_is_asked_to_stop_says_where_it_goes_on(
    config: Config, tmp_path: Path, engine: str, number: signal.Signals
) -> None:
    """Law: one line, the exit code of the signal, and a resume point of the step that the line names."""
    config = changed(config, strategy__name="partial", metrics__log_every_steps=1, trace__path=None)
    config = saving_every(changed(config, data__max_train_samples=512), 80)
    config = changed(config, out=str(tmp_path / "whole"))
    assemble.run(config, tmp_path / "whole")
    config = changed(config, engine=engine, out=str(tmp_path / "again"))
    exit_code, said = signalled(config, tmp_path, number, 40)
    assert exit_code == 128 + number
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert said.splitlines()[-1].startswith(f"{word}; run.py train {tmp_path}/run.yaml goes on from step ")
    assert int(said.split()[-1]) >= 40
    assert command_line.main(["train", str(tmp_path / "run.yaml")]) == 0
    assert compare_records(tmp_path / "whole", tmp_path / "again") == []
