"""Checkpoints on disk: a base and deltas of each shard, the dense network's file, and a manifest written last."""

from harness.store.checkpoint import (
    CheckpointStore,
    ResumeFolder,
    ResumePoint,
    in_background,
    newest_checkpoint,
    read_checkpoint,
)
from harness.store.format import discard, read_state, write_state
from harness.store.kinds import SAVE_KINDS, save_kind
from harness.store.manifest import FileRecord, Manifest, wants_compaction
from harness.store.rows import ENCODINGS, RAW, Part, RowSource
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
