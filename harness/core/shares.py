"""Shares of a batch: the samples that one of several trainers computes forward and backward of.

P samples of a share, of the B of its batch; I dense features, F tables, A = P*F accesses, D embedding dim. J: a layer's
inputs and a one; O: its outputs. W numbers of a sample in the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Share:
    """All that forward and backward of one share need, the parameters of the dense network included.

    ``num_samples``: B. ``first``: place of the first sample in the batch. ``rows_AD``: the row of each access, sample
    by sample. ``layers_JO``: Wᵀ above b of every layer, ``num_bottom`` of the bottom MLP first. All float32, with
    memory of their own.
    """

    num_samples: int
    first: int
    dense_PI: Tensor
    rows_AD: Tensor
    labels_P: Tensor
    layers_JO: tuple[Tensor, ...]
    num_bottom: int


ShareTrainer = Callable[[Share], Tensor]
"""Computes a share: its part of a batch (P, W) float32, whose meaning the backend knows that has sent it."""


class Division(Protocol):
    """One batch that is divided among the trainer, which computes the first share, and the compute ranks."""

    shares: Sequence[Share]
    """All shares but the first."""

    def compute(self) -> None:
        """Compute the first share. Its part is kept."""
        ...

    def merge(self, parts: Sequence[Tensor]) -> tuple[float, Tensor]:
        """Mean loss of the batch, and the gradient of each of its N distinct rows, (N, D).

        ``parts``: of :attr:`shares`, in order. The step of the batch is pending afterwards.
        """
        ...


def spans(num_items: int, num_shares: int) -> list[range]:
    """``num_items`` items as one range for each share: successive ranges, whose lengths differ by at most one."""
    bounds = [num_items * number // num_shares for number in range(num_shares + 1)]
    return [range(first, last) for first, last in pairwise(bounds)]
