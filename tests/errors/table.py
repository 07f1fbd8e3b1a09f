"""Reads the cases, and carries them out in this process."""

import io
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import run
from tests.cli.conftest import CONFIG, GRIDS, prepared_clicks

_INTERVALS = "node,start,end\na1,2,3\na2,10,9\na10,12,20\na2,12,13\na1,30,31.5\na3,44,\na3,55,56\n"
_ROOT = Path(__file__).parents[2]
TABLES = sorted(Path(__file__).parent.glob("*.txt"))


@dataclass
class Case:
    """A command and its lines. ``place``: file and line of its words; ``files``: what it needs beside the folder's."""

    place: str = ""
    words: str = ""
    files: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def cases() -> Iterator[Case]:
    """All cases of all tables."""
    for table in TABLES:
        case, name = Case(), "x.yaml"
        for number, line in enumerate([*table.read_text().splitlines(), ""], start=1):
            kind, _, text = line.partition(" ")
            if not line:
                if case.words:
                    yield case
                case, name = Case(), "x.yaml"
            elif kind == "@":
                name = text
            elif kind == "|":
                case.files[name] = f"{case.files.get(name, '')}{text}\n"
            elif kind == "$":
                case.place, case.words = f"{table.stem}:{number}", text
            elif kind != "#":
                case.lines.append(line)


def made_folder(folder: Path) -> Path:
    """A folder in which the commands of the cases run: one.yaml, grid.yaml, data/, jobs.csv, and an empty ``file``."""
    shutil.copytree(prepared_clicks(folder / "made"), folder / "home" / "data")
    home = folder / "home"
    (home / "one.yaml").write_text(CONFIG)
    (home / "grid.yaml").write_text(CONFIG + GRIDS)
    (home / "jobs.csv").write_text(_INTERVALS)
    (home / "file").write_text("")
    return home


@dataclass(frozen=True)
class Said:
    """What a command did. ``lines``: the errors; ``others``: all else on stderr; ``written``: files made or removed."""

    code: int
    out: str
    lines: list[str]
    others: list[str]
    written: set[Path]


def said(case: Case, home: Path) -> Said:
    """Carry out the command of a case in ``home``, which is afterwards as it was."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(home), redirect_stdout(out), redirect_stderr(err):
        for name, text in case.files.items():
            Path(name).write_text(text)
        before = {*Path().rglob("*")}
        try:
            code = run.main(shlex.split(case.words))
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        written = before ^ {*Path().rglob("*")}
        for name in case.files:
            Path(name).unlink()
    told = err.getvalue().replace(str(home), "HERE").replace(str(_ROOT), "ROOT").splitlines()
    lines = [line for line in told if line.startswith(("error: ", "failed: "))]
    return Said(code, out.getvalue(), lines, [line for line in told if line not in lines], written)
