"""Law: a run whose folder is moved while it trains leaves the run that has taken its place alone."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import run
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.run import assemble
from tests.run.stops import train_with
from tests.runs import changed, saving_every

NUM_STEPS = 60


def exchange(run_dir: Path, other: Path) -> None:
    """Another run's folder takes the place of ``run_dir``, by two renames."""
    run_dir.rename(run_dir.with_name("moved"))
    other.rename(run_dir)


def train_and_move(at: int, *arguments: Any) -> None:
    """The trainer's job, whose folder is exchanged at the boundary after the ``at``-th step, the 6th save on disk."""
    config, checkpoints, *_ = arguments

    def move() -> None:
        while len([*checkpoints.glob("*/*-000005.bin")]) <= config.num_ps:
            time.sleep(0.001)
        exchange(checkpoints.parent, checkpoints.parent.with_name("other"))

    train_with(lambda number: bool(number == at and move()), *arguments)


WAYS: dict[str, dict[str, Any]] = {
    "save": {},
    "save in the background": {"save__mode": "async"},
    "resume point": {"resume__every_s": 0.0},
    "restore": {"trace__path": "kill.csv"},
}


@pytest.mark.parametrize(
    ("way", "engine", "is_done"),
    [
        ("save", "local", True),
        ("save in the background", "rpc", False),
        ("resume point", "local", False),
        ("restore", "rpc", True),
    ],
)
def test_a_command_changes_nothing_in_another_run_s_folder(  # noqa: PLR0917 - pytest's
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
    engine: str,
    *,
    is_done: bool,
) -> None:
    """Law: whatever a run does next, and whatever fails first, not a file of what took its folder's place changes."""
    monkeypatch.chdir(tmp_path)
    Path("kill.csv").write_text("# job_h: 56\nhour,rank,note\n30,ps1,\n")
    base = changed(config, data__max_train_samples=4 * NUM_STEPS, trace__path=None, strategy__name="partial")
    base = changed(saving_every(base, 20), engine=engine, out="run", store__keep=20, **WAYS[way])
    other = changed(saving_every(changed(config, trace__path=None), 16), seed=7, store__keep=20)
    assemble.run(other, Path("other"))
    if not is_done:
        Path("other/DONE").unlink()
        Path("other/events.jsonl").write_text("")
    before = contents(Path("other"))
    Path("one.yaml").write_text(to_yaml(base.model_dump(mode="json")))
    moving = assemble.Parts(train=partial(train_and_move, 29))
    monkeypatch.setattr(assemble, "run", partial(assemble.run, parts=moving))
    assert run.main(["train", "one.yaml"]) == 2
    assert "moved or removed during the run; another one is there" in capsys.readouterr().err
    assert not Path("other").exists()
    assert contents(Path("run")) == before


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file, and the name of every folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }
