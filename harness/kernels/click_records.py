"""Decoding of fixed-size click records, and counts of accesses to rows of tables.

B batch or block, I dense features, F tables. Of records: C words of a record, S of them floats with a sign.
Of counts: N rows of a table.
"""

from typing import Any

import numba
import numpy as np
from numba import float32, int32, int64, uint32, void

from harness.kernels.compiler import compiled_for
from harness.kernels.native import pointer, pread, prefetch, pwritev

_NO_SIGN, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_MOST_PARTS = 1024  # of one pwritev: IOV_MAX


@compiled_for(int64(int64, int32, int64[::1], int32[:, ::1]))
def gather(address: Any, scratch: Any, items_B: Any, out_BC: Any) -> Any:
    """Copy the records ``items_B`` of the memory map at ``address``. Returns how many of them could be read.

    Linux copies them, to the file ``scratch`` and from there to ``out_BC``. It stops where the map has no data, since
    its file has become shorter or its disk fails. A load by this process would be a SIGBUS there, which ends it. A
    pread for each record would take six times as long.
    """
    num_records, num_bytes = len(items_B), out_BC.shape[1] * 4
    parts_P2 = np.empty((min(num_records, _MOST_PARTS), 2), np.int64)
    for first in range(0, num_records, _MOST_PARTS):
        num_parts = min(num_records - first, _MOST_PARTS)
        for p in range(num_parts):
            start = address + items_B[first + p] * num_bytes
            parts_P2[p, 0], parts_P2[p, 1] = start, num_bytes
            for line in range(0, num_bytes + 60, 64):  # a record may begin anywhere in a cache line
                prefetch(start + min(line, num_bytes - 4))
        done = pwritev(scratch, pointer(parts_P2.ctypes.data), num_parts, 0)
        if done == num_parts * num_bytes:
            done = pread(scratch, pointer(out_BC.ctypes.data + first * num_bytes), done, 0)
        if done != num_parts * num_bytes:
            return first + max(done, 0) // num_bytes
    return num_records


@compiled_for(int64(int32[:, ::1], uint32[::1], int64[::1], float32[:, ::1], int32[:, ::1], float32[::1]))
def unpack(  # noqa: PLR0917 - compiled functions take values by place
    records_BC: Any, limits_C: Any, signed_S: Any, out_dense_BI: Any, out_ids_BF: Any, out_labels_B: Any
) -> Any:
    """Split records into features, row ids and labels.

    Returns the place of the first damaged record, -1 if there is none. In a damaged record a word is not below its
    limit in ``limits_C`` (as uint32), or one of the words ``signed_S`` is no finite float.
    """
    num_dense, num_tables = out_dense_BI.shape[1], out_ids_BF.shape[1]
    dense_BI, labels_B = out_dense_BI.view(np.int32), out_labels_B.view(np.int32)
    damaged = int64(-1)
    for b in range(len(records_BC)):
        record_C = records_BC[b]
        is_sound = True
        for c in range(len(limits_C)):
            is_sound &= uint32(record_C[c]) < limits_C[c]
        for s in range(len(signed_S)):
            is_sound &= uint32(record_C[signed_S[s]]) & _NO_SIGN < _INFINITY
        if not is_sound and damaged < 0:
            damaged = b
        labels_B[b] = record_C[0]
        for i in range(num_dense):
            dense_BI[b, i] = record_C[1 + i]
        for f in range(num_tables):
            out_ids_BF[b, f] = record_C[1 + num_dense + f]
    return damaged


SIZE = np.dtype([("in_batches", np.int64), ("reused", np.int64)])
"""Counts of a table.

``in_batches``: distinct rows of a batch, summed over batches. ``reused``: accesses at most ``window`` samples after the
previous access to the row.
"""
_sizes: Any = numba.from_dtype(SIZE)


@compiled_for(void(int32[::1], int64, int64, int64, int64, _sizes[::1], int64, uint32[::1], int64[::1]))
def count(  # noqa: PLR0917 - compiled functions take values by place
    ids_B: Any,
    start: Any,
    batch_size: Any,
    in_whole_batches: Any,
    window: Any,
    sizes_F: Any,
    table: Any,
    counts_N: Any,
    last_N: Any,
) -> None:
    """Count the accesses of the samples ``start``, ``start + 1``, … to one table.

    ``in_batches`` counts the first ``in_whole_batches`` samples only. Changes ``sizes_F[table]``, ``counts_N``
    (accesses) and ``last_N`` (1 + the last sample that accessed a row; 0: none).
    """
    size = sizes_F[table]
    for b in range(len(ids_B)):
        sample = start + b
        row = ids_B[b]
        last = last_N[row]
        size.in_batches += last <= sample - sample % batch_size and sample < in_whole_batches
        size.reused += last > 0 and sample + 1 - last <= window
        counts_N[row] += uint32(1)
        last_N[row] = sample + 1
