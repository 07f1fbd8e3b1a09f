"""Laws of a checkpoint folder: it shows the newest whole checkpoint, says what it skipped, keeps what is named."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from harness.core.errors import StoreError
from harness.store import (
    CheckpointStore,
    FileRecord,
    Manifest,
    ResumeFolder,
    ShardStore,
    newest_checkpoint,
)
from harness.store.manifest import manifest_name, sealed
from tests.store.helpers import chosen, manifest, next_sequence, read_dense, rows_of, write_dense, write_files
from tests.unprivileged import unprivileged


def committed(root: Path, *sequences: int, keep: int = 2) -> list[Manifest]:
    """Commit a checkpoint per sequence number."""
    store = CheckpointStore(root, keep=keep)
    manifests = [write_files(root, sequence) for sequence in sequences]
    for each in manifests:
        store.commit(each)
    store.wait()
    return manifests


def test_no_folder_is_made_for_a_run_that_lost_its_own(tmp_path: Path) -> None:
    """Law: a rank makes the folder of its files, and none for the run."""
    store = ShardStore(tmp_path / "gone" / "checkpoints", "ps0")
    with pytest.raises(StoreError, match="gone/checkpoints/ps0: cannot be created: No such file or directory"):
        store.write_base(0, 0, torch.zeros(2, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    """Law: neither checkpoints nor resume points are taken for absent because the system refuses to list them."""
    (tmp_path / "closed").mkdir(mode=0)
    with unprivileged(tmp_path):
        with pytest.raises(StoreError, match="closed: cannot be read: Permission denied"):
            newest_checkpoint(Path("closed"))
        with pytest.raises(StoreError, match="closed: cannot be read: Permission denied"):
            ResumeFolder(Path("closed"), fsync=False).paths()


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


def replace_by_fifo(path: Path) -> None:
    """Nothing may wait for its writer."""
    path.unlink()
    os.mkfifo(path)


CONTENT = ("ps0/base-000002.bin", "ps1/base-000002.bin", "trainer0/dense-000002.bin")
DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    *((CONTENT[k % 3], flipped(byte), "damaged") for k, byte in enumerate((0, 8, 12, 20, 40, 3000, 4095, 4096, 4500))),
    *((name, flipped(-1), "damaged") for name in CONTENT),
    *((name, cut(frac), "") for name in (manifest_name(2), *CONTENT[1:]) for frac in (0.0, 0.5, 0.99)),
    *((name, replace_by_fifo, "") for name in (manifest_name(2), CONTENT[0])),
    (manifest_name(2), alter, "altered"),
    (CONTENT[0], Path.unlink, ""),
]


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGES)
def test_damage_shows_the_checkpoint_before(
    tmp_path: Path, name: str, damage: Callable[[Path], object], said: str
) -> None:
    """Law: one damaged, torn, missing or foreign file hides its checkpoint and no other, in a line that names it."""
    assert newest_checkpoint(tmp_path) == (None, [])
    previous, newest = committed(tmp_path, 1, 2)
    assert newest_checkpoint(tmp_path) == (newest, [])
    damage(tmp_path / name)
    found, (skipped,) = newest_checkpoint(tmp_path)
    assert found == previous
    assert skipped.startswith(f"skipped {manifest_name(2)}")
    assert name in skipped
    assert said in skipped


def test_records_travel_unchanged(tmp_path: Path) -> None:
    """Records and manifests survive pickling, and JSON, exactly; other fields than a manifest's are named."""
    whole = write_files(tmp_path, 1)
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert Manifest.from_text(whole.to_text(), "here") == whole
    fields = {key: value for key, value in json.loads(whole.to_text()).items() if key != "xxh3"}
    with pytest.raises(StoreError, match=r"here: expected the fields of a manifest, got others .*num_bytes"):
        Manifest.from_text(sealed({**fields, "trainer": {"path": "x"}}), "here")


def test_dense_state_round_trip(tmp_path: Path) -> None:
    """Tensors of any shape and dtype, non-contiguous ones too, and JSON values come back to the bit."""
    tensors = {
        "w": rows_of(1).t(),
        "rng": torch.get_rng_state(),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
    }
    extra = {"step": 7, "pcg": {"state": 2**100}, "note": "ü"}
    record = write_dense(tmp_path, 1, 7, tensors=tensors, extra=extra)
    read, read_extra = read_dense(tmp_path, record)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) and read[name].dtype == tensors[name].dtype for name in read)
    assert read_extra == extra
    assert record.payload_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_other_format_version_is_refused(tmp_path: Path) -> None:
    """A manifest or content file of another version is an error, not skipped for something older."""
    _, newest = committed(tmp_path, 1, 2)
    path = tmp_path / newest.trainer.path
    content = bytearray(path.read_bytes())
    content[8:12] = struct.pack("<I", 3)
    path.write_bytes(content)
    reworded = replace(newest.trainer, xxh3=xxhash.xxh3_64_hexdigest(content))
    with pytest.raises(StoreError, match=r"dense-000002\.bin: expected format version 2, got 3"):
        read_dense(tmp_path, reworded)
    (tmp_path / newest.name).write_text(replace(newest, trainer=reworded).to_text())
    with pytest.raises(StoreError, match=r"dense-000002\.bin: expected format version 2, got 3"):
        newest_checkpoint(tmp_path)
    text = (tmp_path / newest.name).read_text()
    (tmp_path / newest.name).write_text(text.replace('"version": 2', '"version": 3'))
    with pytest.raises(StoreError, match=r"manifest-000002\.json: expected format version 2, got 3"):
        newest_checkpoint(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="expected format version 2, got 3"):
        CheckpointStore(tmp_path).commit(manifest(3, 20, dict(newest.shards), newest.trainer))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("who", ["ps0", "ps1", "trainer"])
def test_disagreeing_parts_are_refused(tmp_path: Path, who: str) -> None:
    """A manifest whose shards or trainer are of another step than it cannot be made."""
    whole = write_files(tmp_path, 2)
    shards, trainer = dict(whole.shards), whole.trainer
    if who == "trainer":
        trainer = replace(trainer, applied_step=19)
    else:
        shards[who] = (replace(shards[who][0], applied_step=19),)
    with pytest.raises(StoreError, match=rf"{who} is at step 19 .* the checkpoint at step 20"):
        manifest(2, 20, shards, trainer)


def test_commit_refuses_missing_files_and_old_numbers(tmp_path: Path) -> None:
    """A commit that names a file that is not there, or is no newer than the newest, leaves the folder as it was."""
    (newest,) = committed(tmp_path, 5)
    incomplete = write_files(tmp_path, 6)
    (tmp_path / incomplete.trainer.path).unlink()
    store = CheckpointStore(tmp_path)
    with pytest.raises(StoreError, match=r"dense-000006\.bin: cannot be read: No such file"):
        store.commit(incomplete)
    with pytest.raises(StoreError, match="expected a sequence number above"):
        store.commit(newest)
    assert newest_checkpoint(tmp_path) == (newest, [])


def test_collection_keeps_exactly_what_is_named(tmp_path: Path) -> None:
    """After a commit the folder holds the newest ``keep`` manifests, their files, and saves not yet committed."""
    shard = ShardStore(tmp_path, "ps0")
    store = CheckpointStore(tmp_path, keep=2)
    chain: list[FileRecord] = [shard.write_base(0, 0, rows_of(0))]
    manifests: list[Manifest] = []
    shard.write_base(10, 10, rows_of(10))  # a later save that is still under way
    for sequence in range(6):
        if sequence == 3:
            chain = [shard.compact(chain, sequence)]
        if sequence:
            chain.append(shard.write_delta(sequence, sequence, rows_of(sequence), [chosen(sequence)]))
        trainer = write_dense(tmp_path, sequence, sequence, tensors={}, extra={})
        manifests.append(manifest(sequence, sequence, {"ps0": tuple(chain)}, trainer))
        store.commit(manifests[-1])
        store.wait()
        named = {record.path for each in manifests[-2:] for record in each.files}
        names = {each.name for each in manifests[-2:]}
        files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        assert files == named | names | {"ps0/base-000010.bin"}
    assert next_sequence(tmp_path) == 11


def test_what_goes_wrong_with_old_files_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever waits, or commits next; the commit stands."""

    def collect(store: CheckpointStore, *args: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(CheckpointStore, "_collect", collect)
    store = CheckpointStore(tmp_path)
    first = write_files(tmp_path, 1)
    store.commit(first)
    with pytest.raises(ValueError, match="a bug"):
        store.wait()
    assert newest_checkpoint(tmp_path) == (first, [])


def test_a_folder_that_vanishes_while_old_files_are_sought_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a commit stands if the folder is moved away after it; the next write finds that (``Moved``)."""
    store = CheckpointStore(tmp_path, keep=1)
    manifests = [write_files(tmp_path, sequence) for sequence in (0, 1)]
    scan, num_gone = os.scandir, 0

    def vanishing(path: Any) -> Any:
        nonlocal num_gone
        if Path(path).name.startswith("ps"):
            num_gone += 1
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    for each in manifests:
        store.commit(each)
        store.wait()
    assert num_gone


def test_collection_forgets_what_a_dead_save_left(tmp_path: Path) -> None:
    """Files of a save that died before its manifest, and unreadable manifests, go with the next commit."""
    committed(tmp_path, 1)
    write_files(tmp_path, 2)
    (tmp_path / manifest_name(2)).write_text("{")
    store = CheckpointStore(tmp_path)
    assert next_sequence(tmp_path) == 3
    store.commit(write_files(tmp_path, 3))
    store.wait()
    assert {path.name[-11:] for path in tmp_path.rglob("*") if path.is_file()} == {
        "-000001.bin",
        "000001.json",
        "-000003.bin",
        "000003.json",
    }


def test_opening_sweeps_temp_files_and_looking_does_not(tmp_path: Path) -> None:
    """Half-written files of killed writers go when the store is opened for writing, and only then."""
    (newest,) = committed(tmp_path, 1)
    stale = [tmp_path / ".manifest-000002.json.tmp", tmp_path / "ps0" / ".base-000002.bin.tmp"]
    for path in stale:
        path.write_bytes(b"half")
    assert newest_checkpoint(tmp_path) == (newest, [])
    assert all(path.exists() for path in stale)
    CheckpointStore(tmp_path)
    assert not any(path.exists() for path in stale)
    assert newest_checkpoint(tmp_path) == (newest, [])


def test_unusable_folder_is_one_line(tmp_path: Path) -> None:
    """A checkpoint folder that is a file is refused by name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file: cannot be used as a checkpoint folder: File exists"):
        CheckpointStore(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be created"):
        ShardStore(tmp_path / "file", "ps0").write_base(0, 0, rows_of(0))
