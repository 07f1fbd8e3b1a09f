"""Checkpoints on disk: a base per shard, deltas, the trainer's file, and a manifest written last."""

from harness.store.checkpoint import CheckpointStore, newest_checkpoint
from harness.store.delta import ChosenRows, Part, RowRange
from harness.store.dense import read_dense, write_dense
from harness.store.records import FORMAT_VERSION, FileRecord, Manifest, wants_compaction
from harness.store.shard import ShardStore

__all__ = [
    "FORMAT_VERSION",
    "CheckpointStore",
    "ChosenRows",
    "FileRecord",
    "Manifest",
    "Part",
    "RowRange",
    "ShardStore",
    "newest_checkpoint",
    "read_dense",
    "wants_compaction",
    "write_dense",
]
