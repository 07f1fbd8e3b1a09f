"""Random streams, each derived from (seed, labels) and from nothing else.

Streams with different labels are independent for all practical purposes. A stream does not depend on draws from others,
so strategies can be compared in pairs.
"""

import hashlib
from operator import index

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def derive(seed: int, *labels: str | int) -> int:
    """A 64-bit key for the stream named by ``labels`` under ``seed``; stable over platforms and versions.

    ``"1"`` and ``1`` are different labels; ``1`` and ``numpy.int64(1)`` are the same.
    """
    text = "\x1f".join([str(seed), *(f"str:{x}" if isinstance(x, str) else f"int:{index(x)}" for x in labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    """A fresh numpy generator for the stream named by ``labels``."""
    return np.random.Generator(np.random.PCG64(derive(seed, *labels)))


def mix64(values_N: U64, *, out: U64 | None = None) -> U64:
    """SplitMix64's finaliser (Steele, Lea & Flood, OOPSLA 2014), element-wise: a bijection on 64-bit words.

    A counter-based generator: ``mix64(key + i * golden)`` is the i-th word of the stream ``key``, in any order.
    ``out`` may be ``values_N`` itself.
    """
    z = np.multiply(values_N, np.uint64(1), out=out) if out is not None else values_N.copy()
    scratch = z >> np.uint64(30)
    z ^= scratch
    z *= _MIX1
    np.right_shift(z, np.uint64(27), out=scratch)
    z ^= scratch
    z *= _MIX2
    np.right_shift(z, np.uint64(31), out=scratch)
    z ^= scratch
    return z


def words(key: int | U64, counters_N: U64) -> U64:
    """Words (64 bits) at positions ``counters_N`` of the stream ``key``. An array of keys broadcasts against them."""
    with np.errstate(over="ignore"):
        return mix64(counters_N * _GOLDEN + np.asarray(key, dtype=np.uint64))
