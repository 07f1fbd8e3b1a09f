"""Checkpoints on disk: a base and deltas of each shard, the dense network's file, and a manifest written last.

What holds tensors is imported at its first use: checkpoints are listed and verified without torch.
"""

# ruff: noqa: PLC0415

from typing import TYPE_CHECKING, Any

from harness.store.checkpoint import (
    CheckpointStore,
    ResumeFolder,
    ResumePoint,
    in_background,
    newest_checkpoint,
    read_checkpoint,
)
from harness.store.format import discard, read_state, write_state
from harness.store.manifest import RAW, FileRecord, Manifest, wants_compaction

if TYPE_CHECKING:
    from harness.store.kinds import SAVE_KINDS, save_kind
    from harness.store.rows import ENCODINGS, Part, RowSource
    from harness.store.shard_files import ROW_ID_BYTES, ShardStore
    from harness.store.snapshot import Snapshot

__all__ = [
    "ENCODINGS",
    "RAW",
    "ROW_ID_BYTES",
    "SAVE_KINDS",
    "CheckpointStore",
    "FileRecord",
    "Manifest",
    "Part",
    "ResumeFolder",
    "ResumePoint",
    "RowSource",
    "ShardStore",
    "Snapshot",
    "discard",
    "in_background",
    "newest_checkpoint",
    "read_checkpoint",
    "read_state",
    "save_kind",
    "wants_compaction",
    "write_state",
]


def __getattr__(name: str) -> Any:
    if name in ("SAVE_KINDS", "save_kind"):
        from harness.store import kinds as found
    elif name in ("ENCODINGS", "Part", "RowSource"):
        from harness.store import rows as found
    elif name in ("ROW_ID_BYTES", "ShardStore"):
        from harness.store import shard_files as found
    elif name == "Snapshot":
        from harness.store import snapshot as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(found, name)
