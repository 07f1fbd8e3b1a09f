"""How far the rows of lost shards moved: the distance between the model before a failure and after its recovery.

D values of a row, N rows of a part, X columns of a row: D values, then state of the optimizer.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from harness.core.faults import PlannedFault
from harness.core.lookup import TouchedRows
from harness.core.placement import Placement
from harness.core.plans import Rank, is_ps, ps_index

Rows = dict[Rank, list[Tensor]]
"""The values of all rows by PS rank, in parts, float32 (N, D)."""

_PART_ROWS = 1 << 16  # of one lookup


@dataclass(frozen=True)
class RowReader:
    """Reads all rows of PS ranks, in parts, by the lookups of an evaluation: with the updates that a cache holds.

    ``planned_faults``: the failures to measure; the trainer may know their ranks for a measurement alone. ``dim``: D.
    ``look_up``: gives rows, float32 (N, X).
    """

    planned_faults: Sequence[PlannedFault]
    placement: Placement
    dim: int
    look_up: Callable[[TouchedRows], Awaitable[Tensor]]

    def lost_ranks(self, losses: Iterable[int]) -> list[Rank]:
        """The PS ranks that the planned faults with these numbers lose, in order."""
        lost = {rank for number in losses for rank in self.planned_faults[number].ranks}
        return sorted(filter(is_ps, lost), key=ps_index)

    async def read(self, ranks: Iterable[Rank]) -> Rows:
        """The values of all rows of ``ranks``."""
        return {rank: [await self._look_up(part) for part in self._parts(rank)] for rank in ranks}

    async def squares(self, before: Mapping[Rank, Sequence[Tensor]]) -> dict[Rank, float]:
        """By rank, the squared L2 distance of all values from those ``before``, summed in float64."""
        found: dict[Rank, list[float]] = {rank: [] for rank in before}
        for rank, squares in found.items():
            for part, earlier_ND in zip(self._parts(rank), before[rank], strict=True):
                moved_ND = (await self._look_up(part)).numpy() - earlier_ND.numpy().astype(np.float64)
                squares.append(float(np.square(moved_ND).sum()))  # numpy's bits depend on no number of threads
        return {rank: math.fsum(squares) for rank, squares in found.items()}

    async def _look_up(self, part: TouchedRows) -> Tensor:
        return (await self.look_up(part))[:, : self.dim].contiguous()

    def _parts(self, rank: Rank) -> list[TouchedRows]:
        index = ps_index(rank)
        num_rows, base = self.placement.num_rows(index), self.placement.rank_base_R[index]
        return [
            self._part(index, base, np.arange(first, min(first + _PART_ROWS, num_rows)))
            for first in range(0, num_rows, _PART_ROWS)
        ]

    def _part(self, index: int, base: np.int64, rows_N: np.ndarray) -> TouchedRows:
        num, behind = len(rows_N), self.placement.num_ps - index
        bounds = (*[0] * (index + 1), *[num] * behind)
        return TouchedRows(base + rows_N, rows_N, np.zeros(num, np.int32), np.zeros(num, bool), bounds)
