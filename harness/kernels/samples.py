"""Lists of sub-sampled rows, for the SSU tracker.

N rows of a request, K slots of a list, T tables, W words of 64 bits.
"""

from typing import Any

import numba
import numpy as np
from numba import int32, int64, uint64, void
from numba.np.numpy_support import carray

from harness.kernels.compiler import compiled_for
from harness.kernels.native import pointer, prefetch
from harness.kernels.splitmix import word

_word = numba.njit(nogil=True)(word)

LISTS = np.dtype(
    [(name, np.int64) for name in ("tables", "num_tables", "slots", "is_member", "num_words", "key", "in_order")]
)
"""The lists of one shard: addresses and sizes, so that a call has few arguments to unpack.

``tables``: ``num_tables`` of LIST, ascending by row. ``slots``: int32, the lists one after the other. ``is_member``: a
bit for each row of the shard, in ``num_words`` words. ``key``: of the stream that draws members to replace.
``in_order``: 1 if a full list replaces its oldest member, 0 if it replaces a random one.
"""

LIST = np.dtype(
    [(name, np.int64) for name in ("first_row", "last_row", "first_slot", "num_slots", "num_members", "oldest")]
)
"""A table's rows, ``first_row`` to ``last_row`` (exclusive), and its list: first slot, capacity, length.

``oldest``: the place of the oldest member in a list that is replaced in order, a ring buffer; 0 until it is full.
"""


@compiled_for(void(int64, int64, int64, int64, int64))
def keep_sampled(rows: int, sampled: int, num_rows: int, lists: int, step: int) -> None:
    """Add each sampled row that is not a member to the list of its table; in a full list it replaces a member.

    ``rows`` (int64, ascending), ``sampled`` (boolean) and ``lists`` (one LISTS) are addresses, since making an array of
    a tensor takes 0.6 us, as long as all the rest. Whether a row is a member is decided before the step changes any
    list. The member that is replaced is the oldest, or follows from ``key``, ``step`` and the row.
    """
    rows_N = carray(pointer(rows), num_rows, np.int64)
    sampled_N = carray(pointer(sampled), num_rows, np.bool_)
    own = carray(pointer(lists), 1, LISTS)[0]
    num_tables = own.num_tables
    tables_T = carray(pointer(own.tables), num_tables, LIST)
    is_member_W = carray(pointer(own.is_member), own.num_words, np.uint64)
    candidates_N = np.empty(len(rows_N), np.int64)
    num_candidates, t = 0, 0
    for n in range(len(rows_N)):  # without unpredictable branches
        row = rows_N[n]
        while t < num_tables and row >= tables_T[t].last_row:
            t += 1
        if t == num_tables:
            break
        candidates_N[num_candidates] = row
        prefetch(own.is_member + (row >> 6) * 8)
        num_candidates += sampled_N[n] & (row >= tables_T[t].first_row)
    num_new = 0
    for n in range(num_candidates):
        row = candidates_N[n]
        candidates_N[num_new] = row
        num_new += int64(1) - int64((is_member_W[row >> 6] >> uint64(row & 63)) & uint64(1))
    step_key = _word(uint64(own.key), uint64(step))
    t = 0
    for n in range(num_new):
        row = candidates_N[n]
        while row >= tables_T[t].last_row:
            t += 1
        table = tables_T[t]
        if table.num_slots == 0:
            continue
        slots_K = carray(pointer(own.slots + 4 * table.first_slot), table.num_slots, np.int32)
        is_full = table.num_members == table.num_slots
        if not is_full:
            slot = table.num_members
            table.num_members += 1
        elif own.in_order:
            slot = table.oldest
            table.oldest = slot + 1 if slot + 1 < table.num_slots else 0
        else:
            slot = int64(((_word(step_key, uint64(row)) >> uint64(32)) * uint64(table.num_slots)) >> uint64(32))
        if is_full:
            was = int64(slots_K[slot])
            is_member_W[was >> 6] &= ~(uint64(1) << uint64(was & 63))
        slots_K[slot] = row
        is_member_W[row >> 6] |= uint64(1) << uint64(row & 63)


@compiled_for([int64(int64[::1], int32[::1], uint64[::1]), int64(int32[::1], int32[::1], uint64[::1])])
def forget(rows_N: Any, out_members_K: Any, out_is_member_W: Any) -> Any:
    """Clear the bits of ``rows_N``, and move the other members to the front, in order; returns their number."""
    for n in range(len(rows_N)):
        row = int64(rows_N[n])
        out_is_member_W[row >> 6] &= ~(uint64(1) << uint64(row & 63))
    num_left = 0
    for k in range(len(out_members_K)):
        row = int64(out_members_K[k])
        out_members_K[num_left] = row
        num_left += int64((out_is_member_W[row >> 6] >> uint64(row & 63)) & uint64(1))
    return num_left
