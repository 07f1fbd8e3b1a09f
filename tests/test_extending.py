"""The examples of docs/EXTENDING.md do what the page says."""

import fcntl
import json
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests import started
from tests.extended import PAGE, examples
from tests.forked import ran
from tests.runs import small_config

ROOT = PAGE.parents[1]


@pytest.fixture(scope="module")
def results(click_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples gave, by the first comment of each; run in one process of their own, once for all workers."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "extended"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "results.json").exists():
            config = small_config(click_data).model_dump_json()
            done = ran(started.examples, config, str(out), folder=ROOT)
            assert done.returncode == 0, done.stderr
        return json.loads((out / "results.json").read_text())


def test_a_strategy_with_an_option_of_its_own(results: dict[str, Any]) -> None:
    """Saves lie two of 56 hours apart, full recovery ends bit-equal to no failure, and a wrong option is refused."""
    found = results["strategy"]
    assert found["digests"]
    period = round(1024 * 2 / 56)
    assert found["saves"] == [-(-k * period // 4) * 4 for k in range(1, 1024) if -(-k * period // 4) * 4 < 1024]
    assert "hours" in found["refused"]


def test_a_kind_of_save(results: dict[str, Any]) -> None:
    """What a save of touched rows leaves out is as the older files have it."""
    found = results["kind of save"]
    assert found["digests"]
    assert found["failures"] == 10
    assert found["bytes"][1] < found["bytes"][0]


def test_a_kind_of_recovery(results: dict[str, Any]) -> None:
    """Both engines agree to the bit; record and simulator agree by the facts of the class alone."""
    found = results["kind of recovery"]
    assert found["equal"]
    assert found["differs"]
    assert found["means"]
    assert found["problems"] == []
    assert found["load_bytes"] == 0
    assert found["pls"][0] == pytest.approx(found["pls"][1])
    assert found["pls"][0] > 0
    assert found["hours"][0] == pytest.approx(found["hours"][1])


def test_a_tracker_sees_every_step_with_and_without_a_cache(results: dict[str, Any]) -> None:
    """Its choice is the same, to the bit."""
    found = results["tracker"]
    assert found["equal"]
    assert len(found["rows"]) > 10


def test_a_delta_strategy_is_identical_on_every_engine_and_path(results: dict[str, Any]) -> None:
    """`verify` finds no difference for a strategy whose saves hold every row that its tracker was told of."""
    assert results["delta"] == []


def test_an_optimizer_is_one_arithmetic_everywhere(results: dict[str, Any]) -> None:
    """Shards, caches and rows that were looked up ahead get the same bits; and others than SGD gives."""
    assert results["optimizer"] == {"equal": True, "differs": True}


def test_an_embedding_client(results: dict[str, Any]) -> None:
    """A client without look-ahead gives the events of the built-in one, under ten failures."""
    assert results["embedding client"] == {"full": True, "partial": True}


def test_a_fault(results: dict[str, Any]) -> None:
    """Both engines agree; a restore that reads the torn file is one line; an unknown fault names the known ones."""
    found = results["fault"]
    assert found["equal"]
    assert (found["faults"], found["sound"]) == (["torn", "kill"], [True, True])
    assert len(found["ends"]) == 2
    for words in found["ends"]:
        assert "\n" not in words
        assert ".bin: damaged: " in words
        assert words.endswith("its second half was cut off by line 2 of the trace")
    assert found["unknown"].endswith("slow, disk_full, disk_error, bitflip, torn, got 'tron'")


def test_an_importer(results: dict[str, Any]) -> None:
    """A log becomes outages; a bad line is one line of error with file and line."""
    found = results["importer"]
    assert (found["outages"], found["nodes"]) == (3, ["a", "b"])
    assert found["message"].endswith("broken.txt:2: 2 fields; expected 'node;start;end'")


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
