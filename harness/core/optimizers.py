"""Optimizers of embedding rows: the arithmetic of one update of distinct rows.

A PS rank updates the rows of its shard. A trainer updates rows of a cache or mirror, and rows that it looked up before
their last update reached the rank. All of them use the same optimizer, so that a row has the same bits wherever it was
updated.

M rows of a shard or a cache, N distinct rows of an update, D embedding dim, X = D + ``num_states(D)`` columns of a row,
H rows that were looked up. Tensors are float32 unless noted.
"""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.choices import OPTIMIZER_NAMES, PartTable
from harness.kernels import row_loops

I64 = NDArray[np.int64]


class RowOptimizer:
    """The update rule of embedding rows. An optimizer object is stateless: its state is stored in the rows.

    A row is its D values, then its columns of state, so that lookups, caches, saves and restores carry the state along.
    To add one: one class and one entry in :data:`OPTIMIZERS`. The class names a rule of the compiled loops, or
    overrides :meth:`step` and :meth:`step_shared`.
    """

    initial_state = 0.0
    """Value of every state column before the first update."""
    state_grows: ClassVar[bool] = False
    """Whether a row has a state, and no update makes a value of it smaller."""
    _rule: ClassVar[int]

    def num_states(self, dim: int) -> int:
        """Number of state columns of a row of ``dim`` values; by default none."""
        return 0

    def step(
        self,
        rows_MX: Tensor,
        rows_N: Tensor,
        grads_ND: Tensor,
        learning_rate: float,
        *,
        pending_M: Tensor | None = None,
        counts_N: Tensor | None = None,
        norms_N: Tensor | None = None,
        mass_M: Tensor | None = None,
        changes_NX: Tensor | None = None,
    ) -> None:
        """Update rows ``rows_N`` (int64, distinct) of ``rows_MX`` in place.

        What else is given is filled in the same pass. ``pending_M`` (int32) is increased by ``counts_N`` (int32) at the
        same rows. ``norms_N`` (float32) receives the L2 norm of the change of each row's D values, with the same bits
        as ``trackers.distances`` between the values before and after; ``mass_M`` (float32) is increased by it.
        ``changes_NX`` (float32) receives the XOR of each row's bits before and after.
        """
        counts = row_loops.NO_COUNTS if pending_M is None or counts_N is None else counts_N.numpy()
        pending = row_loops.NO_COUNTS if pending_M is None else pending_M.numpy()
        norms = row_loops.NO_NORMS if norms_N is None else norms_N.numpy()
        mass = row_loops.NO_NORMS if mass_M is None else mass_M.numpy()
        changes = row_loops.NO_CHANGES if changes_NX is None else changes_NX.numpy().view(np.int32)
        rows, gradients = rows_N.numpy(), grads_ND.numpy()
        row_loops.STEP_ROWS[self._rule](
            rows_MX.numpy(), rows, gradients, learning_rate, pending, counts, norms, mass, changes
        )

    def stepped(self, rows_NX: Tensor, grads_ND: Tensor, learning_rate: float) -> Tensor:
        """The rows after one :meth:`step`: (N, X), in new memory."""
        new_NX = rows_NX.clone()
        self.step(new_NX, torch.arange(len(new_NX)), grads_ND, learning_rate)
        return new_NX

    def step_shared(
        self, out_HX: Tensor, keys_H: I64, keys_N: I64, rows_NX: Tensor, grads_ND: Tensor, *, learning_rate: float
    ) -> None:
        """Set each row of ``out_HX`` whose key is also in ``keys_N`` to what :meth:`stepped` gives for this key.

        ``keys_H`` and ``keys_N`` ascend. ``rows_NX`` are the rows before the update. The bits equal those of
        :meth:`step`.
        """
        row_loops.STEP_SHARED_ROWS[self._rule](
            out_HX.numpy(), keys_H, keys_N, rows_NX.numpy(), grads_ND.numpy(), learning_rate
        )


class Sgd(RowOptimizer):
    """Plain stochastic gradient descent: ``row -= learning_rate * gradient``. No state."""

    _rule = row_loops.SGD


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one sum per row, as FBGEMM and torchrec define it: a row has D + 1 columns.

    ``sum += mean over D of gradient ** 2``, then ``row -= learning_rate * gradient / (sqrt(sum) + 1e-10)``.
    """

    state_grows = True
    _rule = row_loops.ROWWISE_ADAGRAD

    def num_states(self, dim: int) -> int:
        return 1


class Adagrad(RowOptimizer):
    """Adagrad with one sum per value, as torch.optim.Adagrad: a row has 2 D columns.

    ``sum += gradient ** 2``, then ``row -= learning_rate * gradient / (sqrt(sum) + 1e-10)``, for each of D values.
    """

    state_grows = True
    _rule = row_loops.ADAGRAD

    def num_states(self, dim: int) -> int:
        return dim


class Adam(RowOptimizer):
    """Adam whose bias corrections count the updates of each row: a row has 3 D + 1 columns.

    The t-th update of a row, for each of D values: ``m = 0.9 m + 0.1 gradient``, ``v = 0.999 v + 0.001 gradient ** 2``,
    then ``row -= learning_rate * (m / (1 - 0.9 ** t)) / (sqrt(v / (1 - 0.999 ** t)) + 1e-8)``. Rows that are not in a
    batch keep values and moments (lazy). The definition is FBGEMM's with ``use_rowwise_bias_correction``;
    torch.optim.SparseAdam, and FBGEMM and torchrec by default, have one t for all rows, the number of steps. With t in
    the row, an update is a function of the row and its gradient alone, as caches, mirrors, restores and several
    trainers need for equal bits. With all rows in each batch all of these are torch.optim.Adam.

    t is exact up to 2^24 in float32 and stays there; from t = 17,400 both corrections are 1 in float32.
    """

    _rule = row_loops.ADAM

    def num_states(self, dim: int) -> int:
        """In this order: D first moments, D second moments, and t."""
        return 2 * dim + 1


OPTIMIZERS: PartTable[RowOptimizer] = PartTable(
    OPTIMIZER_NAMES, {"sgd": Sgd(), "rowwise_adagrad": RowwiseAdagrad(), "adagrad": Adagrad(), "adam": Adam()}
)
"""By the name of config key ``trainer.optimizer``."""


def row_width(optimizer: RowOptimizer, dim: int) -> int:
    """X: the number of columns of a row of ``dim`` values, its state included."""
    return dim + optimizer.num_states(dim)
