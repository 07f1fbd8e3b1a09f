"""Contents and skew of a prepared data folder, as plain values that the command line renders.

Shapes: N rows of a table, F = 26 tables.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from harness.core.placement import tracked_tables
from harness.data.digest import blocks, refuse_other
from harness.data.leftovers import sweep
from harness.data.records import (
    NUM_DENSE,
    NUM_TABLES,
    RECORDS_NAME,
    Meta,
    limits_of,
    read_meta,
    refuse_damage,
)
from harness.data.sources import Progress

NUM_TRACKED = 7


@dataclass(frozen=True, kw_only=True)
class TableInfo:
    """Size and skew of one table. Shares are fractions of its accesses, one per sample."""

    table: int
    num_rows: int
    num_seen: int  # rows accessed at least once; fewer than num_rows only if categories are hashed
    top1_share: float  # of the top 1 % of its rows, at least one row
    top10_share: float
    top1_seen_share: float  # of the top 1 % of the rows seen
    tracked: bool


@dataclass(frozen=True, kw_only=True)
class Info:
    """Contents and skew of a prepared folder. Overall shares treat all tables as one, with 26 accesses a sample."""

    scale: float | None  # of a synthetic log, as is the taper; None for real logs
    taper: float | None
    num_rows: int
    num_positives: int
    positive_frac: float
    cardinalities: tuple[int, ...]
    num_table_rows: int
    tracked_tables: tuple[int, ...]
    tracked_rows_frac: float
    tables: tuple[TableInfo, ...]
    top1_share: float
    top10_share: float
    top1_seen_share: float


def info(path: Path, *, num_tracked: int = NUM_TRACKED, progress: Progress | None = None) -> Info:
    """Count every access of a prepared folder and verify its digest. Removes what killed preparations of it left.

    ``progress`` is called with the number of records read and of all records. Memory: 8 bytes per table row, and one
    block of records. Raises DataError as ``Dataset.open`` does, and if the records do not match their digest.
    """
    sweep(Path(path))
    meta = read_meta(Path(path))
    counts_F = count_accesses(Path(path), meta, progress)
    tracked = tracked_tables(meta.cardinalities, num_tracked)
    tables = tuple(_table(table, counts_N, table in tracked) for table, counts_N in enumerate(counts_F))
    whole = _table(-1, np.concatenate(counts_F), tracked=False)
    return Info(
        scale=meta.synthetic.scale if meta.synthetic else None,
        taper=meta.synthetic.taper if meta.synthetic else None,
        num_rows=meta.num_rows,
        num_positives=meta.num_positives,
        positive_frac=meta.num_positives / meta.num_rows,
        cardinalities=meta.cardinalities,
        num_table_rows=whole.num_rows,
        tracked_tables=tracked,
        tracked_rows_frac=sum(meta.cardinalities[table] for table in tracked) / whole.num_rows,
        tables=tables,
        top1_share=whole.top1_share,
        top10_share=whole.top10_share,
        top1_seen_share=whole.top1_seen_share,
    )


def count_accesses(path: Path, meta: Meta, progress: Progress | None = None) -> list[NDArray[np.uint32]]:
    """Number of accesses of each row of each table.

    Raises DataError if a record is damaged, or the records do not have the digest of ``meta``.
    """
    limits_C = limits_of(meta.cardinalities)
    digest = xxhash.xxh3_128()
    counts_F = [np.zeros(size, dtype=np.uint32) for size in meta.cardinalities]
    for start, records_BC in blocks(path, meta):
        refuse_damage(path / RECORDS_NAME, records_BC, limits_C, start)
        digest.update(records_BC.data)
        ids_FB = records_BC[:, 1 + NUM_DENSE :].T.copy()
        for table in range(NUM_TABLES):
            np.add.at(counts_F[table], ids_FB[table], np.uint32(1))
        if progress is not None:
            progress(start + len(records_BC), meta.num_rows)
    refuse_other(path, meta, digest)
    return counts_F


def _table(table: int, counts_N: NDArray[np.uint32], tracked: bool) -> TableInfo:
    """Size and skew of the rows with access counts ``counts_N``, sorted in place. Table -1: all tables."""
    counts_N.sort()
    num_rows, num_seen = len(counts_N), int(np.count_nonzero(counts_N))
    return TableInfo(
        table=table,
        num_rows=num_rows,
        num_seen=num_seen,
        top1_share=top_share(counts_N, num_rows * 0.01),
        top10_share=top_share(counts_N, num_rows * 0.10),
        top1_seen_share=top_share(counts_N, num_seen * 0.01),
        tracked=tracked,
    )


def top_share(sorted_N: NDArray[np.uint32], num_top: float) -> float:
    """Fraction of all counts in the last ``num_top`` entries (rounded down, at least one)."""
    return float(sorted_N[-max(1, int(num_top)) :].sum(dtype=np.int64) / sorted_N.sum(dtype=np.int64))
