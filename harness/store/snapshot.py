"""Rows of a shard as of one step, while the shard goes on changing.

The writer reads each row once, a chunk at a time. Before rows change, those that the writer has
not read yet are copied to slots. The writer copies a chunk of the shard, then overwrites the copy's changed rows with
the rows in slots.

Shapes: N rows about to change, M rows of the shard, D columns of a row, W rows of a chunk, C slots for copied rows.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.store.manifest import CHUNK_BYTES
from harness.store.rows import Part, RowSource, empty_rows, row_bytes_of, rows_in

_SLOT_BYTES = 8  # beside the row itself: its id, and its place among the free slots
_FREE = -1


class GivenUp(Exception):
    """Control flow: the snapshot was released while the writer was still reading it."""


class Snapshot(RowSource):
    """The rows of ``parts`` as of construction, while the shard goes on changing.

    The thread that changes rows calls ``before_change``. The thread that writes the save calls ``read``. Either may
    call ``release``. These three take the lock where they need it. The methods below take none: ``copy`` may run while
    rows change, ``put_aside`` and ``lay_over`` may not run at the same time.

    Args:
        parts: the rows that will be read, each once; None for the whole shard.
        buffer_bytes: memory for one chunk and for the slots, which hold at least one row each. One byte a row of the
            shard comes on top.

    Attributes:
        waited_s: seconds that changes of rows have waited for free slots.
    """

    def __init__(self, rows_MD: Tensor, parts: Iterable[Part] | None, *, buffer_bytes: int) -> None:
        super().__init__(rows_MD)
        self.waited_s = 0.0
        self._is_released = False
        self._moved = threading.Condition()
        self.chunk_rows = rows_in(min(CHUNK_BYTES, buffer_bytes // 4), rows_MD)
        self._chunk_WD = empty_rows(self.chunk_rows, rows_MD)
        num_slots = max(1, (buffer_bytes - self._chunk_WD.nbytes) // (row_bytes_of(rows_MD) + _SLOT_BYTES))
        # Taken from the system as it is used: untouched pages cost nothing.
        self._values_CD = empty_rows(min(num_slots, len(rows_MD)), rows_MD)
        self._row_C = np.empty(len(self._values_CD), dtype=np.int32)
        self._freed_C = np.empty(len(self._values_CD), dtype=np.int32)
        self._num_used = 0  # slots that ever held a row
        self._num_freed = 0  # of these, slots that are free again
        self._is_wanted_M = (np.ones if parts is None else np.zeros)(len(rows_MD), bool)
        for part in parts or ():
            self._is_wanted_M[_index(part)] = True

    def before_change(self, rows_N: Tensor) -> None:
        """Copy those of ``rows_N`` (int64, distinct) that are still to be read. Returns when the rows may change."""
        with self._moved:
            while not self._is_released and len(rows_N := self.put_aside(rows_N)):
                began_s = time.monotonic()
                self._moved.wait()
                self.waited_s += time.monotonic() - began_s

    def read(self, part: Part) -> Iterator[Tensor]:
        """The rows of ``part`` as of the snapshot, in chunks. Raises GivenUp after :meth:`release`."""
        for chunk in self.chunks(part):
            chunk_WD = self.copy(chunk)
            with self._moved:
                if self._is_released:
                    raise GivenUp
                self.lay_over(chunk, chunk_WD)
                self._moved.notify()
            yield chunk_WD

    def release(self) -> None:
        """End the snapshot, even before all of it was read. Rows may then change freely; the slots' memory is freed."""
        with self._moved:
            self._is_released = True
            self._values_CD = empty_rows(0, self.rows_MD)
            self._moved.notify()

    def put_aside(self, rows_N: Tensor) -> Tensor:
        """Copy those of ``rows_N`` (int64, distinct, about to change) that the writer has not read yet to slots.

        Returns the rows for which no slot was free. They must not change yet: the caller waits for the next
        ``lay_over``, which frees slots or reads them, and calls again.
        """
        rows = rows_N.numpy()
        rows = rows[self._is_wanted_M[rows]]
        slots = self._take_slots(len(rows))
        kept = rows[: len(slots)]
        if len(kept):
            self._values_CD[torch.from_numpy(slots)] = self.rows_MD[torch.from_numpy(kept)]
            self._row_C[slots] = kept
            self._is_wanted_M[kept] = False
        return torch.from_numpy(rows[len(slots) :])

    def copy(self, chunk: Part) -> Tensor:
        """The present rows of ``chunk``, (W, D), copied. ``lay_over`` corrects rows that changed since the snapshot."""
        if isinstance(chunk, slice):
            return self._chunk_WD[: chunk.stop - chunk.start].copy_(self.rows_MD[chunk])
        return torch.index_select(self.rows_MD, 0, chunk, out=self._chunk_WD[: len(chunk)])

    def lay_over(self, chunk: Part, chunk_WD: Tensor) -> None:
        """Overwrite the changed rows of ``chunk_WD``, a copy of ``chunk``, with their values at the snapshot.

        The rows of ``chunk`` then count as read, so they may change without being copied.
        """
        row_C = self._row_C[: self._num_used]
        if isinstance(chunk, slice):
            slots = np.flatnonzero((row_C >= chunk.start) & (row_C < chunk.stop))
            places = row_C[slots].astype(np.int64) - chunk.start
        else:
            ids = chunk.numpy()
            slots = np.flatnonzero((row_C >= ids[0]) & (row_C <= ids[-1]))
            places = np.searchsorted(ids, row_C[slots])
        chunk_WD[torch.from_numpy(places)] = self._values_CD[torch.from_numpy(slots)]
        self._is_wanted_M[_index(chunk)] = False
        self._row_C[slots] = _FREE
        self._freed_C[self._num_freed : self._num_freed + len(slots)] = slots
        self._num_freed += len(slots)

    def _take_slots(self, num_wanted: int) -> NDArray[np.int64]:
        """At most ``num_wanted`` free slots: reused ones first, then new ones."""
        num_again = min(num_wanted, self._num_freed)
        num_new = min(num_wanted - num_again, len(self._row_C) - self._num_used)
        again = self._freed_C[self._num_freed - num_again : self._num_freed].astype(np.int64)
        new = np.arange(self._num_used, self._num_used + num_new)
        self._num_freed -= num_again
        self._num_used += num_new
        return np.concatenate([again, new])


def _index(part: Part) -> Any:
    return part if isinstance(part, slice) else part.numpy()
