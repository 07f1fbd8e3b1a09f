"""Exact AUC from float32 scores, as sorted integers. M scores."""

from typing import Any

import numpy as np

from harness.kernels.compiler import compiled_for


@compiled_for("UniTuple(uint32[::1], 2)(uint32[::1], float32[::1])")
def keys_by_label(bits_M: Any, labels_M: Any) -> Any:
    """Integers in the order of float32 scores, which are given as bits: those of label 0, and those of label 1."""
    num_positive = 0
    for m in range(len(labels_M)):
        num_positive += labels_M[m] > 0.5
    keys = np.empty(len(bits_M) - num_positive, np.uint32), np.empty(num_positive, np.uint32)
    negative, positive = 0, 0
    sign = np.uint32(1 << 31)
    for m in range(len(bits_M)):
        bits = np.uint32(0) if bits_M[m] == sign else bits_M[m]  # -0.0 equals 0.0
        key = ~bits if bits & sign else bits | sign
        if labels_M[m] > 0.5:
            keys[1][positive] = key
            positive += 1
        else:
            keys[0][negative] = key
            negative += 1
    return keys


@compiled_for("int64(uint32[::1], uint32[::1])")
def twice_wins(negatives_M: Any, positives_M: Any) -> Any:
    """Twice the Mann-Whitney U statistic of the positives, from two ascending arrays of scores.

    Each pair of a negative and a positive adds 2 if the positive is greater, and 1 if the two are equal.
    """
    total = np.int64(0)
    below, upto = 0, 0  # negatives below this positive, and those not above it
    for positive in positives_M:
        while upto < len(negatives_M) and negatives_M[upto] <= positive:
            upto += 1
        while below < upto and negatives_M[below] < positive:
            below += 1
        total += below + upto
    return total
