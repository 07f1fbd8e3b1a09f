"""The trainer's data are those that the supervisor verified."""

import shutil
from pathlib import Path

import pytest

from harness.core.errors import DataError
from harness.data.records import RECORDS_NAME, read_meta
from harness.run.trainer import refuse_other_data


def test_other_data_at_the_trainer_are_one_line(click_data: Path, tmp_path: Path) -> None:
    """Law: no data, other data, and records that changed; the line names the folder and why."""
    folder, digest = tmp_path / "data", read_meta(click_data).digest
    with pytest.raises(
        DataError, match=rf"^data.path: expected the supervisor's data \(digest {digest}\) in {folder} on"
    ):
        refuse_other_data(folder, digest, "trainer0")
    shutil.copytree(click_data, folder)
    refuse_other_data(folder, digest, "trainer0")
    with pytest.raises(DataError, match=rf"of trainer0: got data of digest {digest}$"):
        refuse_other_data(folder, "0" * 32, "trainer0")
    with (folder / RECORDS_NAME).open("r+b") as file:
        file.write(b"\x01\x02\x03")
    with pytest.raises(DataError, match=r"of trainer0: .*damaged: expected digest") as caught:
        refuse_other_data(folder, digest, "trainer0")
    assert "\n" not in str(caught.value)
