"""Facts of a click log: aggregates that say how its tables are accessed. They contain no row and no id of the log.

Two logs can be compared by their facts (`run.py data info --against`), and a law of synthetic logs is fitted to facts
(``harness.data.fit``). Shapes: N rows of a table, F tables, S samples of which pairs are counted, C = 31 codes.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.config.words import mistakes_of
from harness.core.errors import DataError
from harness.data.law import path_of_law
from harness.data.leftovers import sweep
from harness.data.records import (
    NUM_TABLES,
    Meta,
    blocks,
    read_meta,
    refuse_damage,
    refuse_other,
)
from harness.data.sources import Progress
from harness.files import write_text
from harness.kernels import click_records

BATCH_SIZE = 128
WINDOW = 10 * BATCH_SIZE
"""Number of samples within which a second access to an id counts as re-use."""
NUM_TOP_IDS = 30
"""Mutual information tells apart this number of ids of a table, the most frequent ones; all others count as one id."""
COUNT_BINS: tuple[tuple[int, int | None], ...] = ((1, 1), (2, 4), (5, 19), (20, 99), (100, 999), (1000, None))
"""Groups of ids by number of accesses: the least and the most accesses of a group; None: no limit."""
MIN_IDS = 3
"""Least number of ids for which a spread of click rates is computed."""

_GROWTH_ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
_RANKS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
_MAX_PAIR_SAMPLES = 1 << 20


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


_Fraction = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]


class CountBin(_Facts):
    """The ids of a table whose number of accesses is in the range ``count`` (least, most; None: no limit).

    ``ctr``: click rate of their accesses. ``ctr_sd_between_ids``: standard deviation of the ids' click rates, weighted
    by accesses. It leaves out the noise of few labels per id: for an id of c accesses and k clicks, the expected value
    of k (k - 1) / (c (c - 1)) is the square of its rate. ``ctr`` is None without ids; the deviation is None for fewer
    than three ids, and for ids with one access.
    """

    count: tuple[int, int | None]
    ids: _Count
    accesses_frac: _Fraction
    ctr: float | None = None
    ctr_sd_between_ids: float | None = None


class TableFacts(_Facts):
    """The facts of one table. A missing value counts as an id. A table has one access per sample.

    ``distinct``: number of ids that occur. ``distinct_after_rows``: number of ids in the first n samples, by n.
    ``top_1_percent_share``: share of accesses of the most frequent 1 % of ids. ``share_of_accesses_of_rank``: of
    the most frequent id (rank 1), the second, and so on. ``distinct_per_batch_of_128``: mean number of ids in a batch.
    ``missing_frac``: None where the log does not tell, as in prepared data.
    """

    column: str
    missing_frac: Annotated[float, Field(ge=0, lt=1)] | None = None
    distinct: Annotated[int, Field(ge=1)]
    distinct_after_rows: Annotated[dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], Field(min_length=1)]
    top_1_percent_share: _Fraction
    seen_once_frac_of_ids: _Fraction
    accesses_to_seen_once_frac: _Fraction
    share_of_accesses_of_rank: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0, le=1)]]
    distinct_per_batch_of_128: Annotated[float, Field(gt=0)]
    reuse_within_1280_rows_in_file_order: _Fraction
    by_count: Annotated[tuple[CountBin, ...], Field(min_length=len(COUNT_BINS), max_length=len(COUNT_BINS))]


class PooledFacts(_Facts):
    """The facts of all tables taken as one, with an access to each table per sample."""

    distinct: int
    top_01_percent_share: Annotated[float, Field(alias="top_0.1_percent_share")]
    top_1_percent_share: float
    top_10_percent_share: float
    seen_once_frac_of_ids: float
    distinct_rows_per_batch_of_128: float


class PairFacts(_Facts):
    """Mutual information of each pair of tables, divided by the lesser of their entropies (:func:`mutual_information`).

    ``matrix``: (F, F), 0 on the diagonal. The other facts are of the pairs of different tables; 0 if there are none.
    """

    median: float
    mean: float
    frac_above_01: Annotated[float, Field(alias="frac_above_0.1")]
    frac_above_05: Annotated[float, Field(alias="frac_above_0.5")]
    matrix: tuple[tuple[float, ...], ...]


class IntegerFacts(_Facts):
    """The facts of one integer column.

    ``quantiles``: by probability, of the values that are not missing. ``corr_label``: the correlation of log1p of the
    value with the label.
    """

    column: str
    missing_frac: float
    negative_frac: float
    log1p_mean: float
    log1p_sd: float
    quantiles: dict[float, float]
    corr_label: float


class Facts(_Facts):
    """All facts of one log. ``integers``: empty where the log does not tell, as in prepared data."""

    rows: Annotated[int, Field(ge=1)]
    positives_frac: _Fraction
    positives_frac_by_seventh_in_file_order: Annotated[tuple[_Fraction, ...], Field(min_length=7, max_length=7)]
    pooled: PooledFacts
    pairs: Annotated[PairFacts, Field(alias="pairs_of_tables_normalised_mutual_information_top30")]
    tables: Annotated[tuple[TableFacts, ...], Field(min_length=1)]
    integers: tuple[IntegerFacts, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if {len(self.tables)} != {len(self.pairs.matrix), *map(len, self.pairs.matrix)}:
            raise ValueError(f"pairs: expected a row and a column for each of the {len(self.tables)} tables")
        return self


def read_facts(path: Path) -> Facts:
    """The facts in a JSON file that `run.py data info --facts` or `data fit` wrote, or the facts of a named law.

    Raises DataError, also unless the facts are of Criteo's 26 tables.
    """
    path = path_of_law(str(path))
    try:
        content = json.loads(path.read_text())
        facts = Facts.model_validate(content.get("facts", content))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (AttributeError, ValueError) as error:
        got = mistakes_of(error)[0] if isinstance(error, ValidationError) else "other content"
        raise DataError(f"{path}: expected what `run.py data info DIR --facts FILE` writes, got {got}") from error
    if len(facts.tables) != NUM_TABLES:
        raise DataError(f"{path}: expected facts of Criteo's {NUM_TABLES} tables, got {len(facts.tables)}")
    return facts


def write_facts(path: Path, facts: Facts) -> None:
    """Write a JSON file that :func:`read_facts` reads. Raises StoreError."""
    write_text(path, facts.model_dump_json(by_alias=True, indent=1) + "\n")


def measure(path: Path, *, progress: Progress | None = None, growth_rows: Sequence[int] = ()) -> Facts:
    """The facts of the prepared folder ``path``. Removes temporary files that killed preparations of it left.

    ``progress`` is called with the number of records read and the number of all. ``growth_rows``: further numbers of
    samples after which distinct ids are counted. Memory of the counting: 16 bytes per table row, one block of records.

    Raises DataError as :func:`read_meta`, and if the records are damaged or do not have the digest of the meta.
    """
    sweep(path)
    meta = read_meta(path)
    counter = _counted(path, meta, progress, growth_rows)
    return Facts(
        rows=meta.num_rows,
        positives_frac=meta.num_positives / meta.num_rows,
        positives_frac_by_seventh_in_file_order=tuple(
            (counter.positives_7 / np.maximum(counter.samples_7, 1)).tolist()  # fewer than seven rows
        ),
        pooled=counter.pooled(),
        pairs=_pair_facts(path, meta),
        tables=tuple(counter.table(table, name) for table, name in enumerate(meta.table_names)),
    )


def count_accesses(path: Path, meta: Meta) -> list[NDArray[np.uint32]]:
    """Number of accesses to each row of each table. Raises DataError for damaged records."""
    return _counted(path, meta).counts_F


def _counted(path: Path, meta: Meta, progress: Progress | None = None, growth_rows: Sequence[int] = ()) -> "_Counter":
    counter = _Counter(meta, {*_GROWTH_ROWS, *growth_rows, meta.num_rows})
    digest = xxhash.xxh3_128()
    for start, records_BC in blocks(path, meta):
        refuse_damage(path, meta, records_BC, start)
        digest.update(records_BC.data)
        counter.add(start, records_BC)
        if progress is not None:
            progress(start + len(records_BC), meta.num_rows)
    refuse_other(path, meta, digest)
    return counter


class _Counter:
    def __init__(self, meta: Meta, growth_rows: set[int]) -> None:
        self._num_rows = meta.num_rows
        self._first_table = 1 + meta.num_dense
        self._num_batches = max(1, meta.num_rows // BATCH_SIZE)  # a last part counts only if it is all there is
        self._growth_rows = sorted(rows for rows in growth_rows if rows <= meta.num_rows)
        self.counts_F = [np.zeros(size, np.uint32) for size in meta.cardinalities]
        self._positives_F = [np.zeros(size, np.uint32) for size in meta.cardinalities]
        self._last_F = [np.zeros(size, np.int64) for size in meta.cardinalities]
        self._sizes_F = np.zeros(meta.num_tables, click_records.SIZE)
        self._growth_F: list[dict[int, int]] = [{} for _ in meta.cardinalities]
        self.positives_7, self.samples_7 = np.zeros(7), np.zeros(7)

    def add(self, first: int, records_BC: NDArray[np.int32]) -> None:
        labels_B = records_BC[:, 0].copy().view(np.float32)
        ids_FB = records_BC[:, self._first_table :].T.copy()
        seventh_B = np.arange(first, first + len(labels_B)) * 7 // self._num_rows
        self.positives_7 += np.bincount(seventh_B, labels_B, 7)
        self.samples_7 += np.bincount(seventh_B, minlength=7)
        last = first + len(labels_B)
        ends = [rows for rows in self._growth_rows if first < rows < last] + [last]
        for table in range(len(ids_FB)):
            start = first
            for end in ends:
                part = slice(start - first, end - first)
                seen = click_records.count(
                    ids_FB[table, part],
                    labels_B[part],
                    start,
                    BATCH_SIZE,
                    self._num_batches * BATCH_SIZE,
                    WINDOW,
                    self._sizes_F,
                    table,
                    self.counts_F[table],
                    self._positives_F[table],
                    self._last_F[table],
                )
                if end in self._growth_rows:
                    self._growth_F[table][end] = int(seen)
                start = end

    def table(self, table: int, name: str) -> TableFacts:
        is_seen_N = self.counts_F[table] > 0
        counts_N, positives_N = (each[table][is_seen_N] for each in (self.counts_F, self._positives_F))
        sorted_N = np.sort(counts_N)[::-1]
        return TableFacts(
            column=name,
            distinct=len(counts_N),
            distinct_after_rows=self._growth_F[table],
            top_1_percent_share=top_share(sorted_N, round(0.01 * len(sorted_N))),
            seen_once_frac_of_ids=float(np.mean(counts_N == 1)),
            accesses_to_seen_once_frac=int(np.sum(counts_N == 1)) / self._num_rows,
            share_of_accesses_of_rank={
                rank: float(sorted_N[rank - 1] / self._num_rows) for rank in _RANKS if rank <= len(sorted_N)
            },
            distinct_per_batch_of_128=self._per_batch(self._sizes_F[table]["in_batches"]),
            reuse_within_1280_rows_in_file_order=float(self._sizes_F[table]["reused"] / self._num_rows),
            by_count=tuple(
                _count_bin(counts_N, positives_N, first, last, self._num_rows) for first, last in COUNT_BINS
            ),
        )

    def pooled(self) -> PooledFacts:
        sorted_N = np.sort(np.concatenate([counts_N[counts_N > 0] for counts_N in self.counts_F]))[::-1]
        return PooledFacts(
            distinct=len(sorted_N),
            top_01_percent_share=top_share(sorted_N, int(0.001 * len(sorted_N))),
            top_1_percent_share=top_share(sorted_N, int(0.01 * len(sorted_N))),
            top_10_percent_share=top_share(sorted_N, int(0.10 * len(sorted_N))),
            seen_once_frac_of_ids=float(np.mean(sorted_N == 1)),
            distinct_rows_per_batch_of_128=self._per_batch(self._sizes_F["in_batches"].sum()),
        )

    def _per_batch(self, in_batches: int) -> float:
        return float(in_batches / self._num_batches)


def top_share(counts_N: NDArray[np.uint32], num_top: int) -> float:
    """Share of accesses of the ``num_top`` (at least 1) most frequent ids. ``counts_N``: accesses by id, descending."""
    return float(counts_N[: max(1, num_top)].sum(dtype=np.int64) / counts_N.sum(dtype=np.int64))


def _count_bin(
    counts_N: NDArray[np.uint32], positives_N: NDArray[np.uint32], first: int, last: int | None, num_samples: int
) -> CountBin:
    is_in_N = (counts_N >= first) & (counts_N <= (math.inf if last is None else last))
    c_N, k_N = counts_N[is_in_N].astype(np.float64), positives_N[is_in_N].astype(np.float64)
    if not len(c_N):
        return CountBin(count=(first, last), ids=0, accesses_frac=0.0)
    rate = float(k_N.sum() / c_N.sum())
    spread = None
    if first > 1 and len(c_N) >= MIN_IDS:
        variance = float((k_N * (k_N - 1) / (c_N - 1)).sum() / c_N.sum()) - rate**2
        spread = math.sqrt(max(variance, 0.0))
    return CountBin(
        count=(first, last),
        ids=len(c_N),
        accesses_frac=float(c_N.sum() / num_samples),
        ctr=rate,
        ctr_sd_between_ids=spread,
    )


def _pair_facts(path: Path, meta: Meta) -> PairFacts:
    """The facts of pairs of tables, from at most ``_MAX_PAIR_SAMPLES`` evenly spaced samples."""
    stride = math.ceil(meta.num_rows / _MAX_PAIR_SAMPLES)
    parts = [
        records_BC[-start % stride :: stride, 1 + meta.num_dense :].copy() for start, records_BC in blocks(path, meta)
    ]
    matrix_FF = mutual_information(np.concatenate(parts))
    pairs = matrix_FF[np.triu_indices(meta.num_tables, 1)] if meta.num_tables > 1 else np.zeros(1)
    return PairFacts(
        median=float(np.median(pairs)),
        mean=float(pairs.mean()),
        frac_above_01=float(np.mean(pairs > 0.1)),
        frac_above_05=float(np.mean(pairs > 0.5)),
        matrix=tuple(map(tuple, matrix_FF.tolist())),
    )


def mutual_information(ids_SF: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Mutual information of each pair of columns, divided by the lesser of their entropies: (F, F), 0 on the diagonal.

    In each column all but the 30 most frequent ids count as one id.
    """
    num_tables = ids_SF.shape[1]
    codes_SF = np.empty(ids_SF.shape, np.uint8)
    for table in range(num_tables):
        _, inverse_S, counts_N = np.unique(ids_SF[:, table], return_inverse=True, return_counts=True)
        code_N = np.full(len(counts_N), NUM_TOP_IDS, np.uint8)
        top = np.argsort(-counts_N, kind="stable")[:NUM_TOP_IDS]
        code_N[top] = np.arange(len(top))
        codes_SF[:, table] = code_N[inverse_S]
    counts_FFCC = np.zeros((num_tables, num_tables, NUM_TOP_IDS + 1, NUM_TOP_IDS + 1), np.int64)
    click_records.count_pairs(codes_SF, counts_FFCC)
    matrix_FF = np.zeros((num_tables, num_tables))
    for f, g in zip(*np.triu_indices(num_tables, 1), strict=True):
        joint_CC = counts_FFCC[f, g] / len(codes_SF)
        own, other = _entropy(joint_CC.sum(axis=1)), _entropy(joint_CC.sum(axis=0))
        shared = own + other - _entropy(joint_CC.ravel())
        matrix_FF[f, g] = matrix_FF[g, f] = max(shared, 0.0) / max(min(own, other), 1e-12)
    return matrix_FF


def _entropy(shares_C: NDArray[np.float64]) -> float:
    positive = shares_C[shares_C > 0]
    return -float(positive @ np.log(positive))
