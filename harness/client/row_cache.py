"""Rows of the PS ranks at the trainer, by slot, and what moves between the two.

S slots, K rows of a call, D embedding dim.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.kernels import compiled

Slots = NDArray[np.int64]

_GROWTH = 1.25  # of the buffer, beyond what is needed: few copies, little waste


class RowCache:
    """Values of rows, which are newer than those of their rank, and how many updates each has had.

    A row has one slot for as long as it is here, so no value ever moves. ``untold_S`` (int32) are the updates that the
    rank has not been told of: a row with any is dirty. ``unsaved_S`` (int32) are all that no save has persisted; they
    mean something only where somebody keeps them up to date.
    """

    def __init__(self, dim: int, *, max_rows: int | None) -> None:
        self._max_rows = max_rows
        self.values_SD = torch.empty((0, dim))
        self.untold_S = np.zeros(0, np.int32)
        self.unsaved_S = np.zeros(0, np.int32)
        self.is_here_S = np.zeros(0, bool)

    @property
    def num_bytes(self) -> int:
        """Of all slots, used or not."""
        arrays = (self.values_SD.numpy(), self.untold_S, self.unsaved_S, self.is_here_S)
        return sum(array.nbytes for array in arrays)

    def reserve(self, num_slots: int) -> None:
        """Have so many slots; never more than ``max_rows`` if these are enough."""
        present, dim = self.values_SD.shape
        if num_slots <= present:
            return
        spacious = int(num_slots * _GROWTH)
        size = spacious if self._max_rows is None else max(num_slots, min(spacious, self._max_rows))
        values_SD = torch.empty((size, dim))
        values_SD[:present] = self.values_SD
        self.values_SD = values_SD
        added = size - present
        self.untold_S = np.pad(self.untold_S, (0, added))
        self.unsaved_S = np.pad(self.unsaved_S, (0, added))
        self.is_here_S = np.pad(self.is_here_S, (0, added))

    def take_in(self, slots_K: Slots, values_KD: Tensor, unsaved_K: Tensor | None) -> None:
        """Rows of which their rank knows every update."""
        compiled.put_rows(self.values_SD.numpy(), slots_K, values_KD.numpy())
        self.is_here_S[slots_K] = True
        if unsaved_K is not None:
            self.unsaved_S[slots_K] = unsaved_K.numpy()

    def values(self, slots_K: Slots) -> Tensor:
        """Rows as they are, (K, D); a copy."""
        return torch.from_numpy(compiled.take_rows(self.values_SD.numpy(), slots_K))

    def sgd_step(self, slots_K: Tensor, grads_KD: Tensor, learning_rate: float) -> None:
        """One SGD step on distinct rows, by the arithmetic of their rank."""
        nobody = compiled.NOBODY_COUNTS
        compiled.sgd_step(self.values_SD.numpy(), slots_K.numpy(), grads_KD.numpy(), learning_rate, nobody, nobody)

    def count(self, slots_K: Slots, updates_K: NDArray[np.int32]) -> None:
        """Rows were updated so often."""
        self.untold_S[slots_K] += updates_K
        self.unsaved_S[slots_K] += updates_K

    def forget(self, slots_K: Slots) -> None:
        """Rows are no longer here."""
        self.is_here_S[slots_K] = False
        self.untold_S[slots_K] = 0


@dataclass
class Traffic:
    """Rows moved, and bytes of all tensors on the wire.

    ``sent_bytes`` go to the ranks: ids that are asked for, rows written back with ids and counts of updates, sampled
    touches; ``received_bytes`` come from them. ``uncached_bytes`` is what one message a step and rank would have
    moved, deduplicated. ``peak_rows``: at one time cached or under way.
    """

    accessed_rows: int = 0
    fetched_rows: int = 0
    written_rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    uncached_bytes: int = 0
    peak_rows: int = 0

    @property
    def num_bytes(self) -> int:
        """Both ways."""
        return self.sent_bytes + self.received_bytes

    def summary(self) -> dict[str, float]:
        """For the record."""
        return {
            "hit_rate": 1 - self.fetched_rows / self.accessed_rows if self.accessed_rows else 0.0,
            "accessed_rows": self.accessed_rows,
            "fetched_rows": self.fetched_rows,
            "written_rows": self.written_rows,
            "peak_rows": self.peak_rows,
            "bytes": self.num_bytes,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "uncached_bytes": self.uncached_bytes,
        }
