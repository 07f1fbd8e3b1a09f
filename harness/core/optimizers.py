"""Optimizers of embedding rows: the arithmetic of one update of distinct rows.

A PS rank updates rows of its shard, a trainer updates rows of a cache or rows that it looked up before their update
arrived. All of them use the same optimizer, so that a row has the same bits wherever it was updated.

M rows of a shard or a cache, N distinct rows of an update, D embedding dim, X = D + ``num_states`` columns of a row,
H rows that were looked up, all float32 unless noted.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.core.names import OPTIMIZER_NAMES, PartTable
from harness.kernels.rows import NO_COUNTS, sgd_step, sgd_step_shared

I64 = NDArray[np.int64]


class RowOptimizer(Protocol):
    """The update rule of embedding rows. An optimizer object is stateless: its state is stored in the rows.

    A row is its D values, then ``num_states`` columns of state, so that lookups, caches, saves and restores carry the
    state along. To add one: one class and one entry in :data:`OPTIMIZERS`.
    """

    num_states: int
    """State columns of a row."""
    initial_state: float
    """Value of every state column before the first update."""

    def step(
        self,
        rows_MX: Tensor,
        rows_N: Tensor,
        grads_ND: Tensor,
        learning_rate: float,
        *,
        pending_M: Tensor | None = None,
        counts_N: Tensor | None = None,
    ) -> None:
        """Update rows ``rows_N`` (int64, distinct) of ``rows_MX`` in place.

        ``pending_M`` (int32), if given, is increased by ``counts_N`` (int32) at the same rows, in the same pass.
        """
        ...

    def stepped(self, rows_NX: Tensor, grads_ND: Tensor, learning_rate: float) -> Tensor:
        """The values of these rows after one :meth:`step`: (N, X), new memory, the same bits."""
        ...

    def step_shared(
        self, out_HX: Tensor, keys_H: I64, keys_N: I64, rows_NX: Tensor, grads_ND: Tensor, *, learning_rate: float
    ) -> None:
        """Set the rows of ``out_HX`` whose key is also in ``keys_N`` to ``stepped(rows_NX, grads_ND)`` of that key.

        Both key arrays ascend. ``rows_NX`` are values from before the update. The same bits as :meth:`step`.
        """
        ...


class Sgd:
    """Plain stochastic gradient descent: ``row -= learning_rate * gradient``. No state."""

    num_states = 0
    initial_state = 0.0

    def step(
        self,
        rows_MX: Tensor,
        rows_N: Tensor,
        grads_ND: Tensor,
        learning_rate: float,
        *,
        pending_M: Tensor | None = None,
        counts_N: Tensor | None = None,
    ) -> None:
        """See :meth:`RowOptimizer.step`."""
        counts = NO_COUNTS if counts_N is None else counts_N.numpy()
        pending = NO_COUNTS if pending_M is None else pending_M.numpy()
        sgd_step(rows_MX.numpy(), rows_N.numpy(), grads_ND.numpy(), learning_rate, pending, counts)

    def stepped(self, rows_NX: Tensor, grads_ND: Tensor, learning_rate: float) -> Tensor:
        """See :meth:`RowOptimizer.stepped`."""
        new_NX = rows_NX.clone()
        every_N = np.arange(len(new_NX))
        nothing = NO_COUNTS
        sgd_step(new_NX.numpy(), every_N, grads_ND.numpy(), learning_rate, nothing, nothing)
        return new_NX

    def step_shared(
        self, out_HX: Tensor, keys_H: I64, keys_N: I64, rows_NX: Tensor, grads_ND: Tensor, *, learning_rate: float
    ) -> None:
        """See :meth:`RowOptimizer.step_shared`."""
        sgd_step_shared(out_HX.numpy(), keys_H, keys_N, rows_NX.numpy(), grads_ND.numpy(), learning_rate)


OPTIMIZERS: PartTable[RowOptimizer] = PartTable(OPTIMIZER_NAMES, {"sgd": Sgd()})
"""By the name of config key ``trainer.optimizer``."""
