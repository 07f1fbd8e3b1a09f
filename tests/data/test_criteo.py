import random

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.data.criteo import parse_rows
from tests.data.logs import naive_values, random_rows, to_text


@pytest.mark.parametrize("newlines", [("\n", "\n"), ("\r\n", "\r\n"), ("\n", "\r\n")])
def test_equals_the_plainest_reading(newlines: tuple[str, str]) -> None:
    """Every field decodes to what int() makes of it, missing to 0, whichever way lines end, both ways in one file."""
    rows = random_rows(3_000, seed=1)
    labels, integers, categories = naive_values(rows)
    text = b"".join(to_text([row], newlines[number % 2]) for number, row in enumerate(rows))
    parsed = parse_rows(text, name="x", first_line=1)
    assert parsed.labels_R.tolist() == labels
    assert parsed.integers_RI.tolist() == integers
    assert parsed.categories_RF.tolist() == categories


def test_the_extremes_of_each_type_decode() -> None:
    """The largest hex value, 16 digits with and without a sign, zeros of any length, a row of nothing but missing."""
    row = ["1", "9999999999999999", "-9999999999999999", "0", "-0", "00000000", "0000000000000000", *[""] * 7]
    row += ["ffffffff", "FFFFFFFF", "0", "00000000", "f", "F", *[""] * 20]
    parsed = parse_rows(to_text([row, ["0"] + [""] * 39]), name="x", first_line=1)
    assert parsed.integers_RI[0, :6].tolist() == [9999999999999999, -9999999999999999, 0, 0, 0, 0]
    assert parsed.categories_RF[0, :6].tolist() == [2**32 - 1, 2**32 - 1, 0, 0, 15, 15]
    assert not parsed.integers_RI[1].any()
    assert not parsed.categories_RF[1].any()


def _with(column: int, value: str) -> bytes:
    """Sixty good rows, the 41st of them with ``value`` in ``column``."""
    rows = random_rows(60, seed=3)
    rows[40][column] = value
    return to_text(rows)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, "2", "bad label '2', expected 0 or 1"),
        (0, "", "bad label '', expected 0 or 1"),
        (0, "01", "bad label '01', expected 0 or 1"),
        (0, "label", "bad label 'label', expected 0 or 1"),
        (1, "1.5", "I1: bad integer '1.5', expected up to 16 digits"),
        (13, "x", "I13: bad integer 'x', expected up to 16 digits"),
        (5, "-", "I5: bad integer '-', expected up to 16 digits"),
        (5, "--1", "I5: bad integer '--1', expected up to 16 digits"),
        (5, "+1", "I5: bad integer '+1', expected up to 16 digits"),
        (5, " 1", "I5: bad integer ' 1', expected up to 16 digits"),
        (5, "1-", "I5: bad integer '1-', expected up to 16 digits"),
        (5, "x23456789", "I5: bad integer 'x23456789', expected up to 16 digits"),
        (5, "12345678901234567", "I5: bad integer '12345678901234567', expected up to 16 digits"),
        (14, "68fd1e6g", "C1: bad hex '68fd1e6g', expected up to 8 hexadecimal digits"),
        (39, "-1", "C26: bad hex '-1', expected up to 8 hexadecimal digits"),
        (20, "068fd1e64", "C7: bad hex '068fd1e64', expected up to 8 hexadecimal digits"),
        (20, "0x12", "C7: bad hex '0x12', expected up to 8 hexadecimal digits"),
        (20, "ab\0", "C7: bad hex 'ab\\x00', expected up to 8 hexadecimal digits"),
        (20, "é", "C7: bad hex 'é', expected up to 8 hexadecimal digits"),
        (20, "a\rb", "C7: bad hex 'a\\rb', expected up to 8 hexadecimal digits"),
        (3, "1\t2", "41 columns, expected 40"),
        (3, "1\n2", "4 columns, expected 40"),
        (39, "1\n\n", "1 columns, expected 40"),
    ],
)
def test_a_bad_field_is_named_with_its_line(column: int, value: str, message: str) -> None:
    """File, line, column, what it holds and what would be right."""
    with pytest.raises(DataError) as caught:
        parse_rows(_with(column, value), name="logs/day_0", first_line=1_001)
    line = 1042 if value.endswith("\n") else 1041
    assert str(caught.value) == f"logs/day_0:{line}: {message}"


def test_the_first_of_several_faults_is_reported() -> None:
    """Faults of different kinds are reported in the order of the file."""
    rows = random_rows(50, seed=6)
    rows[30][20] = "zz"
    rows[20][4] = "zz"
    rows[40] = rows[40][:-2]
    with pytest.raises(DataError, match=r"^f:21: I4: "):
        parse_rows(to_text(rows), name="f", first_line=1)


def test_any_single_corrupted_byte_is_judged_alike_by_both_decoders() -> None:
    """A byte changed anywhere is either refused with a message or read as int() reads it; never misread."""
    chance = random.Random(7)
    rows = random_rows(4, seed=7)
    good = to_text(rows)
    refused = 0
    for _ in range(3_000):
        text = bytearray(good)
        text[chance.randrange(len(text) - 1)] = chance.randrange(256)
        try:
            parsed = parse_rows(bytes(text), name="f", first_line=1)
        except DataError:
            refused += 1
            continue
        read = [line.split("\t") for line in text.decode().replace("\r\n", "\n").split("\n")[:-1]]
        labels, integers, categories = naive_values(read)
        assert parsed.labels_R.tolist() == labels
        assert np.array_equal(parsed.integers_RI, integers)
        assert np.array_equal(parsed.categories_RF, categories)
    assert 1_000 < refused < 2_990
