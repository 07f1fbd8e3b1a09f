"""The seeded shuffle of training samples."""

import math

import numpy as np

from harness.core.seeds import U64, derive, words

NUM_ROUNDS = 8  # 4 full passes; with 3 or fewer a Feistel network can be told from a random permutation

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)  # Weyl-style odd constant of rrmxmx (Evensen 2018)
_32 = np.uint64(32)


class Permutation:
    """A permutation of [0, n) for n = ``num_items``, a function of ``seed`` and ``label``. Immutable; 0 < n < 2**62.

    Each item is computed on demand, so that nothing is stored. The permutation is a Feistel network over pairs (left,
    right) with left in [0, a), right in [0, b) and a * b barely above n. Almost no value falls outside [0, n); one that
    does is permuted again until it falls inside (cycle walking; Black & Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002). Rounds add modulo a or b, so that n can be any number.
    """

    def __init__(self, num_items: int, seed: int, label: str) -> None:
        assert 0 < num_items < 1 << 62
        self.num_items = num_items
        self._left_size = math.isqrt(num_items - 1) + 1
        self._right_size = -(-num_items // self._left_size)
        key = derive(seed, "permutation", label)
        self._round_keys = words(key, np.arange(NUM_ROUNDS, dtype=np.uint64))

    def __call__(self, positions_B: U64) -> U64:
        """The permutation's values at ``positions_B`` (uint64, each below n), same shape and dtype."""
        items_B = self._once(positions_B)
        outside = items_B >= self.num_items
        while outside.any():
            items_B[outside] = self._once(items_B[outside])
            outside = items_B >= self.num_items
        return items_B

    def _once(self, values_B: U64) -> U64:
        """One pass of the Feistel network, without cycle walking: a permutation of [0, a * b)."""
        sizes = np.uint64(self._left_size), np.uint64(self._right_size)
        left, right = np.divmod(values_B, sizes[1])
        for index, round_key in enumerate(self._round_keys):
            # One half of the network per round: the half that changes takes turns.
            if index % 2 == 0:
                left += _spread(right, round_key, sizes[0])
                left %= sizes[0]
            else:
                right += _spread(left, round_key, sizes[1])
                right %= sizes[1]
        left *= sizes[1]
        left += right
        return left


def _spread(values_B: U64, round_key: np.uint64, size: np.uint64) -> U64:
    """Keyed hash of each value into [0, size), size < 2**32: multiply, fold, multiply, and scale the high half."""
    hashed = values_B + round_key
    hashed *= _MULTIPLIER
    hashed ^= hashed >> _32
    hashed *= _MULTIPLIER
    hashed >>= _32
    hashed *= size
    hashed >>= _32
    return hashed
