"""Means, intervals and pairs."""

import math
from pathlib import Path
from typing import Any

import pytest

from analysis import load
from analysis.cells import cells_of
from analysis.stats import baseline_of, estimate, paired_differences


def test_interval_of_a_known_sample() -> None:
    """Mean 3 of 1..5: s = sqrt(2.5), t(0.975, 4) = 2.7764451, half-width t s / sqrt(5)."""
    found = estimate([1, 2, 3, 4, 5])
    assert found is not None
    assert (found.num, found.mean) == (5, 3)
    assert found.standard_error == pytest.approx(math.sqrt(0.5), rel=1e-12)
    assert found.half_width == pytest.approx(2.7764451051977987 * math.sqrt(0.5), rel=1e-9)
    assert found.ratio == pytest.approx(3 / math.sqrt(0.5))


def test_one_seed_has_no_interval() -> None:
    """Of one value the spread is unknown, of none the mean too; unknown values count for nothing."""
    one = estimate([None, 0.5])
    assert one is not None
    assert (one.num, one.mean, one.half_width, one.standard_error, one.ratio) == (1, 0.5, None, None, None)
    assert estimate([None, None]) is None


def test_differences_are_paired_by_seed(grid: Path) -> None:
    """Each cell is compared with the baseline of its own seed, so what seeds share cancels."""
    cells = cells_of(load(grid))
    full = [cell for cell in cells if cell["strategy"] == "full" and cell["engine"] == "local"]
    auc = {(cell["strategy"], cell["seed"]): cell["auc"] for cell in cells if cell["engine"] == "local"}
    expected = [auc["full", seed] - auc["none", seed] for seed in range(3)]
    assert sorted(paired_differences(full, cells, "auc")) == sorted(expected)


def _cell(**values: Any) -> dict[str, Any]:
    cell = {"strategy": "none", "seed": 0, "engine": "local", "trace": "busy", "profile": "busy", "num_ps": 4}
    return {**cell, "status": "done", "auc": 0.5, "model.size": "tiny", "strategy.r": 0.125} | values


def test_the_very_setting_is_preferred() -> None:
    """A baseline under the same trace and engine is taken before one that only stands for it."""
    other, same = _cell(trace=None), _cell()
    assert baseline_of(_cell(strategy="full"), [other, same]) is same


def test_none_stands_for_other_traces_and_engines() -> None:
    """`none` does not depend on trace, profile, engine or the strategy's keys, so it is a partner all the same."""
    lone = _cell(trace=None, engine="local", **{"strategy.r": 0.5})
    assert baseline_of(_cell(strategy="full", engine="rpc"), [lone]) is lone


@pytest.mark.parametrize("changed", [{"seed": 1}, {"model.size": "kaggle"}, {"status": "failed"}, {"num_ps": 8}])
def test_what_matters_is_never_bridged(changed: dict[str, Any]) -> None:
    """Another seed, model or number of ranks, or a run without a result, is no partner."""
    assert baseline_of(_cell(strategy="full"), [_cell(**changed)]) is None


def test_other_baselines_must_match_in_full() -> None:
    """What a strategy with failures does depends on the trace: there nothing stands for anything else."""
    cells = [_cell(strategy="full", trace="poster50")]
    assert baseline_of(_cell(strategy="cpr_mfu"), cells, baseline="full") is None
