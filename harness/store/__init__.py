"""Checkpoints on disk: a base per shard, deltas, the trainer's file, and a manifest written last."""

from harness.store.background import in_background
from harness.store.checkpoint import CheckpointStore, newest_checkpoint, read_checkpoint
from harness.store.delta import ROW_ID_BYTES
from harness.store.encoding import ENCODINGS, RAW
from harness.store.format import discard
from harness.store.kinds import SAVE_KINDS, save_kind
from harness.store.manifest import FileRecord, Manifest, wants_compaction
from harness.store.resume_points import ResumeFolder, ResumePoint
from harness.store.row_sources import Part, RowSource
from harness.store.shard_files import ShardStore
from harness.store.snapshot import Snapshot
from harness.store.state import read_state, write_state

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
