"""A prepared data folder: ``records.bin``, one fixed-size record a row, and ``meta.json``, written last.

A record is 40 little-endian words of 4 bytes: label (float32, 0 or 1), 13 dense features (float32, log(max(x, 0) + 1),
missing 0), 26 row ids (int32). Rows are in the order of the source files. A folder without ``meta.json`` is not data.

Shapes: N rows of a file, 26 = F tables.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import DataError
from harness.files import replace_text

FORMAT_VERSION = 1
NUM_DENSE = 13
NUM_TABLES = 26
NUM_COLUMNS = 1 + NUM_DENSE + NUM_TABLES
RECORD_BYTES = 4 * NUM_COLUMNS
RECORDS_NAME = "records.bin"
META_NAME = "meta.json"

_BITS_OF_ONE = int(np.float32(1).view(np.uint32))
_BITS_OF_INFINITY = int(np.float32(np.inf).view(np.uint32))

_MOST_TABLE_ROWS = 2**31 - 1  # a row's id is an int32
_MOST_ROWS = 2**40

Categories = Literal["number", "hash"]
Words = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source file of the rows: its name without folder, its size, the XXH3 (64 bits) of its bytes on disk."""

    name: str
    num_bytes: int
    xxh3: str


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """The arguments from which `run.py data synth` made a log."""

    rows: int
    seed: int
    scale: float
    taper: float

    def __post_init__(self) -> None:
        kinds = {"rows": int, "seed": int, "scale": int | float, "taper": int | float}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or not abs(value) < 2**64:
                raise ValueError(f"{name}: expected a number of `run.py data synth`, got {value!r:.40}")


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The contents of ``meta.json``. ``digest`` is the XXH3 (128 bits) of the cardinalities and of every record.

    ``synthetic``: how the only source was made; None for real logs, and where it is not known.
    """

    format_version: int
    num_rows: int
    num_positives: int
    cardinalities: tuple[int, ...]  # rows of each of the 26 tables
    categories: Categories
    max_ind_range: int | None
    digest: str
    sources: tuple[Source, ...]
    synthetic: Synthetic | None = None


def write_meta(folder: Path, meta: Meta) -> None:
    """Write ``meta.json`` atomically and durably. Raises OSError."""
    replace_text(folder / META_NAME, json.dumps(dataclasses.asdict(meta), indent=1) + "\n")


def find_data(path: Path) -> Meta:
    """Read the meta of the prepared folder ``path``, the value of ``data.path``. Raises DataError, also without it."""
    if not path.is_dir():
        what = "expected a prepared folder, got a file" if path.exists() else "no such folder"
        start = "" if path.is_absolute() else f" (relative paths count from the current folder, {Path.cwd()})"
        raise DataError(f"data.path: {path}: {what}{start}; `run.py data prepare` writes one")
    return read_meta(path)


def read_meta(folder: Path) -> Meta:
    """The meta of ``folder``, after a check that its records exist and have the right size.

    Raises:
        DataError: no such folder, no ``meta.json`` (a preparation that did not finish), another format version, a
            ``meta.json`` that is damaged, or ``records.bin`` missing or of another size.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; write it by `run.py data prepare`")
    path = folder / META_NAME
    try:
        values = json.loads(path.read_bytes())
        version = values["format_version"]
        if version != FORMAT_VERSION:
            raise DataError(f"{path}: expected format version {FORMAT_VERSION}, got {version}; prepare the data again")
        meta = _parse(values)
    except FileNotFoundError:
        raise DataError(f"{path}: missing, so the folder is not prepared data; run `run.py data prepare`") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__}: {error}); prepare the data again") from None
    records = folder / RECORDS_NAME
    expected_bytes = meta.num_rows * RECORD_BYTES
    num_bytes = records.stat().st_size if records.is_file() else None
    if num_bytes != expected_bytes:
        found = "missing" if num_bytes is None else f"{num_bytes:,} bytes"
        raise DataError(
            f"{records}: {found}, expected {expected_bytes:,} bytes ({meta.num_rows:,} rows); prepare again"
        )
    return meta


def map_records(folder: Path, meta: Meta) -> Words:
    """The records as a read-only memory map: (N, 40) int32; float columns hold their bit patterns."""
    return np.memmap(folder / RECORDS_NAME, dtype="<i4", mode="r", shape=(meta.num_rows, NUM_COLUMNS))


def limits_of(cardinalities: Sequence[int]) -> NDArray[np.uint32]:
    """Exclusive upper bounds of the 40 words of a record, as unsigned numbers: (40,) uint32.

    Labels are 0 or 1 and features finite and not negative; the bits of such floats are ordered as they are.
    """
    return np.array(
        [_BITS_OF_ONE + 1, *[_BITS_OF_INFINITY] * NUM_DENSE, *(min(size, 1 << 31) for size in cardinalities)],
        dtype=np.uint32,
    )


def refuse_damage(path: Path, records_BC: Words, limits_C: NDArray[np.uint32], first_row: int) -> None:
    """Raise :func:`damage` for the first damaged one of consecutive records, which start at row ``first_row``."""
    is_sound_BC = records_BC.view(np.uint32) < limits_C
    if not is_sound_BC.all():
        b = int(np.flatnonzero(~is_sound_BC.all(axis=1))[0])
        raise damage(path, records_BC[b], limits_C, first_row + b)


def damage(path: Path, record_C: NDArray[np.int32], limits_C: NDArray[np.uint32], row: int) -> DataError:
    """A DataError that names the file, the row and the first impossible word of its record.

    An impossible value would silently train other rows or give NaN, so every batch is checked when it is read. Damage
    that leaves possible values is found by the digest (`run.py data info`).
    """
    column = int(np.flatnonzero(record_C.view(np.uint32) >= limits_C)[0])
    word = record_C[column : column + 1].copy()
    if column > NUM_DENSE:
        what = f"row id {word[0]} of table {column - 1 - NUM_DENSE}, expected 0 to {int(limits_C[column]) - 1:,}"
    else:
        what = f"{f'feature {column}' if column else 'label'} {word.view(np.float32)[0]}"
        what += ", expected a number that is finite and not negative" if column else ", expected 0 or 1"
    return DataError(f"{path}: sample {row:,}: {what}; the file is damaged, prepare the data again")


def _parse(values: dict[str, Any]) -> Meta:
    """A Meta from JSON, its types checked as far as they matter: counts are counts, 26 positive cardinalities."""
    cardinalities = tuple(int(size) for size in values["cardinalities"])
    if len(cardinalities) != NUM_TABLES or not 1 <= min(cardinalities) <= max(cardinalities) <= _MOST_TABLE_ROWS:
        raise ValueError(f"cardinalities: expected {NUM_TABLES} numbers from 1 to {_MOST_TABLE_ROWS}")
    if values["categories"] not in ("number", "hash"):
        raise ValueError(f"categories: expected number or hash, got {values['categories']!r}")
    num_rows, num_positives = int(values["num_rows"]), int(values["num_positives"])
    if num_rows > _MOST_ROWS:
        raise ValueError(f"num_rows: expected at most {_MOST_ROWS}, got {num_rows}")
    if not 0 <= num_positives <= num_rows:
        raise ValueError(f"num_positives: expected 0 to {num_rows}, got {num_positives}")
    return Meta(
        format_version=FORMAT_VERSION,
        num_rows=num_rows,
        num_positives=num_positives,
        cardinalities=cardinalities,
        categories=cast(Categories, values["categories"]),
        max_ind_range=None if values["max_ind_range"] is None else int(values["max_ind_range"]),
        digest=str(values["digest"]),
        sources=tuple(Source(**source) for source in values["sources"]),
        synthetic=Synthetic(**values["synthetic"]) if values.get("synthetic") else None,
    )
