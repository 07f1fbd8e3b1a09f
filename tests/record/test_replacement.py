"""Laws of a run that replaces a finished one: until it is in place the old result stands, and then the new one does."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.core.errors import StoreError
from harness.record import replacement
from harness.record.folder import AtWork, OtherRun, State, claim_run, has_resume_point, inspect, lock_finished
from harness.record.replacement import current_state, prepare_replacement, replace_run, replacement_of
from harness.record.rundir import RunDir
from tests.crashes import Disk
from tests.made_runs import made_config, unseal, write_run

HASH, OTHER = "0123456789", "f" * 10


class Stop(Exception):
    """The process ends here."""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run of seed 0 with a file of the user's, and beside it its finished replacement, of seed 1."""
    path = tmp_path / "runs" / "run"
    for seed, each in enumerate((path, replacement_of(path))):
        with claim_run(each, HASH):
            write_run(each, made_config(seed=seed))
    (path / "notes.txt").write_text("mine")
    return path


def seed_of(run_dir: Path) -> int:
    """The seed of a run, by its first event."""
    return json.loads((run_dir / "events.jsonl").read_text().partition("\n")[0])["seed"]


@pytest.mark.parametrize("num_calls", range(5))
def test_a_replacement_that_is_cut_short_is_finished(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, num_calls: int
) -> None:
    """Law: wherever a process ends between DONE and the last move, the next one finds the new run, and own files."""
    calls = [0]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def ending(*arguments: object) -> object:
            if calls[0] == num_calls:
                raise Stop
            calls[0] += 1
            return call(*arguments)

        return ending

    with monkeypatch.context() as patch, pytest.raises(Stop) if num_calls < 4 else nullcontext():
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(replacement, "remove", counted(replacement.remove))
        replace_run(run_dir)
    assert calls[0] == num_calls
    assert current_state(run_dir, HASH) is State.DONE
    assert seed_of(run_dir) == 1
    assert (run_dir / "notes.txt").read_text() == "mine"
    assert [path.name for path in run_dir.parent.iterdir()] == ["run"]


def test_the_old_result_goes_after_the_new_one_is_on_disk(run_dir: Path, tmp_path: Path) -> None:
    """Law: whatever the disk forgets, a result that was begun to be removed has its replacement in its place."""
    seeds: list[int] = []

    def check() -> None:
        if run_dir.exists() and not (run_dir.parent / ".old" / "run" / "DONE").exists() and seed_of(run_dir) == 1:
            left = disk.after("late names", tmp_path / "left") / "run"
            assert RunDir(left).status == "done"
            seeds.append(seed_of(left))

    disk = Disk(run_dir.parent, check)
    with disk.installed():
        replace_run(run_dir)
    assert {*seeds} == {1}
    assert len(seeds) > 3


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_former_result_is_put_back_where_its_replacement_is_of_no_use(run_dir: Path, is_gone: bool) -> None:
    """Law: a good result that has given way is not lost to a replacement that cannot take its place."""
    old = run_dir.parent / ".old" / "run"
    old.parent.mkdir()
    run_dir.rename(old)
    (shutil.rmtree if is_gone else damage)(replacement_of(run_dir))
    assert current_state(run_dir, HASH) is State.DONE
    assert seed_of(run_dir) == 0
    assert (run_dir / "notes.txt").read_text() == "mine"
    assert not old.parent.exists()


def test_a_replacement_without_an_old_result_takes_its_place(run_dir: Path) -> None:
    """Law: the folder of a result that was removed by hand is free for the new one."""
    shutil.rmtree(run_dir)
    assert current_state(run_dir, HASH) is State.DONE
    assert seed_of(run_dir) == 1


def damage(new: Path) -> str:
    """Change an event of a finished run."""
    (new / "events.jsonl").write_text((new / "events.jsonl").read_text().replace('"seed":1', '"seed":2'))
    return f"{new / 'events.jsonl'}: expected what the run wrote"


def alter_code(new: Path) -> str:
    """Let other code have computed a finished run."""
    unseal(new)
    env = json.loads((new / "env.json").read_text())
    env["code"]["sources"]["harness/core/strategies.py"] = "edited"
    (new / "env.json").write_text(json.dumps(env))
    return f"{new}: computed by other code (harness/core/strategies.py)"


@pytest.mark.parametrize("spoil", [damage, alter_code])
def test_a_replacement_of_no_use_is_named_and_computed_anew(
    run_dir: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], str]
) -> None:
    """Law: a damaged one, or one of other code, is not put in place; when the run is computed anew, it is named."""
    new = replacement_of(run_dir)
    (new / "resume").mkdir()
    (new / "resume" / "point-000001.json").write_text("")
    why = spoil(new)
    assert current_state(run_dir, HASH) is State.DONE
    assert seed_of(run_dir) == 0
    assert (new / "DONE").exists()
    assert prepare_replacement(run_dir, HASH) == new
    assert caplog.messages[0].startswith(f"note: a replacement that was not put in its place is computed anew: {why}")
    assert inspect(new, HASH) is State.EMPTY
    assert not has_resume_point(new)


def test_a_damaged_run_does_not_replace_a_result(run_dir: Path) -> None:
    """Law: its own command ends in one line that names the file, and the old result stands."""
    why = damage(replacement_of(run_dir))
    with pytest.raises(StoreError) as caught:
        replace_run(run_dir)
    assert str(caught.value).startswith(why)
    assert seed_of(run_dir) == 0


def test_another_run_s_replacement_stays(run_dir: Path) -> None:
    """Law: a replacement of another config is neither put in place nor removed, nor is the run of another config."""
    with pytest.raises(OtherRun):
        current_state(run_dir, OTHER)
    assert seed_of(run_dir) == 0
    shutil.rmtree(run_dir)
    with claim_run(run_dir, OTHER):
        write_run(run_dir, made_config(seed=2))
    assert current_state(run_dir, OTHER) is State.DONE
    with pytest.raises(OtherRun):
        prepare_replacement(run_dir, OTHER)
    assert (seed_of(run_dir), seed_of(replacement_of(run_dir))) == (2, 1)


def test_a_replacement_at_work_is_left_to_its_process(run_dir: Path) -> None:
    """Law: while the process that wrote DONE still closes it, the old result stands for others."""
    with lock_finished(replacement_of(run_dir)):
        assert current_state(run_dir, HASH) is State.DONE
        assert seed_of(run_dir) == 0
        with pytest.raises(AtWork, match="is writing to it"):
            replace_run(run_dir)
    assert current_state(run_dir, HASH) is State.DONE
    assert seed_of(run_dir) == 1
