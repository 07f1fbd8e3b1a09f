"""Laws of the splits that `data prepare` is asked for: which rows are in which set, and what keeps splits apart."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.errors import ConfigError, DataError
from harness.data.dataset import Batch, Dataset, EvalSet, Split
from harness.data.prepare import prepare
from harness.data.records import META_NAME, RECORDS_NAME, Meta, read_meta
from harness.data.split import HeldOut, hold_out
from harness.run.spec import RunSpec
from tests.runs import changed

SIZES = {"day_0": 30, "day_1": 41, "day_2": 25, "day_10": 7}


@pytest.fixture
def days(tmp_path: Path) -> list[Path]:
    """Four logs, in the order of the shell; I1 of a row is 1,000 times its file's number, plus its own."""
    for number, (name, num_rows) in enumerate(SIZES.items()):
        lines = (f"{row % 2}\t{1_000 * number + row}" + "\t1" * 12 + f"\t{row:x}" * 26 for row in range(num_rows))
        (tmp_path / name).write_text("\n".join(lines))
    return sorted(tmp_path.iterdir())


def _rows(*names: str) -> list[int]:
    """The rows of these files, by their I1."""
    return [1_000 * [*SIZES].index(name) + row for name in names for row in range(SIZES[name])]


def _numbers(batch: Batch) -> list[int]:
    return batch.dense_BI[:, 0].double().expm1().round().int().tolist()


def _trained(dataset: Dataset) -> list[int]:
    return _numbers(dataset.train_batch(0, dataset.num_train))


def _evaluated(dataset: Dataset, which: EvalSet) -> list[int]:
    return [row for batch in dataset.eval_batches(which, 10) for row in _numbers(batch)]


@pytest.mark.parametrize(
    ("test", "validation", "sets"),
    [
        (["day_10"], [], (["day_0", "day_1", "day_2"], ["day_10"], [])),
        (["day_2", "day_1"], ["day_0"], (["day_10"], ["day_1", "day_2"], ["day_0"])),
        (["day_0"], ["day_10", "day_2"], (["day_1"], ["day_0"], ["day_2", "day_10"])),
    ],
)
def test_the_sets_are_the_named_files(
    days: list[Path], tmp_path: Path, test: list[str], validation: list[str], sets: tuple[list[str], ...]
) -> None:
    """All rows of the files and no others, in their order; training samples are all others, each once, shuffled."""
    prepare(days, tmp_path / "out", order="numbers", test=test, validation=validation)
    dataset = Dataset.open(tmp_path / "out", split=None, seed=0)
    dataset.verify()
    expected = [_rows(*names) for names in sets]
    assert [_evaluated(dataset, "test"), _evaluated(dataset, "validation")] == expected[1:]
    assert sorted(_trained(dataset)) == sorted(expected[0])
    assert _trained(dataset) != expected[0]
    assert _trained(Dataset.open(tmp_path / "out", split="chronological", seed=0)) == expected[0]


def test_half_of_the_test_files_is_for_validation(days: list[Path], tmp_path: Path) -> None:
    """The second half, and the shorter one, as in DLRM's code."""
    prepare(days, tmp_path / "out", order="numbers", test=["day_1"], validation=["half"])
    dataset = Dataset.open(tmp_path / "out", split=None, seed=0)
    assert _evaluated(dataset, "test") == _rows("day_1")[:21]
    assert _evaluated(dataset, "validation") == _rows("day_1")[21:]


@pytest.mark.parametrize(("test", "bounds"), [("0.1", (93, 103)), ("0.5", (51, 103)), ("1e-2", (102, 103))])
def test_a_fraction_takes_the_last_rows(days: list[Path], tmp_path: Path, test: str, bounds: tuple[int, int]) -> None:
    """The nearest whole number of rows, in the order of the files, wherever a file ends."""
    prepare(days, tmp_path / "out", order="numbers", test=[test])
    dataset = Dataset.open(tmp_path / "out", split=None, seed=0)
    assert (dataset.num_train, dataset.rows.first_validation) == bounds
    assert _evaluated(dataset, "test") == _rows("day_0", "day_1", "day_2", "day_10")[bounds[0] :]


@pytest.mark.parametrize(
    ("test", "validation", "message"),
    [
        ("day_11", "", "--test: day_11: expected one of the files to prepare; did you mean day_1?"),
        ("day_10", "dey_2", "--validation: dey_2: expected one of the files to prepare; did you mean day_2?"),
        ("", "day_2", "--validation: expected --test beside it, got day_2 alone"),
        ("1.5", "", "--test: expected files, or a fraction above 0 and below 1, got 1.5"),
        ("nan", "", "--test: expected files, or a fraction above 0 and below 1, got nan"),
        ("0.5", "day_2", "--validation: expected half or nothing beside --test 0.5, got day_2"),
        ("day_2", "day_2", "day_2 twice; --validation half takes the second half of the test files"),
        ("day_0 day_1 day_2 day_10", "", "expected a file to train on beside these, got none"),
        ("0.001", "", "--test: expected rows for training, test and validation, got 103, 0 and 0"),
        ("0.999", "", "--test: expected rows for training, test and validation, got 0, 103 and 0"),
        ("0.01", "half", "--test: expected rows for training, test and validation, got 102, 1 and 0"),
    ],
)
def test_sets_that_cannot_be_are_one_line(
    days: list[Path], tmp_path: Path, test: str, validation: str, message: str
) -> None:
    """Unknown and repeated files, what is no fraction, and sets without a row; nothing is left."""
    with pytest.raises(DataError) as caught:
        prepare(days, tmp_path / "out", order="numbers", test=test.split(), validation=validation.split())
    assert str(caught.value).endswith(message)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == days


def test_two_files_of_one_name_are_told_apart_by_their_paths(days: list[Path], tmp_path: Path) -> None:
    """A name of two files is refused; a path is one file."""
    (tmp_path / "more").mkdir()
    twin = days[0].rename(tmp_path / "more" / "day_1")
    files = [twin, *days[1:]]
    with pytest.raises(DataError, match=r"--test: day_1: expected one file, got .*; give its path$"):
        hold_out(files, ["day_1"], [], list)
    assert hold_out(files, [str(twin)], [], list) == ([*days[1:], twin], HeldOut(test=("day_1",), validation=()))


def _metas(days: Sequence[Path], tmp_path: Path) -> list[Meta]:
    """The same records without and with other bounds."""
    splits = ([], ["0.1"], ["0.2"], ["day_10"])
    return [prepare(days, tmp_path / f"{i}", order="numbers", test=test) for i, test in enumerate(splits)]


def test_other_bounds_are_other_data(days: list[Path], tmp_path: Path) -> None:
    """Equal records with other bounds have another digest; without ``--test`` meta.json says nothing of a split."""
    metas = _metas(days, tmp_path)
    assert len({meta.digest for meta in metas}) == 4
    assert len({(tmp_path / f"{i}" / RECORDS_NAME).read_bytes() for i in range(4)}) == 1
    assert ["split" in json.loads((tmp_path / f"{i}" / META_NAME).read_text()) for i in range(4)] == [0, 1, 1, 1]
    assert [read_meta(tmp_path / f"{i}") for i in range(4)] == metas
    assert metas[3].split_text == "96 samples for training, 7 for the test (day_10), none for validation"
    assert metas[0].split_text == (
        "89 samples for training, 7 for the test (half of the last seventh), 7 for validation (the other half)"
    )


def test_a_folder_of_another_split_is_refused(days: list[Path], tmp_path: Path) -> None:
    """The options that a folder names make it again, which is a no-op; other sets are another preparation."""
    meta = prepare(days, tmp_path / "out", order="numbers", test=["day_2"], validation=["day_10"])
    assert meta.split is not None
    assert meta.split.options() == ["--test", "day_2", "--validation", "day_10"]
    assert prepare(days, tmp_path / "out", order="numbers", test=["day_2"], validation=["day_10"]) == meta
    for test, validation in ([], []), (["day_2"], []), (["day_2"], ["half"]), (["0.1"], []):
        with pytest.raises(DataError, match="exists and is not this preparation"):
            prepare(days, tmp_path / "out", order="numbers", test=test, validation=validation)


def test_a_run_takes_the_sets_of_its_folder_or_refuses(config: Config, days: list[Path], tmp_path: Path) -> None:
    """null is the folder's split in config and hash; a key that asks for another kind is one line."""
    _metas(days, tmp_path)
    spec: dict[tuple[str, Split | None], RunSpec] = {
        (folder, split): RunSpec(
            changed(config, data__path=str(tmp_path / folder), data__split=split, trainer__batch_size=8)
        )
        for folder in ("0", "1", "2")
        for split in (None, "dlrm", "prepared", "chronological")
    }
    assert [spec[folder, None].config.data.split for folder in "012"] == ["dlrm", "prepared", "prepared"]
    assert spec["0", None].result_hash == spec["0", "dlrm"].result_hash
    assert spec["1", None].result_hash == spec["1", "prepared"].result_hash
    assert len({spec[folder, split].result_hash for folder in "012" for split in (None, "chronological")}) == 6
    refused = rf"^data\.split: {tmp_path}/1 was prepared with --test: expected prepared or chronological, got dlrm$"
    with pytest.raises(DataError, match=refused):
        spec["1", "dlrm"].validate()
    with pytest.raises(
        DataError, match=r"0 was prepared without --test: expected dlrm or chronological, got prepared$"
    ):
        spec["0", "prepared"].validate()
    spec["1", "chronological"].validate()
    with pytest.raises(ConfigError, match=rf"^eval\.split: expected test, got validation; {tmp_path}/1 was prepared "):
        RunSpec(changed(spec["1", None].given, eval__split="validation")).validate()
