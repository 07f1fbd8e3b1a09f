"""The table of stores, by the values of config key ``store.kind``."""

from collections.abc import Callable
from pathlib import Path

from harness.core.choices import STORE_NAMES, PartTable
from harness.store.contract import Store
from harness.store.files import FileStore
from harness.store.memory import MemoryStore

MakeStore = Callable[[Path, int, bool], Store]
"""Makes a store from the run's folder of checkpoints, ``store.keep`` and ``store.fsync``."""

STORES: PartTable[MakeStore] = PartTable(
    STORE_NAMES,
    {
        "files": lambda root, keep, fsync: FileStore(root, keep=keep, fsync=fsync),
        "memory": lambda root, keep, fsync: MemoryStore(),
    },
)
"""Stores by name. The value ``auto`` of the key stands for one of them (``RunSpec.store_kind``)."""
