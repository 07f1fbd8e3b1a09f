"""Laws under fire: processes are killed mid-save, disks refuse; the last checkpoint stays readable."""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from harness.core.errors import StoreError
from harness.processes.spawn import fork_server
from harness.store import CheckpointStore, ShardStore, newest_checkpoint
from harness.store.format import replacing
from tests.store import victims
from tests.store.helpers import next_sequence, read_dense, rows_of, write_files

WAIT_S = 60


@contextmanager
def running(victim: victims.Victim, root: Path) -> Iterator[tuple[BaseProcess, str]]:
    """Run ``victim`` in a process of its own: the process, and the first thing that it says."""
    context = fork_server()  # the one of all tests of this process, which has torch
    here, there = context.Pipe()
    with here:
        process = context.Process(target=victim, args=(root, there), daemon=True)
        process.start()
        there.close()
        assert here.poll(WAIT_S), "the victim said nothing"
        yield process, here.recv()


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


@pytest.mark.parametrize(
    "victim",
    [
        victims.between_content_and_manifest,
        victims.before_the_rename,
        victims.inside_a_content_file,
        victims.beside_steps,
    ],
)
def test_killed_before_its_manifest_shows_previous(tmp_path: Path, victim: victims.Victim) -> None:
    """A writer that gets SIGKILL before its manifest is in place leaves the previous checkpoint, and one can go on."""
    with running(victim, tmp_path) as (process, message):
        assert message == "ready"
        process.kill()
        process.join(WAIT_S)
    assert process.exitcode == -signal.SIGKILL
    assert_shows_first_checkpoint(tmp_path)
    store = CheckpointStore(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    next_one = write_files(tmp_path, next_sequence(tmp_path))
    store.commit(next_one)
    assert newest_checkpoint(tmp_path) == (next_one, [])


def test_a_file_that_cannot_grow_leaves_last_checkpoint(tmp_path: Path) -> None:
    """Where the kernel stops a write halfway, the error names the file and no half file stays."""
    with running(victims.on_a_full_disk, tmp_path) as (process, message):
        process.join(WAIT_S)
    assert message == (
        f"{tmp_path}/ps0/base-000002.bin: cannot be written: File too large; earlier checkpoints are untouched"
    )
    assert sorted(path.name for path in (tmp_path / "ps0").iterdir()) == ["base-000001.bin"]
    assert_shows_first_checkpoint(tmp_path)


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
