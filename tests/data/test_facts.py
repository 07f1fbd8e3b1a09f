from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.data.facts import BATCH_SIZE, WINDOW, measure
from harness.data.prepare import prepare
from tests.data.logs import naive_values, random_rows, to_text, write_folder

NUM_ROWS = 1_500


def _top(counts: list[int], frac: float) -> float:
    return sum(sorted(counts, reverse=True)[: max(1, round(frac * len(counts)))]) / sum(counts)


def test_accesses_are_those_of_counting(tmp_path: Path) -> None:
    """Every figure of a table equals what a plain loop over the samples counts; so do those of all tables as one."""
    rows = random_rows(NUM_ROWS, seed=5, num_values=400)
    (tmp_path / "a").write_bytes(to_text(rows))
    prepare([tmp_path / "a"], tmp_path / "out", categories="hash", max_ind_range=997)
    *tables, pooled = measure(tmp_path / "out")
    every: list[int] = []
    in_batches = reused = 0
    for table, column in zip(tables, zip(*naive_values(rows)[2], strict=True), strict=True):
        ids = [value % 997 for value in column]
        counts = [*Counter(ids).values()]
        batches = [ids[start : start + BATCH_SIZE] for start in range(0, NUM_ROWS - BATCH_SIZE + 1, BATCH_SIZE)]
        distinct = [len({*batch}) for batch in batches]
        again = [place for place, value in enumerate(ids) if value in ids[max(0, place - WINDOW) : place]]
        every, in_batches, reused = [*every, *counts], in_batches + sum(distinct), reused + len(again)
        assert table.distinct == len(counts)
        assert table.top_1_percent_share == pytest.approx(_top(counts, 0.01))
        assert table.seen_once_frac_of_ids == pytest.approx(counts.count(1) / len(counts))
        assert table.accesses_to_seen_once_frac == pytest.approx(counts.count(1) / NUM_ROWS)
        assert table.distinct_per_batch_of_128 == pytest.approx(np.mean(distinct))
        assert table.reuse_within_1280_rows_in_file_order == pytest.approx(len(again) / NUM_ROWS)
    assert (pooled.column, pooled.distinct) == ("all", len(every))
    assert pooled.top_01_percent_share == pytest.approx(_top(every, 0.001))
    assert pooled.top_10_percent_share == pytest.approx(_top(every, 0.1))
    assert pooled.accesses_to_seen_once_frac == pytest.approx(every.count(1) / NUM_ROWS / 26)
    assert pooled.distinct_per_batch_of_128 == pytest.approx(in_batches / (NUM_ROWS // BATCH_SIZE))
    assert pooled.reuse_within_1280_rows_in_file_order == pytest.approx(reused / NUM_ROWS / 26)


def test_records_of_another_digest_are_one_line(tmp_path: Path) -> None:
    """Law: a flipped bit that leaves a possible value is found; six rows are a batch of their own before."""
    (tmp_path / "a").write_bytes(to_text(random_rows(6, seed=1)))
    prepare([tmp_path / "a"], tmp_path / "out")
    assert measure(tmp_path / "out")[0].distinct_per_batch_of_128 == measure(tmp_path / "out")[0].distinct
    content = bytearray((tmp_path / "out" / "records.bin").read_bytes())
    content[160 * 2 + 4] ^= 1  # a feature: no value of it is impossible
    (tmp_path / "out" / "records.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"records\.bin: damaged: expected digest"):
        measure(tmp_path / "out")


@pytest.mark.parametrize(("num_dense", "num_tables"), [(0, 22), (5, 1)])
def test_data_of_any_shape_are_measured(tmp_path: Path, num_dense: int, num_tables: int) -> None:
    """Law: a row for each table, and one for all."""
    write_folder(tmp_path / "out", 300, num_dense, num_tables)
    assert [each.distinct for each in measure(tmp_path / "out")] == [*[300] * num_tables, 300 * num_tables]
