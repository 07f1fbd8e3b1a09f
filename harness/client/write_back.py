"""Data that a caching client sends back to the ranks: dirty rows, and the rows that each step touched.

Keys are rows in the rank-major order of all rows. N rows to write back, each of D values and state of the optimizer, S
rows that a step touched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.client.embedding_client import Keys, local_rows, within
from harness.client.oracle import Window
from harness.cluster.protocol import WriteBack
from harness.core.resumable import Resumable
from harness.core.trackers import Tracker

Touches = tuple[int, Keys, *tuple[NDArray[Any], ...]]
"""Number of a finished step, the rows that it touched by ascending key (S,), and, if the ranks' tracker needs one, a
value of each, a count or a norm."""

Touching = dict[str, list[Touches]]
"""By field of ``WriteBack``: rows that sub-sampled inputs touched (``sampled``), all rows with counts (``touched``) or
with the norms of their changes (``moved``). Only those that the ranks' tracker needs."""


class TouchLog(Resumable):
    """Touches of finished steps that were not sent to the ranks' trackers yet, in the order of steps."""

    _state = ("_touching",)

    def __init__(self, tracker: type[Tracker]) -> None:
        needs = {"sampled": tracker.needs_samples, "touched": tracker.needs_touches, "moved": tracker.needs_norms}
        self._touching: Touching = {name: [] for name, is_needed in needs.items() if is_needed}

    def __bool__(self) -> bool:
        return any(self._touching.values())

    def add(self, window: Window, norms: Sequence[Tensor]) -> int:
        """Add the finished steps of ``window``; returns the bytes of their touches on the wire.

        ``norms``: by step, the norms of changes, if the tracker needs them.
        """
        added_bytes = 0
        for place, (_, plan) in enumerate(window.steps):
            step, keys_N = window.first + 1 + place, plan.keys_N
            for name, log in self._touching.items():
                if name == "sampled":
                    log.append((step, keys_N[plan.sampled_N]))
                else:
                    log.append((step, keys_N, plan.counts_N if name == "touched" else norms[place].numpy()))
                added_bytes += _num_bytes(log[-1])
        return added_bytes

    def take(self) -> Touching:
        """Return all touches, to be sent now, and empty this log."""
        taken, self._touching = self._touching, {name: [] for name in self._touching}
        return taken

    def discard(self, first: int, last: int) -> None:
        """Drop touches of rows ``first <= key < last``."""
        for log in self._touching.values():
            for place, (step, keys_S, *values) in enumerate(log):
                stays = (keys_S < first) | (keys_S >= last)
                log[place] = step, keys_S[stays], *(values_S[stays] for values_S in values)


@dataclass(frozen=True)
class DirtyRows:
    """Rows of all ranks to write back, by ascending key, as of ``step``, and touches.

    ``counts_N``: updates of each row since it was last flushed.
    """

    step: int
    keys_N: Keys
    values_ND: Tensor
    counts_N: NDArray[np.int32]
    touching: Touching

    def of(self, first: int, last: int) -> WriteBack:
        """The message to the rank with keys ``first <= key < last``."""
        part = within(self.keys_N, first, last)
        return WriteBack(
            step=self.step,
            rows_N=local_rows(self.keys_N, first, last),
            values_ND=self.values_ND[part],
            counts_N=torch.from_numpy(self.counts_N[part]),
            **{name: tuple(_of_rank(log, first, last)) for name, log in self.touching.items()},
        )

    @property
    def touch_bytes(self) -> int:
        """Bytes of the records of touched rows in the messages."""
        return sum(_num_bytes(touches) for log in self.touching.values() for touches in log)


def _num_bytes(touches: Touches) -> int:
    """Bytes of touches on the wire: 8 for a row id, 4 for a value."""
    return sum(array.nbytes for array in touches[1:])


def _of_rank(log: list[Touches], first: int, last: int) -> Iterator[tuple]:
    """For each step that touched rows of the rank: the step, the local rows, and their values, if any."""
    for step, keys_S, *values in log:
        part = within(keys_S, first, last)
        if part.start < part.stop:
            yield step, local_rows(keys_S, first, last), *(torch.from_numpy(values_S[part]) for values_S in values)
