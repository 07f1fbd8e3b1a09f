"""Counts of accesses to the rows of tables, as ``harness.data.facts`` reports them.

B records of a block, F tables, N rows of a table, S samples, C = 31 codes.
"""

from typing import Any

import numba
import numpy as np
from numba import float32, int32, int64, uint8, uint32

from harness.kernels.compiler import compiled_for

SIZE = np.dtype([(name, np.int64) for name in ("seen", "in_batches", "reused", "batch_start")])
"""Of a table: rows seen so far, their number summed over batches, accesses that came soon after another of the row."""
_sizes: Any = numba.from_dtype(SIZE)


@compiled_for(
    [
        int64(
            *(int32[::1], float32[::1], int64, int64, int64, int64),
            *(_sizes[::1], int64, uint32[::1], uint32[::1], int64[::1]),
        )
    ]
)
def count(  # noqa: PLR0917 - compiled functions take values by place
    ids_B: Any,
    labels_B: Any,
    start: Any,
    batch_size: Any,
    in_whole_batches: Any,
    window: Any,
    sizes_F: Any,
    table: Any,
    counts_N: Any,
    positives_N: Any,
    last_N: Any,
) -> Any:
    """Count the accesses of the samples ``start``, ``start + 1``, … to one table; returns the rows seen so far.

    The rows of the first ``in_whole_batches`` samples are counted batch by batch. Changes ``sizes_F[table]``,
    ``counts_N`` (accesses), ``positives_N`` (accesses of positive samples) and ``last_N`` (1 + the last sample that
    accessed a row; 0: none).
    """
    size = sizes_F[table]
    for b in range(len(ids_B)):
        sample = start + b
        row = ids_B[b]
        last = last_N[row]
        batch_start = sample - sample % batch_size
        size.seen += last == 0
        size.in_batches += last <= batch_start and sample < in_whole_batches
        size.reused += last > 0 and sample + 1 - last <= window
        counts_N[row] += uint32(1)
        positives_N[row] += uint32(labels_B[b])
        last_N[row] = sample + 1
    return size.seen


@compiled_for([numba.void(uint8[:, ::1], int64[:, :, :, ::1])])
def count_pairs(codes_SF: Any, counts_FFCC: Any) -> Any:
    """Add how often each two codes of two tables f < g meet in a sample to ``counts_FFCC``."""
    num_tables = codes_SF.shape[1]
    for s in range(len(codes_SF)):
        for f in range(num_tables):
            for g in range(f + 1, num_tables):
                counts_FFCC[f, g, codes_SF[s, f], codes_SF[s, g]] += 1
