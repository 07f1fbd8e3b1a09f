"""Trackers that save first the rows that moved most: by their distance from the saved copy, or by all their steps.

M rows of the shard, N rows of a call, K rows chosen, T rows of a table, D embedding dim.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from harness.core.placement import Placement, budget_rows
from harness.core.shard import Shard
from harness.core.tracker import Tracker, TrackerSpec, top_rows
from harness.kernels.norms import add_at, row_distances

_CHUNK_ROWS = 1 << 14  # rows compared at once: a megabyte at dimension 16


def distances(left_ND: Tensor, right_ND: Tensor) -> Tensor:
    """The L2 distance of each row of ``left_ND`` from that of ``right_ND``: float32 (N,); infinite where it is NaN.

    Squares are summed in one order, so that every machine computes the same bits.
    """
    return torch.from_numpy(row_distances(left_ND.numpy(), right_ND.numpy()))


class ScarTracker(Tracker):
    """CPR-SCAR: the K rows whose values lie farthest from their saved copy; ties to the lower row.

    After SCAR (Qiao et al. 2019), as CPR uses it (section 4, reconstructed). Option ``r``. A row that has not moved
    since its last save is never chosen. Memory: a second copy of the tracked tables.
    """

    _state_in_place = ("_saved",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._r: float = spec.options["r"]
        self._saved = {table: torch.empty_like(shard.values_MD[shard.span(table)]) for table in spec.tables}

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        """The copies."""
        return 4 * dim * sum(placement.local_rows(rank_index, table) for table in spec.tables)

    def choose(self, table: int, step: int) -> Tensor:
        """The K rows that moved most since their last save."""
        saved_TD, span = self._saved[table], self._shard.span(table)
        moved_T = torch.empty(len(saved_TD))
        values_TD = self._shard.values_MD[span]
        for first in range(0, len(saved_TD), _CHUNK_ROWS):
            chunk = slice(first, first + _CHUNK_ROWS)
            moved_T[chunk] = distances(values_TD[chunk], saved_TD[chunk])
        return top_rows(moved_T, budget_rows(len(saved_TD), self._r)) + span.start

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """Copy the rows as they are now, which is as the save has them, also where it is written later."""
        if table in self._saved:
            first = self._shard.span(table).start
            if isinstance(rows, slice):
                self._saved[table].copy_(self._shard.values_MD[rows])
            else:
                self._saved[table][rows - first] = self._shard.values_MD[rows]

    def reset(self) -> None:
        """Copy all tracked rows: restored ones are as the files have them, initial ones have not moved."""
        for table in self._saved:
            self.saved(table, self._shard.span(table))


class MassTracker(Tracker):
    """The K rows that moved most, step by step, since their last save; ties to the lower row.

    Option ``r``. A row's mass is the sum of the L2 norms of its updates, float32, added in the order of steps. By the
    triangle inequality it is at least the distance that :class:`ScarTracker` measures, in 4 bytes a row instead of a
    copy. A row that moves to and fro has mass and no distance.
    """

    needs_norms: ClassVar[bool] = True
    _state_in_place = ("_mass_M",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard = shard
        self._r: float = spec.options["r"]
        self._mass_M = np.zeros(len(shard.rows_MD), np.float32)  # numpy's memory: in huge pages, as the shard is

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        """A mass for each row of the shard."""
        return 4 * placement.num_rows(rank_index)

    def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
        """Add the norms to the rows' masses."""
        add_at(self._mass_M, rows_N.numpy(), norms_N.numpy())

    def choose(self, table: int, step: int) -> Tensor:
        """The K rows of the largest mass; only rows that moved since their last save."""
        span = self._shard.span(table)
        return top_rows(torch.from_numpy(self._mass_M[span]), budget_rows(span.stop - span.start, self._r)) + span.start

    def saved(self, table: int, rows: Tensor | slice) -> None:
        """These rows have not moved since their last save."""
        self._mass_M[rows if isinstance(rows, slice) else rows.numpy()] = 0

    def reset(self) -> None:
        """No row has moved."""
        self._mass_M[:] = 0
