from collections import Counter
from pathlib import Path

import pytest

from harness.core.errors import DataError
from harness.data.info import info
from harness.data.prepare import prepare
from tests.data.logs import naive_values, random_rows, to_text


def _share(counts: list[int], num_top: float) -> float:
    ordered = sorted(counts, reverse=True)
    return sum(ordered[: max(1, int(num_top))]) / sum(ordered)


@pytest.mark.parametrize("hashed", [False, True])
def test_shares_are_those_of_counting(tmp_path: Path, hashed: bool) -> None:
    """Rows, positives and every share equal what a Counter per table says."""
    rows = random_rows(1_500, seed=5, num_values=400)
    (tmp_path / "a").write_bytes(to_text(rows))
    if hashed:
        prepare([tmp_path / "a"], tmp_path / "out", categories="hash", max_ind_range=997)
    else:
        prepare([tmp_path / "a"], tmp_path / "out")
    measured = info(tmp_path / "out")
    labels, _, values = naive_values(rows)
    counters = [Counter(value % 997 if hashed else value for value in column) for column in zip(*values, strict=True)]
    assert (measured.num_rows, measured.num_positives) == (1_500, sum(labels))
    for table, counter in zip(measured.tables, counters, strict=True):
        counts = list(counter.values())
        assert table.num_seen == len(counts)
        assert table.num_rows == (997 if hashed else len(counts))
        assert table.top1_share == pytest.approx(_share(counts, 0.01 * table.num_rows))
        assert table.top10_share == pytest.approx(_share(counts, 0.10 * table.num_rows))
        assert table.top1_seen_share == pytest.approx(_share(counts, 0.01 * len(counts)))
    every = [count for counter in counters for count in counter.values()]
    assert measured.num_table_rows == sum(measured.cardinalities)
    assert measured.top1_share == pytest.approx(_share(every, 0.01 * measured.num_table_rows))
    assert measured.top1_seen_share == pytest.approx(_share(every, 0.01 * len(every)))


def test_tracked_tables_are_the_largest(tmp_path: Path) -> None:
    """They are as many as asked for, none smaller than any other, and each table says whether it is one."""
    (tmp_path / "a").write_bytes(to_text(random_rows(500, seed=6)))
    prepare([tmp_path / "a"], tmp_path / "out")
    measured = info(tmp_path / "out", num_tracked=3)
    sizes = sorted(measured.cardinalities, reverse=True)
    assert sorted((measured.cardinalities[t] for t in measured.tracked_tables), reverse=True) == sizes[:3]
    assert measured.tracked_rows_frac == sum(sizes[:3]) / sum(sizes)
    assert tuple(table.table for table in measured.tables if table.tracked) == measured.tracked_tables


def test_any_flipped_bit_is_found(tmp_path: Path) -> None:
    """Law: records that are possible but not those that were prepared are one line that names the file."""
    (tmp_path / "a").write_bytes(to_text(random_rows(500, seed=6)))
    prepare([tmp_path / "a"], tmp_path / "out")
    info(tmp_path / "out")
    records = bytearray((tmp_path / "out" / "records.bin").read_bytes())
    records[160 * 123 + 4] ^= 1  # a feature: no value of it is impossible
    (tmp_path / "out" / "records.bin").write_bytes(records)
    with pytest.raises(DataError, match=r"records\.bin: damaged: expected digest .* of meta\.json, got [0-9a-f]{32};"):
        info(tmp_path / "out")
