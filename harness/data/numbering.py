"""Ids in order of first appearance: the numbering that DLRM's preprocessing gives to categories, vectorised.

An open-addressing hash table in one array: a slot is 0 while empty, else the value in the high and its id + 1 in the
low 32 bits. At 8 bytes a slot and a load of 0.5 to 0.75 it holds an id in 11 to 16 bytes; growing needs both arrays.
"""

import numpy as np
from numpy.typing import NDArray

from harness.core.seeds import U64

_FIRST_CAPACITY = 1024
_MAX_LOAD = 0.75
_GROWTH = 1.5
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_FIBONACCI = np.uint64(0x9E3779B1)  # 2**32 / golden ratio: spreads runs of values as well as random ones
_REHASH_BLOCK = 1 << 16  # slots moved at a time, so that growing needs no second copy of them


class Numbering:
    """Gives each distinct 32-bit value the next id, starting from 0, when it is first met. Exact."""

    def __init__(self) -> None:
        self.num_ids = 0
        self._slots = np.zeros(_FIRST_CAPACITY, dtype=np.uint64)

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self._slots.nbytes

    def ids(self, values_N: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Ids of ``values_N`` (uint32), as if they were met one after the other. At most 2**31 distinct values."""
        values = values_N.astype(np.uint64)
        ids_N = self._find(values)
        new_M = np.flatnonzero(ids_N < 0)
        if len(new_M):
            # Distinct values that are new, in the order of their first appearance.
            distinct, first, inverse = np.unique(values[new_M], return_index=True, return_inverse=True)
            order = np.argsort(first)
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            self._reserve(self.num_ids + len(order))
            fresh = distinct[order]
            self._insert((fresh << _32) | np.arange(self.num_ids + 1, self.num_ids + len(fresh) + 1, dtype=np.uint64))
            ids_N[new_M] = self.num_ids + rank[inverse]
            self.num_ids += len(fresh)
        return ids_N.astype(np.int32)

    def _home(self, values: U64) -> NDArray[np.int64]:
        """The slot where the search for each value starts."""
        hashed = values * _FIBONACCI
        hashed &= _LOW
        hashed *= np.uint64(len(self._slots))
        hashed >>= _32
        return hashed.view(np.int64)

    def _find(self, values_N: U64) -> NDArray[np.int64]:
        """Id of each value, -1 for one that is not in the table."""
        places = self._home(values_N)
        slots_N = self._slots[places]
        # Probe on from slots that hold another value; what is left at the end holds the value or is empty.
        wrong = np.flatnonzero(((slots_N >> _32) != values_N) & (slots_N != 0))
        while len(wrong):
            places[wrong] = (places[wrong] + 1) % len(self._slots)
            slots_N[wrong] = self._slots[places[wrong]]
            wrong = wrong[((slots_N[wrong] >> _32) != values_N[wrong]) & (slots_N[wrong] != 0)]
        return (slots_N & _LOW).view(np.int64) - 1

    def _insert(self, slots_M: U64) -> None:
        """Put distinct slots into the table, which has room for them and holds none of their values."""
        places = self._home(slots_M >> _32)
        while len(slots_M):
            free = self._slots[places] == 0
            self._slots[places[free]] = slots_M[free]
            # Of several that wanted one slot, the last written has it; the others, and those not free, move on.
            lost = self._slots[places] != slots_M
            slots_M, places = slots_M[lost], (places[lost] + 1) % len(self._slots)

    def _reserve(self, num_ids: int) -> None:
        """Grow until ``num_ids`` fit under the load limit."""
        capacity = len(self._slots)
        while num_ids > _MAX_LOAD * capacity:
            capacity = int(capacity * _GROWTH)
        if capacity == len(self._slots):
            return
        old, self._slots = self._slots, np.zeros(capacity, dtype=np.uint64)
        for start in range(0, len(old), _REHASH_BLOCK):
            block = old[start : start + _REHASH_BLOCK]
            self._insert(block[block != 0])
