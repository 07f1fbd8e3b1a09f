import json
import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.data import facts as data_facts
from harness.data import records
from harness.data.facts import BATCH_SIZE, COUNT_BINS, WINDOW, measure, mutual_information, read_facts, write_facts
from harness.data.prepare import prepare
from tests.data.logs import naive_values, random_rows, to_text, write_folder

NUM_ROWS = 1_500


def _top(counts: list[int], num_top: int) -> float:
    return sum(sorted(counts, reverse=True)[:num_top]) / sum(counts)


def _spread(counts: dict[int, int], clicks: dict[int, int], first: int, last: float) -> float | None:
    own = [(counts[value], clicks[value]) for value in counts if first <= counts[value] <= last]
    if len(own) < 3:
        return None
    total = sum(count for count, _ in own)
    squares = sum(count * click * (click - 1) / (count * (count - 1)) for count, click in own) / total
    return math.sqrt(max(squares - (sum(click for _, click in own) / total) ** 2, 0))


def test_facts_are_those_of_counting(tmp_path: Path) -> None:
    """Every fact of a table equals what a plain loop over the samples counts; so do those of all tables as one."""
    rows = random_rows(NUM_ROWS, seed=5, num_values=400)
    (tmp_path / "a").write_bytes(to_text(rows))
    prepare([tmp_path / "a"], tmp_path / "out", categories="hash", max_ind_range=997)
    facts = measure(tmp_path / "out", growth_rows=(7, 700))
    labels, _, values = naive_values(rows)
    assert (facts.rows, facts.positives_frac) == (NUM_ROWS, sum(labels) / NUM_ROWS)
    every: list[int] = []
    in_batches = 0
    for table, column in zip(facts.tables, zip(*values, strict=True), strict=True):
        ids = [value % 997 for value in column]
        counts, clicks = Counter(ids), defaultdict(int)
        for value, label in zip(ids, labels, strict=True):
            clicks[value] += label
        every += counts.values()
        once = [value for value, count in counts.items() if count == 1]
        batches = [ids[start : start + BATCH_SIZE] for start in range(0, NUM_ROWS - BATCH_SIZE + 1, BATCH_SIZE)]
        distinct = [len({*batch}) for batch in batches]
        in_batches += sum(distinct)
        reused = [place for place, value in enumerate(ids) if value in ids[max(0, place - WINDOW) : place]]
        assert table.distinct == len(counts)
        assert table.distinct_after_rows == {n: len({*ids[:n]}) for n in (7, 700, 1_000, NUM_ROWS)}
        assert table.top_1_percent_share == pytest.approx(_top([*counts.values()], max(1, round(len(counts) / 100))))
        assert table.seen_once_frac_of_ids == pytest.approx(len(once) / len(counts))
        assert table.accesses_to_seen_once_frac == pytest.approx(len(once) / NUM_ROWS)
        assert table.share_of_accesses_of_rank[2] == pytest.approx(sorted(counts.values())[-2] / NUM_ROWS)
        assert table.distinct_per_batch_of_128 == pytest.approx(np.mean(distinct))
        assert table.reuse_within_1280_rows_in_file_order == pytest.approx(len(reused) / NUM_ROWS)
        for part, (first, last) in zip(table.by_count, COUNT_BINS, strict=True):
            own = [value for value in counts if first <= counts[value] <= (last or math.inf)]
            assert part.ids == len(own)
            assert part.accesses_frac == pytest.approx(sum(counts[value] for value in own) / NUM_ROWS)
            if first > 1:
                assert part.ctr_sd_between_ids == pytest.approx(_spread(counts, clicks, first, last or math.inf))
    assert facts.pooled.distinct == len(every)
    assert facts.pooled.top_10_percent_share == pytest.approx(_top(every, len(every) // 10))
    assert facts.pooled.distinct_rows_per_batch_of_128 == pytest.approx(in_batches / (NUM_ROWS // BATCH_SIZE))


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


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Facts of a few rows too; one missing, or other content, is one line, and so are records of another digest."""
    (tmp_path / "a").write_bytes(to_text(random_rows(6, seed=1)))
    prepare([tmp_path / "a"], tmp_path / "out")
    facts = measure(tmp_path / "out")
    assert facts.tables[0].distinct_per_batch_of_128 == facts.tables[0].distinct
    path = tmp_path / "facts.json"
    write_facts(path, facts)
    assert read_facts(path) == facts
    content = json.loads(path.read_text())
    for name, value in (("rows", 0), ("positives_frac", 7), ("tables", []), ("tables", [{}, *content["tables"][1:]])):
        path.write_text(json.dumps({**content, name: value}))
        with pytest.raises(DataError, match=rf"facts\.json: expected what `run.py data info .*{name}"):
            read_facts(path)
    path.write_text("[]")
    with pytest.raises(DataError, match=r"facts\.json: expected what"):
        read_facts(path)
    content = bytearray((tmp_path / "out" / "records.bin").read_bytes())
    content[160 * 2 + 4] ^= 1  # a feature: no value of it is impossible
    (tmp_path / "out" / "records.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"records\.bin: damaged: expected digest"):
        measure(tmp_path / "out")


def test_pairs_are_measured_in_evenly_spaced_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: in every fourth sample of the file where a quarter is allowed, wherever blocks of records begin."""
    prepared = tmp_path / "out"
    (tmp_path / "a").write_bytes(to_text(random_rows(1_000, seed=6)))
    prepare([tmp_path / "a"], prepared)
    monkeypatch.setattr(data_facts, "_MAX_PAIR_SAMPLES", 250)
    monkeypatch.setattr(records, "_BLOCK_ROWS", 333)
    ids_SF = np.fromfile(prepared / records.RECORDS_NAME, np.int32).reshape(1_000, -1)[::4, 14:]
    assert np.array_equal(measure(prepared).pairs.matrix, mutual_information(ids_SF))


@pytest.mark.parametrize(("num_dense", "num_tables"), [(0, 22), (5, 1)])
def test_data_of_any_shape_have_facts(tmp_path: Path, num_dense: int, num_tables: int) -> None:
    """Each table has its facts, and each two tables a value; a file of facts is of 26 tables."""
    write_folder(tmp_path / "out", 300, num_dense, num_tables)
    facts = measure(tmp_path / "out")
    assert [table.distinct for table in facts.tables] == [300] * num_tables
    assert facts.pooled.distinct == 300 * num_tables
    assert np.shape(facts.pairs.matrix) == (num_tables, num_tables)
    write_facts(tmp_path / "facts.json", facts)
    with pytest.raises(DataError, match=rf"facts\.json: expected facts of Criteo's 26 tables, got {num_tables}"):
        read_facts(tmp_path / "facts.json")
