"""Law: wherever a process or the power ends, a record that counts as done is whole, and one that does not has all that
was forced to disk."""

from pathlib import Path

import pytest

from harness.core.events import Saved
from harness.record.recorder import Recorder, read_record
from harness.record.rundir import RunDir
from harness.record.seal import is_sealed, verify
from tests.crashes import LOSSES, Disk
from tests.made_runs import altered, made_config, made_events


@pytest.mark.parametrize("fsync", [True, False])
def test_a_crash_at_any_call_leaves_a_record_that_says_what_it_is(tmp_path: Path, *, fsync: bool) -> None:
    """From the first file to DONE: what was recorded up to the last save is there, and DONE only behind all of it."""
    root, left = tmp_path / "disk", tmp_path / "left"
    root.mkdir()
    config = made_config("cpr_mfu", store={"fsync": fsync})
    events = [altered(event, machine={}) for event in made_events(config)]
    num_forced = 0
    outcomes: set[str] = set()

    def check() -> None:
        for loss in LOSSES if fsync else LOSSES[:1]:
            run = RunDir(disk.after(loss, left) / "run")
            outcomes.add(run.status)
            if run.status == "done":
                assert is_sealed(run)
                verify(run)
                assert read_record(run.events).events == events
            elif num_forced:
                found = read_record(run.events).events
                assert found == events[: len(found)]
                assert len(found) >= num_forced

    disk = Disk(root, check)
    with disk.installed(), Recorder(root / "run", config) as recorder:
        for number, event in enumerate(events, start=1):
            recorder.record(event)
            num_forced = number if isinstance(event, Saved) else num_forced
        recorder.done()
    assert outcomes == {"absent", "unfinished", "done"}
    assert disk.num_calls > 10
