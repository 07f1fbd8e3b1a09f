"""Faults of the disk in a trace: writes that fail once, and bits that flip in the files of checkpoints."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

import analysis
from harness.cluster.local import LocalRanks
from harness.cluster.supervisor import Supervisor
from harness.config.model import Config
from harness.core.errors import RunFailed, StoreError
from harness.core.events import Event, Finished, Recovered, Saved, Started, Trained
from harness.core.faults import BitFlip, PlannedFault, Strike
from harness.record.rundir import read_config
from harness.store import CheckpointStore, ShardStore
from tests.injected import is_failed_write, is_fault
from tests.recovery.test_faults import model_of, under
from tests.runs import changed, losses_of, run

KILLS = """16,ps2,,
27,ps1,,
"""
WRITES = f"""hour,rank,phase,fault
5,ps1,,disk_full
{KILLS}30,ps1,save,disk_error
30,ps2,,disk_full
50,ps1,,
"""
CALM = f"""hour,rank,phase,fault
{KILLS}50,ps1,,
"""


def failed_writes(events: list[Event]) -> list[tuple[str, str, int]]:
    """Rank, fault and line of each write that failed."""
    return [(event.rank, event.fault, event.line) for event in events if is_failed_write(event)]


def story_of(events: list[Event]) -> list[Event]:
    """Saves, deaths and recoveries, without charges of saves and lines of the trace."""
    other = (Started, Trained, Finished)
    kept = [event for event in events if not isinstance(event, other) and not is_failed_write(event)]
    plain = [replace(event, machine={}) for event in kept]
    return [
        replace(event, payload_bytes=event.payload_bytes - event.repeated_bytes, repeated_bytes=0, save_h=0.0)
        if isinstance(event, Saved)
        else replace(event, **({"line": 0} if hasattr(event, "line") else {}))
        for event in plain
    ]


@pytest.mark.parametrize(("strategy", "save"), [("full", "async"), ("partial", "sync")])
def test_a_write_that_fails_costs_its_bytes_and_changes_nothing(
    config: Config, tmp_path: Path, strategy: str, save: str
) -> None:
    """With later deaths, too, model, losses and recoveries are those without the fault."""
    config = under(config, tmp_path, WRITES, strategy__name=strategy, save__mode=save)
    finished, events = run(config, tmp_path / "local")
    assert failed_writes(events) == [("ps1", "disk_full", 2), ("ps1", "disk_error", 5), ("ps2", "disk_full", 6)]
    (tmp_path / "calm.csv").write_text(CALM)
    calm, calm_events = run(changed(config, trace__path=str(tmp_path / "calm.csv")), tmp_path / "calm")
    assert model_of(finished) == model_of(calm)
    assert story_of(events) == story_of(calm_events)
    assert losses_of(events) == losses_of(calm_events)
    assert any(isinstance(event, Recovered) for event in calm_events)
    repeated = sum(event.repeated_bytes for event in events if isinstance(event, Saved) and event.charged)
    assert repeated > 0
    assert finished.payload_bytes == calm.payload_bytes + repeated
    saves = [event for event in events if isinstance(event, Saved) and event.charged]
    again, plain = saves[0], next(save for save in saves if not save.repeated_bytes)
    assert again.repeated_bytes > 0
    if strategy == "partial":  # hours follow from the bytes by the price of any save
        assert again.save_h == pytest.approx(plain.save_h * again.payload_bytes / plain.payload_bytes)
    number = next(number for number, event in enumerate(events) if is_failed_write(event))
    problems = analysis.check([*events[:number], *events[number + 1 :]], read_config(tmp_path / "local"))
    assert any("written again" in problem for problem in problems), "the audit finds a charge without its event"


@pytest.mark.parametrize("save", ["sync", "async"])
def test_a_disk_that_stays_full_ends_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str
) -> None:
    """A rank repeats its part once: a second failure is one line that names the file, and no thread is left."""
    write, calls = ShardStore.write_base, []

    def full(self: ShardStore, *args: object, **values: object) -> object:
        calls.append(None)
        if len(calls) == 6:  # four ranks at step 0, ps0's save, the first attempt of ps1: its second
            self.fail_next_write(28)
        return write(self, *args, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardStore, "write_base", full)
    config = under(config, tmp_path, "hour,rank,fault\n5,ps0,disk_full\n", strategy__name="full", save__mode=save)
    with pytest.raises(StoreError, match=r"ps\d/base-000001\.bin: cannot be written: No space left"):
        run(config, tmp_path / "run")
    assert not [thread for thread in threading.enumerate() if thread.name == "save"]


def test_a_rollback_leaves_the_fault_to_the_next_save(config: Config, tmp_path: Path) -> None:
    """A save that a death voids is none: the fault strikes the save that is written instead of it."""
    trace = "hour,rank,phase,fault\n5,ps1,,disk_full\n5,ps2,save,kill\n"
    for save in ("sync", "async"):
        _, events = run(under(config, tmp_path, trace, strategy__name="full", save__mode=save), tmp_path / save)
        kinds = [event.kind for event in events if is_failed_write(event) or isinstance(event, Recovered)]
        assert kinds == ["recover", "fault"]


def test_a_fault_without_a_save_fails_the_run(config: Config, tmp_path: Path) -> None:
    """A trace of which something did not happen gives no result."""
    config = under(config, tmp_path, "hour,rank,fault\n54,ps1,disk_full\n", strategy__name="full")
    with pytest.raises(RunFailed, match=r"trace.csv:2: expected a phase save after step 62, in which a write fails of"):
        run(changed(config, strategy__interval_samples=120), tmp_path / "run")


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "strategy", "save"),
    [("local", "cpr_mfu", "sync"), ("rpc", "full", "async")],
)
def test_a_flipped_bit_is_found_by_the_next_restore(
    config: Config, tmp_path: Path, engine: str, strategy: str, save: str
) -> None:
    """The run ends in one line that names the file and the line of the trace, and not in a traceback."""
    trace = "hour,rank,fault\n20,ps1,bitflip\n20,ps1,kill\n"
    config = under(config, tmp_path, trace, strategy__name=strategy, save__mode=save, engine=engine)
    with pytest.raises(RunFailed) as failed:
        run(config, tmp_path / "run")
    words = str(failed.value)
    assert "\n" not in words
    assert "/ps1/" in words
    assert ".bin: damaged: " in words
    assert words.endswith("a bit of it was flipped by line 2 of the trace")


def test_a_file_that_is_not_read_again_harms_nobody(config: Config, tmp_path: Path) -> None:
    """A later save replaces the damaged file; the result is that without a flip."""
    trace = "hour,rank,fault\n20,2,bitflip\n40,ps1,kill\n"
    config = under(config, tmp_path, trace, strategy__name="full")
    finished, events = run(config, tmp_path / "local")
    assert len([event for event in events if is_fault(event, "bitflip")]) == 2
    calm, _ = run(changed(config, trace__path=None), tmp_path / "calm")
    assert model_of(finished) == model_of(calm)


def test_a_flip_needs_a_checkpoint(tmp_path: Path) -> None:
    """Where nothing was saved there is no file to damage: one line says so."""
    supervisor = Supervisor(
        ranks=LocalRanks(0, pytest.fail),
        sink=lambda _: None,
        store=CheckpointStore(tmp_path, keep=1, fsync=False),
        planned_faults=[PlannedFault(step=5, strikes={"ps1": Strike(2.0, 3, BitFlip(name="bitflip", number=17))})],
        on_status=lambda **_: None,
    )
    with pytest.raises(RunFailed, match=r"line 3 of the trace: expected a checkpoint of ps1 at step 5"):
        supervisor.inject(5, 20, (0,))
