"""The examples of docs/EXTENDING.md do what the page says."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests import started
from tests.extended import PAGE, examples
from tests.forked import ran
from tests.runs import small_config

ROOT = PAGE.parents[1]


@pytest.mark.slow
def test_the_examples_do_what_the_page_says(click_data: Path, tmp_path: Path) -> None:
    """Law: ``check_…`` of tests/extended.py, in a process of its own."""
    done = ran(started.examples, small_config(click_data).model_dump_json(), str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_page_names_each_table_where_it_is() -> None:
    """And names no table whose names a configuration would refuse, such as the backends of the dense network."""
    tables = re.findall(r"`([A-Z_]+)` in `harness/([\w/]+)\.py`", PAGE.read_text(encoding="utf-8"))
    assert {name for name, _ in tables} == {"LAUNCHERS", "ENCODINGS"}
    for name, path in tables:
        assert hasattr(import_module(f"harness.{path.replace('/', '.')}"), name), (name, path)


def test_the_page_says_how_long_its_examples_are() -> None:
    """Lines of the first class or function of each example, as its table gives them."""
    text = PAGE.read_text(encoding="utf-8")
    for title, code in examples().items():
        block = code.split("\n\n\n")[0].rstrip("\n")
        number = len([line for line in block.splitlines() if line.strip()])
        row = next(line for line in text.splitlines() if line.startswith(f"| [{title}"))
        assert f"{number} lines" in row, (title, number)
