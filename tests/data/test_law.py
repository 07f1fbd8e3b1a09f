import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.click_law import facts_of, mutual_information, unit_effects
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, MAX_TABLE_ROWS, scaled_cardinalities
from harness.core.errors import DataError
from harness.core.placement import tracked_tables
from harness.data.law import (
    Law,
    World,
    buckets,
    category_values,
    expected_auc,
    intercept,
    read_law,
    shares,
)
from harness.model.metrics import exact_auc

LARGE_TABLES = (2, 3, 11, 15, 20, 23, 25)


@pytest.fixture(scope="module")
def kaggle() -> Law:
    return read_law("kaggle")


def test_the_tracked_tables_are_kaggles_seven_largest() -> None:
    """They hold 99.58 % of Kaggle's rows, as CPR's tracked tables do; the sizes sum to Kaggle's."""
    sizes = np.array(KAGGLE_CARDINALITIES)
    assert sizes.sum() == 33_762_577
    assert sizes[list(LARGE_TABLES)].sum() / sizes.sum() == pytest.approx(0.99584, abs=1e-5)
    assert scaled_cardinalities(1.0) == KAGGLE_CARDINALITIES
    assert tracked_tables(scaled_cardinalities(0.005), 7) == LARGE_TABLES


def test_sizes_of_tables_have_bounds() -> None:
    """At least 4 rows, or Kaggle's if fewer; at most 2**27, also where Kaggle's times the factor is infinite."""
    assert scaled_cardinalities(1e-9) == tuple(min(size, 4) for size in KAGGLE_CARDINALITIES)
    assert {*scaled_cardinalities(1e308)} == {MAX_TABLE_ROWS}


def test_every_id_of_every_table_has_a_value_of_its_own() -> None:
    """None has the value that stands for missing."""
    values = category_values(np.arange(20_000)[:, None] * np.ones(26, dtype=np.int64))
    assert len(np.unique(values)) == values.size
    assert values.min() > 0


def test_expected_auc_is_the_mean_over_drawn_labels() -> None:
    """Scores of any spread get the mean probability that is asked for, and labels drawn by them the expected AUC."""
    random = np.random.default_rng(0)
    for spread in (0.1, 1.3, 3.0):
        logits = random.standard_normal(3_000) * spread
        logits += intercept(logits, 0.25)
        odds = 1 / (1 + np.exp(-logits))
        assert odds.mean() == pytest.approx(0.25, abs=1e-6)
        labels = (torch.from_numpy(random.random(3_000) < odds) for _ in range(40))
        drawn = np.array([exact_auc(torch.from_numpy(logits), each) for each in labels], np.float64)
        standard_error = float(np.std(drawn)) / math.sqrt(len(drawn))
        assert expected_auc(logits) == pytest.approx(np.mean(drawn), abs=4 * standard_error)


def test_buckets_cover_each_rank_once() -> None:
    """Their widths sum to the ranks, each begins where the last one ended, and shares of ranks sum to 1."""
    for num_ranks in (5, 500, 4_097, 2_000_000):
        first, width = buckets(num_ranks)
        assert width.sum() == num_ranks
        assert np.array_equal(first[1:], first[:-1] + width[:-1])
        _, widths, each = shares((1, num_ranks), (0.0, -8.0))
        assert each @ widths == pytest.approx(1)
        assert (np.diff(each) <= 0).all()


def test_ids_follow_the_law_of_their_table(kaggle: Law) -> None:
    """Of a table drawn on its own, ranks and missing values have the chances of its law, bucket by bucket.

    Tables drawn on their own tell nothing of each other.
    """
    num = 100_000
    world = World(kaggle.model_copy(update={"renewed_frac": 0.0}), num, 3, tied=False)
    ids_MF, missing_MF = world.draw_ids(0, num)
    assert mutual_information(np.where(missing_MF, -1, ids_MF)).max() < 0.03
    for table in (2, 9, 13, 24):
        law = kaggle.tables[table]
        _, width, each = shares(law.ranks, law.log_shares)
        assert missing_MF[:, table].mean() == pytest.approx(law.missing_frac, abs=0.007)
        ranks = ids_MF[~missing_MF[:, table], table] + 1
        edges = np.unique(np.concatenate([[1], np.geomspace(1, law.ranks[-1] + 1, 12).astype(int)]))
        found = np.histogram(ranks, edges)[0] / len(ranks)
        upto = np.concatenate([[0], np.cumsum(each * width)])
        wanted = np.diff(np.interp(edges, np.append(np.cumsum(np.append(1, width))[:-1], law.ranks[-1] + 1), upto))
        assert np.abs(found - wanted).max() < 5 * 0.5 / np.sqrt(len(ranks)), table


def test_samples_do_not_depend_on_how_they_are_cut(kaggle: Law) -> None:
    """a sample is a function of (law, rows, seed, number), whichever samples are drawn with it; seeds differ."""
    world = World(kaggle, 5_000, 1)
    whole, part = world.draw(0, 1_000), world.draw(317, 200)
    for field in dataclasses.fields(whole):
        assert np.array_equal(getattr(whole, field.name)[317:517], getattr(part, field.name)), field.name
    assert np.array_equal(world.label_uniforms(0, 1_000)[317:517], world.label_uniforms(317, 200))
    assert not np.array_equal(whole.ids_MF, World(kaggle, 5_000, 2).draw(0, 1_000).ids_MF)


def test_a_larger_log_is_a_sample_of_the_same_law(kaggle: Law) -> None:
    """Its first 10,000 rows have as many ids as the first 10,000 of a smaller one; more rows have more ids."""

    def num_ids(ids_MF: np.ndarray, rows: int) -> int:
        return sum(len(np.unique(ids_MF[:rows, table])) for table in LARGE_TABLES)

    few_MF, many_MF = (World(kaggle, rows, 1).draw_ids(0, rows)[0] for rows in (10_000, 100_000))
    for rows in (1_000, 3_000, 10_000):
        assert num_ids(many_MF, rows) == pytest.approx(num_ids(few_MF, rows), rel=0.05)
    assert num_ids(many_MF, 100_000) > 4 * num_ids(many_MF, 10_000), "the tail is not exhausted"


def test_new_ids_come_every_day(kaggle: Law) -> None:
    """Of ids above the hot ranks a part is replaced by ids that were never seen before; the hot ones stay."""
    num = 200_000
    ids_MF, _ = World(kaggle, num, 0).draw_ids(0, num)
    for table in (2, 9):
        ranks = kaggle.tables[table].ranks[-1]
        new = ids_MF[:, table] >= ranks
        days = [day.mean() for day in np.array_split(new, 7)]
        assert (np.diff(days) > 0).all(), "more of them from day to day"
        rare = ids_MF[:, table] % ranks >= kaggle.hot_ranks
        assert new[~rare].sum() == 0
        assert new[rare][-num // 20 :].mean() == pytest.approx(kaggle.renewed_frac, abs=0.06)


def test_the_taper_shrinks_the_effects_of_rare_ids(kaggle: Law) -> None:
    """with a taper, an id of rank r adds (1 + r / 100) ** -taper of what it adds without to the log-odds."""
    world = World(kaggle, 20_000, 0)
    plain, tapered = world.draw(0, 20_000), World(kaggle, 20_000, 0, taper=2.0).draw(0, 20_000)
    each_MF = unit_effects(world, plain) * [table.effect for table in kaggle.tables]
    rank_MF = plain.ids_MF % [table.ranks[-1] for table in kaggle.tables]
    expected_M = plain.score_M - (each_MF * (1 - (1 + rank_MF / 100) ** -2.0)).sum(axis=1)
    assert np.allclose(tapered.score_M, expected_M)
    assert tapered.score_M.std() < 0.9 * plain.score_M.std()


def test_integers_have_the_quantiles_of_the_facts(kaggle: Law) -> None:
    """Medians and tails of each integer are those of the facts, missing values too."""
    samples = World(kaggle, 30_000, 0).draw(0, 30_000)
    for place, facts in enumerate(facts_of("kaggle")["integers"]):
        missing = samples.integers_missing_MI[:, place]
        values = samples.integers_MI[~missing, place]
        assert missing.mean() == pytest.approx(facts["missing_frac"], abs=0.01)
        for chance in (0.25, 0.5, 0.95):
            found, wanted = np.log1p(np.abs([np.quantile(values, chance), facts["quantiles"][str(chance)]]))
            assert found == pytest.approx(wanted, abs=0.35), (facts["column"], chance)


def test_a_law_is_a_name_or_a_file(tmp_path: Path, kaggle: Law) -> None:
    """A file gives its law; other names are one line."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"law": kaggle.model_dump()}))
    assert read_law(str(path)) == kaggle
    assert read_law("terabyte").digest != kaggle.digest
    with pytest.raises(DataError, match=r"--like: avazu: expected kaggle, terabyte or a file"):
        read_law("avazu")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda law: law.clear(), ""),
        (lambda law: law["tables"][0].update(ranks=[]), "ranks"),
        (lambda law: law["tables"][0].update(log_shares=[0.0]), "log_shares"),
        (lambda law: law["tables"][0].update(tie={"parent": 99, "frac": 0.5}), "latents"),
        (lambda law: law["latents"][0].update(parent=3), "before"),
        (lambda law: law["integers"][0].update(quantiles=[]), "quantiles"),
        (lambda law: law["normals"].reverse(), "ascending"),
    ],
)
def test_a_law_that_contradicts_itself_is_refused(tmp_path: Path, kaggle: Law, change: Any, expected: str) -> None:
    content = json.loads(kaggle.model_dump_json())
    change(content)
    path = tmp_path / "law.json"
    path.write_text(json.dumps({"law": content}))
    message = rf"law\.json: expected what benchmarks/click_law.py writes, got .*{expected}"
    with pytest.raises(DataError, match=message):
        read_law(str(path))
