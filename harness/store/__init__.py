"""Checkpoints: where they are kept (``Store``, in files or in memory), kinds of save, resume points.

What holds tensors is imported at its first use: checkpoints are listed and verified without torch.
"""

# ruff: noqa: F401, PLC0415 - the names that other rooms import

from typing import TYPE_CHECKING, Any

from harness.store.background import in_background
from harness.store.format import read_state, write_state
from harness.store.listing import newest_checkpoint, read_checkpoint
from harness.store.manifest import RAW, FileRecord, Manifest, name_files_by, wants_compaction, without_writer
from harness.store.points import ResumeFolder, ResumePoint

if TYPE_CHECKING:
    from harness.store.contract import Store
    from harness.store.files import FileStore
    from harness.store.kinds import SAVE_KINDS, save_kind
    from harness.store.memory import MemoryStore
    from harness.store.rows import ENCODINGS, ROW_ID_BYTES, FailingSource, Part, RowSource
    from harness.store.snapshot import Snapshot


def __getattr__(name: str) -> Any:
    if name == "Store":
        from harness.store import contract as found
    elif name == "FileStore":
        from harness.store import files as found
    elif name == "MemoryStore":
        from harness.store import memory as found
    elif name in ("SAVE_KINDS", "save_kind"):
        from harness.store import kinds as found
    elif name in ("ENCODINGS", "ROW_ID_BYTES", "FailingSource", "Part", "RowSource"):
        from harness.store import rows as found
    elif name == "Snapshot":
        from harness.store import snapshot as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(found, name)
