"""Delta files: some rows of a shard, in ascending order of row id, readable in one pass without an index.

Shapes: N rows of the shard, D embedding dim, K rows chosen, W rows of a window onto the shard.

The payload is a list of segments, named in the header as ``[start, num_rows]``: a whole range of rows without ids, or
(``start`` null) chosen rows, in blocks of at most ``block_rows``: the int32 ids of the block, then its rows. A window
that moves over the shard from its first row to its last can be filled from any number of deltas at once, each read
front to back: a restore is a window of the whole shard, a compaction moves a small one. Rows are stored in the
file's encoding (``harness.store.encoding``).
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.store.encoding import RowEncoding
from harness.store.format import ContentReader, HashingWriter, bytes_of
from harness.store.row_sources import Part, RowSource

ROW_ID_BYTES = 4

Segment = tuple[int | None, int]
"""A part of the payload: the start of a range, or None for chosen rows; and the number of rows."""


def plan_delta(parts: Iterable[Part], num_shard_rows: int) -> list[Part]:
    """Order ``parts`` by rows; takes 4 bytes of memory per chosen row. No row may be in two parts.

    Ranges that follow each other without a gap become one range; chosen rows between two ranges become one part, int32.
    """
    assert num_shard_rows <= np.iinfo(np.int32).max, "row ids are int32"
    parts = tuple(parts)
    ranges = sorted((part.start, part.stop) for part in parts if isinstance(part, slice))
    chosen = [part.numpy() for part in parts if isinstance(part, Tensor)]
    ids_K = np.concatenate(chosen, dtype=np.int32, casting="unsafe") if chosen else np.empty(0, np.int32)
    ids_K.sort()
    assert not len(ids_K) or (ids_K[0] >= 0 and ids_K[-1] < num_shard_rows), "a chosen row outside the shard"
    assert (ids_K[1:] > ids_K[:-1]).all(), "a row chosen twice"
    plan: list[Part] = []
    cut, first, last_stop = 0, 0, 0
    for start, stop in ranges:
        assert last_stop <= start <= stop <= num_shard_rows, "ranges overlap or leave the shard"
        split, after = np.searchsorted(ids_K, [start, stop]).tolist()
        assert split == after, "a chosen row lies in a range that is written whole"
        if plan and split == cut and start == last_stop:
            plan[-1] = slice(first, stop)
        else:
            first = start
            plan += [torch.from_numpy(ids_K[cut:split]), slice(start, stop)]
        cut, last_stop = split, stop
    plan.append(torch.from_numpy(ids_K[cut:]))
    return [part for part in plan if segment_of(part)[1]]


def segment_of(part: Part) -> Segment:
    """The header's name of ``part``."""
    return (part.start, part.stop - part.start) if isinstance(part, slice) else (None, len(part))


def write_parts(
    writer: HashingWriter, parts: Iterable[Part], rows: RowSource, block_rows: int, codec: RowEncoding
) -> None:
    """Write the rows of ``parts``, which ascend; chosen rows in blocks, each of ids and then rows."""
    for part in parts:
        for block in [part] if isinstance(part, slice) else part.split(block_rows):
            if isinstance(block, Tensor):
                writer.write(bytes_of(block))
            for chunk_WD in rows.read(block):
                writer.write(bytes_of(codec.encode(chunk_WD)))


class DeltaCursor:
    """Reads a delta front to back into a window that moves over the shard in ascending order.

    Holds the ids of one block at a time. ``scratch_WD`` is any memory of at least one row; cursors
    that are used in turn may share it.
    """

    def __init__(self, reader: ContentReader, scratch_WD: Tensor) -> None:
        self._reader = reader
        self._scratch_WD = scratch_WD
        self._blocks = _blocks(reader.header["segments"], reader.header["block_rows"])
        self._start: int | None = None  # of what is left of a range; None: a block of chosen rows
        self._ids_B: NDArray[np.int32] = np.empty(0, np.int32)  # of what is left of a block of chosen rows
        self._num_left = 0
        self._last_row = -1
        self._next_block()

    def fill(self, window_WD: Tensor, first_row: int) -> None:
        """Overwrite the rows of ``window_WD``, the shard from ``first_row`` on, that the delta contains.

        Raises ``StoreError`` for content that is visibly damaged; other damage is found by the reader's ``finish``.
        """
        while self._num_left:
            if self._start is None:
                self._num_left -= self._fill_chosen(window_WD, first_row)
            else:
                num_rows = max(0, min(self._num_left, first_row + len(window_WD) - self._start))
                offset = self._start - first_row
                if num_rows:
                    self._reader.read_rows(window_WD[offset : offset + num_rows])
                self._start += num_rows
                self._num_left -= num_rows
            if self._num_left:
                return  # the remaining rows lie beyond the window
            self._next_block()

    def _fill_chosen(self, window_WD: Tensor, first_row: int) -> int:
        num_rows = int(np.searchsorted(self._ids_B, first_row + len(window_WD)))
        window_ids, self._ids_B = self._ids_B[:num_rows], self._ids_B[num_rows:]
        for start in range(0, num_rows, len(self._scratch_WD)):
            ids = torch.from_numpy(window_ids[start : start + len(self._scratch_WD)].astype(np.int64)) - first_row
            rows_WD = self._scratch_WD[: len(ids)]
            self._reader.read_rows(rows_WD)
            window_WD.index_copy_(0, ids, rows_WD)
        return num_rows

    def _next_block(self) -> None:
        self._start, self._num_left = next(self._blocks, (None, 0))
        if self._start is not None:
            self._last_row = self._start + self._num_left - 1
        elif self._num_left:
            self._ids_B = np.empty(self._num_left, np.int32)
            self._reader.read_into(bytes_of(torch.from_numpy(self._ids_B)))
            # Checked before use: the checksum comes too late for a row id that was damaged. One beyond the shard needs
            # no check, no window reaches it.
            if self._ids_B[0] <= self._last_row or (self._ids_B[1:] <= self._ids_B[:-1]).any():
                raise self._reader.damage("expected row ids in ascending order, got a smaller one")
            self._last_row = int(self._ids_B[-1])


def _blocks(segments: Sequence[Segment], block_rows: int) -> Iterator[Segment]:
    """The segments of the file, with chosen rows in blocks of ``block_rows``, as they were written."""
    for start, num_rows in segments:
        block = num_rows if start is not None else block_rows
        for done in range(0, num_rows, block):
            yield start, min(block, num_rows - done)
