"""What judges compute of runs and benchmarks: verdicts follow from the numbers, and each figure is drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.claims.claim import find
from analysis.claims.measures import HOURS, LOSS, WRITTEN, results_of
from analysis.claims.own import dominating, pareto, ratio, seeds, spread, spreads, traces, tracker_part
from analysis.claims.page import Finding, finding, html, markdown, write_figures
from analysis.claims.papers import Healing, healing, power
from analysis.claims.rows import Row
from analysis.stats import pairs_for_power, pairs_for_width
from harness.core.events import Evaluated
from harness.record.recorder import Recorder
from tests.analysis.test_claims import cell, claim
from tests.made_runs import made_config, made_events


def figure_of(found: Finding) -> Any:
    """The figure of a finding: an axis that is not linear says so, and no legend lies over a panel."""
    figure = found.figure
    assert figure is not None
    figure.draw_without_rendering()
    legends = [each for each in (*figure.legends, *(axes.get_legend() for axes in figure.axes)) if each is not None]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_scale() == "linear" or "(log" in axis.get_label_text(), axis.get_label_text()
        for legend in legends:
            assert not legend.get_window_extent().overlaps(axes.bbox), "a legend lies over a panel"
    return figure


def rows_of(judge: Callable[[Any], list[Row]], cells: list[dict[str, Any]]) -> dict[str, Row]:
    """The rows of a judge by their words."""
    return {row.what: row for row in judge(results_of(cells))}


BYTES: dict[str, Any] = {"payload_bytes": 10**6, "memory_bytes": 0, "node_h": 90.0, "update_pls": 0.1}


def test_a_strategy_dominates_only_where_no_measure_may_be_worse() -> None:
    """Equal in one and lower in another is enough; a difference whose interval reaches above 0 is not."""
    base = results_of([cell("full", seed, overhead_frac=0.1 + 0.01 * seed, **BYTES) for seed in range(4)])
    cheaper = base.assign(overhead_frac=base["overhead_frac"] - 0.01)
    noisy = cheaper.assign(auc=cheaper["auc"] - 0.001 * (base["seed"] % 2) + 0.0004)
    arms = {"base": base, "again": base, "cheaper": cheaper}
    assert dominating(arms, (HOURS, WRITTEN, LOSS)) == {"base": ["cheaper"], "again": ["cheaper"], "cheaper": []}
    assert dominating({"base": base, "noisy": noisy}, (HOURS, WRITTEN))["base"] == ["noisy"]
    assert dominating({"base": base, "noisy": noisy}, (HOURS, LOSS))["base"] == []


def test_a_dominated_strategy_is_named_with_who_dominates_it() -> None:
    """Options that several arms of a strategy differ in are part of the name."""
    cells = [cell("none", seed, **{"strategy.bits": None}) for seed in range(3)]
    for seed in range(3):
        for bits, overhead in ((8, 0.1), (32, 0.2)):
            values = {**BYTES, "strategy.bits": bits, "overhead_frac": overhead + 0.001 * seed}
            cells.append(cell("differential", seed, **values))
    rows = rows_of(pareto, cells)
    assert [*rows] == ["`differential` (bits 8)", "`differential` (bits 32)"]
    assert rows["`differential` (bits 8)"].why == "not dominated"
    assert "dominated in everything by `differential` (bits 8)" in rows["`differential` (bits 32)"].why
    assert "overhead 5.66 ± 0.14 h" in rows["`differential` (bits 8)"].ours


def test_both_parts_of_a_gain_add_up_to_it() -> None:
    """Random rows lose 2 % more than all rows, chosen ones 4 % less: 6 % of the 4 % are the tracker's, 150 %."""
    cells = [cell("none", seed) for seed in range(4)]
    for seed in range(4):
        for name, lost in (("cpr_vanilla", 0.10), ("cpr_random", 0.12), ("cpr_mfu", 0.06)):
            shift = 0.001 * seed * (name == "cpr_mfu")
            cells.append(cell(name, seed, **{**BYTES, "update_pls_tracked": lost + shift}))
    rows = rows_of(tracker_part, cells)
    unit = "lost updates of tracked tables, %"
    assert rows[f"gain by parts of random rows, `cpr_random` on `cpr_vanilla`: {unit}"].ours == "-2.00 ± 0.00"
    assert rows[f"gain by the tracker, `cpr_mfu` on `cpr_random`: {unit}"].ours.startswith("5.85")
    whole = rows[f"gain in all, `cpr_mfu` on `cpr_vanilla`: {unit}"]
    assert (whole.ours.partition(" ")[0], whole.verdict) == ("3.85", "reproduced")
    assert whole.why.startswith("the tracker's share: 152 ±")
    assert rows["gain in all, `cpr_mfu` on `cpr_vanilla`: AUC loss, 10⁻³"].why.endswith("the gain is not shown")


def test_a_ratio_of_proportional_pairs_is_certain() -> None:
    """The interval of the ratio of means is 0 where each part is the same share of its whole."""
    value = ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (value.mean, value.half_width) == (0.5, pytest.approx(0, abs=1e-12))


def test_a_regime_is_compared_with_the_base_in_pairs() -> None:
    """Whatever the seeds' own level; the base has no difference to itself."""
    study = {"of": ["overhead", "lost"], "against": {"profile": "base"}}
    of_regimes = claim(by="profile", study=study, expect=[{"trend": "rises", "of": "lost", "strategy": "full"}])
    cells: list[dict[str, Any]] = []
    for seed in range(3):
        lost, overhead = 0.01 * seed, 0.1 * seed
        cells.append(cell("full", seed, profile="base", update_pls=lost, overhead_frac=overhead))
        cells.append(cell("full", seed, profile="worse", update_pls=lost + 0.02, overhead_frac=overhead + 0.01))
    base, worse, trend = of_regimes.rows(cells)
    assert base.why == ""
    assert worse.why == "overhead +1.00 ± 0.00 %; lost updates +2.00 ± 0.00 %"
    assert trend.ours.startswith("2.00")


def test_the_best_strategy_of_a_trace_is_shown_with_the_next() -> None:
    """By overhead of those that save; of lost updates, without those that lose none; a tie is named."""
    cells: list[dict[str, Any]] = []
    for seed in range(3):
        for name, overhead, lost in (("full", 0.3, 0.0), ("cpr_mfu", 0.1, 0.2), ("cpr_ssu", 0.1, 0.3), ("buddy", 0, 0)):
            noise = 0.001 * (seed - 1) * (name == "cpr_ssu")
            cells.append(cell(name, seed, trace_law="busy", overhead_frac=overhead + noise, update_pls=lost))
    cheap, few = traces(results_of(cells))
    assert cheap.what == "`busy`: least overhead, %"
    assert cheap.ours == "`cpr_mfu` 10.000 ± 0.000"
    assert "not shown to be less than `cpr_ssu`" in cheap.why
    assert (few.ours, few.why) == ("`cpr_mfu` 20.000 ± 0.000", "`cpr_ssu` more by 10.000 ± 0.000")


def test_spreads_are_those_of_the_effects() -> None:
    """Of a sum of a seed's and a trace's effect no interaction is left; of a table of noise nothing else."""
    seeds_S, traces_T = np.array([0.0, 1.0, 2.0]), np.array([0.0, 4.0])
    trace, seed, rest, total = spreads(seeds_S[:, None] + traces_T)
    assert (trace, seed, rest) == (pytest.approx(8**0.5), pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert total == pytest.approx(3.0)
    noise_ST = np.random.default_rng(0).standard_normal((40, 40))
    assert spreads(noise_ST) == pytest.approx((0, 0, 1, 1), abs=0.15)


def test_the_number_of_pairs_is_the_least_that_is_enough() -> None:
    """34 pairs for half a standard deviation, a textbook value (Cohen 1988); a width by the quantile for 17."""
    assert pairs_for_power(2.0, 1.0) == 34
    assert [pairs_for_power(spread, 1.0) for spread in (0.01, 0.1, 0.13, 0.2)] == [2, 3, 3, 3]
    assert pairs_for_width(1.0, 2.11991 / 17**0.5) == 17
    assert pairs_for_width(1.0, 2.1 / 17**0.5) == 18


def test_crossed_runs_say_how_many_pairs_are_needed() -> None:
    """A spread of a thousandth and a half asks for 20 pairs; replicates of `none` say what rounding does."""
    rng = np.random.default_rng(1)
    keys: dict[str, Any] = {"trainer.backend": "compiled", "trace.seed": None}
    cells = [cell("none", seed, **keys) for seed in range(8)]
    cells += [cell("none", seed, **{**keys, "trainer.backend": "torch"}, auc=0.7501 + 1e-5 * seed) for seed in range(8)]
    for seed in range(8):
        for draw in range(8):
            values = {
                **keys,
                "trace.seed": draw,
                "trace": f"fixed2-{draw}",
                "auc": 0.75 - 1.5e-3 * rng.standard_normal(),
            }
            cells.append(cell("cpr_mfu", seed, **values))
    rows = rows_of(seeds, cells)
    low, high = 17, 24
    assert low <= int(rows["pairs for 80 % power for 1·10⁻³"].ours.partition(" ")[0]) <= high
    rounding = next(row for what, row in rows.items() if what.endswith("by rounding"))
    assert rounding.ours.startswith("0.14 (")
    spreads_of = [row.ours for what, row in rows.items() if what.startswith("standard deviation")]
    assert all(" (" in ours and "-" not in ours for ours in spreads_of), "a spread has no interval below 0"
    assert figure_of(finding(find("seeds"), cells)).axes


@pytest.mark.parametrize(("found", "verdict"), [(160, "reproduced"), (149, "reproduced"), (147, "not reproduced")])
def test_a_power_is_kept_within_six_points(found: int, verdict: str) -> None:
    """Of 200 studies."""
    study = {"difference": 0.5, "noise": "normal", "spread": "known", "pairs": "34", "studies": 200, "found": found}
    (row,) = power(results_of([study | {"promised": 0.8}]))
    assert row.verdict == verdict


def test_a_strategy_is_compared_with_another_at_each_value() -> None:
    """Paired by seed: 2 · 10⁻³ less at the first value, as much at the second; one that ran without the key is met."""
    key = "strategy.period"
    cells = [cell(name, seed, **{key: None}) for name in ("none", "cpr_mfu") for seed in range(4)]
    for seed in range(4):
        for value, gain in ((1, 0.002), (2, 0.0)):
            noise = 0.01 * seed + 1e-5 * (-1) ** seed
            cells.append(cell("cpr_vanilla", seed, auc=0.7 + 0.01 * seed, **{key: value}))
            cells.append(cell("cpr_ssu", seed, auc=0.7 + noise + gain, **{key: value}))
    expect: list[dict[str, Any]] = [
        {"less": "cpr_ssu", "than": "cpr_vanilla", "of": "auc_loss", "paper": "lower"},
        {"less": "cpr_ssu", "than": "cpr_mfu", "of": "auc_loss"},
        {"trend": "rises", "of": "auc_loss", "strategy": "cpr_ssu", "from": 2, "until": 1, "paper": "rises"},
        {"signed": "above", "of": "auc_loss", "strategy": "cpr_ssu", "at": 2, "paper": "loses"},
    ]
    of_period = claim(by=key, **{"as": "period"}, expect=expect)
    first, second, _, against, trend, above = of_period.rows(cells)
    assert (first.ours, first.verdict) == ("-2.00 ± 0.02", "reproduced")
    assert second.verdict == "cannot be told"
    assert against.num == 4  # its reference ran without the key
    assert (trend.what, trend.verdict) == ("`cpr_ssu`: AUC lost to none, 10⁻³; period 1 less 2", "not reproduced")
    assert (above.what, above.num) == ("`cpr_ssu`: AUC lost to none, 10⁻³; period 2", 4)


def test_half_of_a_loss_is_gone_after_its_half_life() -> None:
    """Of losses that halve every 8 h, of whatever size; of one that does not, it is not known."""
    hours_T = np.arange(1.0, 40.0, 2.0)
    sizes_S = np.array([1.0, 2.0, 5.0])
    healing = Healing("never_save", "at:13", 56.0, hours_T, np.outer(sizes_S, 0.5 ** (hours_T / 8)))
    half = healing.half_h
    assert half is not None
    assert half.mean == pytest.approx(8, abs=0.1)  # the curve is linear between points
    assert half.num == 3
    flat = Healing("never_save", "at:13", 56.0, hours_T, np.outer(sizes_S, np.ones(len(hours_T))))
    assert flat.half_h is None
    assert Healing("never_save", "at:13", 56.0, hours_T, -healing.losses_ST).half_h is None


def test_a_loss_is_read_from_the_curves_of_a_run_and_its_reference(tmp_path: Path) -> None:
    """Points after the failure alone count; its loss is that to the same seed without failures."""
    cells: list[dict[str, Any]] = []
    for seed in range(3):
        for name in ("none", "never_save"):
            path = tmp_path / f"{name}{seed}"
            config = made_config(name, seed=seed)
            with Recorder(path, config) as recorder:
                recorder.record(made_events(config)[0])
                for h in range(2, 57, 2):
                    loss = 0.01 * 0.5 ** ((h - 14) / 6) * (name != "none") * (h > 13)
                    auc = 0.7 + 0.01 * seed - loss
                    quality: dict[str, Any] = {"auc": auc, "log_loss": 0.5, "accuracy": 0.7, "num_samples": 100}
                    recorder.record(Evaluated(step=h, samples=100 * h, final=h == 56, **quality))
            cells.append(cell(name, seed, path=str(path), **{"trace.law": "at:13"}))
    (row,) = healing(results_of(cells))
    assert row.what == "`never_save`, failure at:13: hours from the first evaluation until the loss is halved"
    assert (row.ours, row.num) == ("6.00 ± 0.00", 3)
    assert row.why.startswith("10.00 ± 0.00·10⁻³ at 1.0 h")


def test_the_spread_of_a_placement_is_that_of_its_failures() -> None:
    """Equal ranks have none; where a rank has all, a failure is 5 % from the median one on average."""
    cells: list[dict[str, Any]] = []
    for seed in range(4):
        for value, pls in (("row", 0.05), ("table", 0.1 * (seed % 2))):
            cells += [
                cell(name, seed, pls=pls, update_pls=pls, **{"cluster.placement": value})
                for name in ("none", "cpr_vanilla", "cpr_mfu")
            ]
    rows = rows_of(spread, cells)
    what = "`cpr_mfu`, placement {}: mean distance of failures from the median one; lost updates, %"
    assert rows[what.format("row")].ours == "0.00 ± 0.00"
    assert rows[what.format("table")].ours == "5.00 ± 0.00"
    assert rows[what.format("table")].why == "from 0.00 to 10.00"


# --- benchmarks -------------------------------------------------------------------------------------------------------


def _share(share: float, num_samples: int, *, is_synthetic: bool, tables: str = "all") -> dict[str, Any]:
    facts = {"data": "data", "tables": tables, "num_rows": 1000, "frac": 0.01}
    return {**facts, "share": share, "num_samples": num_samples, "is_synthetic": is_synthetic}


def _step(variant: str, **parts_ms: float) -> list[dict[str, Any]]:
    return 2 * [{"variant": variant, **parts_ms}]


def _cached(seed: int, value: int, loss: float, moved_bytes: float) -> dict[str, Any]:
    """A run with bounded staleness; asking for versions takes a tenth of what a run without a cache moves."""
    moved = {"cache_bytes": moved_bytes, "cache_clock_bytes": 10.0, "cache_uncached_bytes": 100.0}
    auc = 0.75 + 0.01 * seed - loss * (1 + 0.01 * seed)
    return {"status": "done", "strategy": "none", "seed": seed, "cache.staleness": value, "auc": auc, **moved}


def _tracker(name: str, memory: float, pct: float) -> dict[str, Any]:
    memory_fracs = {"16": memory, "128": memory / 8}
    times = {"steps_pct": [pct, pct + 0.1], "saves_pct": {"100": 9.0, "3000": 0.5}}
    return {"tracker": name, "memory_fracs": memory_fracs, **times}


def _jobs(seed: int, strategy: str, mean: float) -> dict[str, Any]:
    """A population of which a tenth costs much more."""
    setting = {"what": "population", "length_h": 56.0, "scale": 1.0, "sigma": 2.0, "seed": seed, "strategy": strategy}
    return {**setting, "overheads": [0.1 * mean + 0.0001 * seed] * 17 + [6.1 * mean] * 3}


REPRODUCED, NOT, OPEN = "reproduced", "not reproduced", "cannot be told"
TRIED = {"what": "search", "length_h": 56.0, "scale": 1.0, "sigma": 2.0, "mean": 0.13, "p90": 0.25}
STEPS = [
    *_step("plain", step=100.0, dense=30.0, read=1.0, embedding=69.0),
    *_step("rpc", step=4.0, dense=3.0, start=0.5, finish=0.25, rest=0.25),
]
STALE = [
    _cached(seed, value, loss, moved)
    for seed in range(3)
    for value, loss, moved in ((0, 0.0, 98.0), (1, 0.0001, 60.0), (100, 0.005, 5.0))
]
BENCHMARKS: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    # a high share counts if it is of real data; a low one if it is of many; of a generator's neither does
    ("accesses", [_share(0.93, 10**4, is_synthetic=True)], [OPEN]),
    ("accesses", [_share(0.93, 10**4, is_synthetic=False)], [REPRODUCED]),
    ("accesses", [_share(0.91, 10**4, is_synthetic=False)], [OPEN]),
    (
        "accesses",
        [_share(0.91, 10**7, is_synthetic=False), _share(0.9, 10, is_synthetic=True, tables="largest")],
        [NOT],
    ),
    ("embedding_share", STEPS, [REPRODUCED, OPEN, NOT, OPEN]),
    ("staleness", STALE, [NOT, NOT]),  # met by a staleness alone that loses ten times the margin
    (
        "trackers",  # memory to the printed digit; noise beyond the aim is no time
        [_tracker("mfu", 1 / 16, 1.0), _tracker("ssu", 1 / 100, 5.0), _tracker("mass", 1 / 16, -9.0)],
        ["identity", "identity", NOT, NOT, *[OPEN] * 4, REPRODUCED, NOT, *[OPEN] * 3],
    ),
    ("production", [TRIED], [NOT]),  # no spread that was tried has the tail
    (
        "production",  # a mean and a P90 that were asked for confirm nothing
        [TRIED, *(_jobs(seed, name, mean) for seed in (1, 2, 3) for name, mean in (("full", 0.13), ("cpr_mfu", 0.02)))],
        ["calibrated", "calibrated"],
    ),
]


@pytest.mark.parametrize(("name", "results", "verdicts"), BENCHMARKS)
def test_verdicts_on_benchmarks_follow_from_their_numbers(
    name: str, results: list[dict[str, Any]], verdicts: list[str]
) -> None:
    """In the order of the rows, without those that are not judged."""
    assert [row.verdict for row in find(name).rows(results) if row.verdict != "study"] == verdicts


def test_what_is_shown_of_a_benchmark_is_computed_from_its_parts() -> None:
    """Of the harness the part of embeddings is the step less the dense network; losses are paired by seed."""
    rows = {row.what: row for name in ("embedding_share", "staleness") for row in find(name).rows(DRAWN[name])}
    ours = {what.split(":")[0]: (row.ours, row.why) for what, row in rows.items()}
    assert ours["plain DLRM in one process"][0] == "69.00 (69.00–69.00)"
    assert ours["`rpc`, 2 ranks, no cache"][0] == "25.00 (25.00–25.00)"
    assert "requests alone 18.75" in ours["`rpc`, 2 ranks, no cache"][1]
    saved = "bytes saved 95.0 ± 0.0 %; versions counted 85.0 ± 0.0 %; AUC loss 5.05 ± 0.12·10⁻³"
    assert ours["staleness 100"][0] == saved
    best = ours["most embedding bytes saved where AUC keeps within 0.5·10⁻³, % (versions not counted)"]
    assert best[0] == "40.0 ± 0.0"
    assert "staleness 100 reaches 95.0 ± 0.0, at AUC loss 5.05 ± 0.12·10⁻³" in best[1]


DRAWN = {name: results for name, results, _ in BENCHMARKS if results}


def test_each_figure_is_drawn_of_its_results(tmp_path: Path) -> None:
    """Scales are named, and legends stand beside the panels; a claim without runs has no figure, and no link."""
    keys: dict[str, Any] = {"strategy.share": None, "strategy.pls_target": None, **BYTES, "update_pls_tracked": 0.1}
    cells = [cell("none", seed, **keys) for seed in range(2)]
    for seed in range(2):
        cells += [cell("full", seed, **keys)]
        for value in (0.01, 0.1):
            own = keys | {"strategy.share": value, "strategy.pls_target": value, "pls": value, "auc": 0.74}
            cells += [cell(name, seed, **own) for name in ("cpr_mfu", "cpr_mirror")]
    of_runs = ("pareto", "tracker_part", "mirror_size", "breaks", "traces", "target", "pls")
    results: dict[str, list[dict[str, Any]]] = {
        **dict.fromkeys(of_runs, cells),
        **DRAWN,
    }
    found = [finding(find(name), own) for name, own in results.items()]
    assert all(figure_of(each).axes and each.claim.section.caption for each in found)
    shown = [each for each in found if each.claim.name in ("pareto", "breaks")] + [finding(find("share"), [])]
    write_figures(shown, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"pareto.svg", "breaks.svg"}
    assert "cpr_mirror (share 0.1, " in (tmp_path / "pareto.svg").read_text()
    assert "lost updates, %" in (tmp_path / "breaks.svg").read_text()
    assert markdown(shown, "", "figures").count("](figures/") == html(shown, "").count("<svg") == 2


def test_strategies_at_one_value_stand_side_by_side() -> None:
    """No two marks of a panel hide each other, whatever is equal; categories are not joined by lines."""
    keys: dict[str, Any] = {"cluster.placement": "row", "strategy.pls_target": 0.1}
    cells = [cell(name, seed, update_pls=0.1, **keys) for name in ("none", "cpr_vanilla", "cpr_mfu") for seed in (0, 1)]
    for name, line in (("target", "-"), ("placement", "None")):
        panel = figure_of(finding(find(name), cells)).axes[0]
        marks = [each for each in panel.lines if each.get_marker() in ("^", "o", ".")]
        assert {each.get_linestyle() for each in marks if each.get_marker() in ("^", "o")} == {line}
        places = [place for each in marks for place in map(tuple, np.asarray(each.get_xydata()).tolist())]
        assert len({*places}) == len(places) == (2 if name == "target" else 2 + 4)
