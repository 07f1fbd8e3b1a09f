"""How the samples of prepared data access the rows of their tables.

Shapes: N rows of a table, F tables, B records of a block, C words of a record.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from harness.data.records import Meta, blocks, read_meta, refuse_damage, refuse_other
from harness.data.sources import Progress
from harness.kernels import click_records

BATCH_SIZE = 128
WINDOW = 10 * BATCH_SIZE
"""Number of samples within which a second access to an id counts as re-use."""


@dataclass(frozen=True)
class Accesses:
    """The accesses to one table, or to all tables taken as one. A sample has one access to each table.

    ``distinct``: number of ids that occur. ``top_N_percent_share``: share of accesses of the most frequent N % of ids.
    ``distinct_per_batch_of_128``: mean number of ids in a batch.
    """

    column: str
    distinct: int
    top_01_percent_share: float  # of 0.1 %
    top_1_percent_share: float
    top_10_percent_share: float
    seen_once_frac_of_ids: float
    accesses_to_seen_once_frac: float
    distinct_per_batch_of_128: float
    reuse_within_1280_rows_in_file_order: float


def measure(path: Path, *, progress: Progress | None = None) -> list[Accesses]:
    """The accesses to each table of the prepared folder ``path``, and last to all tables as one (column ``all``).

    ``progress`` is called with the number of records read and the number of all. Memory: 16 bytes a table row, and a
    block of records.

    Raises DataError as :func:`read_meta`, and if the records are damaged or do not have the digest of the meta.
    """
    meta = read_meta(path)
    counts_F, sizes_F = _counted(path, meta, progress)
    found = [
        _accesses(name, counts_N, sizes_F[f : f + 1], meta.num_rows)
        for f, (name, counts_N) in enumerate(zip(meta.table_names, counts_F, strict=True))
    ]
    return [*found, _accesses("all", np.concatenate(counts_F), sizes_F, meta.num_rows)]


def count_accesses(path: Path, meta: Meta) -> list[NDArray[np.uint32]]:
    """Number of accesses to each row of each table. Raises DataError for damaged records."""
    return _counted(path, meta)[0]


def top_share(sorted_N: NDArray[np.uint32], frac: float) -> float:
    """Share of accesses of the fraction ``frac`` of ids, at least one. ``sorted_N``: accesses by id, descending."""
    return float(sorted_N[: max(1, round(frac * len(sorted_N)))].sum(dtype=np.int64) / sorted_N.sum(dtype=np.int64))


def _accesses(column: str, counts_N: NDArray[np.uint32], sizes_F: NDArray[Any], num_rows: int) -> Accesses:
    sorted_N = np.sort(counts_N[counts_N > 0])[::-1]
    num_accesses, num_once = num_rows * len(sizes_F), int(np.sum(sorted_N == 1))
    return Accesses(
        column,
        len(sorted_N),
        *(top_share(sorted_N, frac) for frac in (0.001, 0.01, 0.1)),
        seen_once_frac_of_ids=num_once / len(sorted_N),
        accesses_to_seen_once_frac=num_once / num_accesses,
        distinct_per_batch_of_128=float(sizes_F["in_batches"].sum() / _num_batches(num_rows)),
        reuse_within_1280_rows_in_file_order=float(sizes_F["reused"].sum() / num_accesses),
    )


def _num_batches(num_rows: int) -> int:
    return max(1, num_rows // BATCH_SIZE)  # a last part counts only if it is all there is


def _counted(path: Path, meta: Meta, progress: Progress | None = None) -> tuple[list[NDArray[np.uint32]], NDArray[Any]]:
    """Accesses to each row of each table, and ``click_records.SIZE`` of each table."""
    counts_F = [np.zeros(size, np.uint32) for size in meta.cardinalities]
    last_F = [np.zeros(size, np.int64) for size in meta.cardinalities]
    sizes_F = np.zeros(meta.num_tables, click_records.SIZE)
    in_batches, digest = _num_batches(meta.num_rows) * BATCH_SIZE, xxhash.xxh3_128()
    for start, records_BC in blocks(path, meta):
        refuse_damage(path, meta, records_BC, start)
        digest.update(records_BC.data)
        ids_FB = records_BC[:, 1 + meta.num_dense :].T.copy()
        for f, ids_B in enumerate(ids_FB):
            click_records.count(ids_B, start, BATCH_SIZE, in_batches, WINDOW, sizes_F, f, counts_F[f], last_F[f])
        if progress is not None:
            progress(start + len(records_BC), meta.num_rows)
    refuse_other(path, meta, digest)
    return counts_F, sizes_F
