"""Laws of delimited logs: Avazu's, and those that a schema describes. An independent reader is pandas."""

import csv
import gzip
import io
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xxhash

from harness.core.errors import ConfigError, DataError
from harness.data.dataset import Dataset
from harness.data.delimited import AVAZU, RowReader, read_schema
from harness.data.prepare import prepare
from harness.data.records import RECORDS_NAME, Schema, read_meta
from harness.data.sources import Chunk
from tests.data.logs import random_rows, to_text

DATA_PAGE = Path(__file__).parents[2] / "docs" / "DATA.md"
NUM_ROWS = 3_000
HEADER = ["id", "click", *AVAZU.categories]
OWN = Schema(
    separator="|",
    label="bought",
    dense={"age": "none", "price": "log1p"},
    categories=("shop", "item"),
    missing=("NA", "-99"),
)


def _avazu_rows(num_rows: int) -> list[list[str]]:
    """Rows as Kaggle's: hexadecimal ids, numbers, -1 for unknown; some values missing."""
    chance = random.Random(5)

    def value(column: str) -> str:
        if chance.random() < 0.02:
            return ""
        if column.startswith(("site", "app", "device_i", "device_m")):
            return f"{int(chance.paretovariate(0.4)) % 50_000 * 2654435761 % 2**32:08x}"
        return str(chance.choice([-1, 0, 1, 2, 15706, 320, 14102100]))

    return [
        [str(chance.randrange(2**63)), str(int(chance.random() < 0.17)), *(value(name) for name in AVAZU.categories)]
        for _ in range(num_rows)
    ]


def _text(rows: Sequence[Sequence[str]], *, separator: str = ",", newline: str = "\n", quote: bool = False) -> bytes:
    file = io.StringIO()
    quoting = csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=separator, lineterminator=newline, quoting=quoting).writerows(rows)
    return file.getvalue().encode()


def _ids(values: Iterable[str]) -> list[int]:
    """Ids in order of first appearance."""
    return pd.factorize(np.array([*values], object))[0].tolist()


def _words(folder: Path) -> np.ndarray:
    return np.fromfile(folder / RECORDS_NAME, np.int32).reshape(-1, read_meta(folder).num_columns)


def _own_rows(num_rows: int) -> list[list[str]]:
    chance = random.Random(8)

    def number() -> str:
        value = chance.gauss(0, 1) * 10 ** chance.randint(-8, 8)
        texts = "", "NA", "-99", repr(value), f"{value:.3e}", str(round(value)), f"+{abs(value):.2f}", ".5"
        return chance.choice(texts)

    def row() -> Iterator[str]:
        yield number()
        yield chance.choice(["a|b", 'say "x"', "NA", "", "ü", "-99", *"cdefg"])
        yield chance.choice("01")
        yield "ignored"
        yield chance.choice(["", "NA", *map(str, range(300))])
        yield number()

    return [[*row()] for _ in range(num_rows)]


OWN_HEADER = ["age", "shop", "bought", "note", "item", "price"]
BY_NUMBER: dict[str, Any] = {"separator": "|", "header": False, "label": 3, "missing": ["NA", -99]}
BY_NUMBER |= {"dense": {"1": "none", "6": "log1p"}, "categories": [2, 5]}
LOGS = {
    "avazu": (AVAZU, [HEADER, *_avazu_rows(NUM_ROWS)], "\n"),
    "bars": (AVAZU, [[row[1], row[0], *row[2:]] for row in [HEADER, *_avazu_rows(NUM_ROWS)]], "\r\n"),
    "own": (OWN, [OWN_HEADER, *_own_rows(NUM_ROWS)], "\n"),
    "by number": (Schema.model_validate(BY_NUMBER), _own_rows(NUM_ROWS), "\n"),
}


@pytest.mark.parametrize("name", LOGS)
def test_rows_are_those_that_pandas_reads(tmp_path: Path, name: str) -> None:
    """Labels; floats to float32, transformed or not; ids in order of first appearance; missing words 0, or one id.

    Columns have names or numbers from 1; others are ignored. The file may be BARS' (``click`` first, all in quotes, a
    byte order mark) or Kaggle's, be cut anywhere and have no last line end.
    """
    schema, rows, newline = LOGS[name]
    text = _text(rows, separator=schema.separator, newline=newline, quote=name == "bars").removesuffix(newline.encode())
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbf" * (name == "bars") + text)
    meta = prepare([tmp_path / "train.csv"], tmp_path / "out", columns=schema, chunk_bytes=50_000)
    header = 0 if schema.header else None
    frame = pd.read_csv(
        tmp_path / "train.csv", sep=schema.separator, dtype=str, keep_default_na=False, header=header
    ).rename(columns=lambda place: place if schema.header else str(place + 1))
    frame = frame.replace(dict.fromkeys(schema.missing, ""))
    words = _words(tmp_path / "out")
    floats = words[:, : 1 + len(schema.dense)].view(np.float32)
    assert (meta.num_rows, meta.num_dense, meta.num_tables) == (NUM_ROWS, len(schema.dense), len(schema.categories))
    assert read_meta(tmp_path / "out") == meta
    assert floats[:, 0].tolist() == frame[schema.label].astype(float).tolist()
    assert meta.num_positives == (frame[schema.label] == "1").sum()
    for column, (feature, transform) in enumerate(schema.dense.items(), start=1):
        values = frame[feature].replace("", "0").map(float).to_numpy()
        assert (values < 0).any()
        values = values if transform == "none" else np.log(np.maximum(values, 0) + 1)
        assert np.array_equal(floats[:, column], values.astype(np.float32))
    for table, column in enumerate(schema.categories):
        assert words[:, floats.shape[1] + table].tolist() == _ids(frame[column])
        assert meta.cardinalities[table] == frame[column].nunique()
    batch = Dataset.open(tmp_path / "out", split="chronological", seed=0).train_batch(3, 100)
    assert np.array_equal(batch.dense_BI.numpy(), floats[300:400, 1:])
    assert np.array_equal(batch.ids_BF, words[300:400, floats.shape[1] :])


def test_hashed_text_is_the_xxh64_of_its_bytes(tmp_path: Path) -> None:
    """Modulo the size of the table; with a modulus, numbering counts what the modulus leaves apart."""
    rows = _avazu_rows(500)
    rows[3][4] = "ü" * 40 + ","  # longer than the hash's block, and quoted
    rows[4][4] = 'says "no"'
    (tmp_path / "a.csv").write_bytes(_text([HEADER, *rows]))
    hashed = [[xxhash.xxh64_intdigest(value.encode()) % 97 for value in row[2:]] for row in rows]
    meta = prepare([tmp_path / "a.csv"], tmp_path / "hash", columns=AVAZU, categories="hash", max_ind_range=97)
    assert meta.cardinalities == (97,) * 22
    assert _words(tmp_path / "hash")[:, 1:].tolist() == hashed
    meta = prepare([tmp_path / "a.csv"], tmp_path / "number", columns=AVAZU, max_ind_range=97)
    for table, column in enumerate(zip(*hashed, strict=True)):
        assert _words(tmp_path / "number")[:, 1 + table].tolist() == _ids(column)


def test_files_are_read_one_after_the_other_each_by_its_header(tmp_path: Path) -> None:
    """Gzip, and another order of columns, change nothing; the digest is that of one file."""
    rows = _avazu_rows(600)
    (tmp_path / "whole").write_bytes(_text([HEADER, *rows]))
    (tmp_path / "a.gz").write_bytes(gzip.compress(_text([HEADER, *rows[:200]])))
    (tmp_path / "b").write_bytes(_text([row[::-1] for row in [HEADER, *rows[200:]]]))
    whole = prepare([tmp_path / "whole"], tmp_path / "one", columns=AVAZU)
    assert prepare([tmp_path / "a.gz", tmp_path / "b"], tmp_path / "two", columns=AVAZU).digest == whole.digest


def test_criteos_log_as_csv_has_the_digest_of_the_original(tmp_path: Path) -> None:
    """The schema of docs/DATA.md, and whole numbers as pandas writes them beside missing ones."""
    rows = random_rows(400, seed=4)
    for row in rows:
        row[14:] = [f"{int(value or '0', 16):08x}" for value in row[14:]]  # each value in one spelling
        row[20] = row[20].replace("00000000", "")
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{c}" for c in range(1, 27))]
    as_floats = [[*row[:1], *(f"{value}.0" if value else "" for value in row[1:14]), *row[14:]] for row in rows]
    (tmp_path / "a.tsv").write_bytes(to_text(rows))
    (tmp_path / "a.csv").write_bytes(_text([names, *as_floats]))
    schema = next(text for text in DATA_PAGE.read_text().split("```yaml\n") if text.startswith("label: label\n"))
    (tmp_path / "a.yaml").write_text(schema.partition("```")[0])
    made = prepare([tmp_path / "a.csv"], tmp_path / "csv", columns=read_schema(tmp_path / "a.yaml"))
    assert made.digest == prepare([tmp_path / "a.tsv"], tmp_path / "tsv").digest


def _bad(row: int, column: str, value: str) -> bytes:
    rows = _avazu_rows(60)
    rows[row][HEADER.index(column)] = value
    return _text([HEADER, *rows])


GOOD = _text([HEADER, *_avazu_rows(60)])
AVAZU_LINE = ",".join(AVAZU.categories)
NO_HEADER = Schema(label="2", categories=("1",), header=False)
FAULTS: list[tuple[Schema | None, bytes, str]] = [
    (AVAZU, _bad(40, "click", "2"), ":42: click: bad label '2', expected 0 or 1"),
    (AVAZU, _bad(0, "click", ""), ":2: click: bad label '', expected 0 or 1"),
    (AVAZU, GOOD + b"1,2,3\n", ":62: 3 columns, expected 24"),
    (AVAZU, GOOD + b"1,0" + b",x" * 23, ":62: 25 columns, expected 24"),
    (
        *(AVAZU, _bad(5, "site_id", "a\nb")),
        ':7: bad quotes in \'"a\', expected "TEXT" in one line, and a separator after it',
    ),
    (AVAZU, GOOD + b'1,0,"a"b' + b",x" * 21, ':62: bad quotes in \'"a"b,x,x'),
    (
        *(AVAZU, GOOD.replace(b"click", b"clicks")),
        ":1: expected a header with the column click, got 'id, clicks, hour, C1, … ; did you mean clicks?",
    ),
    (AVAZU, GOOD.replace(b"C14", b"C1"), ":1: expected the column C1 once in the header, got it twice or more"),
    (AVAZU, b"", ": expected at least one row, got none"),
    (AVAZU, _text([HEADER]), ": expected at least one row, got none"),
    # other columns are known by the first line
    (None, b"1\t" * 38 + b"1\n", ":1: 39 columns, expected 40 … ; rows without labels, as in a test file, cannot be"),
    (None, b"1," * 39 + b"1\n", ":1: 1 columns, expected 40 … ; --format csv --schema FILE.yaml reads other columns"),
    (None, b"label" + b"\tI1" * 39, ":1: label: bad label 'label', expected 0 or 1; --format csv --schema FILE.yaml"),
    (AVAZU, f"click,{AVAZU_LINE}".replace("device_ip,", "").encode(), ":1: expected a header … ; --format csv"),
    (AVAZU, AVAZU_LINE.encode(), ":1: expected a header with the column click, … ; rows without labels"),
    (OWN, b"item|shop|age|price\n1|2|3|4\n", ":1: expected a header with the column bought, … ; rows without labels"),
    (OWN, b"bought,age,price,shop,item\n", ":1: expected a header … ; is the separator ','?"),
    (NO_HEADER, b"a;1\n", ":1: 1 columns, … ; is the separator ';'?"),
    (NO_HEADER, b"a,y\n", ":1: column 2: bad label … (header: true)?"),
    (NO_HEADER, b"a\n", ":1: 1 columns, expected at least 2"),
    (NO_HEADER, b"a,1\na,1,b\n", ":2: 3 columns, expected 2"),
]


@pytest.mark.parametrize(("columns", "text", "message"), FAULTS)
def test_a_blemish_is_one_line_and_nothing_is_left(
    tmp_path: Path, columns: Schema | None, text: bytes, message: str
) -> None:
    """File, line, column, what it holds, what would be right, and for another format what to do."""
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(DataError) as caught:
        prepare([tmp_path / "a.csv"], tmp_path / "out", columns=columns, chunk_bytes=700)
    start, *parts = message.split(" … ")
    assert str(caught.value).startswith(f"{tmp_path / 'a.csv'}{start}")
    assert all(part in str(caught.value) for part in parts)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_bad_value_of_a_schema_is_named_with_its_column() -> None:
    numbers = ("x", "1,5", "nan", "inf", "1e39", "0x10", "1_000", " 1", "1e", "-", ".", "--1", "-1e400")
    number = "bad number '{}', expected a decimal number of magnitude below 3.4e38"
    faults = [(column, value, number) for column in (0, 5) for value in numbers]
    faults += [(2, value, "bad label '{}', expected 0 or 1") for value in ("true", "NA")]
    for column, value, what in faults:
        rows = _own_rows(60)
        rows[40][column] = value
        with pytest.raises(DataError) as caught:
            RowReader(OWN, "a.csv").rows(Chunk(_text([OWN_HEADER, *rows], separator="|"), 1))
        assert str(caught.value) == f"a.csv:42: {OWN_HEADER[column]}: {what.format(value)}"


def test_a_byte_is_no_missing_word_that_is_spelled_like_it() -> None:
    r"""Law: the byte 0xff is a bad number also where the four characters \\xff are a word for a missing value."""
    schema = Schema(label="y", dense={"a": "none"}, categories=("c",), missing=(r"\xff",))
    assert RowReader(schema, "a").rows(Chunk(b"y,a,c\n1,\\xff,q\n", 1)).dense_RI.tolist() == [[0.0]]
    with pytest.raises(DataError, match=r"^a:2: a: bad number '\\\\xff', expected a decimal number"):
        RowReader(schema, "a").rows(Chunk(b"y,a,c\n1,\xff,q\n", 1))


def test_any_single_corrupted_byte_is_refused_or_read_as_it_stands() -> None:
    """The fast decoder and Python's readers agree on any byte of a row."""
    chance = random.Random(3)
    good = _text([OWN_HEADER, *_own_rows(6)], separator="|")
    start, refused = good.index(b"\n") + 1, 0
    schema = OWN.model_copy(update={"dense": {"age": "none", "price": "none"}})
    for _ in range(600):
        text = bytearray(good)
        text[chance.randrange(start, len(text) - 1)] = chance.randrange(256)
        try:
            found = RowReader(schema, "a").rows(Chunk(bytes(text), 1))
        except DataError:
            refused += 1
            continue
        lines = bytes(text).decode("latin-1").replace("\r\n", "\n").split("\n")[1:-1]
        rows = [next(csv.reader([line.replace("\r", "\0")], delimiter="|")) for line in lines]
        ages = [0.0 if row[0] in ("", "NA", "-99") else float(row[0]) for row in rows]
        assert found.dense_RI[:, 0].astype(np.float32).tolist() == np.array(ages, np.float32).tolist()
        shops = ["" if row[1] in ("NA", "-99") else row[1].replace("\0", "\r") for row in rows]
        assert found.values_FR[0].tolist() == [xxhash.xxh64_intdigest(shop.encode("latin-1")) for shop in shops]
    assert 100 < refused < 500


def test_a_folder_of_another_schema_is_refused(tmp_path: Path) -> None:
    """The same file and schema are a no-op; another schema, order of columns, or format is refused."""
    (tmp_path / "a.csv").write_bytes(_text([OWN_HEADER, *_own_rows(50)], separator="|"))
    meta = prepare([tmp_path / "a.csv"], tmp_path / "out", columns=OWN)
    assert meta.columns == OWN
    assert prepare([tmp_path / "a.csv"], tmp_path / "out", columns=OWN.model_copy()) == meta
    changes = {"missing": ("NA",)}, {"dense": dict(reversed(OWN.dense.items()))}
    for other in (None, AVAZU, *(OWN.model_copy(update=change) for change in changes)):
        with pytest.raises(DataError, match="out: exists and is not this preparation"):
            prepare([tmp_path / "a.csv"], tmp_path / "out", columns=other)


def test_a_feature_without_a_transform_may_be_negative_and_is_finite(tmp_path: Path) -> None:
    """Of a feature that is not transformed, infinity and NaN of either sign are damage; of others, -1 is too."""
    (tmp_path / "a.csv").write_bytes(_text([OWN_HEADER, *_own_rows(50)], separator="|"))
    prepare([tmp_path / "a.csv"], tmp_path / "out", columns=OWN)
    dataset = Dataset.open(tmp_path / "out", split="chronological", seed=0)
    words = np.memmap(tmp_path / "out" / "records.bin", np.float32, mode="r+").reshape(50, 5)
    values, positive = (math.inf, -math.inf, math.nan, -math.nan), (math.inf, -1.0, -math.inf)
    for column, value in [*((1, value) for value in values), *((2, value) for value in positive)]:
        good, words[7, column] = words[7, column], value
        number = "a number that is finite" + " and not negative" * (column == 2)
        with pytest.raises(DataError, match=rf"sample 7: feature {column} .*, expected {number}; "):
            dataset.train_batch(0, 10)
        words[7, column] = good


SCHEMA = "label: bought\ndense: [price, age]\ncategories: [shop]\n"


def test_a_schema_is_read_from_yaml(tmp_path: Path) -> None:
    """A list of dense columns is short for log1p; numbers are columns; a tab is a separator."""
    path = tmp_path / "s.yaml"
    path.write_text(SCHEMA)
    assert read_schema(path) == Schema(label="bought", dense={"price": "log1p", "age": "log1p"}, categories=("shop",))
    path.write_text(
        'header: false\nseparator: "\\t"\nlabel: 1\ndense: {2: none}\ncategories: [3, 4]\nmissing: [-1, NA]\n'
    )
    expected = {"header": False, "separator": "\t", "label": "1", "dense": {"2": "none"}, "categories": ("3", "4")}
    assert read_schema(path) == Schema.model_validate({**expected, "missing": ("-1", "NA")})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label: bought\n", "s.yaml: categories: expected this key, got the keys 'label'"),
        (SCHEMA + "lable: x\n", "s.yaml:4: unknown key lable, expected separator, header, label, "),
        (SCHEMA.replace("[shop]", "[]"), "s.yaml:3: categories: "),
        (SCHEMA.replace("shop", "age"), "s.yaml: expected each column once, got age twice"),
        (SCHEMA.replace("price", "age"), "s.yaml:2: dense: expected each column once, got age twice"),
        (SCHEMA.replace("[price, age]", "{price: log}"), "s.yaml:2: dense.price: expected 'log1p' or 'none', got"),
        *((SCHEMA + f"separator: {x!r}\n", "s.yaml:4: separator: expected one ASCII character") for x in "é-"),
        (SCHEMA + "header: false\n", "s.yaml: expected columns by number, from 1, where header is false, got 'bought'"),
        (SCHEMA + "grids: [{seed: [1]}]\n", "grids"),
        ("", "s.yaml:1: expected a mapping of keys to values at the top of the file"),
    ],
)
def test_a_schema_that_cannot_be_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    """File, line, key, and what was expected."""
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises((DataError, ConfigError)) as caught:
        read_schema(tmp_path / "s.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
