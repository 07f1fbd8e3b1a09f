"""What benchmarks and runs show of caches and costs: verdicts follow from the numbers, and each figure is drawn."""

from typing import Any

from analysis.claims.claim import find
from analysis.claims.page import finding
from tests.analysis.drawn import figure_of


def share(value: float, num_samples: int, *, is_synthetic: bool) -> dict[str, Any]:
    """The share of the top 1 % of rows."""
    facts = {"data": "data", "tables": "all", "num_rows": 1000, "frac": 0.01}
    return {**facts, "share": value, "num_samples": num_samples, "is_synthetic": is_synthetic}


def test_synthetic_data_confirm_nothing_and_a_few_real_ones_refute_nothing() -> None:
    """A high share counts if it is of real data; a low one if it is of many; of a generator's neither does."""
    cases = {
        (0.93, 10**4, True): "cannot be told",
        (0.91, 10**4, True): "cannot be told",
        (0.93, 10**4, False): "reproduced",
        (0.91, 10**4, False): "cannot be told",
        (0.91, 10**7, False): "not reproduced",
    }
    for (value, num_samples, is_synthetic), verdict in cases.items():
        (row,) = find("accesses").rows([share(value, num_samples, is_synthetic=is_synthetic)])
        assert row.verdict == verdict


STEPS = [
    *({"variant": "plain", "step": 100.0, "dense": 30.0, "read": 1.0, "embedding": 69.0} for _ in range(2)),
    *({"variant": "rpc", "step": 4.0, "dense": 3.0, "start": 0.5, "finish": 0.25, "rest": 0.25} for _ in range(2)),
]


def test_the_part_of_embeddings_is_timed_or_what_the_network_leaves() -> None:
    """Of the plain DLRM what was timed; of the harness the step less the dense network. What was not run is open."""
    rows = {row.what.split(":")[0]: row for row in find("embedding_share").rows(STEPS)}
    plain = rows["plain DLRM in one process"]
    assert (plain.ours, plain.verdict) == ("69.00 (69.00–69.00)", "reproduced")
    rpc = rows["`rpc`, 2 ranks, no cache"]
    assert (rpc.ours, rpc.verdict) == ("25.00 (25.00–25.00)", "not reproduced")
    assert "requests alone 18.75" in rpc.why
    assert rows["`local`"].verdict == "cannot be told"


def looked_ahead(steps: int, over_frac: float) -> dict[str, Any]:
    """A run with the lookahead cache."""
    moved = {"minimum_bytes": 10.0, "uncached_bytes": 50.0, "saved_frac": 0.8, "over_minimum_frac": over_frac}
    return {"lookahead": steps, "hit_rate": 0.8, "peak_rows": 100 * steps, **moved}


def test_a_cache_that_moves_more_than_it_must_is_seen() -> None:
    """At any lookahead."""
    assert find("lookahead").rows([looked_ahead(10, 0.0), looked_ahead(20, 0.0)])[-1].verdict == "reproduced"
    assert find("lookahead").rows([looked_ahead(10, 0.0), looked_ahead(20, 0.1)])[-1].verdict == "cannot be told"


def on_wire(rate_mbit: float, ratios: list[float]) -> dict[str, Any]:
    """A wire with and without the cache."""
    spread = {"median": 4.0, "low": 3.0, "high": 5.0}
    variants = {name: {"ms": spread, "passed": passed} for name, passed in (("uncached", 50.0), ("lookahead", 10.0))}
    return {"rate_mbit": rate_mbit, "num_ps": 2, "ratios": ratios, **variants}


def test_a_gain_on_the_best_wire_is_asked_for() -> None:
    """In every round; and without a namespace nothing is said."""
    *_, best = find("wire").rows([on_wire(0, [0.9, 1.1]), on_wire(200, [2.0, 2.5])])
    assert (best.verdict, "200 Mbit/s" in best.what) == ("reproduced", True)
    assert find("wire").rows([on_wire(0, [0.9, 1.1])])[-1].verdict == "cannot be told"
    (row,) = find("wire").rows([])
    assert row.verdict == "cannot be told"


def cached(seed: int, value: int, auc: float, moved_bytes: float) -> dict[str, Any]:
    """A run with bounded staleness; asking for versions takes a tenth of what a run without a cache moves."""
    moved = {"cache_bytes": moved_bytes, "cache_clock_bytes": 10.0, "cache_uncached_bytes": 100.0}
    return {"status": "done", "strategy": "none", "seed": seed, "cache.staleness": value, "auc": auc, **moved}


STALE = [
    cached(seed, value, 0.75 + 0.01 * seed - loss * (1 + 0.01 * seed), moved)
    for seed in range(3)
    for value, loss, moved in ((0, 0.0, 98.0), (1, 0.0001, 60.0), (100, 0.005, 5.0))
]


def test_what_staleness_saves_is_weighed_against_what_it_loses() -> None:
    """Losses are paired by seed; HET's saving is met by a staleness alone that loses ten times the margin."""
    rows = {row.what: row for row in find("staleness").rows(STALE)}
    assert (
        rows["staleness 100"].ours
        == "bytes saved 95.0 ± 0.0 %; versions counted 85.0 ± 0.0 %; AUC loss 5.05 ± 0.12·10⁻³"
    )
    for how, saving in (("versions not counted", 40.0), ("versions counted", 30.0)):
        row = rows[f"most embedding bytes saved where AUC keeps within 0.5·10⁻³, % ({how})"]
        assert (row.ours, row.verdict) == (f"{saving:.1f} ± 0.0", "not reproduced")
        assert ("staleness 100 reaches 95.0 ± 0.0, at AUC loss 5.05 ± 0.12·10⁻³" in row.why) == (saving == 40)


TRACKED = [
    {
        "tracker": name,
        "steps_pct": [pct, pct + 0.1],
        "saves_pct": {"100": 9.0, "3000": 0.5},
        "memory_fracs": {"16": memory, "128": memory / 8},
    }
    for name, memory, pct in (("mfu", 1 / 16, 1.0), ("ssu", 1 / 100, 5.0), ("mass", 1 / 16, -9.0))
]


def test_trackers_cost_memory_and_time() -> None:
    """Memory to the printed digit; the time of touching and of the rarest choice; noise beyond the aim is no time."""
    rows = {row.what: row for row in find("trackers").rows(TRACKED)}
    memory = {
        name: rows[f"memory of `{name}`, % of the tables that it tracks, dim 16"].verdict for name in ("mfu", "ssu")
    }
    assert memory == {"mfu": "identity", "ssu": "not reproduced"}
    times = {name: rows[f"time of `{name}`, % of a step"] for name in ("mfu", "ssu", "mass")}
    assert times["mfu"].ours == "1.55 (1.50–1.60)"
    assert [row.verdict for row in times.values()] == ["reproduced", "not reproduced", "cannot be told"]


def jobs(seed: int, strategy: str, mean: float) -> dict[str, Any]:
    """A population of which a tenth costs much more."""
    setting = {"what": "population", "length_h": 56.0, "scale": 1.0, "sigma": 2.0, "seed": seed, "strategy": strategy}
    return {**setting, "overheads": [0.1 * mean + 0.0001 * seed] * 17 + [6.1 * mean] * 3}


TRIED = {"what": "search", "length_h": 56.0, "scale": 1.0, "sigma": 2.0, "mean": 0.13, "p90": 0.25}


def test_a_population_is_calibrated_or_does_not_exist() -> None:
    """A mean and a P90 that were asked for confirm nothing; no spread at all refutes."""
    drawn = [jobs(seed, name, mean) for seed in (1, 2, 3) for name, mean in (("full", 0.13), ("cpr_mfu", 0.02))]
    rows = find("production").rows([TRIED, *drawn])
    assert [row.verdict for row in rows] == ["calibrated", "calibrated", "study", "study"]
    (row,) = find("production").rows([TRIED])
    assert (row.verdict, row.ours) == ("not reproduced", "at most 25.0")


def test_each_figure_is_drawn_of_its_results() -> None:
    """With few results, scales that are named, and a legend beside the panels."""
    wires = [on_wire(0, [0.9, 1.1]), on_wire(200, [2.0, 2.5])]
    shares = [{**share(0.9, 100, is_synthetic=True), "tables": tables} for tables in ("all", "largest")]
    results = {
        "accesses": shares,
        "embedding_share": STEPS,
        "lookahead": [looked_ahead(10, 0.0), looked_ahead(20, 0.0)],
        "wire": wires,
        "staleness": STALE,
        "trackers": TRACKED[:2],
        "production": [TRIED, jobs(1, "full", 0.13)],
    }
    for name, own in results.items():
        assert figure_of(finding(find(name), own)).axes
        assert find(name).section.caption


def with_trainers(num: int, hit_rate: float, lookahead_ms: float) -> dict[str, Any]:
    """A run with so many trainers, whose step takes 4 ms without the cache."""
    cache = {"hit_rate": hit_rate, "bytes": 1e6, "peak_rows": 500}
    return {"num_trainers": num, "cache": cache, "ms": {"none": [4.0, 4.0], "lookahead": [lookahead_ms, lookahead_ms]}}


def test_a_cache_that_hits_less_with_several_trainers_is_seen() -> None:
    """Hits and bytes are those of one trainer, or the claim is not met; copies are counted in each."""
    for hit_rate, verdict in ((0.8, "reproduced"), (0.7, "not reproduced")):
        results = [with_trainers(1, 0.8, 2.0), with_trainers(2, hit_rate, 3.2)]
        rows = {row.what: row for row in find("cached_trainers").rows(results)}
        assert rows["more hits than one trainer has, %"].verdict == verdict
        assert rows["more bytes to and from PS ranks than one trainer has, %"].verdict == "reproduced"
        assert "1,000 rows held at most" in rows["2 trainers"].ours
        assert rows["step without the cache over the step with it, 2 trainers"].ours == "1.25 (1.25–1.25)"
        assert figure_of(finding(find("cached_trainers"), results)).axes
