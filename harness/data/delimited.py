"""Delimited click logs: the schema, which says what each column is, and the decoder of rows.

Avazu's log is one; Criteo's format, which has no header and hexadecimal categories, is not. If the schema says that
there is a header, each file has its own: a line with the columns' names, in any order. Every row has as many columns as
the first line of its file. Lines end with LF or CRLF; the last line may have no line end. A field may stand in double
quotes, and two of them within it are one; it has no line break. The label is 0 or 1. A dense value is a decimal number
that float32 can hold, perhaps with a fraction or an exponent. A category is any text.

Shapes: R rows of a chunk, C columns of the file, I dense features, F categories.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import ValidationError

from harness.config.words import mistakes_of, suggest
from harness.config.yaml_file import read_yaml
from harness.core.errors import DataError
from harness.data.records import NO_LABELS, OTHER_COLUMNS, Schema
from harness.data.sources import Chunk
from harness.kernels import parsing

_BOM = b"\xef\xbb\xbf"
_NUMBER = "a decimal number of magnitude below 3.4e38"
_LARGEST = 3.4028e38  # a bit below the largest float32, as the fast decoder does not round the last place
_QUOTED = re.compile(rb'"((?:[^"]|"")*)"')
_MOST_SHOWN = 8  # columns of a header
_SEPARATORS = ",\t;|"

AVAZU = Schema(
    label="click",
    categories=(
        *("hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
        *("app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
        *(f"C{number}" for number in range(14, 22)),
    ),
)
"""Kaggle's file of Avazu, 2014: the 22 columns beside ``id`` and ``click`` are categories, ``hour`` among them."""


def read_schema(path: Path) -> Schema:
    """The schema in a YAML file. Raises DataError or ConfigError, which name the file, and the line if there is one."""
    document = read_yaml(path)
    for key in document.value:
        if key not in Schema.model_fields:
            where = document.find([key])[1]
            raise DataError(f"{where}: unknown key {key}, expected {', '.join(Schema.model_fields)}")
    try:
        return Schema.model_validate(document.value)
    except ValidationError as error:
        keys, where = document.find(error.errors()[0]["loc"])
        raise DataError(f"{where if keys else path}: {mistakes_of(error)[0]}") from None


@dataclass(frozen=True)
class DecodedRows:
    """Decoded rows of either format, in file order.

    ``dense_RI``: dense features after their transform. ``values_FR``: Criteo's categories, else the XXH64 of the bytes
    of a category.
    """

    labels_R: NDArray[np.uint8]
    dense_RI: NDArray[np.float64]
    values_FR: NDArray[np.uint32] | NDArray[np.uint64]


class CsvReader:
    """Decoder of one file, whose chunks it gets in order. ``name``: the name of the file, for errors."""

    def __init__(self, schema: Schema, name: str) -> None:
        self._schema = schema
        self._name = name
        self._separator = schema.separator.encode()
        self._missing_M = np.array([xxhash.xxh64_intdigest(word.encode()) for word in schema.missing], np.uint64)
        self._names: Sequence[str] | None = None
        self._kinds_C = np.empty(0, np.int8)
        self._places_C = np.empty(0, np.int64)

    def rows(self, chunk: Chunk) -> DecodedRows:
        """Decode the next chunk.

        Raises:
            DataError: ``name:line: ...`` for a header without the columns, or the first row that is not in the format.
        """
        text, first_line = chunk.text, chunk.first_line
        if self._names is None:
            text = text.removeprefix(_BOM)
            first, _, rest = text.partition(b"\n")
            self._begin(first.removesuffix(b"\r"), first_line)
            if self._schema.header:
                text, first_line = rest, first_line + 1
        num_rows = text.count(b"\n")
        labels_R = np.empty(num_rows, np.uint8)
        dense_RI = np.empty((num_rows, len(self._schema.dense)))
        hashes_FR = np.empty((len(self._schema.categories), num_rows), np.uint64)
        num_sound = parsing.decode_delimited(
            np.frombuffer(text, np.uint8),
            self._separator[0],
            self._kinds_C,
            self._places_C,
            self._missing_M,
            labels_R,
            dense_RI,
            hashes_FR,
        )
        if num_sound < num_rows:
            raise self._explain(text.split(b"\n", num_sound + 1)[num_sound], first_line + num_sound)
        for i, transform in enumerate(self._schema.dense.values()):
            if transform == "log1p":
                dense_RI[:, i] = np.log(np.maximum(dense_RI[:, i], 0) + 1.0)
        return DecodedRows(labels_R, dense_RI, hashes_FR)

    def _begin(self, line: bytes, number: int) -> None:
        where, schema = f"{self._name}:{number}", self._schema
        fields = [_text(field) for field in self._fields(line, where)]
        self._names = fields if schema.header else [str(c + 1) for c in range(len(fields))]
        if wrong := [column for column in schema.columns if self._names.count(column) != 1]:
            raise _no_columns(where, wrong, self._names, schema, line)
        places = {column: f for f, column in enumerate(schema.categories)}
        places |= {column: i for i, column in enumerate(schema.dense)}
        kinds = {schema.label: parsing.LABEL, **dict.fromkeys(schema.dense, parsing.DENSE)}
        kinds |= dict.fromkeys(schema.categories, parsing.CATEGORY)
        self._kinds_C = np.array([kinds.get(name, parsing.SKIPPED) for name in self._names], np.int8)
        self._places_C = np.array([places.get(name, 0) for name in self._names], np.int64)

    def _fields(self, line: bytes, where: str) -> list[bytes]:
        """The fields of a line without its end. Raises DataError for quotes that do not match."""
        fields, x = list[bytes](), 0
        while True:
            if line[x : x + 1] == b'"':
                if found := _QUOTED.match(line, x):
                    fields.append(found[1].replace(b'""', b'"'))
                    x = found.end()
            else:
                end = line.find(self._separator, x)
                fields.append(line[x:] if end < 0 else line[x:end])
                x += len(fields[-1])
            if x == len(line):
                return fields
            if line[x : x + 1] != self._separator:
                bad = f"bad quotes {_shown(line[x:])}"
                raise DataError(f'{where}: {bad}, expected "TEXT" in one line, and a separator after it')
            x += 1

    def _explain(self, line: bytes, number: int) -> DataError:
        """The DataError for a malformed line. It may be slow, since the command fails then."""
        where, names = f"{self._name}:{number}", self._names or ()
        missing = {b"", *(word.encode() for word in self._schema.missing)}
        try:
            fields = self._fields(line.removesuffix(b"\r"), where)
        except DataError as error:
            return error
        if len(fields) != len(names):
            return DataError(f"{where}: {len(fields)} columns, expected {len(names)}")
        for name, value in zip(names, fields, strict=True):
            column = name if self._schema.header else f"column {name}"
            if name == self._schema.label and value not in (b"0", b"1"):
                hint = "; is it a header (header: true)?" if number == 1 else ""
                return DataError(f"{where}: {column}: bad label {_shown(value)}, expected 0 or 1{hint}")
            if name in self._schema.dense and value not in missing and not _is_number(value):
                return DataError(f"{where}: {column}: bad number {_shown(value)}, expected {_NUMBER}")
        raise AssertionError("CsvReader: the fast decoder rejected a row that the slow one accepts (a bug)")


def _no_columns(where: str, wrong: Sequence[str], names: Sequence[str], schema: Schema, line: bytes) -> DataError:
    """The error of the columns ``wrong``, which the first ``line`` does not name, or names twice."""
    column, other = wrong[0], max(_SEPARATORS, key=_text(line).count)
    hint = OTHER_COLUMNS if schema is AVAZU else ""
    if len(names) == 1 and other in _text(line):
        hint = f"; is the separator {other!r}?{hint}"
    elif near := suggest(column, sorted({*names} - {*schema.columns})):
        hint = f"{near}{hint}"
    elif wrong == [schema.label] and schema.header:
        hint = NO_LABELS
    if not schema.header:
        return DataError(f"{where}: {len(names)} columns, expected at least {column}{hint}")
    if names.count(column) > 1:
        return DataError(
            f"{where}: expected the column {column} once in the header, got it {names.count(column)} times"
        )
    shown = ", ".join(names[:_MOST_SHOWN]) + (", …" if len(names) > _MOST_SHOWN else "")
    return DataError(f"{where}: expected a header with the column {column}, got {shown[:100]!r}{hint}")


def _is_number(value: bytes) -> bool:
    if not re.fullmatch(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        return False
    return abs(float(value)) < _LARGEST


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _shown(value: bytes) -> str:
    return repr(_text(value[:32]))
