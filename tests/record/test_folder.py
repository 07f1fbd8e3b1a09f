"""Laws of the folders that runs and grids are written to."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from threading import Timer

import pytest

from harness.core.errors import StoreError
from harness.files import held, read_file
from harness.record import folder
from harness.record.folder import OtherRun, State, claim_grid, claim_run, discard_run, inspect, reason_kept
from tests.unprivileged import unprivileged

HASH = "0123456789"


def fill(run_dir: Path, *, done: bool = False, events: str = "{}\n") -> None:
    """What a run writes, in small."""
    (run_dir / "checkpoints" / "ps0").mkdir(parents=True)
    (run_dir / "events.jsonl").write_text(events)
    if done:
        (run_dir / "DONE").write_text("")


def claim(run_dir: Path, digest: str = HASH) -> None:
    """Claim a folder and do nothing in it."""
    with claim_run(run_dir, digest):
        pass


def claim_for_grid(run_dir: Path, _digest: str = "") -> None:
    """Claim a folder for a grid and do nothing in it."""
    with claim_grid(run_dir):
        pass


def test_resume_points_that_cannot_be_listed_are_not_absent(tmp_path: Path) -> None:
    """An interrupted run is not removed because the system does not say whether it has a resume point."""
    with claim_run(tmp_path / "run", HASH):
        fill(tmp_path / "run")
        (tmp_path / "run" / "resume").mkdir(mode=0)
    for path in (tmp_path / "run", *(tmp_path / "run").iterdir()):
        path.chmod(0o777 if path.name != "resume" else 0)
    words = "run/resume: cannot be read: Permission denied"
    with unprivileged(tmp_path), pytest.raises(StoreError, match=words):
        claim(Path("run"))
    assert (tmp_path / "run" / "events.jsonl").exists()


@pytest.mark.parametrize("has_lock", [False, True])
def test_states(tmp_path: Path, *, has_lock: bool) -> None:
    """A folder is empty, also with an empty lock, then unfinished from the first word on, then done for good.

    Claiming an unfinished run removes what runs write, and nothing else, nor where a link leads.
    """
    run_dir, elsewhere = tmp_path / "a" / "run", tmp_path / "elsewhere"
    if has_lock:  # as after a kill during its creation
        run_dir.mkdir(parents=True)
        (run_dir / ".lock").write_text("")
    assert inspect(run_dir, HASH) is State.EMPTY
    assert run_dir.exists() == has_lock
    with claim_run(run_dir, HASH) as found:
        assert found is State.EMPTY
        fill(run_dir)
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (run_dir / "notes.txt").touch()
    (run_dir / "wandb").symlink_to(elsewhere)
    with claim_run(run_dir, HASH) as found:
        assert found is State.UNFINISHED
        assert sorted(path.name for path in run_dir.iterdir()) == [".lock", "notes.txt"]
        fill(run_dir, done=True)
    assert inspect(run_dir, HASH) is State.DONE
    with pytest.raises(StoreError, match="expected an unfinished run, got a finished one"):
        claim(run_dir)
    assert (run_dir / "events.jsonl").exists()
    assert (elsewhere / "precious").exists()


@pytest.mark.parametrize(
    ("looks", "name", "message"),
    [
        (
            (claim, inspect),
            "other",
            "holds a run of another config (expected hash ffffffffff, got 0123456789); set out",
        ),
        ((claim, inspect), "home", "expected an empty or a run folder, got other files; set out to another folder"),
        ((claim, inspect), "file", "expected a folder, got a file; set out to another folder"),
        ((claim_for_grid,), "home", "expected an empty or a grid's folder (with grid.yaml), got other files (events"),
        ((claim_for_grid,), "", "expected an empty or a grid's folder (with grid.yaml), got other files (file)"),
        ((claim_for_grid,), "other", "expected a folder for a grid, got the single run 0123456789"),
    ],
)
def test_folders_of_others_are_refused_untouched(
    tmp_path: Path, looks: tuple[Callable[[Path, str], object], ...], name: str, message: str
) -> None:
    """A run of another config, a folder that is no run or grid, and a file are refused and left as they are."""
    claim(tmp_path / "other")
    fill(tmp_path / "other")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "events.jsonl").write_text("other data")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    for look in looks:
        with pytest.raises(StoreError) as caught:
            look(tmp_path / name, "f" * 10)
        assert str(caught.value).startswith(f"{tmp_path / name}: {message}")
    assert sorted(tmp_path.rglob("*")) == before


def test_what_the_system_refuses_is_one_line_and_the_owners_errors_pass(tmp_path: Path) -> None:
    """A folder that cannot be made is a StoreError; an OSError of what is done in a claimed folder stays what it is."""
    (tmp_path / "file").touch()
    refused = {
        "file/below": "Not a directory",
        "x" * 300: "File name too long",
        "/proc/no": "No such file or directory",
    }
    for where, reason in refused.items():
        for how in (claim, claim_for_grid):
            with pytest.raises(StoreError, match=rf"{where}.*: {reason}; set out to another folder$"):
                how(tmp_path / where)
    with pytest.raises(StoreError, match=r": File name too long; set out to another folder$"):
        discard_run(tmp_path / ("x" * 300), HASH)
    for claimed in (claim_run(tmp_path / "run", HASH), claim_grid(tmp_path / "grid")):
        with pytest.raises(FileNotFoundError), claimed:
            (tmp_path / "absent").read_text()


def test_a_run_at_work_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that lives is not waited for; the error names it and its host, as does one on another host."""
    monkeypatch.setattr(folder, "_WAIT_S", 60.0)
    began_s = time.monotonic()
    with claim_run(tmp_path, HASH):
        for host in (platform.node(), "elsewhere"):
            pid = os.getpid() if host == platform.node() else 1
            (tmp_path / ".lock").write_text(f"cpr-harness run {HASH} pid {pid} host {host}\n")
            with pytest.raises(StoreError, match=rf"^{tmp_path}: process {pid} on {host} is writing to it"):
                claim(tmp_path)
    assert time.monotonic() - began_s < 30


def test_what_a_killed_run_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While processes of a dead one hold the lock, it is waited for."""
    monkeypatch.setattr(folder, "_WAIT_S", 60.0)
    dead = subprocess.Popen(["true"])
    dead.wait()
    lock = ExitStack()
    lock.enter_context(claim_run(tmp_path, HASH))
    (tmp_path / ".lock").write_text(f"cpr-harness run {HASH} pid {dead.pid} host {platform.node()}\n")
    released: list[bool] = []
    lock.callback(released.append, True)  # called before the lock is released
    release = Timer(0.1, lock.close)
    release.start()
    claim(tmp_path)
    assert released
    release.join()


def test_a_folder_takes_one_grid_at_a_time(tmp_path: Path) -> None:
    """A second runner gets one line that names the first; cells may be claimed meanwhile. Runs side by side, a grid cut
    short before its grid.yaml, and one with files besides are accepted later."""
    claim(tmp_path / "cell")
    words = r"process \d+ on \S+ is writing to it; wait for it to end or set out to another folder"
    with claim_grid(tmp_path):
        claim(tmp_path / "cell")
        with pytest.raises(StoreError, match=words):
            claim_for_grid(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    claim_for_grid(tmp_path)
    (tmp_path / ".lock").write_text("")
    (tmp_path / "grid.yaml").write_text("seed: 1")
    claim_for_grid(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"cell", "notes.txt", ".lock", "grid.yaml"}


@pytest.mark.parametrize(("events", "is_kept"), [("", False), ("{}\n", True)])
def test_only_an_unstarted_run_is_discarded(tmp_path: Path, *, events: str, is_kept: bool) -> None:
    """Bad input leaves no folder, a run that began leaves all of it."""
    run_dir = tmp_path / "run"

    def run() -> None:
        with claim_run(run_dir, HASH), reason_kept(run_dir, discards=True):
            fill(run_dir, events=events)
            raise StoreError("bad input")

    with pytest.raises(StoreError, match="bad input"):
        run()
    assert run_dir.exists() is is_kept
    if is_kept:
        assert inspect(run_dir, HASH) is State.UNFINISHED
        assert (run_dir / "error.txt").read_text() == "StoreError: bad input\n"


@pytest.mark.parametrize("read", [read_file, Path.read_bytes])
def test_an_error_in_a_held_folder_names_it_as_the_user_does(tmp_path: Path, read: Callable[[Path], bytes]) -> None:
    """Law: whatever is raised while a folder is held, its path is the user's, and not that of a descriptor."""
    with pytest.raises((StoreError, OSError)) as raised, held(tmp_path / "run") as path:
        read(path / "absent")
    assert str(tmp_path / "run" / "absent") in str(raised.value)
    assert "/proc/" not in str(raised.value)


def test_the_record_of_a_run_that_failed_at_its_end_is_not_removed_unasked(tmp_path: Path) -> None:
    """It is refused with its reason. One that was interrupted, or failed on its way, starts afresh."""
    for events, has_reason, is_refused in (("finish", True, True), ("finish", False, False), ("eval", True, False)):
        run_dir = tmp_path / f"{events}-{has_reason}"
        with claim_run(run_dir, HASH):
            (run_dir / "events.jsonl").write_text(f'{{"event":"started"}}\n{{"event":"{events}"}}\n')
            if has_reason:
                (run_dir / "error.txt").write_text("RunFailed: a rank died\nmore\n")
        words = r"trained to its end, and failed there \(RunFailed: a rank died\); --afresh removes"
        refused = pytest.raises(StoreError, match=words) if is_refused else nullcontext()
        with refused, claim_run(run_dir, HASH, keeps_failed=True):
            pass
        assert (run_dir / "events.jsonl").exists() == is_refused
        discard_run(run_dir, HASH)
        assert not (run_dir / "events.jsonl").exists()


def test_a_run_is_discarded_whatever_its_code_and_no_other(tmp_path: Path) -> None:
    """--afresh removes the files of the run of this config, finished or not, and leaves others as they are."""
    for name, is_done in (("done", True), ("begun", False)):
        with claim_run(tmp_path / name, "0a1b-old"):
            fill(tmp_path / name, done=is_done)
        (tmp_path / name / "letter.txt").touch()
        with pytest.raises(OtherRun, match="holds a run of another config"):
            discard_run(tmp_path / name, "9f8e-new")
        with pytest.raises(OtherRun, match="holds this run by other code"):
            inspect(tmp_path / name, "0a1b-new")
        discard_run(tmp_path / name, "0a1b-new")
        assert {path.name for path in (tmp_path / name).iterdir()} == {".lock", "letter.txt"}
    discard_run(tmp_path / "absent", "0a1b-new")
    assert not (tmp_path / "absent").exists()


def test_a_folder_with_nothing_but_an_error_is_empty(tmp_path: Path) -> None:
    """Law: a cell whose process died before it began is run again by the same command."""
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "error.txt").write_text("the cell's process ended with code 1, without output\n")
    assert inspect(tmp_path / "cell", "0" * 8) is State.EMPTY
