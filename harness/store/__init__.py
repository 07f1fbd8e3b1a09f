"""Checkpoints on disk: a base per shard, deltas, the trainer's file, and a manifest written last."""

from harness.store.background import FrozenRows, in_background
from harness.store.checkpoint import CheckpointStore, newest_checkpoint, read_checkpoint
from harness.store.delta import ROW_ID_BYTES
from harness.store.encoding import ENCODINGS, RAW
from harness.store.kinds import SAVE_KINDS, save_kind
from harness.store.manifest import FileRecord, Manifest, wants_compaction
from harness.store.resume_points import ResumeFolder, ResumePoint
from harness.store.row_sources import ChosenRows, Part, RowRange, RowSource, StillRows
from harness.store.shard_files import ShardStore
from harness.store.snapshot import Snapshot
from harness.store.state import discard_dense, read_dense, read_state, write_dense, write_state

__all__ = [
    "ENCODINGS",
    "RAW",
    "ROW_ID_BYTES",
    "SAVE_KINDS",
    "CheckpointStore",
    "ChosenRows",
    "FileRecord",
    "FrozenRows",
    "Manifest",
    "Part",
    "ResumeFolder",
    "ResumePoint",
    "RowRange",
    "RowSource",
    "ShardStore",
    "Snapshot",
    "StillRows",
    "discard_dense",
    "in_background",
    "newest_checkpoint",
    "read_checkpoint",
    "read_dense",
    "read_state",
    "save_kind",
    "wants_compaction",
    "write_dense",
    "write_state",
]
