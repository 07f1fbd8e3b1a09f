"""What runs show past the papers: dominance, a tracker's part, other regimes, the best by trace, pairs needed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.claims.arms import arms_of
from analysis.claims.measures import HOURS, LOSS, LOST, OVERHEAD, WRITTEN
from analysis.claims.page import finding, write_figures
from analysis.claims.pareto import dominates, pareto
from analysis.claims.power import power
from analysis.claims.seeds import seeds, spreads
from analysis.claims.settings import Trend, settings
from analysis.claims.traces import traces
from analysis.claims.tracker import ratio, tracker_part
from analysis.stats import pairs_for_power, pairs_for_width
from tests.analysis.drawn import figure_of
from tests.analysis.test_claims import cell

BYTES: dict[str, Any] = {"payload_bytes": 10**6, "memory_bytes": 0, "node_h": 90.0, "update_pls": 0.1}


def test_a_strategy_dominates_only_where_no_measure_may_be_worse() -> None:
    """Equal in one and lower in another is enough; a difference whose interval reaches above 0 is not."""
    base = [cell("full", seed, overhead_frac=0.1 + 0.01 * seed, **BYTES) for seed in range(4)]
    cheaper = [c | {"overhead_frac": c["overhead_frac"] - 0.01} for c in base]
    noisy = [c | {"auc": c["auc"] - 0.001 * (c["seed"] % 2) + 0.0004} for c in cheaper]
    assert dominates(cheaper, base, (HOURS, WRITTEN, LOSS))
    assert not dominates(base, cheaper, (HOURS, WRITTEN, LOSS))
    assert not dominates(base, base, (HOURS, WRITTEN, LOSS))
    assert dominates(noisy, base, (HOURS, WRITTEN))
    assert not dominates(noisy, base, (HOURS, LOSS))


def test_a_dominated_strategy_is_named_with_who_dominates_it() -> None:
    """Options that several arms of a strategy differ in are part of the name."""
    cells = [cell("none", seed, **{"strategy.bits": None}) for seed in range(3)]
    for seed in range(3):
        for bits, overhead in ((8, 0.1), (32, 0.2)):
            values = {**BYTES, "strategy.bits": bits, "overhead_frac": overhead + 0.001 * seed}
            cells.append(cell("differential", seed, **values))
    assert [*arms_of(cells)] == ["differential (bits 8)", "differential (bits 32)"]
    rows = {row.what: row for row in pareto(cells)}
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
    rows = {row.what: row for row in tracker_part(cells)}
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
    judge = settings("profile", "", [Trend("full", 1, "–", LOST)], (OVERHEAD, LOST), lambda name, _: (name, "base"))
    cells: list[dict[str, Any]] = []
    for seed in range(3):
        lost, overhead = 0.01 * seed, 0.1 * seed
        cells.append(cell("full", seed, profile="base", update_pls=lost, overhead_frac=overhead))
        cells.append(cell("full", seed, profile="worse", update_pls=lost + 0.02, overhead_frac=overhead + 0.01))
    base, worse, trend = judge(cells)
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
    cheap, few = traces(cells)
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
    rows = {row.what: row for row in seeds(cells)}
    low, high = 17, 24
    assert low <= int(rows["pairs for 80 % power for 1·10⁻³"].ours.partition(" ")[0]) <= high
    rounding = next(row for what, row in rows.items() if what.endswith("by rounding"))
    assert rounding.ours.startswith("0.14 (")
    spreads_of = [row.ours for what, row in rows.items() if what.startswith("standard deviation")]
    assert all(" (" in ours and "-" not in ours for ours in spreads_of), "a spread has no interval below 0"
    assert figure_of(finding("seeds", cells)).axes


@pytest.mark.parametrize(("found", "verdict"), [(160, "reproduced"), (149, "reproduced"), (147, "not reproduced")])
def test_a_power_is_kept_within_six_points(found: int, verdict: str) -> None:
    """Of 200 studies."""
    study = {"difference": 0.5, "noise": "normal", "spread": "known", "pairs": "34", "studies": 200, "found": found}
    (row,) = power([study | {"promised": 0.8}])
    assert row.verdict == verdict


def test_figures_past_the_papers_are_drawn(tmp_path: Path) -> None:
    """Dots by trace and by regime, a front, and a sweep of two other measures; equal bytes need no legend."""
    keys: dict[str, Any] = {"strategy.share": None, **BYTES, "update_pls_tracked": 0.1}
    cells = [cell("none", seed, **keys) for seed in range(3)]
    for seed in range(3):
        cells += [cell("full", seed, **keys)]
        cells += [cell("cpr_mirror", seed, **{**keys, "strategy.share": share, "auc": 0.74}) for share in (0.01, 0.1)]
    names = ("pareto", "tracker_part", "mirror_size", "breaks", "traces")
    found = {name: finding(name, cells) for name in names}
    assert all(figure_of(each).axes for each in found.values())
    write_figures(found, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(names)
    assert "cpr_mirror (share 0.1)" in (tmp_path / "pareto.svg").read_text()
    assert "lost updates, %" in (tmp_path / "breaks.svg").read_text()
