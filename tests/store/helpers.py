"""Small real checkpoints for the tests of the store."""

from pathlib import Path

import torch
from torch import Tensor

from harness.core.resumable import State
from harness.store import FileRecord, Manifest, ShardStore, read_state, write_state
from harness.store.manifest import sequence_of

NUM_ROWS, DIM = 101, 3


def rows_of(step: int, num_rows: int = NUM_ROWS, dim: int = DIM) -> Tensor:
    """Rows that tell the step they are of: no two steps share a value."""
    return torch.randn((num_rows, dim), generator=torch.Generator().manual_seed(step))


def chosen(*ids: int) -> Tensor:
    """Chosen rows, ids as a tracker gives them."""
    return torch.tensor(ids, dtype=torch.int64)


def write_dense(
    root: Path, sequence: int, step: int, *, tensors: dict[str, Tensor], extra: State, fsync: bool = True
) -> FileRecord:
    """The trainer's file of a checkpoint."""
    state = {"tensors": tensors, "extra": extra}
    return write_state(root, "trainer0", sequence, step, state, fsync=fsync, kind="dense")


def read_dense(root: Path, record: FileRecord) -> tuple[dict[str, Tensor], State]:
    """The tensors by name, and ``extra``."""
    state = read_state(root, record)
    return state["tensors"], state["extra"]


def manifest(sequence: int, step: int, shards: dict[str, tuple[FileRecord, ...]], trainer: FileRecord) -> Manifest:
    """A full manifest of a run named ``run``."""
    return Manifest(
        sequence=sequence,
        step=step,
        samples=128 * step,
        kind="full",
        config_hash="run",
        shards=shards,
        trainer=trainer,
    )


def next_sequence(root: Path) -> int:
    """A sequence number above all in the folder, including those of saves that were never committed."""
    names = [path.name for path in (*root.glob("*.json"), *root.glob("*/*.bin"))]
    return 1 + max((number for name in names if (number := sequence_of(name)) is not None), default=-1)


def write_files(root: Path, sequence: int, num_ps: int = 2) -> Manifest:
    """Content files of a checkpoint of step ``10 * sequence``, not committed."""
    step = 10 * sequence
    shards = {
        f"ps{rank}": (ShardStore(root, f"ps{rank}").write_base(sequence, step, rows_of(step + rank)),)
        for rank in range(num_ps)
    }
    trainer = write_dense(root, sequence, step, tensors={"w": rows_of(step)}, extra={"step": step})
    return manifest(sequence, step, shards, trainer)
