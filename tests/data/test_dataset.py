"""Laws of prepared folders as batches: the order of samples, the split, damage."""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from harness.core.errors import DataError
from harness.data import records
from harness.data.dataset import Batch, Dataset, Split
from harness.data.order import Permutation
from harness.data.records import META_NAME, NUM_COLUMNS, RECORDS_NAME, VERIFIED_NAME, digest_of
from harness.data.split import split_rows
from tests.data.logs import write_folder
from tests.forked import said_by

NUM_ROWS = 1_003


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "prepared"
    write_folder(path, NUM_ROWS)
    return path


def _rows(batch: Batch) -> list[int]:
    return (batch.ids_BF[:, 0] // batch.ids_BF.shape[1]).tolist()


def _stream(dataset: Dataset, batch_size: int) -> list[int]:
    num_steps = -(-dataset.num_train // batch_size)
    return [row for step in range(num_steps) for row in _rows(dataset.train_batch(step, batch_size))]


@pytest.mark.parametrize(("num_dense", "num_tables"), [(13, 26), (0, 22), (5, 1)])
def test_a_batch_holds_the_columns_of_its_rows(tmp_path: Path, num_dense: int, num_tables: int) -> None:
    """Features, row ids and labels of one sample come from one record, in the promised types, in memory of its own."""
    write_folder(tmp_path / "a", NUM_ROWS, num_dense, num_tables)
    dataset = Dataset.open(tmp_path / "a", split="dlrm", seed=0)
    dataset.verify()
    assert (dataset.num_dense, dataset.num_tables) == (num_dense, num_tables)
    for _ in range(2):
        batch = dataset.train_batch(2, 10)
        rows = np.array(_rows(batch))
        assert batch.first_sample == 20
        assert batch.dense_BI.dtype == batch.labels_B.dtype == torch.float32
        assert batch.ids_BF.dtype == np.int32
        expected_BI = torch.tensor(rows + 0.5, dtype=torch.float32)[:, None].expand(-1, num_dense)
        assert torch.equal(batch.dense_BI, expected_BI)
        assert np.array_equal(batch.ids_BF, num_tables * rows[:, None] + np.arange(num_tables))
        assert batch.labels_B.tolist() == (rows % 4 == 0).astype(float).tolist()
        batch.dense_BI.zero_()
        batch.ids_BF[:] = -1


@pytest.mark.parametrize("split", ["dlrm", "chronological"])
def test_an_epoch_meets_every_training_row_once(folder: Path, split: Split) -> None:
    """One order of the training rows at any batch size: a permutation, or the file's order. Evaluation sets follow.

    A batch is a function of seed and step, in whatever order batches are asked for.
    """
    first, second, other = (Dataset.open(folder, split=split, seed=seed) for seed in (3, 3, 4))
    num_train = first.num_train
    stream = _stream(first, 64)
    assert (stream if split == "chronological" else sorted(stream)) == list(range(num_train))
    assert (stream == _stream(other, 64)) == (split == "chronological")
    assert all(_stream(second, size) == stream for size in (859, 860, 861))
    backwards = [_rows(second.train_batch(step, 32)) for step in reversed(range(8))]
    assert backwards[::-1] == [stream[start : start + 32] for start in range(0, 256, 32)]
    test, validation = (list(first.eval_batches(which, 30)) for which in ("test", "validation"))
    rows = [row for batch in (*test, *validation) for row in _rows(batch)]
    assert rows == list(range(num_train, NUM_ROWS))
    assert sum(len(batch.labels_B) for batch in test) == first.num_eval("test") == 72
    assert first.num_eval("validation") == 71
    assert [batch.first_sample for batch in test] == [0, 30, 60]
    assert [row for batch in first.eval_batches("test", 30, 40) for row in _rows(batch)] == rows[:40]


def test_threads_read_one_dataset_at_once(folder: Path) -> None:
    """Law: each gets its own batches."""
    dataset = Dataset.open(folder, split="chronological", seed=0)
    with ThreadPoolExecutor(4) as pool:
        streams = list(pool.map(partial(_stream, dataset), range(3, 43)))
    assert streams == [list(range(dataset.num_train))] * 40


def test_the_split_is_dlrms() -> None:
    """Kaggle's counts are DLRM's published ones; the seven parts are those of numpy.array_split."""
    kaggle = split_rows(45_840_617)
    assert (kaggle.num_train, kaggle.first_validation) == (39_291_958, 39_291_958 + 3_274_330)
    for num_rows in range(14, 40):
        parts = np.array_split(np.arange(num_rows), 7)
        rows = split_rows(num_rows)
        assert rows.num_train == sum(len(part) for part in parts[:6])
        assert rows.first_validation - rows.num_train == -(-len(parts[6]) // 2)
        assert rows.num_train < rows.first_validation < rows.num_rows == num_rows


def _permuted(num_items: int, seed: int = 0, label: str = "train") -> np.ndarray:
    return Permutation(num_items, seed, label)(np.arange(num_items, dtype=np.uint64))


def test_the_shuffle_is_a_permutation_without_a_trace_of_the_order() -> None:
    """A bijection for any number of items, a function of seed, label and position; neighbours are not correlated."""
    for num_items in (1, 2, 3, 5, 15, 16, 17, 127, 65_536, 65_537, 200_000):
        assert np.array_equal(np.sort(_permuted(num_items)), np.arange(num_items))
    items = _permuted(200_000)
    for position in (0, 1, 5_003, 199_999):
        assert Permutation(200_000, 0, "train")(np.array([position], dtype=np.uint64))[0] == items[position]
    assert not np.array_equal(items, _permuted(200_000, 8))
    assert not np.array_equal(items, _permuted(200_000, 0, "other"))
    bound = 5 / np.sqrt(len(items))  # five standard errors of a correlation of independent values
    assert abs(np.corrcoef(items, np.arange(len(items)))[0, 1]) < bound
    assert abs(np.corrcoef(items[1:], items[:-1])[0, 1]) < bound
    assert np.sum(np.abs(np.diff(items.astype(np.int64))) == 1) < 20  # expected 2


def _with_meta(**changes: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / META_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _of_bytes(num_bytes: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / RECORDS_NAME, num_bytes)


def _of_rows(num_rows: int) -> Callable[[Path], object]:
    return lambda folder: (shutil.rmtree(folder), write_folder(folder, num_rows))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "prepared: no such folder; `run.py data prepare` writes one"),
        (lambda folder: (folder / META_NAME).unlink(), "meta.json: missing"),  # it is written last
        (lambda folder: (folder / META_NAME).write_text("[" * 100_000), "meta.json: damaged"),
        (_with_meta(format_version=99), "damaged (format_version: expected 1, got 99)"),
        (_with_meta(num_dense=None), "damaged (num_dense: expected"),
        *((_of_bytes(n), f"records.bin: {n:,} bytes, expected 160,480") for n in (0, 160_479, 160_640)),
        *((_with_meta(cardinalities=[n] * 26), "damaged") for n in (0, 10**12, math.inf)),
        (_with_meta(cardinalities=[]), "damaged"),
        (_with_meta(cardinalities=[1] * 25), "records.bin: 160,480 bytes, expected 156,468"),
        (_with_meta(num_dense=12), "records.bin: 160,480 bytes, expected 156,468"),
        (_with_meta(num_positives=NUM_ROWS + 1), "damaged"),
        *(
            (_with_meta(split={"test": 0.1, "validation": [], "num_train": first, "first_validation": end}), "damaged")
            for first, end in ((0, NUM_ROWS), (NUM_ROWS, NUM_ROWS), (900, NUM_ROWS + 1))
        ),
        (_of_rows(13), "expected at least 14 rows for a seven-part split, got 13"),
    ],
)
def test_a_folder_that_cannot_be_is_one_line(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    """Missing, unfinished, torn, impossible or too small data is refused when it is opened."""
    damage(folder)
    with pytest.raises(DataError) as caught:
        Dataset.open(folder, split="dlrm", seed=0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["dlrm", "chronological"])
def test_words_that_cannot_be_are_refused(folder: Path, split: Split) -> None:
    """A word that no preparation writes, and that came after the folder was opened, is named with its sample.

    The largest ids and features that can be are met without complaint.
    """
    dataset = Dataset.open(folder, split=split, seed=1)

    def meet_all() -> int:
        evals = [batch for which in ("test", "validation") for batch in dataset.eval_batches(which, 32)]
        return len(_stream(dataset, 32)) + sum(len(_rows(batch)) for batch in evals)

    words = np.memmap(folder / RECORDS_NAME, dtype=np.uint32, mode="r+").reshape(NUM_ROWS, -1)
    for row, column, bits, what in (
        (0, 14, 0xFFFFFFFF, "row id -1 of table 0, expected 0 to 26,077"),
        (859, 39, 26 * NUM_ROWS, "row id 26078 of table 25, expected 0 to 26,077"),
        (860, 1, 0xFFFFFFFF, "feature 1 nan, expected a number that is finite and not negative"),
        (900, 13, 0xBF800000, "feature 13 -1.0, expected a number that is finite and not negative"),
        (NUM_ROWS - 1, 0, 0x40000000, "label 2.0, expected 0 or 1"),
    ):
        good, words[row, column] = words[row, column], bits
        with pytest.raises(DataError) as caught:
            meet_all()
        path = folder / RECORDS_NAME
        assert str(caught.value) == f"{path}: sample {row:,}: {what}; the file is damaged, prepare the data again"
        words[row, column] = good
    words[:, 14:] = 26 * NUM_ROWS - 1
    words[:, 1:14] = np.float32(np.finfo(np.float32).max).view(np.uint32)
    assert meet_all() == NUM_ROWS


def _read_while_shorter(folder: Path, num_bytes: int) -> None:
    """Truncate records after they were opened, and print what each way of reading them says."""
    pytest.MonkeyPatch().setattr(records, "_BLOCK_ROWS", 100)
    dataset, blocks = Dataset.open(folder, split="dlrm", seed=0), records.blocks(folder, records.read_meta(folder))
    next(blocks)
    os.truncate(folder / RECORDS_NAME, num_bytes)
    for read in (lambda: dataset.train_batch(0, 860), lambda: [*dataset.eval_batches("test", 9)], lambda: [*blocks]):
        with pytest.raises(DataError) as caught:
            read()
        sys.stdout.write(f"{caught.value}\n")


@pytest.mark.parametrize(
    "num_bytes", [*(pytest.param(num, marks=pytest.mark.slow) for num in (0, 4_096, 160_479)), 120_000]
)
def test_records_that_become_shorter_while_they_are_read_are_one_line(folder: Path, num_bytes: int) -> None:
    """Law: the line names the file and both sizes, whatever is read; no signal ends the process."""
    line = f"{folder / RECORDS_NAME}: {num_bytes:,} bytes, expected 160,480 bytes (1,003 rows); prepare again"
    assert said_by(_read_while_shorter, folder, num_bytes).splitlines() == [line] * 3


def test_records_have_the_digest_of_their_meta(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that changed are refused, also where each is possible. The same file is hashed once.

    What is remembered of it may be missing or damaged. A meta without the number of dense features has 13.
    """
    real, read = records.blocks, list[Path]()
    monkeypatch.setattr(records, "blocks", lambda path, meta: read.append(path) or real(path, meta))

    def verify() -> None:
        Dataset.open(folder, split="dlrm", seed=0).verify()

    verify()
    verify()
    assert read == [folder]
    for content in ("", "[" * 100_000, "null"):
        (folder / VERIFIED_NAME).write_text(content)
        verify()
    assert read == [folder] * 4
    values = np.memmap(folder / RECORDS_NAME, dtype="<i4", mode="r+", shape=(NUM_ROWS, NUM_COLUMNS))
    labels = values[:, 0].copy()
    values[:, 0] = labels[::-1]
    values.flush()
    with pytest.raises(DataError, match=r"records\.bin: damaged: expected digest .* of meta\.json, got [0-9a-f]{32};"):
        verify()
    values[:, 0] = labels
    values.flush()


def test_the_digest_tells_shapes_apart() -> None:
    words = xxhash.xxh3_128(b"0" * 480)
    assert len({digest_of(words, num_dense, (3,)) for num_dense in (0, 1, 13, 28)}) == 4
    assert digest_of(words, 13, (3,)) == xxhash.xxh3_128(b"0" * 480 + b"[3]").hexdigest()
