"""Benchmarks measure something real, also when everything is tiny. No figure is judged here: people read those."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import trainers, update_mass
from benchmarks._common import Spread, config_of, make_data, settings_of, write_trace
from benchmarks._plain import num_flops, products
from benchmarks._turns import Tick, Worker
from benchmarks.auc import argsort_auc
from benchmarks.production import MEAN, overheads, population, scale_of
from benchmarks.step import dense
from benchmarks.trackers import memory_fracs
from benchmarks.verification import Cost
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.strategies import options_of
from harness.data.dataset import Dataset
from harness.model.dlrm import BACKENDS
from harness.model.sizes import NUM_TABLES, SIZES
from harness.traces.trace import parse_trace
from tests.forked import PATIENCE_S, ran, said_by
from tests.hosts.emulated import NotAllowed, emulated
from tests.started import FOLDER, benchmark, benchmark_alone, count_chunks, grid_benchmark


def start_by_path(name: str, *arguments: str) -> str:
    """What the benchmark ``name`` prints when it is started by path."""
    command = [sys.executable, str(FOLDER / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def start_alone(name: str, *arguments: str) -> str:
    """The same from a process that was forked with torch imported, and starts others as a program does by itself."""
    done = ran(benchmark_alone, name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(name: str, *arguments: str) -> str:
    """The same, and what it starts is forked too: two imports of torch less, four seconds of processor.

    Not for a benchmark that starts itself anew, or one whose pools must find its classes in ``__main__``.
    """
    return said_by(benchmark, name, arguments)


def test_lost_hosts_are_timed(tmp_path: Path) -> None:
    """Two by SIGKILL and two by a cut cable, in turn; a rank that stands still for a moment is not given up."""
    path = tmp_path / "figures.json"
    command = ["--rounds", "1", "--steps", "30", "--stalls", "1", "--rows", "3000", "--ps", "3", "--dead-after", "6"]
    try:
        with emulated(1, tmp_path):
            pass
    except NotAllowed as error:
        pytest.skip(f"no emulated hosts here: {error}")
    start("hosts.py", *command, "--json", str(path))
    figures = json.loads(path.read_text())
    assert all(0 < seconds < 30 for seconds in figures["killed"])
    assert [len(figures[kind]) for kind in ("killed", "cut", "loopback", "hosts")] == [2, 2, 1, 1]
    assert (figures["stalls"], figures["given_up"]) == (1, 0)


def test_every_kill_is_timed_and_its_parts_add_up(tmp_path: Path) -> None:
    """One line per failure, moments in order, and the parts are the whole."""
    path = tmp_path / "figures.json"
    sizes = ["--ps", "3", "--single", "2", "--multiple", "1", "--at-once", "2", "--rows", "3000"]
    printed = start("recovery.py", *sizes, "--json", str(path))
    recoveries = json.loads(path.read_text())["recoveries"]
    assert [each["num_ranks"] for each in recoveries] == [1, 1, 2]
    for each in recoveries:
        parts = [each[name] for name in ("detect", "spawn", "join", "restore", "step")]
        assert min(parts[:-1]) > 0  # the last is the rest, of moments that pass through a queue
        assert sum(parts) == pytest.approx(each["total"])
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
    sizes = ["--ps", "2", "--rows-scale", "0.02", "--max-rows", "4000"]
    printed = start("memory.py", *sizes, "--folder", str(tmp_path), "--json", str(path))
    figures = json.loads(path.read_text())
    assert {"start", "initial save", "train", "save"} <= figures["big"].keys()
    # Not the PSS: at this size it hangs on who else on the machine has mapped the same libraries.
    assert figures["high_water_ratio"] > 0.5
    assert figures["one_rank"]["compaction"] > 1.0
    assert figures["cache"]["peak_rows"] > 0
    assert "| **whole run** |" in printed
    assert [child.name for child in tmp_path.iterdir()] == ["figures.json"]


def test_the_store_is_measured_against_plain_files(tmp_path: Path) -> None:
    """A line for each case, the two figures that have an aim, and saves of both modes that were charged."""
    path = tmp_path / "figures.json"
    sizes = ["--rows", "2000", "--repeats", "1", "--rounds", "1", "--rows-scale", "0.0003", "--steps-per-save", "10"]
    printed = start("store.py", *sizes, "--engine", "local", "--folder", str(tmp_path), "--json", str(path))
    figures = json.loads(path.read_text())
    assert min(case["median_s"] for case in figures["cases"].values()) > 0
    assert figures["saves"]["stall_s"]["sync"]["low"] > 0
    assert figures["saves"]["wall_s"].keys() == {"sync", "async"}
    assert "bandwidth of a full save" in printed
    assert "12.5 % over a full one" in printed


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


def test_throughput_measures_each_variant_in_every_round(tmp_path: Path) -> None:
    """As many figures as rounds, and a ratio for each pair that was measured together, of their samples per second."""
    path = tmp_path / "figures.json"
    sizes = ["--rounds", "2", "--steps", "2", "--rows-scale", "0.001", "--only", "rpc2", "--backend", "torch"]
    printed = start("throughput.py", *sizes, "--json", str(path))
    figures = json.loads(path.read_text())
    variants = figures["variants"]
    assert set(variants) == {"floor", "plain", "local", "rpc2"}
    assert all(len(each["ms"]) == 2 and min(each["ms"]) > 0 for each in variants.values())
    assert variants["floor"]["gflops_per_s"] > 0
    assert {"local_over_plain", "floor_over_local", "rpc2_over_plain"} <= set(figures["ratios"])
    assert not [name for name in figures["ratios"] if "rpc8" in name]
    ours = [its / mine for mine, its in zip(variants["local"]["ms"], variants["plain"]["ms"], strict=True)]
    assert figures["ratios"]["local_over_plain"] == pytest.approx(sum(ours) / 2)
    assert "| rpc2 |" in printed


def test_steps_of_several_trainers_are_compared_with_those_of_one(tmp_path: Path) -> None:
    """A line for each cache and number of trainers; one trainer is as fast as itself."""
    path = tmp_path / "figures.json"
    sizes = ["--trainers", "2", "--rounds", "1", "--steps", "4", "--rows-scale", "0.001"]
    printed = start("step.py", *sizes, "--json", str(path))
    figures = json.loads(path.read_text())
    (first,), results = figures["rounds"], figures["results"]
    assert [(each["num_trainers"], each["ms"]["none"]) for each in results] == [
        (1, [first["none, 1"]]),
        (2, [first["none, 2"]]),
    ]
    assert results[0]["cache"] == results[1]["cache"]
    assert results[0]["cache"]["hit_rate"] > 0
    assert [*first] == ["none, 1", "none, 2", "lookahead, 1", "lookahead, 2"]
    assert min(first.values()) > 0
    assert printed.count("**1.00** (1.00–1.00)") >= 3


def test_the_parts_of_a_step_add_up(tmp_path: Path) -> None:
    """On each engine dense, start, finish and rest are the step; of the plain DLRM no part is left out; a picture."""
    path, picture = tmp_path / "figures.json", tmp_path / "step.svg"
    sizes = ["--rounds", "1", "--steps", "4", "--rows-scale", "0.001", "--picture", str(picture)]
    start("step.py", *sizes, "--json", str(path))
    rounds = json.loads(path.read_text())["rounds"]
    for name in ("local", "rpc", "rpc_lookahead"):
        (parts,) = rounds[name]
        assert sum(ms for part, ms in parts.items() if part != "step") == pytest.approx(parts["step"])
    assert min(rounds[name][0]["start"] for name in ("local", "rpc")) > 0
    assert min(rounds["dense"][0][part] for part in ("read, plan", "dense", "step")) > 0
    plain = {part: rounds["plain"][0][part] for part in ("read", "embedding", "dense")}
    assert 0 < min(plain.values()) < sum(plain.values()) <= rounds["plain"][0]["step"]
    assert picture.read_text().startswith("<?xml")


def test_the_dense_network_alone_trains_on_either_backend(tmp_path: Path) -> None:
    """Chunks of equal length; the compiled backend also measures its parts."""
    for backend in BACKENDS:
        folder = tmp_path / backend
        settings = settings_of(folder, [10] * NUM_TABLES, 4, batch_size=16, backend=backend)
        with pytest.raises(Enough):
            dense(config_of(settings, {"metrics": {"log_every_steps": 2}}), folder / "dense", tick_until(2))
        lines = [json.loads(line) for line in (folder / "dense" / "parts.jsonl").read_text().splitlines()]
        assert len(lines) == 2
        assert all(0 < line["dense"] < line["step"] for line in lines)
        assert ("top backward" in lines[0]) == (backend == "compiled")


class Enough(Exception):
    """A loop has run as many chunks as wanted."""


def tick_until(num_chunks: int) -> Tick:
    """A tick that raises Enough at the last of so many chunks."""
    left = num_chunks

    def tick(seconds: float) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Enough

    return tick


def test_trackers_are_charged_for_touching_and_for_choosing(tmp_path: Path) -> None:
    """Trackers take time beside a run and choose rows, with a budget within it; the whole is the sum of its parts."""
    path = tmp_path / "figures.json"
    sizes = ["--rounds", "1", "--steps", "6", "--ps", "2", "--rows-scale", "0.0003", "--threads", "1"]
    intervals = ["--intervals", "40", "--save-steps", "80"]
    kinds = ("mfu", "ssu", "mass", "scar", "changed")
    start("trackers.py", *sizes, *intervals, "--trackers", ",".join(kinds), "--json", str(path))
    figures = json.loads(path.read_text())
    (step,) = figures["steps"]
    assert [(each["steps"], each["tracker"]) for each in figures["saves"]] == [
        *((40, kind) for kind in kinds),
        *((80, kind) for kind in kinds),
    ]
    for each in figures["saves"]:
        budget = 1 if each["tracker"] == "changed" else 0.125
        assert 0 < each["num_rows"] <= budget * 0.0003 * sum(KAGGLE_CARDINALITIES)
        share_pct = 100 * (each["choose_ms"] + each["clear_ms"]) / each["steps"] / step["step"]
        assert each["whole_pct"] == pytest.approx(share_pct + 100 * step[each["tracker"]] / step["step"])


def test_memory_of_trackers_is_a_part_of_the_tables() -> None:
    """A counter of 4 bytes beside rows of 16 float32, a copy of the row, and more than an eighth of the counter."""
    mfu, scar, ssu = (memory_fracs(kind, 8)[16] for kind in ("mfu", "scar", "ssu"))
    assert (mfu, scar) == (pytest.approx(1 / 16), pytest.approx(1))
    assert mfu / 8 < ssu < mfu / 6


def test_every_engine_is_measured_at_a_point(tmp_path: Path) -> None:
    """A figure for each engine, and a picture of the axis."""
    path = tmp_path / "figures.json"
    sizes = ["--axes", "batch", "--points", "16", "--rounds", "1", "--steps", "2", "--threads", "1"]
    start("scaling.py", *sizes, "--rows-scale", "0.0003", "--pictures", str(tmp_path), "--json", str(path))
    curves = json.loads(path.read_text())["ms"]["batch"]
    assert set(curves) == {"local", "rpc", "rpc, lookahead"}
    for points in curves.values():
        assert set(points) == {"16"}
        assert all(spread["median"] > 0 for spread in points.values())
    assert (tmp_path / "scaling_batch.svg").read_text().startswith("<?xml")


def test_preparing_and_scoring_are_measured(tmp_path: Path) -> None:
    """Rows per second and memory of the one; of the other, results that agree."""
    path = tmp_path / "figures.json"
    start("prepare.py", "--rows", "300", "--rounds", "1", "--rows-scale", "0.0001", "--json", str(path))
    figures = json.loads(path.read_text())
    assert min(figures[name]["median"] for name in ("read_rows_per_s", "prepare_rows_per_s")) > 0
    assert figures["extra_bytes"] > 0
    start("auc.py", "--scores", "3000", "--rounds", "1", "--json", str(path))
    cases = json.loads(path.read_text())["cases"]
    assert max(case["difference"] for case in cases.values()) < 1e-12


def test_the_cache_moves_less_than_a_run_without(tmp_path: Path) -> None:
    """A line per lookahead: more sight saves more bytes, and no cache moves less than the least."""
    path = tmp_path / "figures.json"
    sizes = ["--steps", "40", "--rows-scale", "0.0003", "--lookahead", "4,20", "--batch-size", "16"]
    start("cache.py", *sizes, "--json", str(path))
    short, long = json.loads(path.read_text())["results"]
    assert short["bytes"] > long["bytes"] >= long["minimum_bytes"] > 0
    assert 0 < short["saved_frac"] < long["saved_frac"] < 1


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


def test_a_grid_costs_start_up_and_training(tmp_path: Path) -> None:
    """The command alone takes time, and so do the cells; which of two commands is quicker, the machine decides."""
    path = tmp_path / "figures.json"
    said_by(grid_benchmark, "--cells", "1", "--steps", "3", "--jobs", "1", "--rounds", "1", "--json", str(path))
    figures = json.loads(path.read_text())["jobs"]["1"]
    assert figures["command_s"]["median"] > 0
    assert figures["cells_per_minute"]["median"] == pytest.approx(60 / figures["cell_s"]["median"])


def test_the_floor_is_three_products_a_layer() -> None:
    """Forward, and both backward ones, except the gradient of the integer features."""
    weights = 13 * 512 + 512 * 256 + 256 * 64 + 64 * 16 + 367 * 512 + 512 * 256 + 256
    assert num_flops(products(SIZES["kaggle"], 128)) == 2 * 128 * (3 * weights - 13 * 512)


def test_the_auc_to_compare_with_counts_pairs() -> None:
    """One for a pair in order, one half for a tie."""
    rng = np.random.default_rng(0)
    scores_M, labels_M = rng.integers(0, 6, 40).astype(np.float32), (rng.random(40) < 0.4).astype(np.float32)
    over = scores_M[labels_M == 1][:, None] - scores_M[labels_M == 0]
    assert argsort_auc(labels_M, scores_M) == pytest.approx(np.mean((over > 0) + 0.5 * (over == 0)), abs=1e-12)


def test_a_slow_wire_counts_what_passes(tmp_path: Path) -> None:
    """With the cache fewer bytes pass; or the benchmark says why it cannot run."""
    path = tmp_path / "figures.json"
    steps = ["--rounds", "1", "--steps", "10", "--lookahead", "20"]
    printed = start_by_path(
        "wire.py", "--ps", "2", *steps, "--rows-scale", "0.0003", "--threads", "1", "--json", str(path)
    )
    if printed.startswith("skipped: "):
        pytest.skip(printed.strip())
    (found,) = json.loads(path.read_text())["results"]
    assert 0 < found["lookahead"]["passed"] < found["uncached"]["passed"]
    assert min(found["ratios"]) > 0


def test_accesses_are_shared_out_to_the_hottest_rows(click_data: Path, tmp_path: Path) -> None:
    """The share grows with the rows, to all accesses; a folder that is not there is left out."""
    path = tmp_path / "figures.json"
    start("accesses.py", str(click_data), str(tmp_path / "none"), "--json", str(path))
    results = json.loads(path.read_text())["results"]
    for tables in ("all", "largest"):
        shares = [each["share"] for each in results if each["tables"] == tables]
        assert shares == sorted(shares)
        assert 0 < shares[0] < shares[-1] == 1
    assert {each["data"] for each in results} == {str(click_data)}


def test_a_population_is_fitted_to_the_mean_and_repeats() -> None:
    """Equal jobs for every strategy; the mean of full recovery is the published one; a seed gives equal figures."""
    jobs = population(0, 40)
    scale = scale_of(jobs, length_h=56, sigma=0)
    full_J, again_J, cpr_J = (
        overheads(jobs, name, length_h=56, scale=scale, sigma=0) for name in ("full", "full", "cpr_vanilla")
    )
    assert full_J.mean() == pytest.approx(MEAN, abs=0.01)
    assert full_J.tolist() == again_J.tolist()
    assert cpr_J.mean() < 0.5 * full_J.mean()


def test_every_parameter_of_every_family_is_fitted(tmp_path: Path) -> None:
    """Five ways to observe, four families with seven parameters: a line each, and what held is counted."""
    path = tmp_path / "figures.json"
    sizes = ["--trials", "3", "--traces", "2", "--events", "60", "--workers", "1"]
    printed = start_alone("trace_fits.py", *sizes, "--json", str(path))
    lines = json.loads(path.read_text())["lines"]
    assert len(lines) == len({(line["how"], line["family"], line["parameter"]) for line in lines}) == 5 * 7
    assert all(0 <= line["num_held"] <= line["num"] == (3 if line["confidence"] == 0.95 else 2) for line in lines)
    assert sum(line["num_held"] for line in lines) > 0.8 * sum(line["num"] for line in lines)
    assert "within chance" in printed


def test_rates_of_wrong_claims_and_kept_promises_are_counted(tmp_path: Path) -> None:
    """A line for each kind of simulated grid, and one for each number of seeds and distance from the margin."""
    path = tmp_path / "figures.json"
    printed = start_alone("power.py", "--grids", "4", "--studies", "50", "--json", str(path))
    figures = json.loads(path.read_text())
    assert all(0.6 < row["found"] / row["studies"] < 0.95 for row in figures["studies"])  # four standard errors
    assert len({(row["losses"], row["noise"], row["seeds"]) for row in figures["claims"]}) == 14
    assert len(figures["promised"]) == 9
    assert "wrongly non-inferior" in printed


def test_mass_is_lost_where_updates_are_lost(tmp_path: Path) -> None:
    """A rank dies right after a save, which loses nothing, or before the first one: all that its rows have moved."""
    make_data(tmp_path / "data", [50] * NUM_TABLES, 1280)
    write_trace(tmp_path / "trace.csv", [(28.0, "ps0")])
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        f"data: {{path: {tmp_path / 'data'}}}\ntrace: {{path: {tmp_path / 'trace.csv'}}}\nmodel: {{size: tiny}}\n"
        "cluster: {num_ps: 1}\ntrainer: {batch_size: 128}\ngrids: [{strategy.name: [cpr_mfu, partial]}]\n"
    )
    options = ["--grid", str(grid), "--jobs", "1", "--json", str(tmp_path / "figures.json")]
    lost = {}
    for interval in (640, 1100):
        assert "tracked mass lost %" in start("update_mass.py", *options, f"strategy.interval_samples={interval}")
        figures = json.loads((tmp_path / "figures.json").read_text())
        lost[interval] = {name: run[2:] for name, (run,) in figures["lost"].items()}
    assert lost[640]["partial"] == [0, 0, 0, 0]
    assert 0 < lost[640]["cpr_mfu"][1] < lost[1100]["cpr_mfu"][1]  # rows beyond the budget, and of fewer saves
    assert lost[1100]["partial"][::2] == pytest.approx([50, 50])
    assert all(0 < mass < 100 for mass in lost[1100]["partial"][1::2])
    refused = Config.model_validate({"engine": "local", "data": {"path": str(tmp_path / "data")}})
    for name, reason in {"full": "rolls back", "buddy": "copies of rows", "cpr_mirror": "copies of rows"}.items():
        config = refused.model_copy(update={"strategy": options_of(name), "engine": "local"})
        assert reason in (update_mass.refused(config) or "")


def test_worlds_are_measured_by_their_size(tmp_path: Path) -> None:
    """Each number of ranks has its line; what is serial is extrapolated from the larger worlds."""
    path = tmp_path / "figures.json"
    printed = start("scale.py", "--ps", "1,4,5", "--messages", "2", "--kills", "2", "--at", "16", "--json", str(path))
    results = json.loads(path.read_text())["results"]
    assert [found["num_ps"] for found in results] == [1, 4, 5]
    for found in results:
        assert found["longest_ms"] >= found["regroup_ms"] > 0
        assert min(found["supervisor_ms"], found["trainer_us"], found["memory_mb"]) > 0
    assert "survivor_ms" not in results[0], "the only rank does not survive"
    assert printed.count("\n| 16 |") == 1


def test_the_processor_time_of_a_trainer_is_taken_apart(tmp_path: Path) -> None:
    """Units that made the times are found again, other jobs follow from them, and a run is measured."""
    units = [0.1, 0.07, -0.5, 0.05, 3.0]
    shapes = [(num, ps) for num in (1, 2, 4) for ps in (2, 8)]
    found = {s: {"trainer": float(np.dot(units, trainers.terms(s))), "PS rank": 0.3 + 0.4 / s[1]} for s in shapes}
    assert trainers.fit(found) == pytest.approx(units, rel=1e-6)
    *_, row = trainers.at_sizes(found, [(20, 10)], 128)
    assert row.startswith("| 20 + 10 | 0.05 | 0.70 | -0.03 | 0.95 | 3.00 | 4.68 | 0.34 |")
    path = tmp_path / "figures.json"
    sizes = ["--trainers", "2", "--ps", "1", "--rounds", "1", "--steps", "20", "--rows-scale", "0.001"]
    assert "| 2 + 1 |" in start_alone("trainers.py", *sizes, "--json", str(path))
    (result,) = json.loads(path.read_text())["results"]
    assert result["runs"][0]["trainer"] > 0


def test_what_verification_costs_is_measured(tmp_path: Path) -> None:
    """A run of each strategy: one that saves has checksums of checkpoints, and every part counts for the share."""
    path = tmp_path / "figures.json"
    start("verification.py", "--rounds", "1", "--rows", "700", "--strategies", "none,partial", "--json", str(path))
    costs = {name: Cost(**cost) for name, (cost,) in json.loads(path.read_text())["costs"].items()}
    assert costs["none"].checkpoints_s == 0 < costs["partial"].checkpoints_s
    assert all(0 < cost.frac(is_first=False) < cost.frac(is_first=True) for cost in costs.values())
    assert Cost(run_s=10, data_s=4, again_s=1, checkpoints_s=2, record_s=3).frac(is_first=False) == 0.6
