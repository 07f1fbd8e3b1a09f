"""What sweeps show beyond their trends: differences of strategies, how a loss heals, the spread over failures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.claims.hour import Healing, hour
from analysis.claims.measures import LOSS
from analysis.claims.placement import placement
from analysis.claims.settings import Less, Trend, settings
from harness.core.events import Evaluated
from harness.record.recorder import Recorder
from tests.analysis.test_claims import cell
from tests.made_runs import made_config, made_events


def test_a_strategy_is_compared_with_another_at_each_value() -> None:
    """Paired by seed: 2 · 10⁻³ less at the first value, as much at the second; one that ran without the key is met."""
    key = "strategy.period"
    cells = [cell(name, seed, **{key: None}) for name in ("none", "cpr_mfu") for seed in range(4)]
    for seed in range(4):
        for value, gain in ((1, 0.002), (2, 0.0)):
            noise = 0.01 * seed + 1e-5 * (-1) ** seed
            cells.append(cell("cpr_vanilla", seed, auc=0.7 + 0.01 * seed, **{key: value}))
            cells.append(cell("cpr_ssu", seed, auc=0.7 + noise + gain, **{key: value}))
    judge = settings(
        key,
        "period",
        [
            Less("cpr_ssu", "cpr_vanilla", "lower"),
            Less("cpr_ssu", "cpr_mfu", "–"),
            Trend("cpr_ssu", +1, "rises", LOSS, since=2, until=1),
        ],
    )
    first, second, _, against, trend = judge(cells)[-5:]
    assert (first.ours, first.verdict) == ("-2.00 ± 0.02", "reproduced")
    assert second.verdict == "cannot be told"
    assert against.num == 4  # its reference ran without the key
    assert (trend.what, trend.verdict) == ("`cpr_ssu`: AUC lost to none, 10⁻³; period 1 less 2", "not reproduced")


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
    row = hour(cells)[-1]
    assert row.what == "`never_save`, failure at:13: hours until half of the loss is gone"
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
    rows = {row.what: row for row in placement(cells)}
    what = "`cpr_mfu`, placement {}: mean distance of failures from the median one; lost updates, %"
    assert rows[what.format("row")].ours == "0.00 ± 0.00"
    assert rows[what.format("table")].ours == "5.00 ± 0.00"
    assert rows[what.format("table")].why == "from 0.00 to 10.00"
