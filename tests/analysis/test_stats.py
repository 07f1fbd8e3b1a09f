"""Means, intervals, pairs, settings, components of variance, and tests of differences."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import analysis
from analysis.load import COLUMNS, swept_keys
from analysis.stats import (
    ALPHA,
    MEASURES,
    POWER,
    Estimate,
    blocks_of,
    estimate,
    estimate_pairs,
    is_skewed,
    own_options,
    paired,
    regimes_of,
    rounding_text,
    sample_equivalent,
    setting_keys,
    verdicts,
)
from analysis.stats.estimates import components
from analysis.stats.inference import holm, more_seeds, p_above, p_below
from analysis.stats.partners import rounding_of, without_replicates
from harness.config.keys import is_irrelevant, leaf_keys


def estimated(*values: float) -> Estimate:
    """The estimate of these values."""
    result: Any = estimate(values)
    return result


def test_interval_of_a_known_sample() -> None:
    """Mean 3 of 1..5: s = sqrt(2.5), t(0.975, 4) = 2.7764451. Of one value the spread is unknown, of none all is."""
    found = estimated(1, 2, 3, 4, 5)
    assert (found.num, found.mean) == (5, 3)
    assert found.standard_error == pytest.approx(math.sqrt(0.5), rel=1e-12)
    assert found.half_width == pytest.approx(2.7764451051977987 * math.sqrt(0.5), rel=1e-9)
    assert found.ratio == pytest.approx(3 / math.sqrt(0.5))
    one = estimated(0.5)
    assert (one.num, one.mean, one.half_width, one.standard_error, one.ratio) == (1, 0.5, None, None, None)
    assert estimate([]) is None


def _pairs(seeds: Sequence[int], draws: Sequence[int], values: Sequence[float]) -> pd.DataFrame:
    return pd.DataFrame({"seed": seeds, "draw": draws, "auc_difference": values})


def _crossed(seeds: int, draws: int, effect: Callable[[int, int], float]) -> pd.DataFrame:
    rows = [(seed, draw, effect(seed, draw)) for seed in range(seeds) for draw in range(draws)]
    return _pairs(*zip(*rows, strict=True))


def test_pairs_of_one_seed_and_trace_each_are_independent() -> None:
    """Seeds with a trace of their own, or under one trace, have the interval of as many independent values.

    Ten seeds of each of three traces, which alone differ, are three values: the interval is theirs.
    """
    values = [0.1, 0.3, -0.2]
    own, fixed = (estimate_pairs(_pairs(range(3), draws, values)) for draws in (range(3), [0, 0, 0]))
    assert own == fixed == estimate(values)
    shared: Any = estimate_pairs(_crossed(10, 3, lambda _, draw: float(draw)))
    assert (shared.half_width, shared.degrees) == (pytest.approx(estimated(0.0, 1.0, 2.0).half_width), 2)


def test_pairs_of_one_seed_and_trace_are_one_value_of_the_interval() -> None:
    """Twice the same pairs, as of two engines, tell no more than once: alone, nested in traces, crossed with them."""
    values = [0.1, 0.3, -0.2, 0.5, 0.0, 0.4]
    for seeds, draws in ((range(6), range(6)), (range(6), [0, 0, 0, 1, 1, 1]), ([0, 0, 1, 1, 2, 2], [0, 1] * 3)):
        once: Any = estimate_pairs(_pairs(seeds, draws, values))
        twice: Any = estimate_pairs(_pairs([*seeds] * 2, [*draws] * 2, values * 2))
        assert (twice.interval, twice.degrees) == (pytest.approx(once.interval), once.degrees)
    alone: Any = estimate_pairs(_pairs([0, 0], [0, 0], [0.1, 0.3]))
    assert (alone.mean, alone.interval) == (pytest.approx(0.2), None)


def test_crossed_components_are_the_moments_of_the_analysis_of_variance() -> None:
    """Against the mean squares of a balanced table; the interaction counts once in the error of the mean.

    With seeds under traces of their own the error is that of the means of traces (one-way analysis).
    """
    table_ST = np.random.default_rng(0).normal(0, 1, (4, 3)) + 2.0 * np.arange(3) + np.arange(4)[:, None]
    found = components(_crossed(4, 3, lambda seed, draw: float(table_ST[seed, draw])))
    by_seed, by_trace = 3 * table_ST.mean(1).var(ddof=1), 4 * table_ST.mean(0).var(ddof=1)
    rest = (11 * table_ST.var(ddof=1) - 3 * by_seed - 2 * by_trace) / 6
    assert (found.seed, found.trace, found.rest) == pytest.approx(((by_seed - rest) / 3, (by_trace - rest) / 4, rest))
    assert found.squared_error == pytest.approx((by_seed + by_trace - rest) / 12)
    assert 2 < found.degrees < 6
    alike_ST = table_ST - table_ST.mean(1)[:, None]
    pooled = components(_crossed(4, 3, lambda seed, draw: float(alike_ST[seed, draw])))
    rest = alike_ST.var(0, ddof=1).mean()
    assert pooled.seed == 0, "seeds differ less than by the rest: their squares are the rest's"
    assert (pooled.rest, pooled.squared_error) == pytest.approx((rest, alike_ST.mean(0).var(ddof=1) / 3))
    nested = components(_pairs(range(12), [0, 1, 2] * 4, table_ST.ravel().tolist()))
    assert nested.seed is None
    assert nested.squared_error == pytest.approx(by_trace / 12)


def _cell(**values: Any) -> dict[str, Any]:
    cell = {"strategy": "none", "seed": 0, "engine": "local", "trace": "busy", "profile": "busy", "num_ps": 4}
    made = {**cell, "trace_law": "busy", "status": "done", "auc": 0.5, "model.size": "tiny", "strategy.r": 0.125}
    return dict.fromkeys(COLUMNS) | made | values


@pytest.mark.parametrize(
    ("others", "number"),
    [
        ([_cell(trace=None), _cell()], 1),  # the very setting is preferred
        ([_cell(trace=None, engine="rpc", profile="x", **{"strategy.r": 0.5})], 0),  # on these none does not depend
        ([_cell(seed=1)], None),
        ([_cell(num_ps=8)], None),
        ([_cell(status="failed")], None),
        ([_cell(**{"model.size": "kaggle"}), _cell(seed=1)], None),
        ([_cell(), _cell(auc=0.6)], None),  # which of both is not known
        ([_cell(), _cell(engine="rpc")], 0),
    ],
)
def test_a_cell_is_compared_with_none_of_its_seed_and_setting(others: list[dict[str, Any]], number: int | None) -> None:
    """Law: what matters is never bridged."""
    cells = pd.DataFrame([*others, _cell(strategy="full", auc=0.4)])
    found = paired(cells)["partner"].iloc[-1]
    assert (None if pd.isna(found) else int(found)) == number


def test_draws_of_a_trace_are_one_setting() -> None:
    """Cells under two draws of a law stand in one block, each paired with `none` of its seed; other traces do not."""
    cells = [
        _cell(strategy=strategy, seed=seed, trace=trace, auc=0.5 - 0.25 * seed * (strategy == "full"), trace_law=law)
        for strategy in ("none", "full")
        for seed, (trace, law) in enumerate((("busy-0", "busy"), ("busy-1", "busy"), ("preset", "preset")))
    ]
    drawn, other = blocks_of(pd.DataFrame(cells))
    assert drawn.setting["trace"] == "busy"
    assert [len(line.cells) for line in (*drawn.lines, *other.lines)] == [2, 2, 1, 1]
    assert drawn.lines[1].auc_difference == estimate([0.0, -0.25])


def test_an_open_verdict_on_seeds_that_meet_several_traces_lacks_pairs() -> None:
    """Not seeds: with the traces as they are, further seeds may decide nothing."""
    cells = [
        _cell(strategy=strategy, seed=seed, trace=f"busy-{trace}", trace_law="busy", overhead_frac=0.25)
        | {"auc": 0.5 - (4e-4 * (2 + seed - trace)) * (strategy == "partial")}
        for strategy in ("none", "partial")
        for seed in range(2)
        for trace in range(3)
    ]
    ((verdict,),) = map(verdicts, blocks_of(pd.DataFrame(cells)))
    assert re.fullmatch(r"open: .* more pairs of seed and trace to decide", verdict.sentence)


def test_the_work_of_pairing_grows_with_the_cells() -> None:
    """Law: twenty times as many cells take at most ten times as long, not four hundred."""

    def seconds(num_seeds: int) -> float:
        settings = [{"strategy": name, "cache.mode": mode} for name in ("none", "full") for mode in ("none", "stale")]
        frame, times = pd.DataFrame([_cell(seed=seed, **own) for seed in range(num_seeds) for own in settings]), []
        for _ in range(2):
            began = time.process_time()
            regimes_of(frame)
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(800) < 10 * seconds(40)


def test_an_option_with_one_value_for_each_strategy_is_the_strategys() -> None:
    """It splits no table: cpr_mirror has only one value of ``untracked``. A swept one does."""
    options = {"cpr_mfu": "priority", "cpr_mirror": "interval", "none": None}
    cells = [
        _cell(strategy=name, seed=seed, **{"strategy.untracked": value})
        for name, value in options.items()
        for seed in (0, 1)
    ]
    assert "strategy.untracked" in own_options(pd.DataFrame(cells))
    assert "strategy.untracked" not in setting_keys(pd.DataFrame(cells))
    swept = _cell(strategy="cpr_mfu", seed=0, **{"strategy.untracked": "interval"})
    assert "strategy.untracked" in setting_keys(pd.DataFrame([*cells, swept]))


def test_a_key_of_no_hash_is_no_setting() -> None:
    """Law: cells that differ in such keys alone are pairs, unless a trace can bring the key into the hash."""
    values = {key for key in leaf_keys() if is_irrelevant(key)}
    configs = [{key: f"{key} {number}" for key in values} for number in (1, 2)]
    of_traces = {"cluster.num_trainers", "cluster.hosts", "cluster.place", "cluster.on_notice"}
    assert {*swept_keys(configs)} == of_traces
    assert {"resume.every_s", "cluster.network", "jobs.max_parallel", "wandb.group", "store.keep"} <= values


def test_a_strategy_without_the_swept_option_stands_in_every_setting_of_it() -> None:
    """Law: `full` is beside each value of an option that it lacks, and is no setting of its own; one that has it is."""
    values = {"cpr_mfu": (0.1, 0.2), "cpr_ssu": (0.1, None), "full": (None,), "none": (None,)}
    cells = pd.DataFrame(
        _cell(strategy=name, **{"strategy.r": None, "strategy.pls_target": each})
        for name, own in values.items()
        for each in own
    )
    for work in (blocks_of, regimes_of):
        assert {block.title: [line.strategy for line in block.lines] for block in work(cells)} == {
            "strategy.pls_target 0.1": ["none", "full", "cpr_mfu", "cpr_ssu"],
            "strategy.pls_target 0.2": ["none", "full", "cpr_mfu"],
            "strategy.pls_target null": ["none", "full", "cpr_ssu"],
        }


# --- rounding ---------------------------------------------------------------------------------------------------------


def _none(backend: str, auc: float, **values: Any) -> dict[str, Any]:
    return _cell(auc=auc, trace=None) | {"trainer.backend": backend, "trainer.num_threads": 1} | values


def test_rounding_is_the_spread_of_replicates() -> None:
    """Runs of one seed that differ in backend or threads only, whatever their trace and engine; seeds do not mix.

    Threads change no bit of backend compiled: equal replicates count once, and a lone reference tells nothing.
    """
    cells = pd.DataFrame(
        [
            _none("compiled", 0.5),
            _none("compiled", 0.5, **{"trainer.num_threads": 2}),
            _none("torch", 0.5001, trace="busy"),
            _none("torch", 0.4998, **{"trainer.num_threads": 2}),
            _none("compiled", 0.7, seed=1),
            _none("torch", 0.7002, seed=1),
            _none("torch", 0.9, seed=1, status="failed"),
            _none("torch", 0.6, num_ps=8),
            _none("torch", 0.6, seed=2),
        ]
    )
    found: Any = rounding_of(cells.iloc[[0, 4]], cells)
    squares = 2 * np.var([0.5, 0.5001, 0.4998], ddof=1) + np.var([0.7, 0.7002], ddof=1)
    assert (found.deviation, found.num_seeds) == (pytest.approx(math.sqrt(squares / 3)), 2)
    assert rounding_of(cells[:2], cells[:2]) is rounding_of(cells[-1:], cells) is None


def test_the_baseline_of_a_seed_is_the_mean_of_its_replicates() -> None:
    """But a cell equal to its own reference to the bit stays equal, and a seed without replicates has one run.

    References with a backend that nothing else ran with are left out; with one that others use they stay.
    """
    references = [_none("compiled", 0.5), _none("torch", 0.5004), _none("compiled", 0.7, seed=1)]
    lossy = [_none("compiled", auc, strategy=name) for name, auc in (("cpr_mfu", 0.4), ("full", 0.5))]
    cells = pd.DataFrame([*references, *lossy, _none("compiled", 0.6, strategy="cpr_mfu", seed=1)])
    assert [*paired(cells)["auc_difference"][3:]] == pytest.approx([-0.1002, 0.0, -0.1])
    frames = [pd.DataFrame([*references, *others]) for others in (lossy, [], [_none("torch", 0.4, strategy="full")])]
    assert [[*without_replicates(own).index] for own in frames] == [[0, 2, 3, 4], [0, 1, 2], [1, 3]]


def test_a_folder_with_replicates_shows_rounding_in_table_and_verdicts(grid: Path) -> None:
    """One block, its references counted once a seed, and the effect of rounding on the console."""
    cells = analysis.load(grid)
    cells = cells[(cells["engine"] == "local") & (cells["status"] == "done")].assign(**{"trainer.backend": "compiled"})
    again = cells[cells["strategy"] == "none"].assign(**{"trainer.backend": "torch"})
    again["auc"] += 1e-4 * (again["seed"] + 1).astype(int)
    frame = pd.concat([cells, again], ignore_index=True)
    (block,) = blocks_of(frame)
    assert {len(line.cells) for line in block.lines} == {3}
    assert block.rounding is not None
    assert block.rounding.num_seeds == 3
    sentence = rounding_text(block.rounding)
    assert "unknown" not in sentence
    assert sentence in str(analysis.show_table(frame))
    assert sentence in str(analysis.advice(frame))


# --- measures, skewness -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "worse"), [("auc", -0.25), ("drop", 0.25), ("log_loss", 0.25), ("ne", 0.25), ("movement", 0.25)]
)
def test_a_loss_is_positive_where_the_strategy_is_worse(name: str, worse: float) -> None:
    """Of every measure, by its own column alone."""
    measure = MEASURES[name]
    cells = [
        _cell(strategy=strategy, seed=seed, **{measure.name: 0.5 + worse * (strategy == "full")})
        for strategy in ("none", "full")
        for seed in range(3)
    ]
    (block,) = blocks_of(pd.DataFrame(cells), measure)
    assert [line.loss and line.loss.mean for line in block.lines] == [0, 0.25]


def test_a_loss_is_a_number_of_samples_by_the_learning_curve_of_none() -> None:
    """Law: where AUC grows by b for each factor e of samples, leaving out half of them costs b log 2.

    Its interval has the errors of slope and loss; with one run it is unknown.
    """
    cells = [_cell(seed=seed, auc_per_log_sample=slope) for seed, slope in enumerate((0.06, 0.08, 0.07, -0.2))]
    ((grows,), (flat,)) = (blocks_of(pd.DataFrame(own)) for own in (cells[:3], cells))
    exact = Estimate(0, 0.07 * math.log(2), 0.0, 0.0)
    half: Any = sample_equivalent(grows, exact)
    slope: Any = estimated(0.06, 0.08, 0.07).interval
    assert half == pytest.approx([0.5, *(1 - 2 ** (-0.07 / end) for end in slope[::-1])]), "the slope's error alone"
    wider: Any = sample_equivalent(grows, replace(exact, half_width=0.01))
    assert wider[1] < half[1] < half[2] < wider[2]
    alone: Any = sample_equivalent(grows, replace(exact, half_width=None))
    assert [math.isnan(each) for each in alone] == [False, True, True]
    assert sample_equivalent(flat, exact) is None


def test_skewness_is_told_from_chance() -> None:
    """One seed of five that loses far more is told where all strategies have it; symmetric losses are not skewed."""
    rare = [0.0, 0.1, -0.1, 0.05, 3.0]
    assert is_skewed([rare] * 3)
    assert not is_skewed([[-2.0, -1.0, 0.0, 1.0, 2.0]] * 3)
    assert not is_skewed([[-value for value in rare]] * 3)
    assert not is_skewed([])


# --- tests of differences ---------------------------------------------------------------------------------------------


def test_p_values_are_those_of_the_one_sided_t_test() -> None:
    """As scipy's test of one sample, on both sides; one value, or values without a spread, reject nothing."""
    values = (0.3, -0.1, 0.4, 0.2)
    for alternative, p_value in (("greater", p_above), ("less", p_below)):
        expected = stats.ttest_1samp(values, 0.1, alternative=alternative)[1]
        assert p_value(estimated(*values), 0.1) == pytest.approx(expected)
    assert p_above(estimated(5.0), 0.0) == p_above(estimated(5.0, 5.0), 0.0) == 1.0


def test_holm_rejects_step_by_step() -> None:
    """The k-th smallest p-value is held against ALPHA / (m - k + 1), up to the first that fails."""
    assert holm([0.2, ALPHA / 3, ALPHA / 2]) == [False, True, True]
    assert holm([0.04, ALPHA / 3, ALPHA / 2]) == [True, True, True]
    assert holm([ALPHA / 2 + 1e-9, 0.0, ALPHA / 2 + 2e-9]) == [False, True, False]
    assert holm([ALPHA / 2, ALPHA / 2, 0.9]) == [False, False, False]


def test_more_seeds_follow_the_predictive_distribution() -> None:
    """With 400 values the spread is known, and the probability of a decision is that of a normal distribution.

    A stricter level asks for more. Unknown without a spread, and where the values lie around the bound.
    """
    values = np.random.default_rng(0).normal(0, 1, 400)
    known = estimated(*(values - values.mean()) / values.std(ddof=1) + 0.08)
    promised = more_seeds(known, 0.0, 0.05, 0.05)

    def probability(more: int) -> float:
        num, quantile = 400 + more, float(stats.norm.isf(0.05))
        law = stats.norm(0.08, (more / 400 / num) ** 0.5)
        return float(law.sf(quantile / num**0.5) + law.cdf(-quantile / num**0.5))

    expected = next(more for more in range(1, 5000) if probability(more) >= POWER)
    assert promised == pytest.approx(expected, rel=0.15)
    few: Any = more_seeds(estimated(-1.0, 0.0, 1.0), 2.0, 0.05, 0.05)
    assert few < (more_seeds(estimated(-1.0, 0.0, 1.0), 2.0, 0.01, 0.01) or 0)
    assert more_seeds(estimated(1.0), 2.0, 0.05, 0.05) is None
    assert more_seeds(estimated(*np.linspace(-1, 1, 200)), 0.0, 0.05, 0.05) is None
