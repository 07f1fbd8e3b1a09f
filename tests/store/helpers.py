"""Small real checkpoints for the tests of the store."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from harness.core.resumable import State
from harness.store import RAW, FileRecord, FileStore, Manifest, Part, RowSource, Store, read_state, write_state

NUM_ROWS, DIM = 101, 3


class OneShard:
    """The contents of one rank in a store."""

    def __init__(self, store: Store, rank: str = "ps0") -> None:
        self.store, self.rank = store, rank

    def base(self, sequence: int, step: int, rows: Tensor | RowSource, *, encoding: str = RAW) -> FileRecord:
        return self.store.write_base(self.rank, sequence, step, _source(rows), encoding=encoding)

    def delta(
        self, sequence: int, step: int, rows: Tensor | RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        return self.store.write_delta(self.rank, sequence, step, _source(rows), parts, encoding=encoding)

    def compact(self, records: Sequence[FileRecord], sequence: int) -> FileRecord:
        return self.store.compact(records, sequence)

    def read(self, records: Sequence[FileRecord], like: Tensor) -> Tensor:
        """What they restore, in new memory."""
        rows_MD = torch.full_like(like, 77)
        self.store.read_rows(records, rows_MD)
        return rows_MD


def files(root: Path, rank: str = "ps0", *, fsync: bool = False) -> OneShard:
    """One shard in files."""
    return OneShard(FileStore(root, fsync=fsync), rank)


def _source(rows: Tensor | RowSource) -> RowSource:
    return RowSource(rows) if isinstance(rows, Tensor) else rows


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
        f"ps{rank}": (files(root, f"ps{rank}", fsync=True).base(sequence, step, rows_of(step + rank)),)
        for rank in range(num_ps)
    }
    return manifest(sequence, step, shards, write_dense(root, sequence, step, w=rows_of(step)))
