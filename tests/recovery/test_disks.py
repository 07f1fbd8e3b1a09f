"""Saves in the background, and faults of the disk: writes that fail once, and bits that flip in files."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.errors import RunFailed, StoreError
from harness.core.events import Recovered, Saved
from harness.record.rundir import read_config
from harness.run.assemble import Parts
from harness.store import FailingSource, FileStore, RowSource
from tests.injected import is_failed_write
from tests.recovery.test_faults import model_of, under
from tests.runs import changed, facts, losses_of, run, saving_every


def content(run_dir: Path) -> dict[str, bytes]:
    """Every content file of a run's checkpoints."""
    root = run_dir / "checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*.bin")}


def test_the_files_of_saves_in_the_background_are_those_of_saves_that_are_waited_for(
    config: Config, tmp_path: Path
) -> None:
    """Under ten kills, and saves are committed later; also with chunks of one row and room to set aside one more."""
    config = changed(config, strategy__name="cpr_mfu", data__max_train_samples=256, cache__mode="lookahead")
    config = changed(saving_every(config, 20), cache__lookahead=30, eval__every_steps=60)
    _, waited = run(config, tmp_path / "sync")
    for buffer_bytes in (1 << 20, 1):

        def make_server(spec: RankSpec, rank: str, *, size: int = buffer_bytes) -> RankServer:
            return RankServer(replace(spec, save_buffer_bytes=size), rank)

        folder = tmp_path / f"async-{buffer_bytes}"
        _, begun = run(changed(config, save__mode="async"), folder, Parts(make_server=make_server))
        is_saved = [[isinstance(event, Saved) for event in events] for events in (waited, begun)]
        assert is_saved[0] != is_saved[1]
        assert losses_of(begun) == losses_of(waited)
        assert content(folder) == content(tmp_path / "sync")


def test_a_write_that_fails_costs_its_bytes_and_changes_nothing(config: Config, tmp_path: Path) -> None:
    """With later deaths, too, model, losses and recoveries are those without the fault."""
    calm_lines = ["hour,rank,phase,fault", "16,ps2,,", "27,ps1,,", "50,ps1,,"]
    lines = [*calm_lines[:1], "5,ps1,,disk_full", *calm_lines[1:3], "30,ps1,save,disk_error", "30,ps2,,disk_full"]
    config = under(config, tmp_path, "\n".join([*lines, calm_lines[-1]]), strategy__name="partial")
    finished, events = run(config, tmp_path / "run")
    failed = [(event.rank, event.fault, event.line) for event in events if is_failed_write(event)]
    assert failed == [("ps1", "disk_full", 2), ("ps1", "disk_error", 5), ("ps2", "disk_full", 6)]
    (tmp_path / "calm.csv").write_text("\n".join(calm_lines))
    calm, calm_events = run(changed(config, trace__path=str(tmp_path / "calm.csv")), tmp_path / "calm")
    assert model_of(finished) == model_of(calm)
    recoveries, expected = (facts([e for e in each if isinstance(e, Recovered)]) for each in (events, calm_events))
    assert recoveries == expected != []
    assert losses_of(events) == losses_of(calm_events)
    saves = [event for event in events if isinstance(event, Saved) and event.charged]
    repeated = sum(event.repeated_bytes for event in saves)
    assert finished.payload_bytes == calm.payload_bytes + repeated > calm.payload_bytes
    again, plain = saves[0], next(save for save in saves if not save.repeated_bytes)
    assert again.repeated_bytes > 0
    assert again.save_h == pytest.approx(plain.save_h * again.payload_bytes / plain.payload_bytes)
    number = next(number for number, event in enumerate(events) if is_failed_write(event))
    problems = analysis.check([*events[:number], *events[number + 1 :]], read_config(tmp_path / "run"))
    assert any("written again" in problem for problem in problems), "the audit finds a charge without its event"


@pytest.mark.parametrize("save", ["sync", "async"])
def test_a_disk_that_stays_full_ends_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str
) -> None:
    """A rank repeats its part once: a second failure is one line that names the file, and no thread is left."""
    write, calls = FileStore.write_base, []

    def full(self: FileStore, rank: str, sequence: int, step: int, rows: RowSource, **values: Any) -> object:
        calls.append(None)
        if len(calls) == 6:  # four ranks at step 0, ps0's save, the first attempt of ps1: its second
            rows = FailingSource(rows.rows_MD, 28)
        return write(self, rank, sequence, step, rows, **values)

    monkeypatch.setattr(FileStore, "write_base", full)
    config = under(config, tmp_path, "hour,rank,fault\n5,ps0,disk_full\n", strategy__name="full", save__mode=save)
    with pytest.raises(StoreError, match=r"ps\d/base-000001\.bin: cannot be written: No space left"):
        run(config, tmp_path / "run")
    assert not [thread for thread in threading.enumerate() if thread.name == "save"]
    assert {name for name in content(tmp_path / "run") if "trainer" in name} == {"trainer0/dense-000000.bin"}


@pytest.mark.parametrize("save", ["sync", "async"])
def test_a_rollback_leaves_the_fault_to_the_next_save(config: Config, tmp_path: Path, save: str) -> None:
    """A save that a death voids is none: the fault strikes the save that is written instead of it."""
    trace = "hour,rank,phase,fault\n5,ps1,,disk_full\n5,ps2,save,kill\n"
    _, events = run(under(config, tmp_path, trace, strategy__name="full", save__mode=save), tmp_path / "run")
    kinds = [event.kind for event in events if is_failed_write(event) or isinstance(event, Recovered)]
    assert kinds == ["recover", "fault"]


@pytest.mark.parametrize(("engine", "strategy", "save"), [("local", "cpr_mfu", "sync"), ("rpc", "full", "async")])
def test_a_flipped_bit_is_found_by_the_next_restore(
    config: Config, tmp_path: Path, engine: str, strategy: str, save: str
) -> None:
    """The run ends in one line that names the file and the line of the trace, and not in a traceback."""
    trace = "hour,rank,fault\n20,ps1,bitflip\n20,ps1,kill\n"
    config = under(config, tmp_path, trace, strategy__name=strategy, save__mode=save, engine=engine)
    with pytest.raises(RunFailed, match=r"^.*/ps1/.*\.bin: damaged: .*a bit of it was flipped by line 2 of the trace$"):
        run(config, tmp_path / "run")


def test_a_flip_needs_a_shard_with_rows(config: Config, tmp_path: Path) -> None:
    """With more ranks than tables one line says that there is no file to damage."""
    config = under(config, tmp_path, "hour,rank,fault\n20,ps29,bitflip\n", strategy__name="full", cluster__num_ps=30)
    with pytest.raises(RunFailed, match=r"^line 2 of the trace: expected a checkpoint of ps29 at step "):
        run(changed(config, cluster__placement="table"), tmp_path / "run")
