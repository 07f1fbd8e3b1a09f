"""A checkpoint as the initial values of a run with any number of PS ranks (``init.checkpoint``)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement
from harness.core.plans import ps_rank
from harness.core.shard import Shard
from harness.store.files import FileStore
from harness.store.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class InitialModel:
    """A checkpoint in the folder ``root``, whose shards have the rows of ``placement``; can be pickled."""

    root: Path
    manifest: Manifest
    placement: Placement

    def fill(self, shard: Shard) -> None:
        """Set each row of ``shard``, with its state, to the checkpoint's row of the same table and id.

        Shards of the checkpoint are read one by one. Raises StoreError for rows of other tables or another width.
        """
        store, target = FileStore(self.root), shard.placement
        for index in range(self.placement.num_ps):
            rows_MX = torch.empty(self.placement.num_rows(index), shard.rows_MD.shape[1])
            store.read_rows(self.manifest.shards[ps_rank(index)], rows_MX)
            for table, offset in enumerate(self.placement.offsets_RT[index, :-1].tolist()):
                if not (num_rows := target.num_local_rows(shard.rank_index, table)):
                    continue
                first, stride = self.placement.table_rows(index, table)
                ids_N = first + stride * np.arange(self.placement.num_local_rows(index, table))
                first, stride = target.table_rows(shard.rank_index, table)
                theirs_N = np.flatnonzero((ids_N - first) % stride == 0)
                ours_N = (ids_N[theirs_N] - first) // stride
                assert not len(ours_N) or ours_N[-1] < num_rows, "tables of equal sizes"
                shard.rows_MD[shard.span(table)][ours_N] = rows_MX[offset + theirs_N]

    def dense(self) -> dict[str, Tensor]:
        """The dense network's tensors. Raises StoreError."""
        return FileStore(self.root).read_dense(self.manifest.trainer)
