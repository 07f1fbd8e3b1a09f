"""Benchmarks measure something real, also when everything is tiny. No figure is judged here: people read those."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._common import Spread, make_data
from benchmarks._plain import num_flops, products
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.data.dataset import Dataset
from harness.model.models import SIZES
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
    assert num_flops(products(SIZES["kaggle"], 128)) == 2 * 128 * (3 * weights - 13 * 512)


# --- step, store, recovery, memory, scale -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_parts_of_a_step_add_up(tmp_path: Path) -> None:
    """On each engine dense, start, finish and rest are the step; of the plain DLRM no part is left out."""
    results = start(tmp_path, "benchmarks/step.py", "--rounds", "1", "--steps", "4", "--rows-scale", "0.001")["results"]
    found = {each["variant"]: each for each in results}
    assert list(found) == ["floor", "dense", "plain", "local", "rpc", "rpc_lookahead"]
    for name in ("local", "rpc", "rpc_lookahead"):
        parts = [found[name][part] for part in ("dense", "start", "finish", "rest")]
        assert sum(parts) == pytest.approx(found[name]["step"])
    assert min(found[name]["start"] for name in ("local", "rpc")) > 0  # a window of the cache has more steps than these
    assert 0 < sum(found["plain"][part] for part in ("read", "embedding", "dense")) <= found["plain"]["step"]


@pytest.mark.slow
def test_steps_of_several_trainers_are_compared_with_those_of_one(tmp_path: Path) -> None:
    """Times by cache and number of trainers."""
    sizes = ("--trainers", "2", "--rounds", "1", "--steps", "4", "--rows-scale", "0.001")
    times_ms = start(tmp_path, "benchmarks/step.py", *sizes)["ms"]
    assert [*times_ms] == ["none, 1", "none, 2", "lookahead, 1", "lookahead, 2"]
    assert min(ms for own in times_ms.values() for ms in own) > 0


@pytest.mark.slow
def test_the_store_is_measured_against_plain_files(tmp_path: Path) -> None:
    """A figure for each case, and saves of both modes that were charged."""
    sizes = ("--rows", "2000", "--repeats", "1", "--rounds", "1", "--rows-scale", "0.0003", "--steps-per-save", "10")
    figures = start(tmp_path, "benchmarks/store.py", *sizes, "--folder", str(tmp_path))
    (shard,) = figures["shard"]
    assert list(shard) == ["tofile + fsync", "base", "delta 12.5 %"]
    assert min(shard.values()) > 0
    assert figures["saves"]["stall"]["sync"]["low"] > 0
    assert figures["saves"]["wall"].keys() == {"sync", "async"}


@pytest.mark.slow
def test_every_kill_is_timed_and_its_parts_add_up(tmp_path: Path) -> None:
    """One entry per failure, of a compute rank or of PS ranks; moments in order, and the parts are the whole."""
    sizes = ("--ps", "4", "--trainers", "2", "--single", "2", "--multiple", "1", "--rows-scale", "0.0001")
    recoveries = start(tmp_path, "benchmarks/recovery.py", *sizes)["recoveries"]
    assert [each["num_ranks"] for each in recoveries] == [1, 1, 4]
    for each in recoveries:
        parts = [each[name] for name in ("detect", "spawn", "join", "restore", "step")]
        assert min(parts[:-1]) > 0  # the last is the rest, of moments that pass through a queue
        assert sum(parts) == pytest.approx(each["total"])


@pytest.mark.slow
def test_memory_grows_with_the_tables(tmp_path: Path) -> None:
    """The tables show in what the sampler sees of a run with saves and a recovery, and a compaction in one rank."""
    figures = start(tmp_path, "benchmarks/memory.py", "--rows-scale", "0.02", "--folder", str(tmp_path))
    # Not the PSS: at this size it hangs on who else on the machine has mapped the same libraries.
    assert figures["high_water_ratio"] > 0.5
    assert figures["one_rank"]["compaction"] > 1.0
    assert [child.name for child in tmp_path.iterdir()] == ["figures.json"]


@pytest.mark.slow
def test_worlds_are_measured_by_their_size(tmp_path: Path) -> None:
    """Each number of ranks has its figures; the only rank of a world does not survive."""
    sizes = ("--ps", "1,4,5", "--messages", "2", "--kills", "2")
    results = start(tmp_path, "benchmarks/scale.py", *sizes)["results"]
    assert [found["num_ps"] for found in results] == [1, 4, 5]
    for found in results:
        assert found["longest_ms"] >= found["regroup_ms"] > 0
        assert min(found["supervisor_ms"], found["trainer_us"], found["memory_mb"]) > 0
    assert ["survivor_ms" in found for found in results] == [False, True, True]


# --- what claims are judged by ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cache_moves_less_than_a_run_without(tmp_path: Path) -> None:
    """More sight saves more bytes, and no cache moves less than the least."""
    sizes = ("--steps", "40", "--rows-scale", "0.0003", "--lookahead", "4,20")
    short, long = start(tmp_path, "experiments/claims/lookahead_benchmark.py", *sizes)["results"]
    assert short["bytes"] > long["bytes"] >= long["minimum_bytes"] > 0
    assert 0 < short["saved_frac"] < long["saved_frac"] < 1


@pytest.mark.slow
def test_a_slow_wire_counts_what_passes(tmp_path: Path) -> None:
    """With the cache fewer bytes pass; or the benchmark, which starts itself anew, says why it cannot run."""
    sizes = ("--rate-mbit", "200", "--rounds", "1", "--steps", "100", "--rows-scale", "0.0003")
    (found,) = start(tmp_path, "experiments/claims/wire_benchmark.py", *sizes)["results"]
    assert 0 < found["lookahead"]["passed"] < found["uncached"]["passed"]
    assert min(found["ratios"]) > 0


@pytest.mark.slow
def test_accesses_are_shared_out_to_the_hottest_rows(click_data: Path, tmp_path: Path) -> None:
    """The share grows with the rows, to all accesses; a folder that is not there is left out."""
    folders = (str(click_data), str(tmp_path / "none"))
    results = start(tmp_path, "experiments/claims/accesses_benchmark.py", *folders)["results"]
    shares = [each["share"] for each in results]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1
    assert {each["data"] for each in results} == {str(click_data)}


@pytest.mark.slow
def test_a_population_is_fitted_to_the_published_mean(tmp_path: Path) -> None:
    """By the scale of its costs; the wider they are spread, the greater is P90."""
    sizes = ("--jobs", "40", "--populations", "1")
    results = start(tmp_path, "experiments/claims/production_benchmark.py", *sizes)["results"]
    alike, spread = (
        [each for each in results if each["what"] == "search" and each["sigma"] == sigma] for sigma in (0, 1.5)
    )
    assert [each["mean"] for each in alike] == pytest.approx([0.13, 0.13], abs=0.01)
    assert all(one["p90"] < other["p90"] for one, other in zip(alike, spread, strict=True))


@pytest.mark.slow
def test_memory_of_trackers_is_a_part_of_the_tables(tmp_path: Path) -> None:
    """A counter of 4 bytes beside rows of 16 float32, a copy of the row, and more than an eighth of the counter."""
    results = start(tmp_path, "experiments/claims/trackers_benchmark.py")["results"]
    mfu, ssu, scar = (each["memory_fracs"]["16"] for each in results)
    assert (mfu, scar) == (pytest.approx(1 / 16), pytest.approx(1))
    assert mfu / 8 < ssu < mfu / 6
