"""Random streams, each derived from (seed, labels) and from nothing else.

Streams with different labels are independent for all practical purposes. A stream does not depend on how much is drawn
from other streams, so two strategies with one seed can be compared in pairs.
"""

import hashlib
from operator import index

import numpy as np
from numpy.typing import NDArray

from harness.kernels.splitmix import word

U64 = NDArray[np.uint64]


def derive(seed: int, *labels: str | int) -> int:
    """A 64-bit key for the stream named by ``labels`` under ``seed``; stable over platforms and versions.

    ``"1"`` and ``1`` are different labels; ``1`` and ``numpy.int64(1)`` are the same.
    """
    text = "\x1f".join([str(seed), *(f"str:{x}" if isinstance(x, str) else f"int:{index(x)}" for x in labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    """A fresh numpy generator for the stream named by ``labels``."""
    return np.random.Generator(np.random.PCG64(derive(seed, *labels)))


def words(key: int | U64, counters_N: U64) -> U64:
    """The 64-bit words at positions ``counters_N`` of the stream ``key``; an array of keys broadcasts against them."""
    with np.errstate(over="ignore"):
        return word(np.asarray(key, dtype=np.uint64), counters_N)
