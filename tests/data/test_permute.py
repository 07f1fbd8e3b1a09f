import numpy as np
import pytest

from harness.data.permute import Permutation


def _all(num_items: int, seed: int = 0, label: str = "train") -> np.ndarray:
    return Permutation(num_items, seed, label)(np.arange(num_items, dtype=np.uint64))


@pytest.mark.parametrize("num_items", [1, 2, 3, 5, 15, 16, 17, 127, 1_000, 65_536, 65_537, 300_007])
def test_is_a_bijection(num_items: int) -> None:
    """Every item comes exactly once, whatever the number of items."""
    assert np.array_equal(np.sort(_all(num_items)), np.arange(num_items))


def test_any_position_alone_equals_the_whole() -> None:
    """An item depends on its position, not on which others are asked for with it."""
    permutation, whole = Permutation(10_007, 3, "train"), _all(10_007, 3)
    for position in (0, 1, 5_003, 10_006):
        assert permutation(np.array([position], dtype=np.uint64))[0] == whole[position]


def test_is_a_function_of_seed_and_label() -> None:
    """The same seed and label agree; another seed, or another label, orders differently."""
    assert np.array_equal(_all(1_000, 7), _all(1_000, 7))
    assert not np.array_equal(_all(1_000, 7), _all(1_000, 8))
    assert not np.array_equal(_all(1_000, 7), _all(1_000, 7, "other"))


def test_leaves_no_trace_of_the_order() -> None:
    """Items correlate neither with their position nor with the item before, and neighbours do not stay neighbours."""
    num_items = 200_000
    items = _all(num_items, 1).astype(np.float64)
    positions = np.arange(num_items)
    bound = 5 / np.sqrt(num_items)  # five standard errors of a correlation of independent values
    assert abs(np.corrcoef(items, positions)[0, 1]) < bound
    assert abs(np.corrcoef(items[1:], items[:-1])[0, 1]) < bound
    assert np.sum(np.abs(np.diff(items)) == 1) < 20  # expected 2
