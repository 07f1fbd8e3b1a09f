"""Laws under fire: processes are killed mid-save, disks refuse; the last checkpoint stays readable."""

import errno
import os
from pathlib import Path

import pytest
import torch

from harness.core.errors import StoreError
from harness.store import CheckpointStore, ShardStore, newest_checkpoint
from harness.store.format import replacing
from tests.store.helpers import read_dense, rows_of, write_files


def assert_shows_first_checkpoint(root: Path) -> None:
    """Checkpoint 1 is found, nothing is reported as skipped, and all of it reads back."""
    found, skipped = newest_checkpoint(root)
    assert found is not None
    assert (found.sequence, skipped) == (1, [])
    for rank, records in found.shards.items():
        rows_ND = torch.empty_like(rows_of(0))
        assert ShardStore(root, rank).read_into(records, rows_ND) == 10
        assert torch.equal(rows_ND, rows_of(10 + int(rank[2:])))
    assert read_dense(root, found.trainer)[1] == {"step": 10}


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_refusing_disk_leaves_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Whichever system call of a save is refused, the error names the file and the folder is as it was."""
    store = CheckpointStore(tmp_path)
    store.commit(write_files(tmp_path, 1))
    second = write_files(tmp_path, 2)
    before = sorted(tmp_path.rglob("*"))

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreError, match=rf"manifest-000002\.json: cannot be written: {os.strerror(code)}"):
            store.commit(second)
        with pytest.raises(StoreError, match=rf"base-000003\.bin: cannot be written: {os.strerror(code)}"):
            ShardStore(tmp_path, "ps0").write_base(3, 30, rows_of(30))
        with pytest.raises(StoreError, match=r"base-000003\.bin: cannot be written"):
            ShardStore(tmp_path, "ps0").compact(second.shards["ps0"], 3)
    assert sorted(tmp_path.rglob("*")) == before
    assert_shows_first_checkpoint(tmp_path)


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    """Law: each has a temporary file of its own, so the file is always whole: that of the writer who ended last."""
    path = tmp_path / "base-000001.bin"
    with replacing(path, fsync=False) as first:
        first.write(memoryview(b"first"))
        with replacing(path, fsync=False) as second:
            second.write(memoryview(b"2"))
        assert path.read_bytes() == b"2"
        first.write(memoryview(b"!"))
    assert path.read_bytes() == b"first!"
    assert [*tmp_path.iterdir()] == [path]
