import numpy as np
import pytest

from harness.data.split import split_rows


def test_kaggle_splits_as_dlrm_splits_it() -> None:
    """45,840,617 rows give DLRM's published counts."""
    rows = split_rows(45_840_617)
    assert (rows.num_train, rows.first_validation - rows.num_train) == (39_291_958, 3_274_330)
    assert rows.num_rows - rows.first_validation == 3_274_329


@pytest.mark.parametrize("num_rows", range(14, 40))
def test_parts_are_those_of_array_split(num_rows: int) -> None:
    """The seven parts are numpy.array_split's, and every row belongs to exactly one set."""
    parts = np.array_split(np.arange(num_rows), 7)
    rows = split_rows(num_rows)
    assert rows.num_train == sum(len(part) for part in parts[:6])
    assert rows.first_validation - rows.num_train == -(-len(parts[6]) // 2)
    assert rows.num_train < rows.first_validation < rows.num_rows
