"""Everything that docs/TUTORIAL.md asks for is done, in order, in a fresh folder."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import started
from tests.forked import ran

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ["PYTHONPATH=.", ".venv/bin/python"]
_BLOCK = re.compile(r"(?:`(tutorial/[\w.]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: each command ends well; the models are equal to the bit, the rows of the table are those of the page."""
    monkeypatch.chdir(tmp_path)
    for path in ("tutorial", "failure_traces", "experiments"):
        (tmp_path / path).mkdir()
    for file in ("failure_traces/busy.csv", "experiments/one.yaml"):
        shutil.copy(ROOT / file, tmp_path / file)
    text = (ROOT / "docs" / "TUTORIAL.md").read_text(encoding="utf-8")
    said: dict[str, str] = {}
    for name, language, code in _BLOCK.findall(text):
        if name:
            (tmp_path / name).write_text(code, encoding="utf-8")
        for line in code.splitlines() if language == "sh" else ():
            said[line] = _said_by(shlex.split(line), tmp_path)
    (grid,) = (output for line, output in said.items() if line == "run.py grid tutorial/mine.yaml")
    rows = re.findall(r"^ (?:none|full|cpr_vanilla|guarded) .*", text, re.MULTILINE)
    assert len(rows) == 4
    for row in rows:  # the page leaves columns out
        assert re.search(".*".join(map(re.escape, row.split())), grid), row
    (compared,) = (output for line, output in said.items() if " compare " in line)
    assert "Final models equal to the bit: cpr_vanilla 1 of 1; guarded 1 of 1." in compared
    assert "\\toprule" in (tmp_path / "tutorial" / "table.tex").read_text(encoding="utf-8")
    assert (tmp_path / "tutorial" / "figure.pdf").read_bytes().startswith(b"%PDF")


def _said_by(words: list[str], folder: Path) -> str:
    """What a command of the page prints."""
    words, _, target = (words[:-2], *words[-2:]) if words[-2] == ">" else (words, "", "")
    if words[:2] == PYTHON:
        done = ran(started.program, Path(words[2]).read_text(encoding="utf-8"), folder=folder)
    else:
        assert words[0] == "run.py"
        found = [path for word in words[1:] for path in _found(word, folder)]
        done = ran(started.command, *found, folder=folder, environment={"COLUMNS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
    if target:
        Path(target).write_text(done.stdout, encoding="utf-8")
    return done.stdout


def _found(word: str, folder: Path) -> list[str]:
    """As a shell reads a word."""
    return sorted(map(str, folder.glob(word))) if "*" in word else [word]
