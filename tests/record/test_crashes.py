"""Law: wherever a process or the power ends, a record that counts as done is whole, and one that does not has all that
was forced to disk."""

import errno
import itertools
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from harness.core.errors import StoreError
from harness.core.events import Event, Saved
from harness.record.event_log import EventLog
from harness.record.recorder import Recorder, check_environment, check_position
from harness.record.rundir import RunDir, read_whole_config, verify
from harness.store import FileStore, ResumeFolder, ResumePoint, read_checkpoint
from tests.crashes import LOSSES, Disk, Ended
from tests.made_runs import altered, made_config, made_events
from tests.store.helpers import manifest, write_dense

CONFIG = made_config("cpr_mfu")


@pytest.mark.parametrize("fsync", [True, False])
def test_a_crash_at_any_call_leaves_a_record_that_says_what_it_is(tmp_path: Path, *, fsync: bool) -> None:
    """From the first file to DONE: what was recorded up to the last save is there, and DONE only behind all of it.

    After a kill every event is there that ``record`` returned from.
    """
    root = tmp_path / "disk"
    root.mkdir()
    config = made_config("cpr_mfu", store={"fsync": fsync})
    events = made_events(config)
    num_forced = num_recorded = 0
    outcomes: set[str] = set()

    def check() -> None:
        for folder in disk.left(tmp_path / "left", LOSSES if fsync else LOSSES[:1], expected=num_forced):
            run = RunDir(folder / "run")
            outcomes.add(run.status)
            if run.status == "done":
                verify(run)
                assert EventLog.read(run.events).events == events
            elif num_forced:
                found = EventLog.read(run.events).events
                assert found == events[: len(found)]
                assert len(found) >= (num_recorded if folder == root else num_forced)

    disk = Disk(root, check)
    with disk.installed(), Recorder(root / "run", config) as recorder:
        for number, event in enumerate(events, start=1):
            recorder.record(event)
            num_recorded, num_forced = number, number if isinstance(event, Saved) else num_forced
        recorder.done()
    assert outcomes == {"absent", "unfinished", "done"}


def test_a_disk_that_fails_at_any_call_is_an_error_of_the_store(tmp_path: Path) -> None:
    """Law: whoever records a run sees StoreError, never OSError, from its first file to DONE."""
    outcomes: list[str] = []
    calls = itertools.count()

    def fail() -> None:
        if next(calls) == len(outcomes):
            raise OSError(errno.ENOSPC, "No space left on device")

    while outcomes[-1:] != ["done"]:
        (root := tmp_path / str(len(outcomes))).mkdir()
        calls = itertools.count()
        with Disk(root, fail).installed(), suppress(StoreError), Recorder(root / "run", CONFIG) as recorder:
            for event in made_events(CONFIG):
                recorder.record(event)
            recorder.done()
        outcomes.append(RunDir(root / "run").status)
    assert len(outcomes) > 10


def save(store: FileStore, sequence: int) -> None:
    """Commit a checkpoint of the dense network alone."""
    store.commit(manifest(sequence, sequence, {}, write_dense(store.root, sequence, sequence)))
    store.close()


def interrupted(run_dir: Path) -> tuple[list[Event], ResumePoint]:
    """Leave the record of a run that was killed after checkpoint 2; its events and resume point, of checkpoint 1."""
    recorder, store = Recorder(run_dir, CONFIG), FileStore(run_dir / "checkpoints", keep=1)
    store.open()
    started, *events = made_events(CONFIG)
    events = [altered(started, machine={"env": recorder.env_digest}), *events]
    for event in events[:20]:
        recorder.record(event)
    save(store, 1)
    folder = ResumeFolder(run_dir / "resume", fsync=True)
    folder.prepare()
    about = {"config_hash": "c", "code": "d", "files": {}, "store": "files", "supervisor": {}}
    point = ResumePoint(number=0, step=1, events=recorder.position(), checkpoint=1, **about)
    folder.commit(point)
    store.pin([1])
    for event in events[20:40]:
        recorder.record(event)
    save(store, 2)
    recorder.fail("killed")
    (run_dir / "wandb").mkdir()
    (run_dir / "wandb" / "sent.json").write_text("{}")
    return events, point


def go_on(run_dir: Path, events: list[Event], point: ResumePoint) -> None:
    """Carry the record on from ``point`` to its end, as a run does, and remove what it then does not need."""
    with Recorder(run_dir, CONFIG, since=point.events) as recorder:
        store = FileStore(run_dir / "checkpoints", keep=1)
        store.open()
        store.rewind(point.checkpoint)
        store.pin([1])
        for event in events[20:]:
            recorder.record(event)
        save(store, 2)
        recorder.done()
    for name in ("resume", "checkpoints"):
        shutil.rmtree(run_dir / name, ignore_errors=True)


def test_a_crash_at_any_call_of_a_run_that_goes_on_leaves_its_resume_point(tmp_path: Path) -> None:
    """Two runs that go on are killed, a third ends. At each call the point can be used, or the whole record is done."""
    root = tmp_path / "disk"
    root.mkdir()
    events, point = interrupted(root / "run")
    limit, outcomes = [0], set[str]()

    def check() -> None:
        for folder in disk.left(tmp_path / "left"):
            run = RunDir(folder / "run")
            outcomes.add(run.status)
            if run.status == "done":
                verify(run)
                assert EventLog.read(run.events).events == events
                continue
            assert ResumeFolder(run.resume, fsync=True).read(run.resume / point.name) == point
            check_environment(run, check_position(run.events, point.events))
            assert read_whole_config(run.path, {}) == CONFIG
            assert read_checkpoint(run.checkpoints, 1).sequence == 1
        if disk.num_calls >= limit[0]:
            raise Ended

    disk = Disk(root, check)
    for num_calls in (7, 20, 10_000):
        limit[0] = disk.num_calls + num_calls
        with suppress(Ended), disk.installed():
            go_on(root / "run", events, point)
    assert outcomes == {"failed", "unfinished", "done"}
    assert disk.num_calls > 7 + 20 + 30
    assert {path.name for path in (root / "run").iterdir()} == {"DONE", "config.yaml", "env.json", "events.jsonl"}
