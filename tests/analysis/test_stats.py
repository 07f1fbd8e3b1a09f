"""Means, intervals and pairs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import load
from analysis.load import COLUMNS, cells_of
from analysis.stats import (
    Block,
    Pair,
    Partners,
    estimate,
    estimate_pairs,
    own_options,
    pairs_of,
    regimes,
    setting_keys,
    split,
    summarise,
)


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
    pairs = pairs_of(full, cells, "auc")
    assert sorted(pair.difference for pair in pairs) == sorted(expected)
    assert {pair.seed for pair in pairs} == {0, 1, 2}


def _cell(**values: Any) -> dict[str, Any]:
    cell = {"strategy": "none", "seed": 0, "engine": "local", "trace": "busy", "profile": "busy", "num_ps": 4}
    return {**cell, "status": "done", "auc": 0.5, "model.size": "tiny", "strategy.r": 0.125} | values


def _pairs(seeds: int, traces: int, effect: Callable[[int, int], float]) -> list[Pair]:
    return [Pair(seed, (trace,), effect(seed, trace)) for seed in range(seeds) for trace in range(traces)]


def test_pairs_of_one_seed_and_trace_each_are_independent() -> None:
    """Seeds with a trace of their own, or under one trace, have the interval of as many independent values."""
    values = [0.1, 0.3, -0.2]
    drawn = [Pair(seed, (seed,), value) for seed, value in enumerate(values)]
    fixed = [Pair(seed, ("busy",), value) for seed, value in enumerate(values)]
    assert estimate_pairs(drawn) == estimate_pairs(fixed) == estimate(values)


def test_pairs_that_share_a_trace_count_once() -> None:
    """Ten seeds of each of three traces, which alone differ, are three values: the interval is theirs."""
    shared, alone = estimate_pairs(_pairs(10, 3, lambda _, trace: float(trace))), estimate([0.0, 1.0, 2.0])
    assert shared is not None
    assert alone is not None
    assert shared.half_width == pytest.approx(alone.half_width)
    assert shared.degrees == 2


def test_the_split_tells_spread_of_traces_from_spread_of_seeds() -> None:
    """Traces two apart and seeds one apart are found as such; with one seed a trace nothing can be told apart."""
    found = split(_pairs(4, 3, lambda seed, trace: 2.0 * trace + seed))
    assert found is not None
    assert found.num_traces == 3
    assert found.between_seeds == pytest.approx(math.sqrt(5 / 3))
    assert found.between_traces == pytest.approx(math.sqrt(4 - 5 / 3 / 4))
    assert split([Pair(seed, (seed,), float(seed)) for seed in range(5)]) is None
    assert split(_pairs(5, 1, lambda seed, _: float(seed))) is None


def test_draws_of_a_trace_are_one_setting() -> None:
    """Cells under two draws of a law stand in one block, each paired with `none` of its seed; other traces do not."""
    cells = [
        _cell(strategy=strategy, seed=seed, trace=trace, auc=0.5 - 0.25 * seed * (strategy == "full"), pls=0.0)
        | {"trace_law": trace.removesuffix("-0").removesuffix("-1")}
        for strategy in ("none", "full")
        for seed, trace in enumerate(("busy-0", "busy-1", "preset-cpr56"))
    ]
    cells = [dict.fromkeys(COLUMNS) | cell for cell in cells]
    drawn, other = summarise(cells)
    assert drawn.setting["trace"] == "busy"
    assert [len(line.cells) for line in (*drawn.lines, *other.lines)] == [2, 2, 1, 1]
    assert drawn.lines[1].auc_difference == estimate([0.0, -0.25])


def test_the_very_setting_is_preferred() -> None:
    """A baseline under the same trace and engine is taken before one that only stands for it."""
    other, same = _cell(trace=None), _cell()
    assert Partners([other, same]).of(_cell(strategy="full")) is same


def test_none_stands_for_other_traces_and_engines() -> None:
    """`none` does not depend on trace, profile, engine or the strategy's keys, so it is a partner all the same."""
    lone = _cell(trace=None, engine="local", **{"strategy.r": 0.5})
    assert Partners([lone]).of(_cell(strategy="full", engine="rpc")) is lone


@pytest.mark.parametrize("changed", [{"seed": 1}, {"model.size": "kaggle"}, {"status": "failed"}, {"num_ps": 8}])
def test_what_matters_is_never_bridged(changed: dict[str, Any]) -> None:
    """Another seed, model or number of ranks, or a run without a result, is no partner."""
    assert Partners([_cell(**changed)]).of(_cell(strategy="full")) is None


def test_other_baselines_must_match_in_full() -> None:
    """What a strategy with failures does depends on the trace: there nothing stands for anything else."""
    cells = [_cell(strategy="full", trace="poster50")]
    assert Partners(cells, baseline="full").of(_cell(strategy="cpr_mfu")) is None


class _Counting(dict[str, Any]):
    """A cell that counts how often a value of any cell is read."""

    num_reads = 0

    def __getitem__(self, key: str) -> Any:
        _Counting.num_reads += 1
        return super().__getitem__(key)


def _num_reads(work: Callable[[list[_Counting]], object], num_seeds: int) -> int:
    cells = [
        _Counting(dict.fromkeys(COLUMNS) | _cell(strategy=name, seed=seed, trace_law="busy", **{"cache.mode": mode}))
        for seed in range(num_seeds)
        for name in ("none", "full")
        for mode in ("none", "stale")
    ]
    _Counting.num_reads = 0
    work(cells)
    return _Counting.num_reads


@pytest.mark.parametrize("work", [summarise, regimes], ids=["blocks", "regimes"])
def test_the_work_of_pairing_grows_with_the_cells(work: Callable[[list[_Counting]], object]) -> None:
    """Law: with twice as many cells twice as many values are read, not four times."""
    assert _num_reads(work, 100) < 2.2 * _num_reads(work, 50)


def test_an_option_with_one_value_for_each_strategy_is_the_strategys() -> None:
    """It splits no table: cpr_mirror has only one value of ``untracked``. A swept one does."""
    options = {"cpr_mfu": "priority", "cpr_mirror": "interval", "none": None}
    cells = [
        _cell(strategy=name, seed=seed, **{"strategy.untracked": value})
        for name, value in options.items()
        for seed in (0, 1)
    ]
    assert "strategy.untracked" in own_options(cells)
    assert "strategy.untracked" not in setting_keys(cells)
    cells.append(_cell(strategy="cpr_mfu", seed=0, **{"strategy.untracked": "interval"}))
    assert "strategy.untracked" in setting_keys(cells)


@pytest.mark.parametrize("work", [summarise, regimes], ids=["blocks", "regimes"])
def test_a_strategy_without_the_swept_option_stands_in_every_setting_of_it(
    work: Callable[[list[dict[str, Any]]], list[Block]],
) -> None:
    """Law: `full` is beside each value of an option that it lacks, and is no setting of its own; one that has it is."""
    values = {"cpr_mfu": (0.1, 0.2), "cpr_ssu": (0.1, None), "full": (None,), "none": (None,)}
    cells = [
        dict.fromkeys(COLUMNS)
        | _cell(strategy=name, trace_law="busy", **{"strategy.r": None, "strategy.pls_target": each})
        for name, own in values.items()
        for each in own
    ]
    found = {block.title: [line.strategy for line in block.lines] for block in work(cells)}
    assert found == {
        "strategy.pls_target 0.1": ["none", "full", "cpr_mfu", "cpr_ssu"],
        "strategy.pls_target 0.2": ["none", "full", "cpr_mfu"],
        "strategy.pls_target null": ["none", "full", "cpr_ssu"],
    }
