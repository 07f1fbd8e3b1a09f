"""Data that a caching client sends back to the ranks: dirty rows, and the rows that each step touched.

Keys are rows in the rank-major order of all rows. N rows to write back, each of D values and state of the optimizer, S
rows that a step touched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.client.embedding_client import Keys
from harness.client.oracle import Window
from harness.client.traffic import ID_BYTES
from harness.cluster.protocol import WriteBack
from harness.core.resumable import Resumable

Counts = NDArray[np.int32]


@dataclass(frozen=True)
class Touches:
    """Rows that one step touched, by ascending key; ``values_S``: what a tracker needs of each, a count or a norm."""

    step: int
    keys_S: Keys
    values_S: NDArray[Any] | None = None

    def between(self, first: int, last: int) -> tuple[int, Tensor] | tuple[int, Tensor, Tensor]:
        """The step, local rows of the rank with keys ``first <= key < last``, and their values, if any."""
        part = slice(*np.searchsorted(self.keys_S, [first, last]))
        rows_S = torch.from_numpy(self.keys_S[part] - first)
        return (
            (self.step, rows_S) if self.values_S is None else (self.step, rows_S, torch.from_numpy(self.values_S[part]))
        )

    def without(self, first: int, last: int) -> Self:
        """The touches of rows outside ``first <= key < last``."""
        stays = (self.keys_S < first) | (self.keys_S >= last)
        values = None if self.values_S is None else self.values_S[stays]
        return type(self)(self.step, self.keys_S[stays], values)

    @property
    def num_bytes(self) -> int:
        """Number of bytes on the wire."""
        return len(self.keys_S) * (ID_BYTES + (0 if self.values_S is None else self.values_S.itemsize))


@dataclass
class TouchLog(Resumable):
    """Touches of finished steps that the ranks' trackers do not have yet, in the order of steps.

    ``needs_samples``: rows that sub-sampled inputs touched. ``needs_touches``: all rows, with counts. ``needs_norms``:
    all rows, with the norms of their changes.
    """

    _state = ("sampled", "touched", "moved")
    _state_types = (Touches,)

    needs_samples: bool
    needs_touches: bool
    needs_norms: bool
    sampled: list[Touches] = field(default_factory=list)
    touched: list[Touches] = field(default_factory=list)
    moved: list[Touches] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.sampled or self.touched or self.moved)

    def add(self, window: Window, norms: Sequence[Tensor]) -> int:
        """Add the finished steps of ``window``; returns the bytes of their touches on the wire.

        ``norms``: of each step, where they are needed.
        """
        new: list[Touches] = []
        for step, planned in enumerate(window.steps, start=window.first + 1):
            if self.needs_samples:
                new.append(Touches(step, planned.sampled_S))
                self.sampled.append(new[-1])
            if self.needs_touches:
                new.append(Touches(step, planned.plan.keys_N, planned.plan.counts_N))
                self.touched.append(new[-1])
            if self.needs_norms:
                new.append(Touches(step, planned.plan.keys_N, norms[step - window.first - 1].numpy()))
                self.moved.append(new[-1])
        return sum(touches.num_bytes for touches in new)

    def take(self) -> "TouchLog":
        """Return all touches, to be sent now, and empty this log."""
        taken = replace(self)
        self.sampled, self.touched, self.moved = [], [], []
        return taken

    def discard(self, first: int, last: int) -> None:
        """Drop touches of rows ``first <= key < last``."""
        self.sampled = [touches.without(first, last) for touches in self.sampled]
        self.touched = [touches.without(first, last) for touches in self.touched]
        self.moved = [touches.without(first, last) for touches in self.moved]

    @property
    def num_bytes(self) -> int:
        """Number of bytes on the wire."""
        return sum(touches.num_bytes for touches in (*self.sampled, *self.touched, *self.moved))


@dataclass(frozen=True)
class DirtyRows:
    """Rows of all ranks to write back, by ascending key, as of ``step``, and touches by step.

    ``counts_N``: updates of each row since it was last flushed.
    """

    step: int
    keys_N: Keys
    values_ND: Tensor
    counts_N: Counts
    touches: TouchLog

    def of(self, first: int, last: int) -> WriteBack:
        """The message to the rank with keys ``first <= key < last``."""
        part = slice(*np.searchsorted(self.keys_N, [first, last]))
        return WriteBack(
            step=self.step,
            rows_N=torch.from_numpy(self.keys_N[part] - first),
            values_ND=self.values_ND[part],
            counts_N=torch.from_numpy(self.counts_N[part]),
            sampled=tuple(_nonempty(self.touches.sampled, first, last)),
            touched=tuple(_nonempty(self.touches.touched, first, last)),
            moved=tuple(_nonempty(self.touches.moved, first, last)),
        )


def _nonempty(log: list[Touches], first: int, last: int) -> Iterator[tuple]:
    """The parts of a rank, of steps that touched any of its rows."""
    return (part for part in (touches.between(first, last) for touches in log) if len(part[1]))
