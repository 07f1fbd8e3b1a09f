"""Benchmarks measure something real, also when everything is tiny. No figure is judged here: people read those."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._common import Spread, config_of, make_data
from benchmarks._plain import num_flops, products
from benchmarks._turns import Worker, ratio
from benchmarks.production import MEAN, overheads, population, scale_of
from benchmarks.trackers import memory_fracs
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.data.dataset import Dataset
from harness.model.models import SIZES
from tests.forked import PATIENCE_S, ran, said_by
from tests.made_runs import made_config, write_run
from tests.started import FOLDER, benchmark, benchmark_alone, count_chunks


def start(tmp_path: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The figures of benchmark ``name``, in a process that was forked with torch imported; so is what it starts.

    Not for a benchmark that starts itself anew, or one whose pools must find its classes in ``__main__``.
    """
    path = tmp_path / "figures.json"
    assert "load average" in said_by(benchmark, name, (*arguments, "--json", str(path)))
    return json.loads(path.read_text())


def start_alone(tmp_path: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The same; it starts other processes as a program does by itself."""
    path = tmp_path / "figures.json"
    done = ran(benchmark_alone, name, *arguments, "--json", str(path))
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


# --- what all share ---------------------------------------------------------------------------------------------------


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


def test_a_ratio_is_taken_round_by_round() -> None:
    """Median and range of the ratios, and not the ratio of medians: a round may be slow as a whole."""
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 30.0, "b": 10.0}, {"a": 4.0, "b": 1.0}, {"a": 2.0, "b": 1.0}]
    assert ratio(rounds, "a", "b") == Spread(2.5, 2.0, 4.0)
    assert ratio(rounds, "a", "b", unit=0.01).median == 250


def test_a_worker_stands_still_between_its_turns(tmp_path: Path) -> None:
    """It runs as many chunks as it was ordered, times the middle ones, and no step while it is stopped."""
    config = config_of({"metrics": {"log_every_steps": 2}})
    worker = Worker(count_chunks, config, tmp_path)
    try:
        worker.wait_ready()
        assert (tmp_path / "step").read_text() == "1"
        assert worker.run(lead=1, timed=2, tail=1) > 0
        assert (tmp_path / "step").read_text() == "9"
        assert worker.run(lead=1, timed=1) > 0
        assert (tmp_path / "step").read_text() == "13"
    finally:
        worker.close()


# --- step, store, recovery, memory, scale -----------------------------------------------------------------------------


def test_the_floor_is_three_products_a_layer() -> None:
    """Forward, and both backward ones, except the gradient of the integer features."""
    weights = 13 * 512 + 512 * 256 + 256 * 64 + 64 * 16 + 367 * 512 + 512 * 256 + 256
    assert num_flops(products(SIZES["kaggle"], 128)) == 2 * 128 * (3 * weights - 13 * 512)


def test_the_parts_of_a_step_add_up(tmp_path: Path) -> None:
    """On each engine dense, start, finish and rest are the step; of the plain DLRM no part is left out."""
    figures = start(tmp_path, "step.py", "--rounds", "1", "--steps", "4", "--rows-scale", "0.001")
    results = {name: [r for r in figures["results"] if r["variant"] == name] for name in figures["rounds"][0]}
    assert list(results) == ["floor", "dense", "plain", "local", "rpc", "rpc_lookahead"]
    for name in ("local", "rpc", "rpc_lookahead"):
        parts = [each[part] for each in results[name] for part in ("dense", "start", "finish", "rest")]
        assert sum(parts) == pytest.approx(sum(each["step"] for each in results[name]))
    for name, found in results.items():
        assert [each["step"] for each in found] == pytest.approx([each[name] for each in figures["rounds"]], rel=0.05)
    for each in results["plain"]:
        assert 0 < sum(each[part] for part in ("read", "embedding", "dense")) <= each["step"]


def test_steps_of_several_trainers_are_compared_with_those_of_one(tmp_path: Path) -> None:
    """Times by cache and number of trainers, and one trainer's cache moves what that of two does."""
    sizes = ("--trainers", "2", "--rounds", "1", "--steps", "4", "--rows-scale", "0.001")
    figures = start(tmp_path, "step.py", *sizes)
    (first,), results = figures["rounds"], figures["results"]
    times = [(each["num_trainers"], each["ms"]["none"]) for each in results]
    assert times == [(1, [first["none, 1"]]), (2, [first["none, 2"]])]
    assert results[0]["cache"] == results[1]["cache"]
    assert results[0]["cache"]["hit_rate"] > 0
    assert [*first] == ["none, 1", "none, 2", "lookahead, 1", "lookahead, 2"]
    assert min(first.values()) > 0


def test_the_store_is_measured_against_plain_files(tmp_path: Path) -> None:
    """A figure for each case, and saves of both modes that were charged."""
    sizes = ("--rows", "2000", "--repeats", "1", "--rounds", "1", "--rows-scale", "0.0003", "--steps-per-save", "10")
    figures = start(tmp_path, "store.py", *sizes, "--engine", "local", "--folder", str(tmp_path))
    assert figures["cases"]["tofile + fsync"]["ratio_to_tofile"] == 1
    assert min(case["ratio_to_tofile"] for case in figures["cases"].values()) > 0
    assert figures["saves"]["stall_s"]["sync"]["low"] > 0
    assert figures["saves"]["wall_s"].keys() == {"sync", "async"}


def test_every_kill_is_timed_and_its_parts_add_up(tmp_path: Path) -> None:
    """One entry per failure, of a compute rank or of PS ranks; moments in order, and the parts are the whole."""
    sizes = ("--ps", "3", "--trainers", "2", "--single", "2", "--multiple", "1", "--at-once", "2", "--rows", "3000")
    recoveries = start(tmp_path, "recovery.py", *sizes)["recoveries"]
    assert [each["num_ranks"] for each in recoveries] == [1, 1, 2]
    for each in recoveries:
        parts = [each[name] for name in ("detect", "spawn", "join", "restore", "step")]
        assert min(parts[:-1]) > 0  # the last is the rest, of moments that pass through a queue
        assert sum(parts) == pytest.approx(each["total"])


def test_memory_is_seen_in_every_phase_and_grows_with_the_tables(tmp_path: Path) -> None:
    """Tables, saves and a recovery all happen under the sampler's eyes, and the tables show in what it sees."""
    figures = start(tmp_path, "memory.py", "--ps", "2", "--rows-scale", "0.02", "--folder", str(tmp_path))
    assert {"start", "initial save", "train", "save"} <= figures["big"].keys()
    # Not the PSS: at this size it hangs on who else on the machine has mapped the same libraries.
    assert figures["high_water_ratio"] > 0.5
    assert figures["one_rank"]["compaction"] > 1.0
    assert [child.name for child in tmp_path.iterdir()] == ["figures.json"]


def test_worlds_are_measured_by_their_size(tmp_path: Path) -> None:
    """Each number of ranks has its figures; the only rank of a world does not survive."""
    results = start(tmp_path, "scale.py", "--ps", "1,4,5", "--messages", "2", "--kills", "2")["results"]
    assert [found["num_ps"] for found in results] == [1, 4, 5]
    for found in results:
        assert found["longest_ms"] >= found["regroup_ms"] > 0
        assert min(found["supervisor_ms"], found["trainer_us"], found["memory_mb"]) > 0
    assert ["survivor_ms" in found for found in results] == [False, True, True]


# --- what claims are judged by ----------------------------------------------------------------------------------------


def test_trackers_are_charged_for_touching_and_for_choosing(tmp_path: Path) -> None:
    """Trackers take time beside a run and choose rows, with a budget within it; the whole is the sum of its parts."""
    kinds = ("mfu", "ssu", "mass", "scar", "changed")
    sizes = ("--rounds", "1", "--steps", "6", "--ps", "2", "--rows-scale", "0.0003", "--threads", "1")
    intervals = ("--intervals", "40", "--save-steps", "80", "--trackers", ",".join(kinds))
    figures = start(tmp_path, "trackers.py", *sizes, *intervals)
    (step,), saves = figures["steps"], figures["saves"]
    assert [(each["tracker"], each["steps"]) for each in saves] == [(kind, num) for kind in kinds for num in (40, 80)]
    for each in saves:
        budget = 1 if each["tracker"] == "changed" else 0.125
        assert 0 < each["num_rows"] <= budget * 0.0003 * sum(KAGGLE_CARDINALITIES)
        share_pct = 100 * (each["choose_ms"] + each["clear_ms"]) / each["steps"] / step["step"]
        assert each["whole_pct"] == pytest.approx(share_pct + 100 * step[each["tracker"]] / step["step"])


def test_memory_of_trackers_is_a_part_of_the_tables() -> None:
    """A counter of 4 bytes beside rows of 16 float32, a copy of the row, and more than an eighth of the counter."""
    mfu, scar, ssu = (memory_fracs(kind, 8)[16] for kind in ("mfu", "scar", "ssu"))
    assert (mfu, scar) == (pytest.approx(1 / 16), pytest.approx(1))
    assert mfu / 8 < ssu < mfu / 6


def test_the_cache_moves_less_than_a_run_without(tmp_path: Path) -> None:
    """More sight saves more bytes, and no cache moves less than the least."""
    sizes = ("--steps", "40", "--rows-scale", "0.0003", "--lookahead", "4,20", "--batch-size", "16")
    short, long = start(tmp_path, "cache.py", *sizes)["results"]
    assert short["bytes"] > long["bytes"] >= long["minimum_bytes"] > 0
    assert 0 < short["saved_frac"] < long["saved_frac"] < 1


def test_a_slow_wire_counts_what_passes(tmp_path: Path) -> None:
    """With the cache fewer bytes pass; or the benchmark, which starts itself anew, says why it cannot run."""
    path = tmp_path / "figures.json"
    sizes = ("--ps", "2", "--rounds", "1", "--steps", "10", "--lookahead", "20", "--rows-scale", "0.0003")
    command = [sys.executable, str(FOLDER / "wire.py"), *sizes, "--threads", "1", "--json", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    if printed.startswith("skipped: "):
        pytest.skip(printed.strip())
    (found,) = json.loads(path.read_text())["results"]
    assert 0 < found["lookahead"]["passed"] < found["uncached"]["passed"]
    assert min(found["ratios"]) > 0


def test_accesses_are_shared_out_to_the_hottest_rows(click_data: Path, tmp_path: Path) -> None:
    """The share grows with the rows, to all accesses; a folder that is not there is left out."""
    results = start(tmp_path, "accesses.py", str(click_data), str(tmp_path / "none"))["results"]
    for tables in ("all", "largest"):
        shares = [each["share"] for each in results if each["tables"] == tables]
        assert shares == sorted(shares)
        assert 0 < shares[0] < shares[-1] == 1
    assert {each["data"] for each in results} == {str(click_data)}


def test_a_population_is_fitted_to_the_mean_and_repeats() -> None:
    """Equal jobs for every strategy; the mean of full recovery is the published one; a seed gives equal figures."""
    jobs = population(0, 40)
    found = scale_of(jobs, length_h=56, sigma=0)
    full_J, again_J, cpr_J = (
        overheads(jobs, name, length_h=56, scale=found, sigma=0) for name in ("full", "full", "cpr_vanilla")
    )
    assert full_J.mean() == pytest.approx(MEAN, abs=0.01)
    assert full_J.tolist() == again_J.tolist()
    assert cpr_J.mean() < 0.5 * full_J.mean()


def test_rates_of_wrong_claims_and_kept_promises_are_counted(tmp_path: Path) -> None:
    """A line for each kind of simulated grid, and one for each number of seeds and distance from the margin."""
    figures = start_alone(tmp_path, "power.py", "--grids", "4", "--studies", "50")
    assert all(0.6 < row["found"] / row["studies"] < 0.95 for row in figures["studies"])  # four standard errors
    assert len({(row["losses"], row["noise"], row["seeds"]) for row in figures["claims"]}) == 11
    assert {row["design"] for row in figures["covered"]} == {"crossed", "nested"}
    assert len(figures["promised"]) == 6


def test_seeds_of_finished_runs_are_drawn(tmp_path: Path) -> None:
    """Law: the more seeds, the more often they give the verdict of all; with all of them always; a mark says how."""
    for strategy, drop in (("none", 0.0), ("cpr_vanilla", 2e-4), ("cpr_mfu", 1e-5)):
        for seed in range(10):
            noise = 2e-4 * (seed % 3 - 1) * (drop > 0)
            write_run(tmp_path / f"{strategy}{seed}", made_config(strategy, seed=seed), drop=drop + noise)
    rows = start_alone(tmp_path, "power.py", str(tmp_path), "--draws", "20")["resampled"]
    assert [(row["strategy"], row["measure"]) for row in rows] == [
        (strategy, measure) for measure in ("AUC", "AUC at failures") for strategy in ("cpr_vanilla", "cpr_mfu")
    ]
    assert [row["claim"] for row in rows[2:]] == ["inferior", "non-inferior"]
    for row in rows:
        few, _, whole, more = (row[f"{num} seeds, %"] for num in (3, 5, 10, 40))
        assert whole in ("0.0 ± 0.0", "100.0 ± 0.0")
        assert float(few.split()[0]) <= 100
        assert more.endswith("*")
        assert not whole.endswith("*")
