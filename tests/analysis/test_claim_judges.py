"""The judges beside claims: verdicts follow from the numbers of made runs and benchmarks, and each figure is drawn."""

from pathlib import Path
from typing import Any

import pytest

from analysis.claims.claim import find
from analysis.claims.page import Finding, finding, markdown, write_figures
from analysis.claims.rows import Row
from tests.analysis.test_claims import cell

REPRODUCED, NOT, OPEN = "reproduced", "not reproduced", "cannot be told"


def figure_of(found: Finding) -> Any:
    """The figure of a finding: an axis that is not linear says so, and no legend lies over a panel."""
    figure: Any = found.figure
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_scale() in ("linear", "log") or "(log" in axis.get_label_text(), axis.get_label_text()
        for legend in figure.legends:
            assert not legend.get_window_extent().overlaps(axes.bbox), "a legend lies over a panel"
    return figure


def rows_of(name: str, results: list[dict[str, Any]]) -> dict[str, Row]:
    """The rows of a claim by their words."""
    return {row.what: row for row in find(name).rows(results)}


# --- CPR's emulations -------------------------------------------------------------------------------------------------

DIVIDES = "strategy.interval_counts_ranks"
DIVIDED, WHOLE = "`cpr_mfu`, `poster50`", "`cpr_mfu`, `poster50`, interval not divided by k"


def emulated(
    removed: float = 0.95, loss: float = 1e-4, drop: float | None = 1e-4, **more: float
) -> list[dict[str, Any]]:
    """Both jobs with 6 seeds: a part of full's overhead that CPR removes, and its losses of AUC; vanilla loses much."""
    cells: list[dict[str, Any]] = []
    for seed in range(6):
        noise = 1e-5 * (-1) ** seed
        full = 0.0835 + 0.001 * noise
        for profile, is_divided in (("cpr56", None), ("poster50", None), ("poster50", False)):
            own = {"profile": profile, "trace": f"{profile}-{seed}", DIVIDES: is_divided, "log_loss": 0.5}
            arms = {"cpr_mfu": loss, "cpr_ssu": loss, "cpr_vanilla": 0.01}
            if is_divided is None:
                cells.append(cell("none", seed, **own, overhead_frac=0.0, drop=0.0))
                cells.append(cell("full", seed, **own, overhead_frac=full, drop=0.0, update_pls=0.0))
            for name, lost in arms.items():
                left = full * (1 - removed) * (1 + noise)
                quality = {"auc": 0.75 - lost - noise, "log_loss": 0.5 + more.get("log_loss", 0.0) + noise}
                dropped = None if drop is None else drop + noise
                values = own | {"overhead_frac": left, "pls": 0.1, "update_pls": 0.1, "drop": dropped}
                cells.append(cell(name, seed, **values | quality))
    return cells


@pytest.mark.parametrize(
    ("values", "verdicts"),  # of cpr56, and of the poster's job, by whose overhead cpr56 is not judged
    [
        ({}, (REPRODUCED, REPRODUCED)),
        ({"removed": 0.86}, (REPRODUCED, NOT)),
        ({"loss": 2e-3}, (NOT, NOT)),
        ({"drop": 2e-3}, (NOT, NOT)),
        ({"loss": 5e-4}, (OPEN, OPEN)),
        ({"log_loss": 1e-3}, (REPRODUCED, NOT)),
        ({"drop": None}, (REPRODUCED, REPRODUCED)),
    ],
)
def test_overhead_and_quality_of_a_job_are_one_verdict(values: dict[str, Any], verdicts: tuple[str, str]) -> None:
    """Law: the worst of the parts, by the paper's own arms; that the control `cpr_vanilla` loses counts for nothing."""
    rows = rows_of("emulation", emulated(**values))
    assert not any("vanilla" in what for what in rows)
    assert (rows["`cpr_mfu`, `cpr56`"].verdict, rows[DIVIDED].verdict, rows[WHOLE].verdict) == (*verdicts, verdicts[1])
    assert rows["`full`: overhead, % of the job; profile cpr56"].verdict == "calibrated"
    assert ("drops are not on record" in rows[DIVIDED].why) == (values.get("drop", 0) is None)
    assert rows[DIVIDED].ours.startswith(f"removed {100 * values.get('removed', 0.95):.2f}")


@pytest.mark.parametrize(("bend", "verdict"), [(0.0, REPRODUCED), (2.0, NOT), (0.5, OPEN)])
def test_a_loss_is_linear_if_half_of_the_samples_lose_half(bend: float, verdict: str) -> None:
    """Law: by the interval of the departure at half of the greatest PLS, in 10⁻³; a slope alone shows nothing."""
    cells = [cell("none", seed) for seed in range(4)]
    for seed in range(4):
        for pls in (0.1, 0.2, 0.4):
            for name, slope in (("cpr_vanilla", 20.0), ("cpr_mfu", 10.0)):
                loss = 1e-3 * (pls * (slope + seed) + (bend + 0.1 * (seed % 2)) * 4 * (pls / 0.4) * (1 - pls / 0.4))
                cells.append(cell(name, seed, pls=pls, auc=0.75 - loss, trace=f"fixed{pls}-{seed}"))
    linear, lower, other = rows_of("pls", cells).values()
    assert (linear.verdict, linear.ours[:4]) == (verdict, f"{bend + 0.05:.2f}")
    assert (lower.verdict, other.verdict) == (REPRODUCED, OPEN), "cpr_ssu did not run"


def test_the_engines_agree_to_the_last_bit() -> None:
    """Law: a run that differs in one bit on the other engine is seen."""
    cells = [
        cell(name, seed, engine=engine) for seed in range(2) for name in ("none", "full") for engine in ("local", "rpc")
    ]
    for bit, ours, verdict in ((0, "4 of 4", REPRODUCED), (1e-15, "2 of 4", NOT)):
        given = [
            each | {"auc": 0.75 + bit * (each["engine"] == "rpc" and each["strategy"] == "full")} for each in cells
        ]
        (row,) = rows_of("poster", given).values()
        assert (row.ours, row.verdict) == (ours, verdict)
    assert find("poster").rows(cells[:1])[0].verdict == OPEN


# --- benchmarks and caches --------------------------------------------------------------------------------------------


def _share(share: float, num_samples: int, *, is_synthetic: bool, frac: float = 0.01) -> dict[str, Any]:
    facts = {"data": "data", "num_rows": 1000, "frac": frac}
    return {**facts, "share": share, "num_samples": num_samples, "is_synthetic": is_synthetic}


def _step(variant: str, **parts_ms: float) -> list[dict[str, Any]]:
    return 2 * [{"variant": variant, **parts_ms}]


def _wire(rate_mbit: int, *ratios: float) -> dict[str, Any]:
    return {"rate_mbit": rate_mbit, "ratios": [*ratios], "uncached": {"passed": 10}, "lookahead": {"passed": 2}}


def _cached(most_bytes: float, loss: float) -> list[dict[str, Any]]:
    """Runs with bounded staleness; the greatest moves these bytes of 100, and asking for versions takes a tenth."""
    return [
        cell("none", seed, cache_bytes=moved, cache_clock_bytes=10.0, cache_uncached_bytes=100.0)
        | {"cache.staleness": value, "auc": 0.75 + 0.01 * seed - lost * (1 + 0.01 * seed)}
        for seed in range(3)
        for value, lost, moved in ((0, 0.0, 98.0), (1, 1e-4, 60.0), (100, loss, most_bytes + 0.01 * seed))
    ]


def _tracker(name: str, memory: float) -> dict[str, Any]:
    return {"tracker": name, "memory_fracs": {"16": memory, "128": memory / 8}}


def _jobs(seed: int, strategy: str, mean: float) -> dict[str, Any]:
    """A population of which a tenth costs much more."""
    setting = {"what": "population", "length_h": 56.0, "scale": 1.0, "sigma": 2.0, "seed": seed, "strategy": strategy}
    return {**setting, "overheads": [0.1 * mean + 0.0001 * seed] * 17 + [6.1 * mean] * 3}


TRIED = {"what": "search", "length_h": 56.0, "scale": 1.0, "sigma": 2.0, "mean": 0.13, "p90": 0.25}
STEPS = [
    *_step("plain", step=100.0, dense=30.0, read=1.0, embedding=69.0),
    *_step("rpc", step=4.0, dense=3.0, start=0.5, finish=0.25, rest=0.25),
]
BENCHMARKS: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    # a high share counts if it is of real data; a low one if it is of many; of a generator's neither does
    ("accesses", [_share(0.93, 10**4, is_synthetic=True)], [OPEN]),
    ("accesses", [_share(0.93, 10**4, is_synthetic=False)], [REPRODUCED]),
    ("accesses", [_share(0.91, 10**4, is_synthetic=False)], [OPEN]),
    (
        "accesses",
        [_share(0.91, 10**7, is_synthetic=False), _share(0.9, 10, is_synthetic=True, frac=0.1)],
        [NOT],
    ),
    ("embedding_share", STEPS, [REPRODUCED, NOT]),
    ("lookahead", [{"over_minimum_frac": 0.0}, {"over_minimum_frac": 1e-5}], [REPRODUCED]),
    ("lookahead", [{"over_minimum_frac": 0.1}], [NOT]),
    ("wire", [_wire(0, 1.5, 1.6), _wire(200, 4.0, 4.9)], [OPEN]),  # a maximum over settings is not refuted by one
    ("wire", [_wire(0, 1.5, 1.6), _wire(200, 5.7, 6.0)], [REPRODUCED]),
    ("staleness", _cached(15.0, 0.02), [OPEN, OPEN]),
    ("staleness", _cached(5.0, -1e-4), [REPRODUCED, OPEN]),  # versions counted, it saves 85 %
    ("staleness", _cached(1.0, 0.02), [NOT, NOT]),  # reached at a loss of AUC alone
    ("trackers", [_tracker("mfu", 1 / 16), _tracker("ssu", 1 / 128 + 1 / 512)], ["identity"] * 4),
    ("trackers", [_tracker("scar", 1.1), _tracker("mass", 9.0)], [NOT, NOT]),  # `mass` is none of CPR's
    ("production", [TRIED], [NOT]),  # no spread that was tried has the tail
    (
        "production",  # a mean and a P90 that were asked for confirm nothing
        [TRIED, *(_jobs(seed, name, mean) for seed in (1, 2, 3) for name, mean in (("full", 0.13), ("cpr_mfu", 0.02)))],
        ["calibrated", "calibrated"],
    ),
]


@pytest.mark.parametrize(("name", "results", "verdicts"), BENCHMARKS)
def test_verdicts_follow_from_the_numbers(name: str, results: list[dict[str, Any]], verdicts: list[str]) -> None:
    """In the order of the rows."""
    assert [row.verdict for row in find(name).rows(results)] == verdicts


def test_what_is_shown_is_computed_from_its_parts() -> None:
    """Of the harness the part of embeddings is the step less the dense network; losses are paired by seed."""
    plain, rpc = find("embedding_share").rows(STEPS)
    assert (plain.ours, rpc.ours) == ("69.00 (69.00–69.00)", "25.00 (25.00–25.00)")
    assert "requests alone 18.75" in rpc.why
    alone, counted = find("staleness").rows(_cached(5.0, 0.005))
    assert (alone.ours, counted.ours) == ("94.99 ± 0.02", "84.99 ± 0.02")
    assert alone.why == "at staleness 100, at an AUC loss of 5.05 ± 0.12·10⁻³"
    (wire,) = find("wire").rows([_wire(0, 1.5, 1.6), _wire(200, 4.0, 4.9)])
    assert wire.what == "greatest speed-up of a step by the lookahead cache (200 Mbit/s)"
    assert (wire.ours, wire.why.partition("; ")[2][:22]) == ("4.45 (4.00–4.90)", "5.0 times fewer bytes;")


def test_each_figure_is_drawn_of_its_results(tmp_path: Path) -> None:
    """Scales are named, and legends stand beside the panels; a claim without runs has no figure, and no link."""
    keys: dict[str, Any] = {"strategy.pls_target": None, "trace.law": "at13"}
    cells = [cell("none", seed, **keys) for seed in range(2)]
    for seed in range(2):
        cells += [cell("full", seed, **keys)]
        for value in (0.01, 0.1):
            own = keys | {"strategy.pls_target": value, "pls": value, "auc": 0.74}
            cells += [cell(name, seed, **own) for name in ("cpr_mfu", "cpr_vanilla")]
    results: dict[str, list[dict[str, Any]]] = {name: own for name, own, _ in BENCHMARKS}
    results |= {"target": cells, "pls": cells, "emulation": emulated()}
    found = [finding(find(name), own) for name, own in results.items()]
    drawn = [each for each in found if each.claim.draw is not None]
    assert {each.claim.name for each in drawn} == {"target", "pls", "emulation", "staleness", "production"}
    assert all(figure_of(each).axes and each.claim.section.caption for each in drawn)
    shown = [*drawn[:2], finding(find("failures"), [])]
    write_figures(shown, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {each.claim.name for each in drawn[:2]}
    assert markdown(shown, "", "figures").count("](figures/") == 2
