import numpy as np

from harness.data.criteo import parse_rows
from harness.data.text import MAX_INTEGER, format_rows


def test_what_is_written_is_what_is_read() -> None:
    """Any rows come back from their text, missing values as 0."""
    generator = np.random.default_rng(0)
    num_rows = 2_000
    labels = generator.random(num_rows) < 0.5
    integers = generator.integers(-50, 10 ** generator.integers(0, 9, (num_rows, 13)))
    integers[0, :4] = MAX_INTEGER, -MAX_INTEGER, 0, -1
    categories = generator.integers(0, 2**32, (num_rows, 26), dtype=np.uint64).astype(np.uint32)
    categories[0, :2] = 0, 2**32 - 1
    missing = generator.random((num_rows, 39)) < 0.3
    missing[0] = False
    text = format_rows(labels, integers, missing[:, :13], categories, missing[:, 13:])
    rows = parse_rows(text, name="f", first_line=1)
    assert np.array_equal(rows.labels_R, labels)
    assert np.array_equal(rows.integers_RI, np.where(missing[:, :13], 0, integers))
    assert np.array_equal(rows.categories_RF, np.where(missing[:, 13:], 0, categories))


def test_a_row_looks_like_criteos() -> None:
    """Label, integers without leading zeros, eight hexadecimal digits, nothing between two tabs where missing."""
    integers = np.array([[0, 5, -1, 120, 0, 10, 7, 0, 1000000, 3, 0, 0, 2]])
    categories = np.arange(26, dtype=np.uint32)[None] * np.uint32(0x09ABCDEF)
    missing = np.zeros((1, 39), dtype=np.bool_)
    missing[0, [4, 15]] = True
    text = format_rows(np.array([True]), integers, missing[:, :13], categories, missing[:, 13:])
    columns = text.decode().split("\t")
    assert text.endswith(b"\n")
    assert columns[:14] == ["1", "0", "5", "-1", "120", "", "10", "7", "0", "1000000", "3", "0", "0", "2"]
    assert columns[14:18] == ["00000000", "09abcdef", "", "1d0369cd"]
