"""Laws of going on and of --afresh: nothing is lost without a word, and a run that goes on ends as if uninterrupted."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import run
from harness import api
from harness.config.experiment import load_config
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import HarnessError, RunFailed, RunStopped, StoreError
from harness.record.folder import claim_run
from harness.run import assemble
from harness.run.spec import cell_hash
from harness.run.verify import compare_records
from tests.run.stops import train_until
from tests.runs import changed

Command = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def command(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`run.py` in a fresh folder with one.yaml, 60 steps: exit code, and lines on stderr."""
    monkeypatch.chdir(tmp_path)
    short = changed(config, data__max_train_samples=240, trace__path=None, out="out")
    Path("one.yaml").write_text(to_yaml(short.model_dump(mode="json")))

    def carry_out(*words: str) -> tuple[int, list[str]]:
        try:
            code = run.main(words)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return code, capsys.readouterr().err.splitlines()

    return carry_out


def leave_a_resume_point() -> None:
    """Run one.yaml until its tenth step."""
    config = load_config(Path("one.yaml"))
    with claim_run(Path("out"), cell_hash(config)), pytest.raises(RunStopped):
        assemble.run(config, Path("out"), parts=assemble.Parts(train=partial(train_until, 10)))


def test_a_run_with_a_resume_point_does_what_it_is_told(command: Command) -> None:
    """Law: without a word it goes on; --afresh starts it anew, and a finished one too; so does api.run.

    A run that was interrupted before it left a resume point starts afresh, and says so.
    """
    assert command("train", "one.yaml", "out=whole")[0] == 0
    leave_a_resume_point()
    assert command("train", "one.yaml") == (0, ["out: goes on from step 10 of 60"])
    assert compare_records(Path("whole"), Path("out")) == []
    first = Path("out/events.jsonl").stat().st_mtime_ns
    assert command("train", "one.yaml", "--afresh") == (0, [])
    assert Path("out/events.jsonl").stat().st_mtime_ns != first
    Path("out/DONE").unlink()
    assert command("train", "one.yaml") == (0, ["out: this run was interrupted; it starts afresh"])
    config = load_config(Path("one.yaml"))
    for afresh in (False, True):
        shutil.rmtree("out")
        leave_a_resume_point()
        api.run(config.model_dump(mode="json"), afresh=afresh)
        assert compare_records(Path("whole"), Path("out")) == []


def test_a_run_that_fails_says_that_it_can_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the resume point of a run that failed is named, beside the reason."""

    def fail(*_: object, **__: object) -> None:
        raise RunFailed("the fork server has ended")

    leave_a_resume_point()
    with monkeypatch.context() as patched:
        patched.setattr(assemble, "run", fail)
        said = ["out: a resume point is kept; the same command goes on from it", "failed: the fork server has ended"]
        assert command("train", "one.yaml") == (1, said)
    assert command("train", "one.yaml") == (0, ["out: goes on from step 10 of 60"])


@pytest.mark.parametrize("change", [lambda file: file.write_text(""), Path.unlink], ids=["emptied", "removed"])
def test_a_run_that_lost_its_record_keeps_the_rest(command: Command, change: Callable[[Path], object]) -> None:
    """Law: nothing of an interrupted run is removed because its record is gone; with a copy of that it goes on."""
    assert command("train", "one.yaml", "out=whole")[0] == 0
    leave_a_resume_point()
    events = Path("out/events.jsonl")
    copy = events.read_bytes()
    change(events)
    code, errors = command("train", "one.yaml")
    assert code == 2
    assert "out/events.jsonl: " in errors[-1]
    assert errors[-1].endswith("the resume point stays: put this right, or remove out/resume to start afresh")
    events.write_bytes(copy)
    assert command("train", "one.yaml") == (0, ["out: goes on from step 10 of 60"])
    assert compare_records(Path("whole"), Path("out")) == []


@pytest.mark.parametrize("error", [StoreError("not read"), RunFailed("a rank died")], ids=type)
def test_a_command_whose_folder_was_moved_leaves_nothing_there(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: HarnessError
) -> None:
    """Law: what is in the place of the folder belongs to another run: no reason is written to it, nothing removed."""

    def move(*_: object, **__: object) -> None:
        Path("out").rename("moved")
        Path("out").mkdir()
        Path("out/config.yaml").write_text("other")
        raise error

    monkeypatch.setattr(assemble, "run", move)
    code, said = command("train", "one.yaml")
    assert (code, said[-1]) == ((1, "failed: a rank died") if isinstance(error, RunFailed) else (2, "error: not read"))
    assert f"note: out: moved while it was in use; what was written is in {Path('moved').resolve()}" in said
    assert [path.name for path in Path("out").iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_finished_run_keeps_what_its_config_says(command: Command, *, keeps: bool) -> None:
    """Law: no resume point stays; checkpoints stay unless the config has ``store.keep_finished=false``."""
    config = changed(load_config(Path("one.yaml")), store__keep_finished=keeps, store__kind="files")
    Path("one.yaml").write_text(to_yaml(config.model_dump(mode="json")))
    leave_a_resume_point()
    assert command("train", "one.yaml")[0] == 0
    assert not Path("out/resume").exists()
    assert Path("out/checkpoints").exists() == keeps
