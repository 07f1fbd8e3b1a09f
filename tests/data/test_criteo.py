"""Laws of Criteo's text: what is read, what is written, how categories are numbered."""

import random
from typing import Any

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.data.criteo import MAX_INTEGER, format_rows
from harness.data.delimited import DecodedRows, RowReader
from harness.data.prepare import Numbering
from harness.data.sources import Chunk
from tests.data.logs import naive_values, random_rows, to_text


def read(text: bytes, name: str = "x", first_line: int = 1) -> DecodedRows:
    """The rows of a text in Criteo's format."""
    return RowReader(None, name).rows(Chunk(text, first_line))


def stored(integers: Any) -> Any:
    """What is stored of integers: log(max(x, 0) + 1)."""
    return np.log(np.maximum(np.array(integers, np.int64), 0) + 1.0)


def test_equals_the_plainest_reading() -> None:
    """Every field decodes to what int() makes of it, missing to 0, also the extremes, with both line ends in a file."""
    extremes = ["1", "9999999999999999", "-9999999999999999", "0", "-0", "00000000", "0000000000000000", *[""] * 7]
    extremes += ["ffffffff", "FFFFFFFF", "0", "00000000", "f", "F", *[""] * 20]
    rows = [*random_rows(3_000, seed=1), extremes, ["0"] + [""] * 39]
    text = b"".join(to_text([row], ("\n", "\r\n")[number % 2]) for number, row in enumerate(rows))
    parsed = read(text)
    labels, integers, categories = naive_values(rows)
    assert parsed.labels_R.tolist() == labels
    assert np.array_equal(parsed.dense_RI, stored(integers))
    assert parsed.values_FR.T.tolist() == categories


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        *((0, value, f"label: bad label '{value}', expected 0 or 1") for value in ("2", "", "01")),
        (1, "1.5", "I1: bad integer '1.5', expected up to 16 digits"),
        *(
            (13, value, f"I13: bad integer '{value}', expected up to 16 digits")
            for value in ("-", "--1", "+1", " 1", "1-", "12345678901234567")
        ),
        (14, "68fd1e6g", "C1: bad hex '68fd1e6g', expected up to 8 hexadecimal digits"),
        (39, "-1", "C26: bad hex '-1', expected up to 8 hexadecimal digits"),
        (20, "068fd1e64", "C7: bad hex '068fd1e64', expected up to 8 hexadecimal digits"),
        (20, "ab\0", "C7: bad hex 'ab\\x00', expected up to 8 hexadecimal digits"),
        (20, "a\rb", "C7: bad hex 'a\\rb', expected up to 8 hexadecimal digits"),
        (3, "1\t2", "41 columns, expected 40 separated by tabs"),
        (3, "1\n2", "4 columns, expected 40 separated by tabs"),
        (39, "1\n\n", "1 columns, expected 40 separated by tabs"),
    ],
)
def test_the_first_bad_field_is_named_with_its_line(column: int, value: str, message: str) -> None:
    """File, line, column, what it holds and what would be right; faults after it do not matter."""
    rows = random_rows(60, seed=3)
    rows[40][column] = value
    rows[50] = ["x", *rows[50][:-2]]
    with pytest.raises(DataError) as caught:
        read(to_text(rows), "logs/day_0", 1_001)
    line = 1042 if value.endswith("\n") else 1041
    assert str(caught.value) == f"logs/day_0:{line}: {message}"


def test_any_single_corrupted_byte_is_refused_or_read_as_it_stands() -> None:
    chance = random.Random(7)
    good = to_text(random_rows(4, seed=7))
    refused = 0
    for _ in range(1_000):
        text = bytearray(good)
        text[chance.randrange(len(text) - 1)] = chance.randrange(256)
        try:
            parsed = read(bytes(text))
        except DataError:
            refused += 1
            continue
        labels, integers, categories = naive_values(
            [line.split("\t") for line in text.decode().replace("\r\n", "\n").split("\n")[:-1]]
        )
        assert parsed.labels_R.tolist() == labels
        assert np.array_equal(parsed.dense_RI, stored(integers))
        assert np.array_equal(parsed.values_FR.T, categories)
    assert 300 < refused < 997


def test_what_is_written_is_what_is_read() -> None:
    """Rows come back from their text, which looks like Criteo's; missing values are empty, and come back as 0."""
    generator = np.random.default_rng(0)
    num_rows = 2_000
    labels = generator.random(num_rows) < 0.5
    integers = generator.integers(-50, 10 ** generator.integers(0, 9, (num_rows, 13)))
    integers[0] = MAX_INTEGER, -MAX_INTEGER, 0, -1, 120, 0, 10, 7, 0, 1_000_000, 3, 0, 2
    categories = generator.integers(0, 2**32, (num_rows, 26), dtype=np.uint64).astype(np.uint32)
    categories[0, :3] = 0, 2**32 - 1, 0x9ABCDEF
    missing = generator.random((num_rows, 39)) < 0.3
    missing[0] = np.arange(39) == 5
    text = format_rows(labels, integers, missing[:, :13], categories, missing[:, 13:])
    columns = text.decode().split("\t")[1:17]
    assert columns[:13] == ["99999999", "-99999999", "0", "-1", "120", "", "10", "7", "0", "1000000", "3", "0", "2"]
    assert columns[13:] == ["00000000", "ffffffff", "09abcdef"]
    rows = read(text)
    assert np.array_equal(rows.labels_R, labels)
    assert np.array_equal(rows.dense_RI, stored(np.where(missing[:, :13], 0, integers)))
    assert np.array_equal(rows.values_FR.T, np.where(missing[:, 13:], 0, categories))


def test_numbering_equals_a_dict() -> None:
    """Ids are those of a dict filled value by value, in whatever chunks, as the table grows; few bytes hold an id.

    So are those of values whose search starts at one slot, near the end of the table.
    """
    generator = np.random.default_rng(0)
    crowd = ((1020 << 54) + np.arange(900, dtype=np.uint64)) * np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
    cases = [generator.integers(0, spread, num, dtype=np.uint64) for spread, num in ((5, 60), (2**40, 300_000))]
    for values in (*cases, np.concatenate([crowd, crowd[::-1], crowd[:1] * 0])):
        numbering, known = Numbering(), dict[int, int]()
        for part in np.array_split(values, 60):
            expected = [known.setdefault(value, len(known)) for value in part.tolist()]
            assert numbering.ids(part).tolist() == expected
            assert numbering.num_ids == len(known)
            num_bytes = sum(each.nbytes for each in vars(numbering).values() if isinstance(each, np.ndarray))
            assert len(known) < 1000 or num_bytes <= 24.1 * len(known)
