"""Small real checkpoints for the tests of the store."""

from pathlib import Path

import torch
from torch import Tensor

from harness.core.resumable import State
from harness.store import FileRecord, Manifest, ShardStore, read_state, write_state

NUM_ROWS, DIM = 101, 3


def rows_of(step: int, num_rows: int = NUM_ROWS, dim: int = DIM) -> Tensor:
    """Rows that tell the step they are of: no two steps share a value."""
    return torch.randn((num_rows, dim), generator=torch.Generator().manual_seed(step))


def chosen(*ids: int) -> Tensor:
    """Chosen rows, ids as a tracker gives them."""
    return torch.tensor(ids, dtype=torch.int64)


def write_dense(root: Path, sequence: int, step: int, *, fsync: bool = True, **tensors: Tensor) -> FileRecord:
    """The trainer's file of a checkpoint."""
    state: State = {"tensors": tensors, "extra": {"step": step}}
    return write_state(root, "trainer0", sequence, step, state, fsync=fsync, kind="dense")


def read_dense(root: Path, record: FileRecord) -> tuple[dict[str, Tensor], State]:
    """The tensors by name, and ``extra``."""
    state = read_state(root, record)
    return state["tensors"], state["extra"]


def manifest(sequence: int, step: int, shards: dict[str, tuple[FileRecord, ...]], trainer: FileRecord) -> Manifest:
    """A full manifest of a run named ``run``."""
    described = {"samples": 128 * step, "kind": "full", "config_hash": "run"}
    return Manifest(sequence=sequence, step=step, shards=shards, trainer=trainer, **described)


def write_files(root: Path, sequence: int, num_ps: int = 2) -> Manifest:
    """Content files of a checkpoint of step ``10 * sequence``, not committed."""
    step = 10 * sequence
    shards = {
        f"ps{rank}": (ShardStore(root, f"ps{rank}").write_base(sequence, step, rows_of(step + rank)),)
        for rank in range(num_ps)
    }
    return manifest(sequence, step, shards, write_dense(root, sequence, step, w=rows_of(step)))
