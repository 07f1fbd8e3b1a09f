"""Law of bad input: one clear line a mistake on stderr, an exit code that says so, and nothing written."""

from pathlib import Path

import pytest

from tests.errors.table import Case, cases, made_folder, said


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all commands."""
    return made_folder(tmp_path_factory.mktemp("errors"))


_NO_TEXT = Case(
    place="no text",  # which no table holds
    words="train one.yaml plugins=\udcff",
    lines=[r"error: plugins=\udcff on the command line:1: not YAML: invalid Unicode character"],
)


@pytest.mark.parametrize("case", [*cases(), _NO_TEXT], ids=lambda case: case.place)
def test_bad_input_is_told_in_the_lines_of_the_table(case: Case, home: Path) -> None:
    """Notes may come before the lines, and the needs of a grid unless it is refused for its folder."""
    done = said(case, home)
    assert done.lines == case.lines, case.words
    assert (done.code, done.out, done.written) == (2, "", set())
    if case.words.startswith("grid ") and "out=" in case.words:
        assert not [line for line in done.others if line.startswith("needs: ")]
