"""benchmarks/click_law.py: facts of a log against plain counting, a law fitted to a small log, a log beside facts."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks import click_law
from benchmarks.click_law import COUNT_BINS, FullLog, beside, facts_of, fit_law, mutual_information, write_law
from harness.data.law import read_law
from harness.data.prepare import prepare
from harness.data.records import RECORDS_NAME
from harness.data.synth import synth
from tests.data.logs import naive_values, random_rows, to_text

NUM_ROWS = 1_500


def _spread(counts: dict[int, int], clicks: dict[int, int], first: int, last: float) -> float | None:
    own = [(counts[value], clicks[value]) for value in counts if first <= counts[value] <= last]
    if first == 1 or len(own) < 3:
        return None
    total = sum(count for count, _ in own)
    squares = sum(count * click * (click - 1) / (count * (count - 1)) for count, click in own) / total
    return math.sqrt(max(squares - (sum(click for _, click in own) / total) ** 2, 0))


def test_facts_are_those_of_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fact of a table equals what a plain loop counts.

    If half of the samples may be, every second one is counted in pairs.
    """
    monkeypatch.setattr(click_law, "_MAX_PAIR_SAMPLES", NUM_ROWS // 2)
    rows = random_rows(NUM_ROWS, seed=5, num_values=400)
    (tmp_path / "a").write_bytes(to_text(rows))
    prepare([tmp_path / "a"], tmp_path / "out", categories="hash", max_ind_range=997)
    facts, (labels, _, values) = facts_of(str(tmp_path / "out")), naive_values(rows)
    assert (facts["rows"], facts["positives_frac"]) == (NUM_ROWS, pytest.approx(sum(labels) / NUM_ROWS))
    for table, column in zip(facts["tables"], zip(*values, strict=True), strict=True):
        ids = [value % 997 for value in column]
        counts, clicks = Counter(ids), defaultdict[int, int](int)
        for value, label in zip(ids, labels, strict=True):
            clicks[value] += label
        assert table["distinct_after_rows"] == {str(n): len({*ids[:n]}) for n in (1_000, NUM_ROWS)}
        assert table["share_of_accesses_of_rank"]["2"] == pytest.approx(sorted(counts.values())[-2] / NUM_ROWS)
        for part, (first, last) in zip(table["by_count"], COUNT_BINS, strict=True):
            own = [value for value in counts if first <= counts[value] <= (last or math.inf)]
            assert part["ids"] == len(own)
            assert part["accesses_frac"] == pytest.approx(sum(counts[value] for value in own) / NUM_ROWS)
            spread = _spread(counts, clicks, first, last or math.inf)
            assert part["ctr_sd_between_ids"] == (spread and pytest.approx(spread))
    ids_SF = np.fromfile(tmp_path / "out" / RECORDS_NAME, np.int32).reshape(NUM_ROWS, -1)[::2, 14:]
    assert np.array_equal(facts[click_law.PAIRS]["matrix"], mutual_information(ids_SF))


def test_mutual_information_is_that_of_its_definition() -> None:
    """1 where one column decides the other, near 0 for independent ones; the sum over joint shares in between."""
    random = np.random.default_rng(0)
    first = random.integers(0, 8, 20_000)
    partly = np.where(random.random(20_000) < 0.5, first, random.integers(0, 8, 20_000))
    matrix = mutual_information(np.stack([first, first // 2, partly, random.integers(0, 8, 20_000)], axis=1))
    joint = np.histogram2d(first, partly, bins=8)[0] / 20_000
    product = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    shared = (joint * np.log(joint / product)).sum()
    lesser = min(-(share * np.log(share)).sum() for share in (joint.sum(axis=0), joint.sum(axis=1)))
    assert matrix[0, 1] == pytest.approx(1)
    assert matrix[0, 2] == pytest.approx(shared / lesser)
    assert abs(matrix[0, 3]) < 0.01
    assert np.array_equal(matrix, matrix.T)


@pytest.mark.slow
def test_a_law_fitted_to_a_log_gives_logs_like_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: facts of a log → law → log: ids and mutual information are those of the first log. A small one, quickly."""
    monkeypatch.setattr(click_law, "_TABLE_ROUNDS", 6)
    monkeypatch.setattr(click_law, "_TIE_SWEEPS", 1)
    monkeypatch.setattr(click_law, "_BLOCKS", (1, 16))
    monkeypatch.setattr(click_law, "_EFFECT_ROUNDS", 1)
    synth(6_000, tmp_path / "first.tsv", seed=0)
    prepare([tmp_path / "first.tsv"], tmp_path / "first", categories="hash", max_ind_range=150)
    first, file = facts_of(str(tmp_path / "first")), tmp_path / "law.json"
    law = fit_law(first, FullLog(100_000, (150,) * 26))
    write_law(file, law, first)
    assert read_law(str(file)) == law
    synth(6_000, tmp_path / "again.tsv", seed=1, like=str(file))
    prepare([tmp_path / "again.tsv"], tmp_path / "again")
    again = facts_of(str(tmp_path / "again"))
    both = [(own, its) for own, its in zip(again["tables"], first["tables"], strict=True) if its["distinct"] > 30]
    ratios = [own["distinct"] / its["distinct"] for own, its in both]
    assert np.median(ratios) == pytest.approx(1, abs=0.05)
    assert max(np.abs(np.log(ratios))) < 0.3
    assert np.mean(again[click_law.PAIRS]["matrix"]) == pytest.approx(
        np.mean(first[click_law.PAIRS]["matrix"]), abs=0.06
    )
    assert again["positives_frac"] == pytest.approx(first["positives_frac"], abs=0.03)
    assert law.latents
    shown = beside(again, facts_of(str(file)))
    assert shown[::3] == [
        *("all tables as one", "largest difference"),
        *("spread of click rates, this log", "spread of click rates, facts"),
    ]
    assert "ids after 6,000 samples" in shown[4]
    assert shown[7].count("\nC") == shown[10].count("\nC") == 26
