"""Benchmarks measure something real, also when everything is tiny. No figure is judged here: people read those."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._common import Spread, make_data
from benchmarks._plain import num_flops, products
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.model_options import DlrmOptions
from harness.data.dataset import Dataset
from tests.forked import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]


def start(tmp_path: Path, script: str, *arguments: str) -> dict[str, Any]:
    """The figures of a benchmark, started by its path; or it says why it cannot run here."""
    path = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / script), *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.strip())
    assert "load average" in done.stdout
    return json.loads(path.read_text())


# --- what all share ---------------------------------------------------------------------------------------------------


def test_made_up_clicks_are_a_prepared_folder(tmp_path: Path) -> None:
    """The harness reads them; ids are within their tables, mostly small, and bytes are equal."""
    for name in ("a", "b"):
        make_data(tmp_path / name, KAGGLE_CARDINALITIES, 700)
    assert (tmp_path / "a" / "records.bin").read_bytes() == (tmp_path / "b" / "records.bin").read_bytes()
    dataset = Dataset.open(tmp_path / "a", split="dlrm", seed=0)
    dataset.verify()
    batch = dataset.train_batch(0, 600)
    assert dataset.cardinalities == KAGGLE_CARDINALITIES
    assert (batch.ids_BF >= 0).all()
    assert (batch.ids_BF < np.array(KAGGLE_CARDINALITIES)).all()
    assert np.median(batch.ids_BF[:, 2]) < KAGGLE_CARDINALITIES[2] / 100
    assert 0.1 < float(batch.labels_B.mean()) < 0.4


def test_a_ratio_is_taken_round_by_round() -> None:
    """Median and range of the ratios, and not the ratio of medians: a round may be slow as a whole."""
    assert Spread.ratio([2.0, 30.0, 4.0, 2.0], [1.0, 10.0, 1.0, 1.0]) == Spread(2.5, 2.0, 4.0)


def test_the_floor_is_three_products_a_layer() -> None:
    """Forward, and both backward ones, except the gradient of the integer features."""
    weights = 13 * 512 + 512 * 256 + 256 * 64 + 64 * 16 + 367 * 512 + 512 * 256 + 256
    assert num_flops(products(DlrmOptions(name="dlrm"), 128)) == 2 * 128 * (3 * weights - 13 * 512)


# --- each script, on the least that it can measure --------------------------------------------------------------------

SCRIPTS: dict[str, str] = {
    "benchmarks/step.py --rounds 1 --steps 4 --rows-scale 0.001": "results",
    "benchmarks/step.py --trainers 2 --rounds 1 --steps 4 --rows-scale 0.001": "ms",
    "benchmarks/store.py --rows 2000 --repeats 1 --rounds 1 --rows-scale 0.0003 --folder {folder}": "saves",
    "benchmarks/recovery.py --ps 4 --trainers 2 --single 2 --multiple 1 --rows-scale 0.0001": "recoveries",
    "benchmarks/memory.py --rows-scale 0.02 --folder {folder}": "one_rank",
    "benchmarks/scale.py --ps 1,4,5 --messages 2 --kills 2": "results",
    "experiments/claims/lookahead_benchmark.py --steps 40 --rows-scale 0.0003 --lookahead 4,20": "results",
    "experiments/claims/wire_benchmark.py --rate-mbit 200 --rounds 1 --steps 100 --rows-scale 0.0003": "results",
    "experiments/claims/accesses_benchmark.py {data} {folder}/none": "results",
    "experiments/claims/production_benchmark.py --jobs 40 --populations 1": "results",
    "experiments/claims/trackers_benchmark.py": "results",
}
"""Commands, and where their figures are."""
PARTS = {"step": ("dense", "start", "finish", "rest"), "total": ("detect", "spawn", "join", "restore", "step")}
"""Figures that are the sum of others beside them."""


def numbers_in(figures: Any) -> Iterator[float]:
    """All numbers of a value of JSON."""
    if isinstance(figures, dict | list):
        for each in figures.values() if isinstance(figures, dict) else figures:
            yield from numbers_in(each)
    elif isinstance(figures, int | float):
        yield figures


@pytest.mark.slow
@pytest.mark.parametrize("command", SCRIPTS)
def test_a_benchmark_measures_something(click_data: Path, tmp_path: Path, command: str) -> None:
    """Law: finite figures, and parts that are the whole; it leaves nothing else, or says why it cannot run here."""
    script, *words = command.format(folder=tmp_path, data=click_data).split()
    figures = start(tmp_path, script, *words)[SCRIPTS[command]]
    numbers = [*numbers_in(figures)]
    assert max(numbers) > 0
    assert all(map(math.isfinite, numbers))
    for each in figures if isinstance(figures, list) else ():
        for whole, parts in PARTS.items():
            if {whole, *parts} <= each.keys() and each.get("variant") != "rpc_lookahead":
                assert sum(each[part] for part in parts) == pytest.approx(each[whole])
    assert [child.name for child in tmp_path.iterdir()] == ["figures.json"]
