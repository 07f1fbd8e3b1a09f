"""The table of stores, by the values of config key ``store.kind``."""

from collections.abc import Callable
from pathlib import Path

from harness.core.choices import STORE_NAMES, PartTable
from harness.store.contract import Store
from harness.store.files import FileStore
from harness.store.memory import MemoryStore


def _in_files(root: Path, keep: int, fsync: bool) -> Store:
    return FileStore(root, keep=keep, fsync=fsync)


def _in_memory(root: Path, keep: int, fsync: bool) -> Store:
    return MemoryStore()


MakeStore = Callable[[Path, int, bool], Store]
"""Makes a store from the run's folder of checkpoints, ``store.keep`` and ``store.fsync``."""

STORES: PartTable[MakeStore] = PartTable(STORE_NAMES, {"files": _in_files, "memory": _in_memory})
"""Stores by name. The value ``auto`` of the key stands for one of them (``RunSpec.store_kind``)."""
