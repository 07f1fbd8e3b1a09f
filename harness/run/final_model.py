"""The final model of a run, kept in ``model/`` of its folder: one checkpoint of the store's format.

A checkpoint of the strategy is older: no save is due at the last step. Keeping the model is no save either, and leaves
no event. The manifest is written last, before the run's last event. Readers: ``harness/run/export.py``.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import xxhash
from torch import Tensor

from harness.cluster.protocol import Ask, OnShard
from harness.cluster.server import digest_of_rows
from harness.core.plans import CHIEF, Progress, Rank, ps_rank
from harness.core.shard import Shard
from harness.files import os_errors
from harness.store import FileRecord, FileStore, Manifest, RowSource, Store
from harness.store.format import bytes_of

_SEQUENCE = 0


async def keep(
    folder: Path | None,
    dense: Mapping[str, Tensor],
    *,
    ask: Ask,
    ranks: tuple[Rank, ...],
    progress: Progress,
    config_hash: str,
    fsync: bool,
) -> dict[Rank, str]:
    """The digests of all parameters, by rank; the model is written to ``folder`` unless that is None.

    ``dense``: the state of the dense network. Files that ``folder`` has are removed first. Raises StoreError.
    """
    store = None
    if folder is not None:
        with os_errors(f"{folder}: cannot be replaced"):
            if folder.exists():
                shutil.rmtree(folder)
        store = FileStore(folder, fsync=fsync)
        store.open()
    ended: dict[Rank, tuple[str, FileRecord | None]] = await ask(
        dict.fromkeys(ranks, OnShard(end_shard, (store, progress.step))), progress
    )
    if store is not None:
        shards = {rank: (record,) for rank, (_, record) in ended.items() if record is not None}
        trainer = store.write_dense(CHIEF, _SEQUENCE, progress.step, dense, {})
        store.commit(
            Manifest(
                sequence=_SEQUENCE,
                step=progress.step,
                samples=progress.samples,
                kind="full",
                config_hash=config_hash,
                shards=shards,
                trainer=trainer,
            )
        )
        store.close()
    return {**{rank: digest for rank, (digest, _) in ended.items()}, CHIEF: digest_of_dense(dense)}


def end_shard(shard: Shard, store: Store | None, step: int) -> tuple[str, FileRecord | None]:
    """The digest of the rows of a shard, and the record of the file that holds them if there is a ``store``.

    A replacement of a rank that has died after this writes the file again.
    """
    record = None
    if store is not None:
        rank = ps_rank(shard.rank_index)
        store.discard(rank, _SEQUENCE)
        record = store.write_base(rank, _SEQUENCE, step, RowSource(shard.rows_MD))
    return digest_of_rows(shard), record


def digest_of_dense(dense: Mapping[str, Tensor]) -> str:
    """The xxh3 of all tensors of a dense network's state, in its order, as 16 hex digits."""
    hasher = xxhash.xxh3_64()
    for tensor in dense.values():
        hasher.update(bytes_of(tensor.contiguous()))
    return hasher.hexdigest()
