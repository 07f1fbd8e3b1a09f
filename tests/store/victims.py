"""What the doomed processes of the tests do: each tells ``pipe`` how far it is and then waits to be killed."""

import os
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from harness.core.errors import StoreError
from harness.store import CheckpointStore, ShardStore, Snapshot, in_background
from tests.store.helpers import NUM_ROWS, rows_of, write_files

Victim = Callable[[Path, Connection], None]


def ready_to_die(pipe: Connection) -> None:
    """Say so, and do nothing more; ends by itself should the test be gone."""
    pipe.send("ready")
    pipe.recv()


def between_content_and_manifest(root: Path, pipe: Connection) -> None:
    """All content files of checkpoint 2 are written, its manifest is not begun."""
    CheckpointStore(root).commit(write_files(root, 1))
    write_files(root, 2)
    ready_to_die(pipe)


def before_the_rename(root: Path, pipe: Connection) -> None:
    """The manifest of checkpoint 2 is written and synced under its temporary name."""
    store = CheckpointStore(root)
    store.commit(write_files(root, 1))
    second = write_files(root, 2)
    os.replace = lambda *_: ready_to_die(pipe)
    store.commit(second)


def inside_a_content_file(root: Path, pipe: Connection) -> None:
    """The header of checkpoint 2's first file is written, its rows are not."""
    CheckpointStore(root).commit(write_files(root, 1))
    write, num_writes = os.write, [0]

    def write_once(handle: int, chunk: memoryview) -> int:
        num_writes[0] += 1
        if num_writes[0] == 2:
            ready_to_die(pipe)
        return write(handle, chunk)

    os.write = write_once
    ShardStore(root, "ps0").write_base(2, 20, rows_of(20))


def beside_steps(root: Path, pipe: Connection) -> None:
    """Checkpoint 2 is being written in the background when its rows have changed."""
    CheckpointStore(root).commit(write_files(root, 1))
    rows_MD = rows_of(20)
    rows = Snapshot(rows_MD, None, buffer_bytes=1)

    def write() -> None:
        rows.before_change(torch.tensor([NUM_ROWS - 1]))
        rows_MD[NUM_ROWS - 1] = 0
        os.write = lambda *_: ready_to_die(pipe)
        ShardStore(root, "ps0").write_base(2, 20, rows)

    in_background("save", write).exception()


def on_a_full_disk(root: Path, pipe: Connection) -> None:
    """The kernel takes no more than 64 KiB of a file; the error travels back."""
    CheckpointStore(root).commit(write_files(root, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    try:
        ShardStore(root, "ps0").write_base(2, 20, rows_of(20, num_rows=20_000))
    except StoreError as error:
        pipe.send(str(error))
