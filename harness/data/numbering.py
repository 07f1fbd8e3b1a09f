"""Ids in order of first appearance: the numbering of categories in DLRM's preprocessing.

An open-addressing hash table. Of 32-bit values it is one array: a slot is 0 if empty, else it holds the value in the
high and its id + 1 in the low 32 bits. At 8 bytes a slot and a load of 0.5 to 0.75 it holds an id in 11 to 16 bytes. Of
64-bit words it is two arrays, and holds an id in 16 to 24 bytes. Growing needs the old and the new table.
"""

import numpy as np
from numpy.typing import NDArray

from harness.kernels import csv, tsv

_FIRST_CAPACITY = 1024
_MAX_LOAD = 0.75
_GROWTH = 1.5


class Numbering:
    """Numbers distinct 32-bit values from 0 in order of first appearance; without collisions."""

    def __init__(self) -> None:
        self.num_ids = 0
        self._slots = np.zeros(_FIRST_CAPACITY, dtype=np.uint64)

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self._slots.nbytes

    def ids(self, values_N: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Ids of ``values_N`` (uint32), numbered in this order. At most 2**31 distinct values."""
        values = np.ascontiguousarray(values_N)
        ids_N = np.empty(len(values), dtype=np.int32)
        done = 0
        while done < len(values):
            most_ids = int(_MAX_LOAD * len(self._slots))
            done, self.num_ids = tsv.number(values, done, self._slots, self.num_ids, most_ids, ids_N)
            if done < len(values):
                self._grow()
        return ids_N

    def _grow(self) -> None:
        slots = np.zeros(int(len(self._slots) * _GROWTH), dtype=np.uint64)
        tsv.move(self._slots, slots)
        self._slots = slots


class WordNumbering:
    """Numbers distinct 64-bit words from 0 in order of first appearance; without collisions."""

    def __init__(self) -> None:
        self.num_ids = 0
        self._words, self._ids = _empty(_FIRST_CAPACITY)

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self._words.nbytes + self._ids.nbytes

    def ids(self, words_N: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Ids of ``words_N`` (uint64), numbered in this order. At most 2**31 - 1 distinct words."""
        words = np.ascontiguousarray(words_N)
        ids_N = np.empty(len(words), dtype=np.int32)
        done = 0
        while done < len(words):
            most_ids = int(_MAX_LOAD * len(self._words))
            done, self.num_ids = csv.number_words(words, done, self._words, self._ids, self.num_ids, most_ids, ids_N)
            if done < len(words):
                words_S, ids_S = _empty(int(len(self._words) * _GROWTH))
                csv.move_words(self._words, self._ids, words_S, ids_S)
                self._words, self._ids = words_S, ids_S
        return ids_N


def _empty(capacity: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    return np.zeros(capacity, np.uint64), np.zeros(capacity, np.int32)
