"""Conversion of click logs to a prepared folder, in chunks. Only the numbering of categories grows with the data.

Files are written to a temporary folder beside the target, which is renamed at the end; ``meta.json`` is the last file.

Shapes: R rows of a chunk, I dense features, F tables, C = 1 + I + F words of a record.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from harness.core.errors import DataError, printable
from harness.data.delimited import CRITEO, DecodedRows, RowReader
from harness.data.outputs import replacing
from harness.data.records import (
    FORMAT_VERSION,
    RECORDS_NAME,
    Categories,
    Meta,
    Schema,
    Source,
    Synthetic,
    Words,
    digest_of,
    read_meta,
    write_meta,
)
from harness.data.sources import (
    CHUNK_BYTES,
    Progress,
    SourceReader,
    by_numbers,
    read_sidecar,
    survey,
    total_bytes,
)
from harness.data.split import HeldOut, hold_out
from harness.files import free_bytes
from harness.kernels.parsing import move_words, number_words

_log = logging.getLogger(__name__)

Order = Literal["given", "numbers"]

MAX_IND_RANGE_LIMIT = (1 << 31) - 1  # rows of a table: ids are int32

_FIRST_CAPACITY = 1024
_MAX_LOAD = 0.75
_LARGE = 10.0
"""The largest value of a dense feature without a transform that is not remarked on."""
_GROWTH = 1.5


def prepare(
    sources: Sequence[Path],
    out: Path,
    *,
    order: Order = "given",
    test: Sequence[str] = (),
    validation: Sequence[str] = (),
    columns: Schema | None = None,
    categories: Categories = "number",
    max_ind_range: int | None = None,
    table_sizes: Sequence[int] | None = None,
    progress: Progress | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Meta:
    """Pack click logs, concatenated, into the folder ``out``. Returns the content of its meta.json.

    A no-op if ``out`` already holds the same preparation.

    Args:
        order: of the logs: as given, or by the numbers in their names.
        test: names of the logs of the test set, or a fraction of all rows, the last ones. Empty: DLRM's split.
        validation: names of the logs of the validation set, or ``half``: the second half of the rows of ``test``.
            Logs of the test, then of the validation set come after the others.
        columns: the schema of the logs; None: Criteo's format.
        categories: how the values of a category become row ids. A value is the number in Criteo's format, or the XXH64
            of the category's bytes. ``number``: ids in order of first appearance per column, after ``% max_ind_range``
            if that is given, as in DLRM. ``hash``: the value modulo the size of its table.
        max_ind_range: with ``hash``, the size of every table; with ``number``, the modulus of all values.
        table_sizes: a number from 1 to 2**31 - 1 for each table. With ``hash``, its size (instead of
            ``max_ind_range``); with ``number``, the least number of its rows.
        progress: called with (bytes done, bytes in all) of the sources.
        chunk_bytes: bytes of text that are held at a time. The result does not depend on it.

    Raises:
        DataError: a source that cannot be read, is no text or is not in the format (``file:line: ...``), two that hold
            the same rows, names that tell no order, no source or no rows, a set that is unknown or empty, too little
            free space, a size missing, given twice or out of range, ``out`` not empty and not this preparation, another
            process that writes it, or disk trouble. ``out`` is then as it was.
    """
    in_order = by_numbers if order == "numbers" else list
    sources, held_out = hold_out([Path(source) for source in sources], test, validation, in_order)
    _check(sources, categories, max_ind_range, table_sizes)
    packer = _Packer(columns, categories, max_ind_range, tuple(table_sizes) if table_sizes else None, held_out)
    advance = _counting(total_bytes(sources), progress)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        return _existing(sources, out, packer, advance)
    if len(sources) > 1:
        _say_order(sources, held_out)
    num_rows = survey(sources, lambda path: RowReader(columns, str(path)).rows)
    with replacing(out, "folder") as folder:
        _reserve(out, num_rows, len((columns or CRITEO).columns))
        return _pack(sources, folder, packer, advance, chunk_bytes)


def _say_order(sources: Sequence[Path], held_out: HeldOut | None) -> None:
    last = "the last seventh of all rows" if held_out is None else " ".join(held_out.options())
    names = printable(", ".join(map(str, sources)))
    _log.info("note: %d files in this order, %s for evaluation: %s", len(sources), last, names)


def _reserve(out: Path, num_rows: int, num_columns: int) -> None:
    """Say how much disk the records of about ``num_rows`` rows take. Raises DataError if less is free."""
    gb, free_gb = 4 * num_columns * num_rows / 1e9, free_bytes(out) / 1e9
    size = f"{out}: about {round(num_rows, 3 - len(str(num_rows))):,} samples, {gb:,.2f} GB"
    if gb > free_gb:
        raise DataError(f"{size}, and {free_gb:,.2f} GB are free; choose a folder on another disk")
    _log.info("note: %s (%s GB free)", size, f"{free_gb:,.2f}")


def _pack(
    sources: Sequence[Path], folder: Path, packer: "_Packer", advance: Callable[[int], None], chunk_bytes: int
) -> Meta:
    """Write the records of ``sources`` and their meta to ``folder``. Raises DataError, OSError."""
    read, num_rows_S = list[Source](), list[int]()
    with (folder / RECORDS_NAME).open("wb") as file:
        for path in sources:
            reader, decode = SourceReader(path, advance), RowReader(packer.columns, str(path)).rows
            num_before = packer.num_rows
            for chunk in reader.chunks(chunk_bytes):
                file.write(packer.pack(decode(chunk)).data)
            read.append(reader.source())
            num_rows_S.append(packer.num_rows - num_before)
        file.flush()
        os.fsync(file.fileno())
    if packer.num_rows == 0:
        raise DataError(f"{', '.join(map(str, sources))}: expected at least one row, got none")
    transforms = packer.columns.dense if packer.columns else {}
    for (name, transform), most in zip(transforms.items(), packer.largest_I.tolist(), strict=bool(transforms)):
        if transform == "none" and most > _LARGE:
            words = "note: %s: values up to %g, with which training may diverge; log1p in the schema makes them small"
            _log.info(words, name, most)
    synthetic = read_sidecar(sources[0], read[0]) if len(sources) == 1 else None
    meta = packer.meta(tuple(read), num_rows_S, synthetic)
    write_meta(folder, meta)
    return meta


def _check(
    sources: Sequence[Path], categories: Categories, max_ind_range: int | None, table_sizes: Sequence[int] | None
) -> None:
    if not sources:
        raise DataError("sources: expected at least one file, got none")
    if categories == "hash" and (max_ind_range is None) == (table_sizes is None):
        got = "none" if table_sizes is None else "both"
        raise DataError(f"--max-ind-range, --table-rows: expected one of them for --categories hash, got {got}")
    if max_ind_range is not None and not 1 <= max_ind_range <= MAX_IND_RANGE_LIMIT:
        raise DataError(f"--max-ind-range: expected 1 to {MAX_IND_RANGE_LIMIT}, got {max_ind_range}")


def _counting(total: int, progress: Progress | None) -> Callable[[int], None]:
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    return advance


class _Packer:
    """Turns decoded rows into records and collects the contents of meta.json."""

    def __init__(
        self,
        columns: Schema | None,
        categories: Categories,
        max_ind_range: int | None,
        sizes: tuple[int, ...] | None,
        held_out: HeldOut | None,
    ) -> None:
        self.num_rows = 0
        self.columns = columns
        self._held_out = held_out
        self._num_dense = len((columns or CRITEO).dense)
        num_tables = len((columns or CRITEO).categories)
        self._num_positives = 0
        self._categories: Categories = categories
        self._max_ind_range = max_ind_range
        self._sizes = sizes
        self._moduli = (max_ind_range,) * num_tables if max_ind_range else sizes if categories == "hash" else None
        self._numberings = [Numbering() for _ in range(num_tables)] if categories == "number" else None
        self._hash = xxhash.xxh3_128()
        self.largest_I = np.zeros(self._num_dense)

    def pack(self, rows: DecodedRows) -> Words:
        """The records of ``rows``: (R, C) int32, see ``harness.data.records``."""
        first_table, values_FR = 1 + self._num_dense, rows.values_FR
        words_RC = np.empty((len(rows.labels_R), first_table + len(values_FR)), dtype="<i4")
        floats_RC = words_RC.view("<f4")
        floats_RC[:, 0] = rows.labels_R
        floats_RC[:, 1:first_table] = rows.dense_RI
        if self._moduli is not None:
            values_FR = values_FR % np.array(self._moduli, values_FR.dtype)[:, None]
        if self._numberings is None:
            words_RC[:, first_table:] = values_FR.T
        else:
            for table, numbering in enumerate(self._numberings):
                words_RC[:, first_table + table] = numbering.ids(values_FR[table])
        if self.columns:
            self.largest_I = np.abs(rows.dense_RI).max(axis=0, initial=0.0).clip(self.largest_I)
        self.num_rows += len(words_RC)
        self._num_positives += int(rows.labels_R.sum(dtype=np.int64))
        self._hash.update(words_RC.data)
        return words_RC

    def options(self) -> tuple[object, ...]:
        """What tells preparations of the same sources apart; :func:`_options_of` has it of a folder."""
        sizes = self._moduli if self._categories == "hash" else self._sizes
        schema = self.columns and self.columns.model_dump_json()  # in which the order of columns counts
        return schema, self._categories, self._max_ind_range, sizes, self._held_out

    def meta(self, sources: tuple[Source, ...], num_rows_S: Sequence[int], synthetic: Synthetic | None) -> Meta:
        """The meta of the records of these sources, of ``num_rows_S`` rows each. Raises DataError for an empty set."""
        split = self._held_out and self._held_out.cut(num_rows_S)
        if self._numberings is None:
            assert self._moduli is not None
            cardinalities = self._moduli
        else:
            least = self._sizes or (0,) * len(self._numberings)
            cardinalities = tuple(max(of.num_ids, rows) for of, rows in zip(self._numberings, least, strict=True))
        return Meta(
            format_version=FORMAT_VERSION,
            num_rows=self.num_rows,
            num_positives=self._num_positives,
            cardinalities=cardinalities,
            num_dense=self._num_dense,
            columns=self.columns,
            categories=self._categories,
            max_ind_range=self._max_ind_range,
            table_rows=self._sizes if self._numberings else None,
            digest=digest_of(self._hash, self._num_dense, cardinalities, split),
            sources=sources,
            synthetic=synthetic,
            split=split,
        )


class Numbering:
    """Numbers distinct 64-bit words from 0 in order of first appearance.

    An open-addressing hash table that keeps the words, so that no two words get one id. Its load is 0.5 to 0.75 once it
    has grown, so an id takes 16 to 24 bytes. While the table grows, the old and the new one are in memory.
    """

    def __init__(self) -> None:
        self.num_ids = 0
        self._words_S, self._ids_S = np.zeros(_FIRST_CAPACITY, np.uint64), np.zeros(_FIRST_CAPACITY, np.int32)

    def ids(self, words_N: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The ids of ``words_N``; new words are numbered in this order. At most 2**31 - 1 distinct words."""
        words, ids_N, done = np.ascontiguousarray(words_N), np.empty(len(words_N), np.int32), 0
        while done < len(words):
            capacity = len(self._ids_S)
            table, most_ids = (self._words_S, self._ids_S), int(_MAX_LOAD * capacity)
            done, self.num_ids = number_words(words, done, *table, self.num_ids, most_ids, ids_N)
            if done < len(words):
                size = int(capacity * _GROWTH)
                self._words_S, self._ids_S = np.zeros(size, np.uint64), np.zeros(size, np.int32)
                move_words(*table, self._words_S, self._ids_S)
        return ids_N


def _options_of(meta: Meta) -> tuple[object, ...]:
    sizes = meta.cardinalities if meta.categories == "hash" else meta.table_rows
    held_out = meta.split and HeldOut(test=meta.split.test, validation=meta.split.validation)
    schema = meta.columns and meta.columns.model_dump_json()
    return schema, meta.categories, meta.max_ind_range, sizes, held_out


def _existing(sources: Sequence[Path], out: Path, packer: _Packer, advance: Callable[[int], None]) -> Meta:
    """The meta of ``out`` if it was prepared from the same bytes with the same options; names of files may differ.

    Raises DataError for any other content of ``out``.
    """
    refusal = f"{out}: exists and is not this preparation; remove it or choose another folder"
    try:
        meta = read_meta(out)
    except DataError as error:
        raise DataError(refusal) from error
    if _options_of(meta) != packer.options():
        raise DataError(refusal)
    present = [SourceReader(path, advance).whole() for path in sources]
    if [(s.num_bytes, s.xxh3) for s in present] != [(s.num_bytes, s.xxh3) for s in meta.sources]:
        raise DataError(refusal)
    return meta
