"""Decoding of fixed-size click records.

N records, C words of a record, S of them floats with a sign, B batch, I dense features, F tables.
"""

from typing import Any

import numpy as np
from numba import int64, uint32

from harness.kernels.compiler import AHEAD, compiled_for
from harness.kernels.native import prefetch

_NO_SIGN, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


@compiled_for(
    'int64(Array(int32, 2, "C", readonly=True), int64[::1], uint32[::1], int64[::1], '
    "float32[:, ::1], int32[:, ::1], float32[::1])"
)
def unpack(  # noqa: PLR0917 - compiled functions take values by place
    records_NC: Any, items_B: Any, limits_C: Any, signed_S: Any, out_dense_BI: Any, out_ids_BF: Any, out_labels_B: Any
) -> Any:
    """Split the records ``items_B`` into features, row ids and labels.

    Returns the index of the first damaged record, which has a word at or above its limit, or one of the words
    ``signed_S`` that is no finite float; -1 if there is none.
    """
    num_dense, num_tables = out_dense_BI.shape[1], out_ids_BF.shape[1]
    dense_BI, labels_B = out_dense_BI.view(np.int32), out_labels_B.view(np.int32)
    damaged = int64(-1)
    num_samples, width = len(items_B), records_NC.shape[1]
    for b in range(num_samples):
        if b + AHEAD < num_samples:
            for line in range(0, width + 15, 16):  # a record may begin anywhere in a cache line
                prefetch(records_NC.ctypes.data + (items_B[b + AHEAD] * width + min(line, width - 1)) * 4)
        record_C = records_NC[items_B[b]]
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
