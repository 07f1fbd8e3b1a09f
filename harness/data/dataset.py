"""Prepared data as batches. A batch is a pure function of (data, split, seed, step), so rerun steps get the same data.

Shapes: B samples of a batch, F tables, I dense features (26 and 13 in Criteo's logs).
"""

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.errors import DataError
from harness.data.order import Permutation
from harness.data.records import RECORDS_NAME, Meta, Words, damage, limits_of, read_meta, refuse_other_size, verify
from harness.data.split import MIN_ROWS
from harness.kernels.click_records import gather, unpack

Split = Literal["dlrm", "prepared", "chronological"]
EvalSet = Literal["test", "validation"]

_BLOCK = 8192  # positions of the shuffle computed at once


@dataclass(frozen=True)
class Batch:
    """Consecutive samples of a training or evaluation stream; its arrays are copies of the records."""

    first_sample: int
    """Position of the batch's first sample in the stream. Positions are the clock of every decision."""
    dense_BI: Tensor
    """float32 (B, I): finite; of an integer x of Criteo's, log(max(x, 0) + 1); 0 where it is missing."""
    ids_BF: NDArray[np.int32]
    """int32 (B, F): row id within each table."""
    labels_B: Tensor
    """float32 (B,): 0 or 1."""


class Records:
    """The records of a prepared folder, to be read in any order and by any thread. The file is memory-mapped.

    Nothing but :func:`gather` may read the map: where the file has become shorter, a load from it ends the process.
    """

    def __init__(self, folder: Path, meta: Meta) -> None:
        self._path, self._meta = folder / RECORDS_NAME, meta
        with self._path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 4 * meta.num_rows * meta.num_columns, access=mmap.ACCESS_READ)
            except ValueError:  # since the meta was read
                raise DataError(f"{self._path}: has become shorter; prepare again") from None
        self._address: int = np.frombuffer(self._map, np.uint8).ctypes.data
        self._scratches: dict[int, int] = {}

    def take(self, rows_B: NDArray[np.int64]) -> Words:
        """A copy of the records of these rows, (B, C) int32; float columns hold their bit patterns.

        Raises DataError if the file has another size by now, or cannot be read.
        """
        records_BC = np.empty((len(rows_B), self._meta.num_columns), np.int32)
        num_read = gather(self._address, self._scratch(), rows_B, records_BC)
        refuse_other_size(self._path, self._map.size(), self._meta)  # beyond the end of a file its last page has zeros
        if num_read < len(rows_B):
            raise DataError(f"{self._path}: sample {rows_B[num_read]:,}: cannot be read; the disk or the memory fails")
        return records_BC

    def _scratch(self) -> int:
        """The file in memory through which this thread reads; each thread, also of a forked process, has its own."""
        thread = threading.get_native_id()
        if thread not in self._scratches:
            self._scratches[thread] = os.memfd_create("records")
            weakref.finalize(self, os.close, self._scratches[thread])
        return self._scratches[thread]


class Dataset:
    """Batches of one prepared folder, whose records are memory-mapped. Opening reads only ``meta.json``.

    A batch with an impossible value, such as a row id beyond its table, raises DataError, as one does of a file that
    has become shorter.
    """

    def __init__(self, path: Path, meta: Meta, *, split: Split, seed: int) -> None:
        self.meta = meta
        self.cardinalities = meta.cardinalities
        """Rows of each table."""
        self.num_tables = meta.num_tables
        self.num_dense = meta.num_dense
        self.digest = meta.digest
        """Hash of the prepared data: equal digests give equal batches."""
        self.split: Split = split
        self.rows = meta.rows
        self.num_train = self.rows.num_train
        self._records = Records(path, meta)
        self._limits_C, self._signed_S = limits_of(meta)
        self._folder = path
        self._order = None if split == "chronological" else Permutation(self.num_train, seed, "train")
        self._block = 0, np.empty(0, np.int64)  # a position, and the rows at this and the next positions of the shuffle

    @classmethod
    def open(cls, path: Path, *, split: Split | None, seed: int) -> "Dataset":
        """Open the data that ``run.py data prepare`` wrote to ``path``.

        The sets are those of the folder. Splits ``prepared`` (of a folder that was prepared with ``--test``) and
        ``dlrm`` (of others) shuffle the training samples by a permutation derived from ``seed``; ``chronological``
        keeps the order of the rows. None is ``prepared`` or ``dlrm``. The evaluation sets are in the order of the rows.

        Raises:
            DataError: missing, unfinished, damaged, truncated, of another format version, or too few rows to split, or
                the folder has other sets than ``split``.
        """
        path = Path(path)
        meta = read_meta(path, "data.path: ")
        own: Split = "prepared" if meta.split else "dlrm"
        if split not in (None, own, "chronological"):
            how = "with" if meta.split else "without"
            raise DataError(
                f"data.split: {path} was prepared {how} --test: expected {own} or chronological, got {split}"
            )
        if meta.split is None and meta.num_rows < MIN_ROWS:
            raise DataError(f"{path}: expected at least {MIN_ROWS} rows for a seven-part split, got {meta.num_rows}")
        return cls(path, meta, split=split or own, seed=seed)

    def verify(self) -> None:
        """Raise DataError unless the records have the digest in ``meta.json`` (see ``records.verify``)."""
        verify(self._folder, self.meta)

    def num_eval(self, which: EvalSet) -> int:
        """Number of samples of an evaluation set."""
        first, end = self._eval_range(which)
        return end - first

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Positions [step * batch_size, (step + 1) * batch_size) in training order; the last batch may be shorter.

        Raises DataError for a damaged record.
        """
        first = step * batch_size
        end = min(first + batch_size, self.num_train)
        assert 0 <= first < end, f"step {step} of batches of {batch_size} lies outside {self.num_train} samples"
        if self._order is None:
            return self._batch(first, np.arange(first, end))
        return self._batch(first, self._items(first, end))

    def _items(self, first: int, end: int) -> NDArray[np.int64]:
        """Row numbers at positions [first, end) of the shuffle; computed in blocks, which cuts the cost to a sixth."""
        assert self._order is not None
        begin, items = self._block
        if not begin <= first <= end <= begin + len(items):
            stop = min(max(end, first + _BLOCK), self.num_train)
            begin, items = first, self._order(np.arange(first, stop, dtype=np.uint64)).view(np.int64)
            self._block = begin, items  # in one assignment: batches may be read ahead in another thread
        return items[first - begin : end - begin]

    def eval_batches(self, which: EvalSet, batch_size: int, max_samples: int | None = None) -> Iterator[Batch]:
        """Batches of the first ``max_samples`` samples of an evaluation set, in file order; None: of all samples.

        ``first_sample`` counts from 0 in the set. Raises DataError for a damaged record.
        """
        first, end = self._eval_range(which)
        if max_samples is not None:
            end = min(end, first + max_samples)
        for start in range(first, end, batch_size):
            yield self._batch(start - first, np.arange(start, min(start + batch_size, end)))

    def _eval_range(self, which: EvalSet) -> tuple[int, int]:
        if which == "test":
            return self.num_train, self.rows.first_validation
        return self.rows.first_validation, self.rows.num_rows

    def _batch(self, first_sample: int, rows_B: NDArray[np.int64]) -> Batch:
        dense_BI = np.empty((len(rows_B), self.num_dense), np.float32)
        ids_BF = np.empty((len(rows_B), self.num_tables), np.int32)
        labels_B = np.empty(len(rows_B), np.float32)
        records_BC = self._records.take(rows_B)
        damaged = unpack(records_BC, self._limits_C, self._signed_S, dense_BI, ids_BF, labels_B)
        if damaged >= 0:
            raise damage(self._folder, self.meta, records_BC[damaged], int(rows_B[damaged]))
        return Batch(
            first_sample=first_sample,
            dense_BI=torch.from_numpy(dense_BI),
            ids_BF=ids_BF,
            labels_B=torch.from_numpy(labels_B),
        )
