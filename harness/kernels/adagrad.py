"""Adagrad on one value: the arithmetic that embedding rows and the dense network share."""

from typing import Any

import numba
import numpy as np

EPS = np.float32(1e-10)
"""Added to the root of a sum of squared gradients: the default of torch.optim.Adagrad and of torchrec's optimizers."""


@numba.njit(nogil=True, error_model="numpy")
def adagrad(value: Any, gradient: Any, total: Any, learning_rate: Any) -> Any:
    """``value - learning_rate * gradient / (sqrt(total) + EPS)``, each operation rounded to float32.

    ``total``: the sum of squared gradients, this one included. Source: Duchi, Hazan, Singer, JMLR 2011, as in
    torch.optim.Adagrad.
    """
    return value - learning_rate * gradient / (np.sqrt(total) + EPS)
