"""Adam on one value, and its bias corrections (Kingma, Ba, ICLR 2015, algorithm 1)."""

from typing import Any

import numba
import numpy as np
from numba import float32

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
"""Decays of the two moments, and what is added to the root of the second: the defaults of torch.optim.Adam."""

_DECAY_1, _WEIGHT_1 = np.float32(BETA_1), np.float32(1 - BETA_1)
_DECAY_2, _WEIGHT_2 = np.float32(BETA_2), np.float32(1 - BETA_2)
_LAST_1, _LAST_2 = 2**9, 2**16  # updates after which a decay's power is below 2^-54; later ones could underflow, slowly


@numba.njit(nogil=True, error_model="numpy")
def first_moment(first: Any, gradient: Any) -> Any:
    """The decayed mean of gradients, each operation rounded to float32."""
    return _DECAY_1 * first + _WEIGHT_1 * gradient


@numba.njit(nogil=True, error_model="numpy")
def second_moment(second: Any, gradient: Any) -> Any:
    """The decayed mean of squared gradients, each operation rounded to float32."""
    return _DECAY_2 * second + _WEIGHT_2 * (gradient * gradient)


@numba.njit(nogil=True, error_model="numpy")
def adam(value: Any, first: Any, second: Any, rate: Any, eps: Any) -> Any:
    """``value - rate * first / (sqrt(second) + eps)``, each operation rounded to float32.

    ``first, second``: the moments, this gradient included. ``rate, eps``: of :func:`corrected`.
    """
    return value - rate * first / (np.sqrt(second) + eps)


@numba.njit(nogil=True, error_model="numpy")
def corrected(learning_rate: Any, num_updates: Any) -> Any:
    """The learning rate and EPS with the bias corrections of update ``num_updates``, counted from 1: two float32.

    ``learning_rate * root / (1 - BETA_1 ** num_updates)`` and ``EPS * root`` with root the square root of
    ``1 - BETA_2 ** num_updates``, computed in float64 and rounded once.
    """
    root = np.sqrt(1.0 - _power(BETA_2, min(num_updates, _LAST_2)))
    return float32(learning_rate * root / (1.0 - _power(BETA_1, min(num_updates, _LAST_1)))), float32(EPS * root)


@numba.njit(nogil=True, error_model="numpy")
def _power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` by repeated squaring in float64. The C library's ``pow`` rounds differently by machine."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
