"""A checkpoint as the initial values of a run with any number of PS ranks (``init.checkpoint``)."""

from dataclasses import dataclass
from itertools import pairwise
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
        store, origins_OT, places_M = FileStore(self.root), self.placement.origins_OT, np.empty(len(shard.rows_MD), int)
        for table in range(len(self.placement.cardinalities)):
            first, stride = shard.placement.table_rows(shard.rank_index, table)
            span = shard.span(table)
            ids_N = first + stride * np.arange(span.stop - span.start)
            places_M[span] = ids_N // len(origins_OT) + origins_OT[ids_N % len(origins_OT), table]
        for index, (first, stop) in enumerate(pairwise(self.placement.rank_base_R)):
            rows_MX = torch.empty(stop - first, shard.rows_MD.shape[1])
            store.read_rows(self.manifest.shards[ps_rank(index)], rows_MX)
            is_here_M = (first <= places_M) & (places_M < stop)
            shard.rows_MD[is_here_M] = rows_MX[places_M[is_here_M] - first]

    def dense(self) -> dict[str, Tensor]:
        """The dense network's tensors. Raises StoreError."""
        return FileStore(self.root).read_dense(self.manifest.trainer)
