"""The trainer's cache of embedding rows, indexed by slot.

S slots, K rows that a call addresses, X columns of a row: its values, then state of the optimizer.
"""

import numpy as np
import torch
from torch import Tensor

from harness.client.slots import Slots, grown
from harness.core.resumable import Resumable
from harness.kernels import row_loops

_GROWTH = 1.25  # of the buffer, beyond what is needed: few copies, little waste


class RowCache(Resumable):
    """Values of rows, newer than at their PS rank, and how many updates each has had.

    A row has one slot for as long as it is cached, so no value ever moves. ``dirty_S`` (int32) counts the updates that
    its rank does not have; a row with any is dirty.
    """

    _state = ("values_SX", "dirty_S", "is_cached_S")

    def __init__(self, width: int, *, max_rows: int | None) -> None:
        self._max_rows = max_rows
        self.values_SX = torch.empty((0, width))
        self.dirty_S = np.zeros(0, np.int32)
        self.is_cached_S = np.zeros(0, bool)

    def reserve(self, num_slots: int) -> None:
        """Grow to at least ``num_slots`` slots; beyond ``max_rows`` only if ``num_slots`` is larger."""
        if num_slots <= len(self.values_SX):
            return
        spacious = int(num_slots * _GROWTH)
        size = spacious if self._max_rows is None else max(num_slots, min(spacious, self._max_rows))
        for name in self._state:
            setattr(self, name, grown(getattr(self, name), size))

    def insert(self, slots_K: Slots, values_KX: Tensor) -> None:
        """Insert rows as they were fetched from their rank; they are clean."""
        row_loops.put_rows(self.values_SX.numpy(), slots_K, values_KX.numpy())
        self.is_cached_S[slots_K] = True

    def values(self, slots_K: Slots) -> Tensor:
        """Present values of the rows, (K, X); a copy."""
        return torch.from_numpy(row_loops.take_rows(self.values_SX.numpy(), slots_K))

    def evict(self, slots_K: Slots) -> None:
        """Drop rows, and with them all updates that their rank lacks."""
        self.is_cached_S[slots_K] = False
        self.dirty_S[slots_K] = 0
