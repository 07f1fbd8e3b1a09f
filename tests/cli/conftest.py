"""The command line in a fresh folder."""

import shutil
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest

import run
from harness.data.prepare import prepare

NUM_ROWS = 700
CONFIG = """\
out: out
wandb: {mode: disabled}
data: {path: data}
model: {size: tiny}
trainer: {batch_size: 32}
profile: busy
cluster: {num_ps: 2}
strategy: {interval_samples: 64}
store: {fsync: false}
"""
GRIDS = "grids:\n- {seed: [0, 1], strategy.name: [none, partial]}\n"


@dataclass(frozen=True)
class Result:
    """What one command did."""

    code: int
    out: str
    errors: list[str]


class Cli:
    """Runs commands of run.py in this process, in a folder that holds one.yaml, grid.yaml and data/."""

    def __init__(self, folder: Path, persisted: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._persisted = persisted

    def __call__(self, *arguments: str) -> Result:
        try:
            code = run.main(arguments)
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        said = self._persisted.readouterr()
        return Result(code, said.out, said.err.splitlines())

    def files(self) -> list[Path]:
        """Everything that lies in the folder."""
        return sorted(self.folder.rglob("*"))


def prepared_clicks(folder: Path) -> Path:
    """A few prepared rows, in ``data`` of a new folder, beside clicks.tsv."""
    folder.mkdir(exist_ok=True)
    lines = (
        [str(row % 3 // 2), *(str((row * i) % 11) for i in range(13)), *(f"{row * j % 50:08x}" for j in range(26))]
        for row in range(NUM_ROWS)
    )
    (folder / "clicks.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    prepare([folder / "clicks.tsv"], folder / "data")
    return folder / "data"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few prepared rows."""
    return prepared_clicks(tmp_path_factory.mktemp("clicks"))


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of one.yaml with strategy none, to be copied to `out`."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(data, folder / "data")
    (folder / "one.yaml").write_text(CONFIG)
    with chdir(folder):
        assert run.main(["train", "one.yaml", "strategy.name=none", "out=out"]) == 0
    return folder / "out"


@pytest.fixture
def cli(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, at home in a fresh folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(data, "data")
    Path("one.yaml").write_text(CONFIG)
    Path("grid.yaml").write_text(CONFIG + GRIDS)
    return Cli(tmp_path, capsys)
