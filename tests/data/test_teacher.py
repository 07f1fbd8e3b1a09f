import dataclasses

import numpy as np
import pytest

from harness.core.placement import tracked_tables
from harness.data.criteo import parse_rows
from harness.data.teacher import (
    KAGGLE_CARDINALITIES,
    LARGE_TABLES,
    Teacher,
    World,
    category_values,
    expected_auc,
    scaled_cardinalities,
)
from harness.data.text import format_rows


def test_the_large_tables_are_kaggles_seven_largest() -> None:
    """They hold 99.58 % of Kaggle's rows, as CPR's tracked tables do; the sizes sum to Kaggle's."""
    sizes = np.array(KAGGLE_CARDINALITIES)
    assert sizes.sum() == 33_762_577
    assert tuple(sorted(np.argsort(sizes)[-7:])) == LARGE_TABLES
    assert sizes[list(LARGE_TABLES)].sum() / sizes.sum() == pytest.approx(0.99584, abs=1e-5)
    assert scaled_cardinalities(1.0) == KAGGLE_CARDINALITIES
    assert tracked_tables(scaled_cardinalities(0.005), 7) == LARGE_TABLES


def test_every_row_of_every_table_has_a_value_of_its_own() -> None:
    """No two rows share a value, and none has the value that stands for missing."""
    values = category_values(np.arange(20_000)[:, None] * np.ones(26, dtype=np.int64))
    assert len(np.unique(values)) == values.size
    assert values.min() > 0


def test_expected_auc_is_the_mean_over_drawn_labels() -> None:
    """The AUC of true probabilities, computed without drawing, equals the mean AUC over many draws of the labels."""
    random = np.random.default_rng(0)
    logits = random.standard_normal(3_000) * 1.3 - 1
    odds = 1 / (1 + np.exp(-logits))
    drawn = [_pairwise_auc(logits, random.random(3_000) < odds) for _ in range(60)]
    standard_error = np.std(drawn) / np.sqrt(len(drawn))
    assert expected_auc(logits) == pytest.approx(np.mean(drawn), abs=4 * standard_error)


def _pairwise_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    num_positives = labels.sum()
    wins = ranks[labels].sum() - num_positives * (num_positives + 1) / 2
    return float(wins / (num_positives * (len(labels) - num_positives)))


def test_fit_reaches_what_is_asked() -> None:
    """After fitting, the sample has the wanted positives and the wanted best AUC, and a fresh sample nearly so."""
    world = World(0.001, 50_000, seed=3)
    teacher = Teacher(world, seed=3)
    random = np.random.default_rng(0)
    sample, fresh = (world.draw(random, random.random(20_000)) for _ in range(2))
    teacher.fit(sample, positive_frac=0.25, auc=0.8)
    for samples, tolerance in ((sample, 1e-4), (fresh, 0.015)):
        logits = teacher.logits(samples)
        assert (1 / (1 + np.exp(-logits))).mean() == pytest.approx(0.25, abs=tolerance)
        assert expected_auc(logits) == pytest.approx(0.8, abs=tolerance)


@pytest.mark.parametrize("tables", [LARGE_TABLES, tuple(t for t in range(26) if t not in LARGE_TABLES)])
def test_rows_of_large_and_of_small_tables_carry_the_labels(tables: tuple[int, ...]) -> None:
    """Who does not know the rows of the large tables, or of the small ones, loses much of the best possible AUC."""
    world = World(0.001, 50_000, seed=3)
    teacher = Teacher(world, seed=3)
    random = np.random.default_rng(0)
    samples = world.draw(random, random.random(20_000))
    teacher.fit(samples, positive_frac=0.25, auc=0.8)
    labels = random.random(20_000) < 1 / (1 + np.exp(-teacher.logits(samples)))
    samples.rows_MF[:, tables] = samples.rows_MF[random.permutation(20_000)][:, tables]
    assert _pairwise_auc(teacher.logits(samples), labels) < 0.77


def test_the_taper_sets_how_much_rare_rows_matter() -> None:
    """What the log-odds owe to the rows beyond rank 100 of the large tables falls with the taper."""
    world = World(0.005, 50_000, seed=3)
    random = np.random.default_rng(0)
    samples = world.draw(random, random.random(20_000))
    is_rare_MF = np.isin(np.arange(26), LARGE_TABLES) & (samples.rows_MF > 100)
    others_MF = random.integers(100, np.maximum(world.cardinalities, 101), samples.rows_MF.shape)
    changed = dataclasses.replace(samples, rows_MF=np.where(is_rare_MF, others_MF, samples.rows_MF))
    shares: list[float] = []
    for taper in (0.0, 0.5, 2.0):
        teacher = Teacher(world, seed=3, taper=taper)
        teacher.fit(samples, positive_frac=0.25, auc=0.8)
        logits = teacher.logits(samples)
        shares.append(float(np.mean((logits - teacher.logits(changed)) ** 2) / (2 * np.var(logits))))
    assert shares[0] > 1.5 * shares[1] > 3 * shares[2] > 0


def test_integers_are_skewed_and_sometimes_negative() -> None:
    """Long tails to the right, many zeros, and a column with values below zero, as in Criteo's logs."""
    world = World(0.001, 1_000, seed=0)
    samples = world.draw(np.random.default_rng(0), np.linspace(0, 1, 20_000, endpoint=False))
    integers = samples.integers_MI
    assert (integers.mean(axis=0) > np.median(integers, axis=0)).all()
    assert integers[:, 1].min() < 0
    assert np.delete(integers, 1, axis=1).min() == 0
    assert 0.7 < samples.integers_missing_MI[:, 11].mean() < 0.8
    text = format_rows(
        np.ones(20_000, dtype=np.bool_),
        integers,
        samples.integers_missing_MI,
        category_values(samples.rows_MF),
        samples.rows_missing_MF,
    )
    assert np.array_equal(
        parse_rows(text, name="f", first_line=1).integers_RI, np.where(samples.integers_missing_MI, 0, integers)
    )
