"""Law: a run writes to the folder in which it began, wherever that is moved, and to no other one."""

import os
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import run
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.run import assemble
from harness.run.verify import compare_records
from tests.run.stops import train_with
from tests.runs import changed, saving_every

NUM_STEPS = 60


def exchange(run_dir: Path) -> None:
    """Another run's folder takes the place of ``run_dir``, by two renames."""
    run_dir.rename(run_dir.with_name("moved"))
    run_dir.with_name("other").rename(run_dir)


def train_and(change: Callable[[Path], object], at: int, *arguments: Any) -> None:
    """The trainer's job, whose folder is changed at the boundary after the ``at``-th step, the 6th save on disk."""
    config, store, *_ = arguments
    checkpoints = store.root

    def act() -> None:
        while len([*checkpoints.glob("*/*-000005.bin")]) <= config.num_ps:
            time.sleep(0.001)
        change(Path(os.readlink(checkpoints.parent)))

    train_with(lambda number: bool(number == at and act()), *arguments)


WAYS: dict[str, dict[str, Any]] = {
    "save": {},
    "save in the background": {"save__mode": "async"},
    "resume point": {"resume__every_s": 0.0},
    "restore": {"trace__path": "kill.csv"},
    "wandb": {"wandb__mode": "offline"},
}


@pytest.fixture
def command(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Trains in the folder ``run``, which is changed meanwhile; returns the exit code. There is a run in ``other``."""
    monkeypatch.chdir(tmp_path)
    Path("kill.csv").write_text("# job_h: 56\nhour,rank,note\n30,ps1,\n")
    other = changed(saving_every(changed(config, trace__path=None), 16), seed=7, store__keep=20)
    assemble.run(other, Path("other"))

    def train(change: Callable[[Path], object], way: str, engine: str) -> int:
        base = changed(config, data__max_train_samples=4 * NUM_STEPS, trace__path=None, strategy__name="partial")
        base = changed(saving_every(base, 20), engine=engine, out="run", store__keep=20, **WAYS[way])
        Path("one.yaml").write_text(to_yaml(base.model_dump(mode="json")))
        if change is exchange:
            assemble.run(base, Path("undisturbed"))
        changing = assemble.Parts(train=partial(train_and, change, 29))
        monkeypatch.setattr(assemble, "run", partial(assemble.run, parts=changing))
        return run.main(["train", "one.yaml"])

    return train


@pytest.mark.parametrize(
    ("way", "engine"),
    [
        ("save", "local"),
        *(
            pytest.param(way, engine, marks=pytest.mark.slow)
            for way, engine in (
                ("save in the background", "rpc"),
                ("resume point", "rpc"),
                ("restore", "rpc"),
                ("wandb", "local"),
            )
        ),
    ],
)
def test_a_run_ends_well_where_its_folder_was_moved(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], way: str, engine: str
) -> None:
    """Law: it ends as an undisturbed one and says where it is; not a file of what took its folder's place changes."""
    before = contents(Path("other"))
    assert command(exchange, way, engine) == 0
    said = capsys.readouterr()
    assert f"run: moved while it was in use; what was written is in {Path.cwd() / 'moved'}\n" in said.err
    assert re.match(r"run: partial on .*: done\b", " ".join(said.out.split()))
    assert "/proc/" not in said.err + said.out
    assert not Path("other").exists()
    assert contents(Path("run")) == before
    assert compare_records(Path("undisturbed"), Path("moved")) == []
    assert len([*Path("moved").glob("wandb/offline-run-*/*.wandb")]) == (way == "wandb")


@pytest.mark.parametrize("engine", ["local", "rpc"])
def test_a_run_whose_folder_is_removed_ends_in_one_line(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    """Law: the line names a file as the user would, and no new folder is made."""
    assert command(shutil.rmtree, "save", engine) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note:")]
    assert len(errors) == 1
    assert re.fullmatch(r"error: run/\S+: cannot be \w+: No such file or directory.*", errors[0])
    assert not Path("run").exists()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file, and the name of every folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }
