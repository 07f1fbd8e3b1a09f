"""A prepared data folder: ``records.bin``, one fixed-size record a row, and ``meta.json``, written last.

A record is C = 1 + I + F little-endian words of 4 bytes: label (float32, 0 or 1), I dense features (float32, finite,
not negative unless a schema says that they are not transformed), F row ids (int32). Criteo's logs have I = 13 and
F = 26. Rows are in the order of the source files. A folder without ``meta.json`` is no prepared data.
``.verified.json`` says which version of ``records.bin`` was found to have the digest of the meta.

Shapes: N rows of a file, B rows of a block, I dense features, F tables, C words of a record.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.config.words import mistakes_of
from harness.core.errors import DataError
from harness.data.split import OwnSplit, SplitRows, split_rows, told
from harness.files import replace_text

FORMAT_VERSION = 1
NUM_DENSE = 13
"""Number of integer columns of Criteo's format."""
NUM_TABLES = 26
"""Number of category columns of Criteo's format."""
NUM_COLUMNS = 1 + NUM_DENSE + NUM_TABLES
RECORD_BYTES = 4 * NUM_COLUMNS
RECORDS_NAME = "records.bin"
META_NAME = "meta.json"

VERIFIED_NAME = ".verified.json"
_BLOCK_ROWS = 1 << 16

_BITS_OF_ONE = int(np.float32(1).view(np.uint32))
_ALL_BITS = 0xFFFFFFFF
_SIGN = np.int32(-(2**31))
_BITS_OF_INFINITY = int(np.float32(np.inf).view(np.uint32))

Categories = Literal["number", "hash"]
TableRows = Annotated[int, Field(ge=1, lt=2**31)]  # a row's id is an int32
Words = NDArray[np.int32]

NO_LABELS = "; rows without labels, as in a test file, cannot be trained on: take the training file"
OTHER_COLUMNS = "; --format csv --schema FILE.yaml reads other columns, separators and headers (docs/DATA.md)"
"""Ends of messages about the first line of a log: what to do."""

_NO_SEPARATORS = '"\r\n.+-_'

Transform = Literal["log1p", "none"]
"""What is stored of a dense value x. ``log1p``: log(max(x, 0) + 1), as for Criteo's integers. ``none``: x."""
Column = Annotated[str, Field(min_length=1)]


class Schema(BaseModel):
    """The columns of a delimited log. Columns that it does not name are ignored.

    A column is a name in the header, or, without a header, a number that counts from 1. ``dense``: the transform of
    each dense column; a list of columns is short for ``log1p`` of each. ``missing``: words that stand for a missing
    value, as an empty field does. A missing dense value is stored as 0, and all missing values of a category are one
    id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True
    label: Column
    dense: dict[Column, Transform] = {}
    categories: Annotated[tuple[Column, ...], Field(min_length=1)]
    missing: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    @field_validator("dense", mode="before")
    @classmethod
    def _as_mapping(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if twice := [column for column, number in Counter(map(str, value)).items() if number > 1]:
            raise ValueError(f"expected each column once, got {twice[0]} twice")
        return dict.fromkeys(value, "log1p")

    @field_validator("separator")
    @classmethod
    def _is_one_byte(cls, value: str) -> str:
        if not value.isascii() or value.isalnum() or value in _NO_SEPARATORS:
            raise ValueError(f"expected one ASCII character such as ',', ';', '|' or a tab, got {value!r}")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if twice := [column for column, number in Counter(self.columns).items() if number > 1]:
            raise ValueError(f"expected each column once, got {twice[0]} twice")
        wrong = [column for column in self.columns if not (column.isdecimal() and column.isascii() and int(column))]
        if wrong and not self.header:
            raise ValueError(f"expected columns by number, from 1, where header is false, got {wrong[0]!r}")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read: label, dense features, categories."""
        return (self.label, *self.dense, *self.categories)


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Source(_Facts):
    """A source file of the rows: its name without folder, its size, and the XXH3 (64 bits) of its bytes on disk."""

    name: str
    num_bytes: int
    xxh3: str


class Synthetic(_Facts):
    """The arguments from which `run.py data synth` made a log. ``law``: the digest of the law."""

    rows: Annotated[int, Field(ge=0, lt=2**40)]
    seed: Annotated[int, Field(ge=-(2**64), le=2**64)]
    like: str
    law: str
    taper: Annotated[float, Field(ge=0, lt=2**64)]
    flat: bool


class Meta(_Facts):
    """The contents of ``meta.json``. ``digest``: see :func:`digest_of`.

    ``cardinalities``: rows of each table. ``num_dense``: number of dense features. ``columns``: the schema of the
    sources; None for Criteo's format. ``table_rows``: with numbered categories, the least rows asked for each table;
    None: no more rows than values. ``synthetic``: how the only source was generated; None for a real log, for several
    sources, or if it is unknown. ``split``: the split asked for by ``--test``; None, and absent, for DLRM's.
    """

    format_version: Literal[1]
    num_rows: Annotated[int, Field(ge=0, le=2**40)]
    num_positives: Annotated[int, Field(ge=0)]
    cardinalities: Annotated[tuple[TableRows, ...], Field(min_length=1)]
    num_dense: Annotated[int, Field(ge=0, lt=2**16)]
    columns: Schema | None
    categories: Categories
    max_ind_range: int | None
    table_rows: tuple[TableRows, ...] | None
    digest: str
    sources: tuple[Source, ...]
    synthetic: Synthetic | None
    split: Annotated[OwnSplit | None, Field(exclude_if=lambda split: split is None)] = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.num_positives > self.num_rows:
            raise ValueError(f"num_positives: expected at most the {self.num_rows} rows, got {self.num_positives}")
        if self.columns and (self.num_dense, self.num_tables) != (
            len(self.columns.dense),
            len(self.columns.categories),
        ):
            raise ValueError("columns: expected as many dense features and categories as num_dense and cardinalities")
        if self.split and not self.split.num_train < self.split.first_validation <= self.num_rows:
            raise ValueError(f"split: expected rows of the test set within the {self.num_rows} rows")
        return self

    @property
    def num_tables(self) -> int:
        return len(self.cardinalities)

    @property
    def table_names(self) -> tuple[str, ...]:
        """The column of each table."""
        return self.columns.categories if self.columns else tuple(f"C{f + 1}" for f in range(self.num_tables))

    @property
    def num_columns(self) -> int:
        """C, the number of words of a record."""
        return 1 + self.num_dense + self.num_tables

    @property
    def rows(self) -> SplitRows:
        """The row ranges of the sets."""
        if self.split is None:
            return split_rows(self.num_rows)
        return SplitRows(self.split.num_train, self.split.first_validation, self.num_rows)

    @property
    def split_text(self) -> str:
        """The sets in one line."""
        return told(self.rows, self.split)


def digest_of(
    records: "xxhash.xxh3_128", num_dense: int, cardinalities: Sequence[int], split: OwnSplit | None = None
) -> str:
    """The digest of prepared data: XXH3 (128 bits) of its records, its shape and the bounds of its own split.

    ``records``: fed with all records.
    """
    digest = records.copy()
    digest.update(json.dumps(cardinalities).encode())
    if num_dense != NUM_DENSE:  # so that Criteo's data keep the digests that results on record have
        digest.update(str(num_dense).encode())
    if split is not None:
        digest.update(json.dumps([split.num_train, split.first_validation]).encode())
    return digest.hexdigest()


def write_meta(folder: Path, meta: Meta) -> None:
    """Write ``meta.json`` atomically and durably. Raises OSError."""
    replace_text(folder / META_NAME, json.dumps(meta.model_dump(mode="json"), indent=1) + "\n")


def read_meta(folder: Path, key: str = "") -> Meta:
    """The meta of the prepared folder ``folder``, after a check that its records exist and have the right size.

    ``key``: ``data.path: `` if the folder is the value of that key, for the error.

    Raises:
        DataError: no such folder, no ``meta.json`` (a preparation that did not finish), another format version, a
            ``meta.json`` that is damaged, or ``records.bin`` missing or of another size.
    """
    if not folder.is_dir():
        what = "expected a prepared folder, got a file" if folder.exists() else "no such folder"
        start = "" if folder.is_absolute() else f" (relative paths count from the current folder, {Path.cwd()})"
        raise DataError(f"{key}{folder}: {what}{start}; `run.py data prepare` writes one")
    path = folder / META_NAME
    try:
        meta = Meta.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: missing, so the folder is not prepared data; run `run.py data prepare`") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise DataError(f"{path}: damaged ({mistakes_of(error)[0]}); prepare the data again") from None
    records = folder / RECORDS_NAME
    num_bytes = records.stat().st_size if records.is_file() else None
    refuse_other_size(records, num_bytes, meta)
    return meta


def refuse_other_size(records: Path, num_bytes: int | None, meta: Meta) -> None:
    """Raise DataError unless ``num_bytes`` is the size of the records of ``meta``; None: they are missing."""
    expected_bytes = meta.num_rows * meta.num_columns * 4
    if num_bytes != expected_bytes:
        found = "missing" if num_bytes is None else f"{num_bytes:,} bytes"
        raise DataError(
            f"{records}: {found}, expected {expected_bytes:,} bytes ({meta.num_rows:,} rows); prepare again"
        )


def limits_of(meta: Meta) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Exclusive upper bounds of the words of a record, as unsigned numbers, (C,); and columns of signed floats, (S,).

    A float that is not negative can be compared by its bits, since they have the order of the floats. Signed floats are
    features that are not transformed: their bits without the sign must be below the bits of infinity.
    """
    transforms = meta.columns.dense.values() if meta.columns else ()
    signed_S = np.array([1 + i for i, transform in enumerate(transforms) if transform == "none"], np.int64)
    limits = [_BITS_OF_ONE + 1, *[_BITS_OF_INFINITY] * meta.num_dense, *meta.cardinalities]
    limits_C = np.array(limits, np.uint32)
    limits_C[signed_S] = _ALL_BITS
    return limits_C, signed_S


def _is_sound(words: NDArray[np.int32], meta: Meta) -> NDArray[np.bool_]:
    limits_C, signed_S = limits_of(meta)
    is_sound = words.view(np.uint32) < limits_C
    is_sound[..., signed_S] = words[..., signed_S] & ~_SIGN < _BITS_OF_INFINITY
    return is_sound


def refuse_damage(folder: Path, meta: Meta, records_BC: Words, first_row: int) -> None:
    """Raise DataError for the first damaged record of a block that starts at row ``first_row``."""
    is_sound_BC = _is_sound(records_BC, meta)
    if not is_sound_BC.all():
        b = int(np.flatnonzero(~is_sound_BC.all(axis=1))[0])
        raise damage(folder, meta, records_BC[b], first_row + b)


def damage(folder: Path, meta: Meta, record_C: NDArray[np.int32], row: int) -> DataError:
    """The DataError of a damaged record: names the file, the row and the first impossible word of the record.

    An impossible value would silently train other rows or give NaN, so every batch is checked when it is read. Damage
    with possible values is found by the digest alone (:func:`verify`, `run.py data info`).
    """
    column = int(np.flatnonzero(~_is_sound(record_C, meta))[0])
    word = record_C[column : column + 1].copy()
    if column > meta.num_dense:
        table = column - 1 - meta.num_dense
        what = f"row id {word[0]} of table {table}, expected 0 to {meta.cardinalities[table] - 1:,}"
    else:
        what = f"{f'feature {column}' if column else 'label'} {word.view(np.float32)[0]}"
        number = "a number that is finite" + ("" if column in limits_of(meta)[1] else " and not negative")
        what += f", expected {number if column else '0 or 1'}"
    return DataError(f"{folder / RECORDS_NAME}: sample {row:,}: {what}; the file is damaged, prepare the data again")


def verify(folder: Path, meta: Meta) -> None:
    """Raise DataError unless the records have the digest of ``meta``.

    The file is read only if it changed since it was verified: ``.verified.json`` keeps the inode, size and times (ns)
    of the verified file. A later write to the file changes its ctime, which no user can set. Hashing takes about 0.1 s
    per gigabyte in memory. In a read-only folder nothing is kept, and every call reads the file.
    """
    status = (folder / RECORDS_NAME).stat()
    identity = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, meta.digest]
    if _remembered(folder) == identity:
        return
    digest = xxhash.xxh3_128()
    for _, block in blocks(folder, meta):
        digest.update(block.data)
    refuse_other(folder, meta, digest)
    with suppress(OSError):
        new = folder / f"{VERIFIED_NAME}.new"
        new.write_text(json.dumps(identity) + "\n")
        new.replace(folder / VERIFIED_NAME)


def blocks(folder: Path, meta: Meta) -> Iterator[tuple[int, Words]]:
    """Yields the records in blocks: (row number of the first record of the block, (B, C) int32).

    Raises DataError if the file has another size by now, or cannot be read.
    """
    path = folder / RECORDS_NAME
    try:
        with path.open("rb") as file:
            for start in range(0, meta.num_rows, _BLOCK_ROWS):
                block_BC = np.empty((min(_BLOCK_ROWS, meta.num_rows - start), meta.num_columns), np.int32)
                if file.readinto(block_BC.data) != block_BC.nbytes:
                    refuse_other_size(path, min(file.tell(), os.fstat(file.fileno()).st_size), meta)
                yield start, block_BC
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def refuse_other(folder: Path, meta: Meta, digest: "xxhash.xxh3_128") -> None:
    """Raise DataError unless the records have the digest of ``meta``. ``digest``: fed with all records."""
    found = digest_of(digest, meta.num_dense, meta.cardinalities, meta.split)
    if found != meta.digest:
        raise DataError(
            f"{folder / RECORDS_NAME}: damaged: expected digest {meta.digest} of {META_NAME}, got {found}; "
            "prepare the data again"
        )


def _remembered(folder: Path) -> object:
    try:
        return json.loads((folder / VERIFIED_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
