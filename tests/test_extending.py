"""The examples of docs/EXTENDING.md do what the page says."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests import started
from tests.extended import ROOT
from tests.forked import ran
from tests.runs import small_config


@pytest.mark.slow
def test_the_examples_do_what_the_page_says(click_data: Path, tmp_path: Path) -> None:
    """Law: ``check_…`` of tests/extended.py, in a process of its own."""
    done = ran(started.examples, small_config(click_data).model_dump_json(), str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_page_names_each_table_where_it_is() -> None:
    """And names no table whose names a configuration would refuse, such as the backends of the dense network."""
    page = (ROOT / "docs" / "EXTENDING.md").read_text(encoding="utf-8")
    tables = re.findall(r"`([A-Z_]+)` in `harness/([\w/]+)\.py`", page)
    assert len(tables) == 12
    for name, path in tables:
        module = f"harness.{path.replace('/', '.')}".removesuffix(".__init__")
        assert hasattr(import_module(module), name), (name, path)
