"""Benchmarks measure something real, also when everything is tiny. No figure is judged here: people read those."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks._common import KAGGLE_CARDINALITIES, Spread, make_data, write_trace
from harness.core.trace import parse_trace
from harness.data.dataset import Dataset

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def start(name: str, *arguments: str) -> str:
    """What the benchmark ``name`` prints when it is started by path."""
    command = [sys.executable, str(FOLDER / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_every_kill_is_timed_and_its_parts_add_up(tmp_path: Path) -> None:
    """One line per failure, moments in order, and the parts are the whole."""
    path = tmp_path / "figures.json"
    sizes = ["--ps", "3", "--single", "2", "--multiple", "1", "--at-once", "2", "--rows", "3000"]
    printed = start("recovery.py", *sizes, "--json", str(path))
    recoveries = json.loads(path.read_text())["recoveries"]
    assert [each["num_ranks"] for each in recoveries] == [1, 1, 2]
    for each in recoveries:
        parts = [each[name] for name in ("detect", "spawn", "join", "restore", "answer")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(each["total"])
        assert each["step"] > each["total"]
    assert [line.split(" |")[0] for line in printed.splitlines() if line.startswith("| ")] == [
        "| ranks killed",
        "| 1",
        "| 1",
        "| 2",
        "| 1, median of 2",
        "| 2, median of 1",
    ]
    assert "load average" in printed


def test_memory_is_seen_in_every_phase_and_grows_with_the_tables(tmp_path: Path) -> None:
    """Tables, saves and a recovery all happen under the sampler's eyes, and the tables show in what it sees."""
    path = tmp_path / "figures.json"
    printed = start("memory.py", "--ps", "2", "--scale", "0.02", "--folder", str(tmp_path), "--json", str(path))
    figures = json.loads(path.read_text())
    assert {"start", "initial save", "train", "priority save"} <= figures["big"].keys()
    # Not the PSS: at this size it hangs on who else on the machine has mapped the same libraries.
    assert figures["high_water_ratio"] > 0.5
    assert figures["one_rank"]["compaction"] > 1.0
    assert "| **whole run** |" in printed
    assert [child.name for child in tmp_path.iterdir()] == ["figures.json"]


def test_made_up_clicks_are_a_prepared_folder(tmp_path: Path) -> None:
    """The harness reads them; ids are within their tables, mostly small, and equal seeds give equal bytes."""
    for name in ("a", "b"):
        make_data(tmp_path / name, KAGGLE_CARDINALITIES, 700, seed=3)
    assert (tmp_path / "a" / "records.bin").read_bytes() == (tmp_path / "b" / "records.bin").read_bytes()
    dataset = Dataset.open(tmp_path / "a", split="dlrm", seed=0)
    batch = dataset.train_batch(0, 600)
    assert dataset.cardinalities == KAGGLE_CARDINALITIES
    assert (batch.ids_BF >= 0).all()
    assert (batch.ids_BF < np.array(KAGGLE_CARDINALITIES)).all()
    assert np.median(batch.ids_BF[:, 2]) < KAGGLE_CARDINALITIES[2] / 100
    assert 0.1 < float(batch.labels_B.mean()) < 0.4


def test_made_up_traces_are_read_as_they_were_meant(tmp_path: Path) -> None:
    """Names and numbers, hours to the last digit."""
    write_trace(tmp_path / "trace.csv", [(1 / 3, "ps1"), (2.0, "4")])
    trace = parse_trace((tmp_path / "trace.csv").read_text().splitlines(), "trace.csv")
    assert [(entry.hour, entry.who) for entry in trace.entries] == [(1 / 3, "ps1"), (2.0, 4)]


def test_spread_is_median_and_range() -> None:
    """In any order; an even number of values has its median between two."""
    assert Spread.of([4.0, 1.0, 2.0]) == Spread(2.0, 1.0, 4.0)
    assert Spread.of([4.0, 1.0]).median == 2.5
