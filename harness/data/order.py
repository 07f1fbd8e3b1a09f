"""The split of rows into training, test and validation set, as in DLRM, and the seeded shuffle of training samples."""

import math
from dataclasses import dataclass

import numpy as np

from harness.core.seeds import U64, derive, words

NUM_PARTS = 7  # DLRM cuts the file into as many parts as Kaggle's log has days
MIN_ROWS = 2 * NUM_PARTS  # below that the test or the validation set can be empty


NUM_ROUNDS = 8  # 4 full passes; with 3 or fewer a Feistel network can be told from a random permutation

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)  # Weyl-style odd constant of rrmxmx (Evensen 2018)
_32 = np.uint64(32)


@dataclass(frozen=True)
class SplitRows:
    """Row ranges of the sets: train [0, num_train), test [num_train, first_validation), validation the rest."""

    num_train: int
    first_validation: int
    num_rows: int


def split_rows(num_rows: int) -> SplitRows:
    """Split into seven near-equal parts, longer ones first: 1-6 train; 7 is halved into test (longer) and validation.

    As DLRM does (facebookresearch/dlrm, data_utils.py); Kaggle's 45,840,617 rows give 39,291,958 / 3,274,330.
    """
    size, num_longer = divmod(num_rows, NUM_PARTS)
    num_train = (NUM_PARTS - 1) * size + min(num_longer, NUM_PARTS - 1)
    return SplitRows(num_train, num_train + -(-(num_rows - num_train) // 2), num_rows)


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
