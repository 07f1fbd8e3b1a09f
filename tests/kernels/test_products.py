"""Laws of the matrix products: one chain of fused multiply-adds for each element, whatever tile computes it."""

from fractions import Fraction
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from numba import boolean, float32, int64, uintp, void

from harness.kernels.products import TILES

_SIGNATURE = void(*[int64] * 3, uintp, int64, int64, uintp, int64, int64, uintp, int64, float32, boolean)
_SENTINEL = np.float32(77)


@pytest.fixture(scope="module")
def tiles() -> dict[str, Any]:
    """Every tile's product, compiled; a processor without such vectors computes them in parts."""
    return {name: numba.njit(_SIGNATURE)(tile.multiply.py_func) for name, tile in TILES.items()}


def fma(left: Any, right: Any, summand: Any) -> np.float32:
    """``left * right + summand``, exact and then rounded to the nearest float32; ties go to the even one."""
    exact = Fraction(float(left)) * Fraction(float(right)) + Fraction(float(summand))
    near = np.float32(float(exact))
    candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.int32)) & 1))


def plain(left_MK: np.ndarray, right_KN: np.ndarray, before_MN: np.ndarray, factor: float, adds: bool) -> np.ndarray:
    """The product's definition, element by element."""
    out_MN = np.empty_like(before_MN)
    for i, j in np.ndindex(out_MN.shape):
        total = np.float32(0)
        for k in range(left_MK.shape[1]):
            total = fma(left_MK[i, k], right_KN[k, j], total)
        out_MN[i, j] = fma(np.float32(factor), total, before_MN[i, j]) if adds else total
    return out_MN


def compute(multiply: Any, left_MK: np.ndarray, right_KN: np.ndarray, before_MN: np.ndarray, adds: bool) -> np.ndarray:
    """By a compiled product, into a wider array whose other elements must stay."""
    m, n = before_MN.shape
    wide = np.full((m + 1, n + 3), _SENTINEL)
    wide[:m, :n] = before_MN
    sides = [value for side in (left_MK, right_KN) for value in (side.ctypes.data, *side.strides)]
    multiply(m, n, left_MK.shape[1], *sides, wide.ctypes.data, wide.strides[0], np.float32(-0.3), adds)
    assert (wide[m:] == _SENTINEL).all()
    assert (wide[:, n:] == _SENTINEL).all()
    return wide[:m, :n]


def operands(m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left, right and an old result."""
    rng = np.random.default_rng(seed)
    shapes = ((m, k), (k, n), (m, n))
    left_MK, right_KN, before_MN = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return left_MK, right_KN, before_MN


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize(("sizes", "adds"), [((1, 1, 1), True), ((3, 5, 40), False), ((9, 35, 7), True)])
def test_an_element_is_one_chain_of_fused_multiply_adds(
    tiles: dict[str, Any], name: str, adds: bool, sizes: tuple[int, int, int]
) -> None:
    """The bits of the definition in exact arithmetic, for either operand as it is and as a transposed view."""
    left_MK, right_KN, before_MN = operands(*sizes, seed=1)
    expected = plain(left_MK, right_KN, before_MN, -0.3, adds)
    for left, right in product((left_MK, np.asfortranarray(left_MK)), (right_KN, np.asfortranarray(right_KN))):
        np.testing.assert_array_equal(compute(tiles[name], left, right, before_MN, adds), expected)


@pytest.mark.parametrize("transposes", [False, True])
def test_every_tile_computes_the_same_bits(tiles: dict[str, Any], transposes: bool) -> None:
    """Sizes around every border of a tile, and those of Kaggle's network.

    NaN and infinity reach only the elements that their row or column enters.
    """
    sizes = [*product((1, 6, 8, 9), (1, 15, 16, 17, 33), (1, 8, 17)), (64, 512, 368), (64, 257, 1), (27, 27, 16)]
    for seed, (m, n, k) in enumerate(sizes):
        left_MK, right_KN, before_MN = operands(m, n, k, seed)
        left_MK[m // 2, 0], right_KN[k - 1, n // 3] = np.nan, np.inf
        right_KN = np.asfortranarray(right_KN) if transposes else right_KN
        first, *others = (compute(multiply, left_MK, right_KN, before_MN, True) for multiply in tiles.values())
        is_hit = np.zeros((m, n), bool)
        is_hit[m // 2], is_hit[:, n // 3] = True, True
        np.testing.assert_array_equal(np.isfinite(first), ~is_hit)
        for other in others:
            np.testing.assert_array_equal(other, first)
