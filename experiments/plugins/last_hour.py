"""A tracker and its strategy ``last_hour``: an hourly save writes the rows that were touched in the last hour."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.core.placement import Placement
from harness.core.plans import Costs, Interval
from harness.core.shard import Shard
from harness.core.strategies import STRATEGIES, Partial
from harness.core.trackers import TRACKERS, Tracker, TrackerSpec


class LastHourTracker(Tracker):
    """The rows that were touched in the last ``steps`` steps. 4 bytes a row."""

    needs_touches: ClassVar[bool] = True
    _state = ("_last_M",)

    def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
        self._shard, self._steps = shard, spec.options["steps"]
        self._last_M = torch.zeros(len(shard.rows_MD), dtype=torch.int32)  # the step; steps count from 1

    def touched(self, step: int, rows_N: Tensor, counts_N: Tensor) -> None:
        """The last step of each row."""
        self._last_M[rows_N] = step

    def choose(self, table: int, step: int) -> Tensor:
        """All rows of the last steps, however many."""
        span = self._shard.span(table)
        return (self._last_M[span] > max(0, step - self._steps)).nonzero().flatten() + span.start

    def reset(self) -> None:
        """The shard was restored."""
        self._last_M.zero_()

    @staticmethod
    def num_bytes(spec: TrackerSpec, placement: Placement, rank_index: int, dim: int) -> int:
        """A step for each row of the shard."""
        return 4 * placement.num_rows(rank_index)


TRACKERS["last_hour"] = LastHourTracker


class LastHour(Partial):
    """``last_hour``: as ``partial``, but an hourly save writes only the rows that were touched in the last hour."""

    tracker = "last_hour"
    _kind = "priority"

    class Options(Partial.Options):
        """Options of ``last_hour``."""

        hours: Annotated[float, Field(gt=0)] = 1.0
        """Hours of the job between saves, and the age of the oldest touch that a save counts."""

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if options.interval_samples is None:
            self.interval = Interval(samples=costs.samples_of(options.hours))
        self.tracker_options = {"steps": costs.steps_of(options.hours), "r": 1.0}  # r: it may choose all rows


STRATEGIES["last_hour"] = LastHour
