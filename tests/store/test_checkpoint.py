"""Laws of checkpoints and resume points: the newest whole one is shown, what was skipped is said, and what is named is
kept."""

import errno
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from harness.core.errors import StoreError
from harness.store import (
    FileRecord,
    FileStore,
    Manifest,
    ResumeFolder,
    ResumePoint,
    newest_checkpoint,
    read_checkpoint,
    read_state,
    write_state,
)
from harness.store.format import replacing
from harness.store.manifest import manifest_name, sealed
from tests.store.helpers import chosen, files, manifest, read_dense, rows_of, write_dense, write_files
from tests.store.test_crashes import make_point
from tests.unprivileged import unprivileged


def opened(root: Path, *, keep: int = 2, fsync: bool = True) -> FileStore:
    """A store, as a supervisor opens it."""
    store = FileStore(root, keep=keep, fsync=fsync)
    store.open()
    return store


def committed(root: Path, *sequences: int, store: FileStore | None = None) -> list[Manifest]:
    """Commit a checkpoint per sequence number."""
    store = store or opened(root)
    manifests = [write_files(root, sequence) for sequence in sequences]
    for each in manifests:
        store.commit(each)
        store.close()
    return manifests


def names_in(root: Path) -> set[str]:
    """Every file, by path."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def flipped(byte: int) -> Callable[[Path], object]:
    """Flips the lowest bit of one byte; negative bytes count from the end."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[byte] ^= 1
        path.write_bytes(content)

    return flip


def cut(kept_frac: float) -> Callable[[Path], object]:
    """Keeps so much of the file."""
    return lambda path: os.truncate(path, int(path.stat().st_size * kept_frac))


def alter(path: Path) -> None:
    """Changes a value of a manifest, whose JSON stays whole."""
    path.write_text(path.read_text().replace('"samples": 2560', '"samples": 2561'))


CONTENT = ("ps0/base-000002.bin", "ps1/base-000002.bin", "trainer0/dense-000002.bin")
DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    *((CONTENT[k % 3], flipped(byte), "damaged") for k, byte in enumerate((0, 8, 12, 20, 40, 3000, 4095, 4096, 4500))),
    *((name, flipped(-1), "damaged") for name in CONTENT),
    *((name, cut(frac), "") for name in (manifest_name(2), *CONTENT[1:]) for frac in (0.0, 0.5, 0.99)),
    *((name, lambda path: (path.unlink(), os.mkfifo(path)), "") for name in (manifest_name(2), CONTENT[0])),
    (manifest_name(2), alter, "altered"),
    (CONTENT[0], Path.unlink, ""),
]


def test_damage_shows_the_checkpoint_before(tmp_path: Path) -> None:
    """One damaged, torn, missing or foreign file hides its checkpoint and no other, in a line that names it."""
    assert newest_checkpoint(tmp_path) == (None, [])
    previous, newest = committed(tmp_path, 1, 2)
    for name, damage, said in DAMAGES:
        assert newest_checkpoint(tmp_path) == (newest, [])
        content = (tmp_path / name).read_bytes()
        damage(tmp_path / name)
        found, (skipped,) = newest_checkpoint(tmp_path)
        assert found == previous
        assert skipped.startswith(f"{manifest_name(2)}: ")
        assert name in skipped
        assert said in skipped
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_bytes(content)


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """Nothing counts as absent because the system refuses to list it; no folder is made for a run that lost its own."""
    (tmp_path / "closed").mkdir(mode=0)
    with unprivileged(tmp_path):
        for look in (newest_checkpoint, lambda root: ResumeFolder(root, fsync=False).paths()):
            with pytest.raises(StoreError, match="closed: cannot be read: Permission denied"):
                look(Path("closed"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: cannot be used as a checkpoint folder: File exists"):
        opened(tmp_path / "file")
    for name in ("file", "gone/checkpoints"):
        with pytest.raises(StoreError, match=f"{name}/ps0: cannot be created: "):
            files(tmp_path / name).base(0, 0, rows_of(0))
    assert not (tmp_path / "gone").exists()


def test_plain_data_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Arrays of any shape and dtype, non-contiguous ones too, and JSON values; others are refused by their place."""
    arrays = [
        rows_of(1).t(),
        torch.tensor(1.5, dtype=torch.float64),
        torch.empty(0, 4),
        torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        np.array([2**63, 7], np.uint64),
        np.array([[True], [False]]).T,
    ]
    plain = [None, True, 2**100, 0.1, "ü", {"inner": {"#": [], "x": -0.0}}]
    record = write_state(tmp_path, "ps0", 3, 7, {"arrays": arrays, "plain": plain}, fsync=False)
    read = read_state(tmp_path, record)
    assert repr(read["plain"]) == repr(plain)
    for one, other in zip(arrays, read["arrays"], strict=True):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
        assert one.tolist() == other.tolist()
    assert record.payload_bytes == sum(array.nbytes for array in arrays)
    for value in [(1, 2), {3: 4}, {1}, np.float32(1), object(), {"#": 0}]:
        with pytest.raises(StoreError, match=r"state of ps0\.a\[0\]: expected plain data"):
            write_state(tmp_path, "ps0", 4, 0, {"a": [value]}, fsync=False)


@pytest.mark.parametrize("change", [{"saving": []}, {"step": ...}, {"files": 1, "trainer": {"path": "x"}}])
def test_a_description_of_other_fields_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    """What another version of the code wrote is one line, though its checksum is right."""
    for made, what in ((write_files(tmp_path / str(len(change)), 1), "manifest"), (make_point(0, {}), "resume point")):
        fields = {**json.loads(made.to_text()), **change}
        text = sealed({key: value for key, value in fields.items() if key != "xxh3" and value is not ...})
        kind = Manifest if what == "manifest" else ResumePoint
        with pytest.raises(StoreError, match=f"here: expected the fields of a {what}, got others"):
            kind.from_text(text, "here")


def test_other_format_version_is_refused(tmp_path: Path) -> None:
    """A manifest or content file of another version is an error, not skipped for something older."""
    _, newest = committed(tmp_path, 1, 2)
    path = tmp_path / newest.trainer.path
    content = bytearray(path.read_bytes())
    content[8:12] = struct.pack("<I", 4)
    path.write_bytes(content)
    reworded = replace(newest.trainer, xxh3=xxhash.xxh3_64_hexdigest(content))
    (tmp_path / newest.name).write_text(replace(newest, trainer=reworded).to_text())
    with pytest.raises(StoreError, match=r"dense-000002\.bin: expected format version 3, got 4"):
        newest_checkpoint(tmp_path)
    text = (tmp_path / newest.name).read_text()
    (tmp_path / newest.name).write_text(text.replace('"version": 3', '"version": 4'))
    before = names_in(tmp_path)
    for look in (newest_checkpoint, lambda root: opened(root).commit(replace(newest, sequence=3))):
        with pytest.raises(StoreError, match=r"manifest-000002\.json: expected format version 3, got 4"):
            look(tmp_path)
    assert names_in(tmp_path) == before


def test_parts_that_disagree_are_in_no_manifest(tmp_path: Path) -> None:
    """Every shard has a base and ordered deltas after it, and all parts are of the manifest's step: a bug otherwise."""
    shard = files(tmp_path)
    base = shard.base(0, 0, rows_of(0))
    first, second = (shard.delta(s, s, rows_of(s), [chosen(1)]) for s in (1, 2))
    dense = write_dense(tmp_path, 2, 2)
    manifest(2, 2, {"ps0": (base, first, second)}, dense)
    for records, step, why in [
        ((), 2, "a base, then deltas"),
        ((first,), 2, "a base, then deltas"),
        ((base, second, first), 2, "order"),
        ((base, base), 2, "a base, then deltas"),
        ((base, first), 2, "newest file of a shard"),
        ((base, first), 1, "trainer's file"),
    ]:
        with pytest.raises(AssertionError, match=why):
            manifest(2, step, {"ps0": records}, dense)


def test_commit_refuses_missing_files_and_old_numbers(tmp_path: Path) -> None:
    """A commit that names a file that is not there, or is no newer than the newest, leaves the folder as it was."""
    (newest,) = committed(tmp_path, 5)
    incomplete = write_files(tmp_path, 6)
    (tmp_path / incomplete.trainer.path).unlink()
    store = opened(tmp_path)
    with pytest.raises(StoreError, match=r"dense-000006\.bin: cannot be read: No such file"):
        store.commit(incomplete)
    with pytest.raises(StoreError, match="expected a sequence number above"):
        store.commit(newest)
    assert newest_checkpoint(tmp_path) == (newest, [])


def test_collection_keeps_exactly_what_is_named(tmp_path: Path) -> None:
    """After a commit the folder holds the newest ``keep`` manifests, their files, and saves not yet committed.

    Files of a save that died before its manifest, and unreadable manifests, go with the next commit.
    """
    shard, store = files(tmp_path), opened(tmp_path)
    chain: list[FileRecord] = [shard.base(0, 0, rows_of(0))]
    manifests: list[Manifest] = []
    shard.base(10, 10, rows_of(10))  # a later save that is still under way
    for sequence in range(6):
        if sequence == 3:
            chain = [shard.compact(chain, sequence)]
        if sequence:
            chain.append(shard.delta(sequence, sequence, rows_of(sequence), [chosen(sequence)]))
        if sequence == 4:
            files(tmp_path, "ps1").base(3, 3, rows_of(3))
            (tmp_path / manifest_name(2)).write_text("{")
        trainer = write_dense(tmp_path, sequence, sequence)
        manifests.append(manifest(sequence, sequence, {"ps0": tuple(chain)}, trainer))
        store.commit(manifests[-1])
        store.close()
        named = {record.path for each in manifests[-2:] for record in each.files}
        assert names_in(tmp_path) == named | {each.name for each in manifests[-2:]} | {"ps0/base-000010.bin"}


def test_opening_sweeps_temp_files_and_looking_does_not(tmp_path: Path) -> None:
    """Half-written files of killed writers go when the store is opened for writing, and only then."""
    (newest,) = committed(tmp_path, 1)
    stale = [tmp_path / ".manifest-000002.json.tmp", tmp_path / "ps0" / ".base-000002.bin.tmp"]
    for path in stale:
        path.write_bytes(b"half")
    assert newest_checkpoint(tmp_path) == (newest, [])
    assert all(path.exists() for path in stale)
    opened(tmp_path)
    assert not any(path.exists() for path in stale)


def test_what_a_resume_point_needs_is_kept_and_what_came_after_it_goes(tmp_path: Path) -> None:
    """A pinned checkpoint outlives later ones; a rewind removes later files, and the next number can be committed."""
    store = opened(tmp_path, keep=1, fsync=False)
    (first,) = committed(tmp_path, 0, store=store)
    store.pin([0])
    _, _, third = committed(tmp_path, 1, 2, 3, store=store)
    assert read_checkpoint(tmp_path, 0) == first
    assert newest_checkpoint(tmp_path) == (third, [])
    with pytest.raises(StoreError):
        read_checkpoint(tmp_path, 1)
    store.rewind(0)
    assert newest_checkpoint(tmp_path) == (first, [])
    assert names_in(tmp_path) == {first.name, *(record.path for record in first.files)}
    store.pin([])
    (again,) = committed(tmp_path, 1, store=store)
    assert newest_checkpoint(tmp_path) == (again, [])
    with pytest.raises(StoreError):
        read_checkpoint(tmp_path, 0)
    store.rewind(None)
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_refusing_disk_leaves_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Whichever system call of a save is refused, the error names the file and the folder is as it was."""
    store = opened(tmp_path)
    (first,) = committed(tmp_path, 1, store=store)
    second = write_files(tmp_path, 2)
    before = sorted(tmp_path.rglob("*"))

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    shard = files(tmp_path, fsync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        for name, save in {
            "manifest-000002.json": lambda: store.commit(second),
            "base-000003.bin": lambda: shard.base(3, 30, rows_of(30)),
            "base-000004.bin": lambda: shard.compact(second.shards["ps0"], 4),
        }.items():
            with pytest.raises(StoreError, match=rf"{name}: cannot be written: {os.strerror(code)}"):
                save()
    assert sorted(tmp_path.rglob("*")) == before
    assert newest_checkpoint(tmp_path) == (first, [])
    assert read_dense(tmp_path, first.trainer)[1] == {"step": 10}


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    """Each has a temporary file of its own, so the file is always whole: that of the writer who ended last."""
    path = tmp_path / "base-000001.bin"
    with replacing(path, fsync=False) as first:
        first.write(memoryview(b"first"))
        with replacing(path, fsync=False) as second:
            second.write(memoryview(b"2"))
        assert path.read_bytes() == b"2"
        first.write(memoryview(b"!"))
    assert path.read_bytes() == b"first!"
    assert [*tmp_path.iterdir()] == [path]
