import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from harness.core.errors import DataError
from harness.data import digest
from harness.data.dataset import Batch, Dataset, Split
from harness.data.digest import VERIFIED_NAME
from harness.data.records import META_NAME, NUM_COLUMNS, RECORDS_NAME, digest_of
from tests.data.folders import seal, write_folder

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
    """Dense features, row ids and labels of one sample come from one record, in the promised types and numbers."""
    write_folder(tmp_path / "a", NUM_ROWS, num_dense, num_tables)
    dataset = Dataset.open(tmp_path / "a", split="dlrm", seed=0)
    dataset.verify()
    assert (dataset.num_dense, dataset.num_tables) == (num_dense, num_tables)
    batch = dataset.train_batch(2, 10)
    rows = np.array(_rows(batch))
    assert batch.first_sample == 20
    assert batch.dense_BI.dtype == batch.labels_B.dtype == torch.float32
    assert batch.ids_BF.dtype == np.int32
    assert torch.equal(batch.dense_BI, torch.tensor(rows + 0.5, dtype=torch.float32)[:, None].expand(-1, num_dense))
    assert np.array_equal(batch.ids_BF, num_tables * rows[:, None] + np.arange(num_tables))
    assert batch.labels_B.tolist() == (rows % 4 == 0).astype(float).tolist()


@pytest.mark.parametrize("split", ["dlrm", "chronological"])
@pytest.mark.parametrize("batch_size", [64, 859, 860, 861])
def test_an_epoch_meets_every_training_row_once(folder: Path, split: Split, batch_size: int) -> None:
    """One permutation of the training rows at any batch size, the last batch being cut off; or the file's order."""
    dataset = Dataset.open(folder, split=split, seed=3)
    stream, in_order = _stream(dataset, batch_size), list(range(dataset.num_train))
    assert (stream if split == "chronological" else sorted(stream)) == in_order
    assert stream == _stream(dataset, 64)


def test_a_batch_is_a_function_of_seed_and_step(folder: Path) -> None:
    """Opened twice, asked in any order, the same step gives the same batch; another seed gives another."""
    first, second = (Dataset.open(folder, split="dlrm", seed=5) for _ in range(2))
    forwards = [_rows(first.train_batch(step, 32)) for step in range(8)]
    backwards = [_rows(second.train_batch(step, 32)) for step in reversed(range(8))]
    assert forwards == backwards[::-1]
    assert _rows(Dataset.open(folder, split="dlrm", seed=6).train_batch(0, 32)) != forwards[0]


@pytest.mark.parametrize("split", ["dlrm", "chronological"])
def test_evaluation_sets_are_fixed(folder: Path, split: Split) -> None:
    """Test and validation follow the training rows in file order, whatever seed and split."""
    dataset = Dataset.open(folder, split=split, seed=9)
    test = list(dataset.eval_batches("test", 30))
    validation = list(dataset.eval_batches("validation", 30))
    rows = [row for batch in (*test, *validation) for row in _rows(batch)]
    assert rows == list(range(dataset.num_train, NUM_ROWS))
    assert sum(len(batch.labels_B) for batch in test) == dataset.num_eval("test") == 72
    assert dataset.num_eval("validation") == 71
    assert [batch.first_sample for batch in test] == [0, 30, 60]
    some = [row for batch in dataset.eval_batches("test", 30, 40) for row in _rows(batch)]
    assert some == rows[:40], "at most so many, the first ones"


def test_a_batch_owns_its_memory(folder: Path) -> None:
    """Writing into a batch changes neither the file nor a later batch."""
    dataset = Dataset.open(folder, split="chronological", seed=0)
    before = (folder / RECORDS_NAME).read_bytes()
    batch = dataset.train_batch(0, 8)
    batch.dense_BI.zero_()
    batch.ids_BF[:] = -1
    assert _rows(dataset.train_batch(0, 8)) == list(range(8))
    assert (folder / RECORDS_NAME).read_bytes() == before


def _meet(dataset: Dataset, row: int) -> None:
    """Make all batches of the set that ``row`` is in."""
    if row < dataset.num_train:
        _stream(dataset, 32)
    else:
        assert [*dataset.eval_batches("test", 32), *dataset.eval_batches("validation", 32)]


def _with_meta(**changes: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / META_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _drop(folder: Path, key: str) -> None:
    content = json.loads((folder / META_NAME).read_text())
    del content[key]
    (folder / META_NAME).write_text(json.dumps(content))


def _with_text(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / META_NAME).write_text(text)


def _of_bytes(num_bytes: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / RECORDS_NAME, num_bytes)


def _of_rows(num_rows: int) -> Callable[[Path], object]:
    return lambda folder: (shutil.rmtree(folder), write_folder(folder, num_rows))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "prepared: no such folder"),
        (lambda folder: (folder / META_NAME).unlink(), "meta.json: missing"),  # it is written last
        (_with_meta(format_version=99), "damaged (format_version: expected 1, got 99)"),
        *((_of_bytes(n), f"records.bin: {n:,} bytes, expected 160,480") for n in (0, 160_479, 160_640)),
        *((_with_text(t), "meta.json: damaged") for t in ("", "{", "[1]", "[" * 100_000, '{"format_version": 1}')),
        *((_with_meta(cardinalities=[n] * 26), "damaged") for n in (0, 10**12, math.inf)),
        (_with_meta(cardinalities=[]), "damaged"),
        (_with_meta(cardinalities=[1] * 25), "records.bin: 160,480 bytes, expected 156,468"),
        (_with_meta(num_dense=12), "records.bin: 160,480 bytes, expected 156,468"),
        (_with_meta(categories="x"), "damaged"),
        (_with_meta(num_positives=NUM_ROWS + 1), "damaged"),
        (_with_meta(num_rows=10**18), "damaged"),
        (_with_meta(sources=[3]), "damaged"),
        (_with_meta(synthetic=7), "damaged"),
        (_of_rows(13), "expected at least 14 rows for a seven-part split, got 13"),
    ],
)
def test_a_folder_that_cannot_be_is_one_line(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    """Law: missing, unfinished, torn, impossible or too small data is refused when it is opened, in one line."""
    damage(folder)
    with pytest.raises(DataError) as caught:
        Dataset.open(folder, split="dlrm", seed=0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        (14, 0xFFFFFFFF, "row id -1 of table 0, expected 0 to 26,077"),
        (39, 26 * NUM_ROWS, "row id 26078 of table 25, expected 0 to 26,077"),
        (1, 0xFFFFFFFF, "feature 1 nan, expected a number that is finite and not negative"),
        (13, 0xBF800000, "feature 13 -1.0, expected a number that is finite and not negative"),
        (0, 0x40000000, "label 2.0, expected 0 or 1"),
    ],
)
@pytest.mark.parametrize("split", ["dlrm", "chronological"])
@pytest.mark.parametrize("row", [0, 859, 860, NUM_ROWS - 1])
def test_words_that_cannot_be_are_refused(folder: Path, split: Split, row: int, damage: tuple[int, int, str]) -> None:
    """Law: a word that no preparation writes, and that came after the folder was opened, is named with its sample."""
    dataset = Dataset.open(folder, split=split, seed=1)
    words = np.memmap(folder / RECORDS_NAME, dtype=np.uint32, mode="r+").reshape(NUM_ROWS, -1)
    column, bits, what = damage
    words[row, column] = bits
    with pytest.raises(DataError) as caught:
        _meet(dataset, row)
    path = folder / RECORDS_NAME
    assert str(caught.value) == f"{path}: sample {row:,}: {what}; the file is damaged, prepare the data again"


def test_the_largest_ids_are_no_damage(folder: Path) -> None:
    """Law: the last row of each table, features up to the largest float and both labels are met without complaint."""
    words = np.fromfile(folder / RECORDS_NAME, dtype=np.uint32).reshape(NUM_ROWS, -1)
    words[:, 14:] = 26 * NUM_ROWS - 1
    words[:, 1:14] = np.float32(np.finfo(np.float32).max).view(np.uint32)
    words[:, 0] = np.float32(1).view(np.uint32)
    seal(folder, words.view(np.int32))
    assert len(_stream(Dataset.open(folder, split="dlrm", seed=1), 32)) == 860


def test_a_missing_folder_names_its_key_and_where_paths_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: of a relative path that is not there, the message says the key and the folder that it counts from."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        Dataset.open(Path("demo/data"), split="dlrm", seed=0)
    where = f"relative paths count from the current folder, {tmp_path}"
    assert str(caught.value) == f"data.path: demo/data: no such folder ({where}); `run.py data prepare` writes one"


def test_records_that_changed_are_refused_before_they_train(folder: Path) -> None:
    """Law: records have the digest of their meta, also where each of them is possible; what was verified stays so."""
    Dataset.open(folder, split="dlrm", seed=0).verify()
    assert (folder / VERIFIED_NAME).exists()
    records = np.memmap(folder / RECORDS_NAME, dtype="<i4", mode="r+", shape=(NUM_ROWS, NUM_COLUMNS))
    labels = records[:, 0].copy()
    records[:, 0] = labels[::-1]
    records.flush()
    with pytest.raises(DataError, match=r"records\.bin: damaged: expected digest"):
        Dataset.open(folder, split="dlrm", seed=0).verify()
    records[:, 0] = labels
    records.flush()
    Dataset.open(folder, split="dlrm", seed=0).verify()


def test_a_folder_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the same file is not read again; what was remembered of it may be missing or damaged."""
    real, read = digest.blocks, list[Path]()
    monkeypatch.setattr(digest, "blocks", lambda path, meta: read.append(path) or real(path, meta))
    Dataset.open(folder, split="dlrm", seed=0).verify()
    assert read == [folder]
    Dataset.open(folder, split="dlrm", seed=0).verify()
    assert read == [folder]
    for content in ("", "[" * 100_000, "null"):
        (folder / VERIFIED_NAME).write_text(content)
        Dataset.open(folder, split="dlrm", seed=0).verify()
    assert read == [folder] * 4


def test_a_folder_from_before_other_shapes_holds_criteo_s(folder: Path) -> None:
    """Law: a meta without the number of dense features has 13, and the digest that it had."""
    _drop(folder, "num_dense")
    dataset = Dataset.open(folder, split="dlrm", seed=0)
    dataset.verify()
    assert (dataset.num_dense, dataset.num_tables) == (13, 26)


def test_the_digest_tells_shapes_apart() -> None:
    """Law: the same words and tables with another number of dense features have another digest."""
    words = xxhash.xxh3_128(b"0" * 480)
    assert len({digest_of(words, num_dense, (3,)) for num_dense in (0, 1, 13, 28)}) == 4
    assert digest_of(words, 13, (3,)) == xxhash.xxh3_128(b"0" * 480 + b"[3]").hexdigest()
