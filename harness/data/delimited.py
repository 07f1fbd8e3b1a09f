"""Text of click logs: Criteo's format, Avazu's, and what a schema describes.

If the schema says that there is a header, each file has its own: a line with the columns' names, in any order. Every
row has as many columns as the first line of its file. Lines end with LF or CRLF; the last line may have no line end. A
field may stand in double quotes, and two of them within it are one; it has no line break. The label is 0 or 1. A dense
value is a decimal number that float32 can hold, perhaps with a fraction or an exponent. A category is any text.

Criteo's format, of the Kaggle and the Terabyte logs, has 40 columns, separated by tabs, without header and quotes:
label, 13 integers I1..I13, 26 categories C1..C26 of 1 to 8 hexadecimal digits. Empty is missing and reads as 0, as in
DLRM's preprocessing.

Shapes: R rows of a chunk, C columns of the file, I dense features, F categories.
"""

import csv
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
from harness.data.records import NO_LABELS, NUM_COLUMNS, NUM_DENSE, NUM_TABLES, OTHER_COLUMNS, Schema
from harness.data.sources import Chunk
from harness.kernels import parsing

_BOM = b"\xef\xbb\xbf"
_EXPECTED = {
    parsing.LABEL: ("label", "0 or 1"),
    parsing.DENSE: ("number", "a decimal number of magnitude below 3.4e38"),
    parsing.INTEGER: ("integer", f"up to {parsing.MAX_INTEGER_DIGITS} digits"),
    parsing.HEX: ("hex", "up to 8 hexadecimal digits"),
}
_SEPARATORS = ",\t;|"

CRITEO = Schema(
    separator="\t",
    label="label",
    dense={f"I{number}": "log1p" for number in range(1, NUM_DENSE + 1)},
    categories=tuple(f"C{number}" for number in range(1, NUM_TABLES + 1)),
)
"""Criteo's columns, although its files have no header."""

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
    """Decoded rows, in file order.

    ``dense_RI``: dense features after their transform. ``values_FR``: Criteo's categories, else the XXH64 of the bytes
    of a category.
    """

    labels_R: NDArray[np.uint8]
    dense_RI: NDArray[np.float64]
    values_FR: NDArray[np.uint64]


class RowReader:
    """Decoder of one file, whose chunks it gets in order. ``schema``: None for Criteo's format. ``name``: in errors."""

    def __init__(self, schema: Schema | None, name: str) -> None:
        self._schema, self._name = schema or CRITEO, name
        self._is_criteo = schema is None
        self._separator, self._quote = self._schema.separator.encode(), b"" if schema is None else b'"'
        self._missing_M = np.array([xxhash.xxh64_intdigest(word.encode()) for word in self._schema.missing], np.uint64)
        self._names: Sequence[str] = ()
        self._kinds_C, self._places_C = np.empty(0, np.int8), np.empty(0, np.int64)
        if self._is_criteo:
            self._set_columns(self._schema.columns)

    def rows(self, chunk: Chunk) -> DecodedRows:
        """Decode the next chunk.

        Raises:
            DataError: ``name:line: ...`` for a header without the columns, or the first row that is not in the format.
        """
        text, first_line, schema = chunk.text, chunk.first_line, self._schema
        if not self._names:
            text = text.removeprefix(_BOM)
            first, _, rest = text.partition(b"\n")
            fields = self._fields(first, f"{self._name}:{first_line}")
            names = [_text(field) for field in fields] if schema.header else [str(c + 1) for c in range(len(fields))]
            if wrong := [column for column in schema.columns if names.count(column) != 1]:
                raise _no_columns(f"{self._name}:{first_line}", wrong, names, schema, first)
            self._set_columns(names)
            text, first_line = (rest, first_line + 1) if schema.header else (text, first_line)
        num_rows = text.count(b"\n")
        labels_R, dense_RI = np.empty(num_rows, np.uint8), np.empty((num_rows, len(schema.dense)))
        values_FR = np.empty((len(schema.categories), num_rows), np.uint64)
        num_sound, column = parsing.decode_rows(
            np.frombuffer(text, np.uint8),
            self._separator[0],
            self._quote[0] if self._quote else -1,
            *(self._kinds_C, self._places_C, self._missing_M, labels_R, dense_RI, values_FR),
        )
        if num_sound < num_rows:
            raise self._mistake(text.split(b"\n", num_sound + 1)[num_sound], first_line + num_sound, column)
        is_log_I = np.array([transform == "log1p" for transform in schema.dense.values()], bool)
        # In double precision: the float32 result does not depend on which log the CPU has.
        np.log(np.maximum(dense_RI, 0) + 1.0, out=dense_RI, where=is_log_I if not is_log_I.all() else True)
        return DecodedRows(labels_R, dense_RI, values_FR)

    def _set_columns(self, names: Sequence[str]) -> None:
        schema, is_criteo = self._schema, self._is_criteo
        places = {column: f for group in (schema.categories, schema.dense) for f, column in enumerate(group)}
        kinds = {schema.label: parsing.LABEL}
        kinds |= dict.fromkeys(schema.dense, parsing.INTEGER if is_criteo else parsing.DENSE)
        kinds |= dict.fromkeys(schema.categories, parsing.HEX if is_criteo else parsing.TEXT)
        self._names = names
        self._kinds_C = np.array([kinds.get(name, parsing.SKIPPED) for name in names], np.int8)
        self._places_C = np.array([places.get(name, 0) for name in names], np.int64)

    def _fields(self, line: bytes, where: str) -> list[bytes]:
        """The fields of a line. Raises DataError for quotes that do not match."""
        line = line.removesuffix(b"\r")
        if not self._quote or self._quote not in line:
            return line.split(self._separator)
        text = line.replace(b"\r", b"\0").decode("latin-1")  # a character for each byte
        try:
            (fields,) = csv.reader([text], delimiter=self._schema.separator, strict=True)
        except csv.Error:
            found = f"bad quotes in {_shown(line[line.index(self._quote) :])}"
            raise DataError(f'{where}: {found}, expected "TEXT" in one line, and a separator after it') from None
        return [field.encode("latin-1") for field in fields]

    def _mistake(self, line: bytes, number: int, column: int) -> DataError:
        """The DataError for line ``number``: its field ``column`` cannot be read, or it has too few or too many."""
        where, names = f"{self._name}:{number}", self._names
        fields = self._fields(line, where)
        hint = (NO_LABELS if len(fields) == NUM_COLUMNS - 1 else OTHER_COLUMNS) * (self._is_criteo and number == 1)
        if len(fields) != len(names):
            tabs = " separated by tabs" * self._is_criteo
            return DataError(f"{where}: {len(fields)} columns, expected {len(names)}{tabs}{hint}")
        what, expected = _EXPECTED[int(self._kinds_C[column])]
        if what == "label" and number == 1 and not self._schema.header:
            hint = "; is it a header (header: true)?"
        name = names[column] if self._schema.header else f"column {names[column]}"
        return DataError(f"{where}: {name}: bad {what} {_shown(fields[column])}, expected {expected}{hint}")


def _no_columns(where: str, wrong: Sequence[str], names: Sequence[str], schema: Schema, line: bytes) -> DataError:
    """The error of the columns ``wrong``, which the first ``line`` does not name, or names twice."""
    column, other = wrong[0], max(_SEPARATORS, key=_text(line).count)
    hint = f"; is the separator {other!r}?" if len(names) == 1 and other in _text(line) else ""
    if not schema.header:
        return DataError(f"{where}: {len(names)} columns, expected at least {column}{hint}")
    if names.count(column) > 1:
        return DataError(f"{where}: expected the column {column} once in the header, got it twice or more")
    hint = hint or suggest(column, sorted({*names} - {*schema.columns})) or NO_LABELS * (wrong == [schema.label])
    hint += OTHER_COLUMNS * (schema is AVAZU)
    return DataError(f"{where}: expected a header with the column {column}, got {', '.join(names)[:100]!r}{hint}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _shown(value: bytes) -> str:
    return repr(_text(value[:32]))
