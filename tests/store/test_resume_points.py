"""Resume points on disk: whole or not there, wherever a process or the power ends; the checkpoints that they need."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.core.errors import StoreError
from harness.core.resumable import EventsPosition
from harness.store import (
    CheckpointStore,
    Manifest,
    ResumeFolder,
    ResumePoint,
    ShardStore,
    newest_checkpoint,
    read_checkpoint,
    read_state,
    write_state,
)
from harness.store.manifest import sealed
from tests.crashes import LOSSES, Disk
from tests.store.helpers import manifest, rows_of, write_dense

RANKS = ("ps0", "trainer0")


def state_of(number: int) -> dict[str, Any]:
    """A state with every kind of plain data."""
    return {
        "rows": torch.arange(6.0).reshape(2, 3) + number,
        "bits": np.array([number, 7], np.uint64),
        "flags": np.array([True, False]),
        "plain": [None, True, number, 0.1 * number, "text", {"inner": [np.empty((0, 3), np.int32)]}],
    }


def written(folder: ResumeFolder, number: int) -> ResumePoint:
    """Write and commit point ``number``, and remove the one before."""
    files = {rank: write_state(folder.root, rank, number, number, state_of(number), fsync=True) for rank in RANKS}
    point = ResumePoint(
        number=number,
        step=number,
        config_hash="c",
        code="d",
        events=EventsPosition(num_bytes=1, num_events=1, digest="e"),
        checkpoint=None,
        files=files,
        supervisor={"generation": number},
    )
    folder.commit(point)
    folder.keep_only(point)
    return point


def newest(root: Path) -> ResumePoint | None:
    """The newest point whose files are whole."""
    folder = ResumeFolder(root, fsync=True)
    for path in folder.paths():
        try:
            return folder.read(path)
        except StoreError:
            continue
    return None


def test_a_crash_at_any_call_leaves_the_last_point(tmp_path: Path) -> None:
    """Law: at each call that changes a file, the last committed point is found, or the one under way, and is whole."""
    root, left = tmp_path / "live", tmp_path / "left"
    root.mkdir()
    points: list[ResumePoint] = []

    def check() -> None:
        for loss in LOSSES:
            found = newest(disk.after(loss, left) / "resume")
            numbers = {points[-1].number, points[-1].number + 1} if points else {None, 0}
            assert (found and found.number) in numbers, loss
            if found is not None:
                assert_is(found, (disk.after(loss, left)) / "resume")

    def assert_is(point: ResumePoint, folder: Path) -> None:
        for rank in RANKS:
            state = read_state(folder, point.files[rank])
            assert torch.equal(state["rows"], state_of(point.number)["rows"])

    disk = Disk(root, check)
    with disk.installed():
        folder = ResumeFolder(root / "resume", fsync=True)
        folder.prepare()
        for number in range(4):
            points.append(written(folder, number))
    assert disk.num_calls > 40
    assert len(list((root / "resume").glob("*/*.bin"))) == len(RANKS)


@pytest.mark.parametrize(("change", "named"), [({"saving": []}, "saving"), ({"step": ...}, "step"), ({"files": 1}, "")])
def test_a_point_of_other_fields_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    """Law: what another version of the code wrote is one line, though its checksum is right."""
    fields = json.loads(written(ResumeFolder(tmp_path, fsync=False), 0).to_text())
    fields = {key: value for key, value in {**fields, **change}.items() if key != "xxh3" and value is not ...}
    text = sealed(fields)
    with pytest.raises(StoreError, match=f"here: expected the fields of a resume point, got others .*{named}"):
        ResumePoint.from_text(text, "here")


@pytest.mark.parametrize("value", [(1, 2), {3: 4}, {1}, np.float32(1), object(), {"#": 0}])
def test_a_value_that_is_no_plain_data_is_named(tmp_path: Path, value: object) -> None:
    """Law: what a file could not give back is refused when it is written, with its place."""
    with pytest.raises(StoreError, match=r"state of ps0\.a\[0\]: expected plain data"):
        write_state(tmp_path, "ps0", 0, 0, {"a": [value]}, fsync=False)


# --- checkpoints that a point needs ---------------------------------------------------------------------------------


def saved(store: CheckpointStore, sequence: int) -> Manifest:
    """Commit a checkpoint of one rank."""
    files = ShardStore(store.root, "ps0", fsync=False)
    base = files.write_base(sequence, sequence, rows_of(sequence, 5))
    dense = write_dense(store.root, sequence, sequence, tensors={}, extra={}, fsync=False)
    made = manifest(sequence, sequence, {"ps0": (base,)}, dense)
    store.commit(made)
    store.wait()
    return made


def test_checkpoints_that_are_pinned_outlive_later_ones(tmp_path: Path) -> None:
    """Law: what a point needs stays until it is not pinned any more."""
    store = CheckpointStore(tmp_path, keep=1, fsync=False)
    first = saved(store, 0)
    store.pin([0])
    for sequence in (1, 2, 3):
        saved(store, sequence)
    assert read_checkpoint(tmp_path, 0) == first
    with pytest.raises(StoreError):
        read_checkpoint(tmp_path, 1)
    store.pin([])
    saved(store, 4)
    with pytest.raises(StoreError):
        read_checkpoint(tmp_path, 0)


def test_a_store_that_is_rewound_takes_the_next_save_anew(tmp_path: Path) -> None:
    """Law: later checkpoints are gone with their files, and the next number can be committed."""
    store = CheckpointStore(tmp_path, keep=9, fsync=False)
    made = [saved(store, sequence) for sequence in range(4)]
    store.rewind(1)
    found, _ = newest_checkpoint(tmp_path)
    assert found == made[1]
    assert sorted(path.name for path in tmp_path.glob("ps0/*")) == [f"base-{k:06d}.bin" for k in range(2)]
    again = saved(store, 2)
    assert newest_checkpoint(tmp_path)[0] == again
    store.rewind(None)
    assert newest_checkpoint(tmp_path) == (None, [])
    assert list(tmp_path.glob("*/*.bin")) == []
