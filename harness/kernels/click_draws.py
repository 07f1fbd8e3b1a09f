"""Drawing of synthetic clicks: each sample is a function of its key and its number in the file.

M samples, F = 26 tables, I = 13 integers, N nodes, L latent variables, K buckets of ranks of all tables, B blocks of
all permutations, Q knots of a quantile function.
"""

from typing import Any

import numba
import numpy as np
from numba import boolean, float64, int32, int64, uint64, void

from harness.kernels.compiler import compiled_for
from harness.kernels.splitmix import word

NODE = np.dtype(
    [
        *((name, np.int64) for name in ("parent", "first_block", "num_blocks", "first_bucket", "num_ranks")),
        *((name, np.uint64) for name in ("renewal_key", "effect_key")),
        *((name, np.float64) for name in ("tie", "missing_frac", "effect")),
    ],
    align=True,
)
"""A latent variable or a table: a uniform number for each sample.

With probability ``tie`` it is that of ``parent``, a latent variable (-1: none), after a permutation: of ``num_blocks``
equal parts of [0, 1), part k moves to place ``blocks_B[first_block + k]``. Tables only: ``missing_frac``, the fraction
of missing values; ``first_bucket``, the first of its buckets; ``num_ranks``; ``renewal_key`` and ``effect_key``, keys
of streams; ``effect``, the standard deviation of the effects of its ids on the log-odds.
"""
INTEGER = np.dtype(
    [("table", np.int64), *((name, np.float64) for name in ("load", "missing_frac", "effect"))], align=True
)
"""An integer feature, as a normal variable: ``load`` times the normal of the sample's id in ``table``, plus noise.

The noise brings the variance to 1. ``missing_frac``: the fraction of missing values. ``effect``: the factor of the
normal variable in the log-odds.
"""
GUIDE_SIZE = 4096
"""Entries of a table's guide, which says where the search for a bucket begins (Chen & Asau, 1974)."""
_STRIDE = 256  # words of a sample
_INTEGER = 160  # first word of the integers; those of nodes start at 0
_UNIT = 2.0**-53
_11, _16, _32, _48 = uint64(11), uint64(16), uint64(32), uint64(48)
_LOW = uint64(0xFFFF)
_NORMAL_SCALE = np.sqrt(3.0) / 65536.0  # of a sum of four words of 16 bits: variance 4 (65536² - 1) / 12
_nodes = numba.from_dtype(NODE)[::1]  # pyright: ignore[reportIndexIssue]
_integers = numba.from_dtype(INTEGER)[::1]  # pyright: ignore[reportIndexIssue]
_word: Any = numba.njit(nogil=True)(word)


@numba.njit(nogil=True)
def _uniform(key: Any, number: Any) -> Any:
    """Word ``number`` of the stream ``key`` as a float64 in [0, 1)."""
    return float64(_word(key, number) >> _11) * _UNIT


@numba.njit(nogil=True)
def _normal(key: Any, number: Any) -> Any:
    """Word ``number`` of the stream ``key`` as a sum of four uniforms, scaled to mean 0 and variance 1.

    It is near a standard normal, its magnitude is at most 3.47, and it has the same bits on every machine.
    """
    bits = _word(key, number)
    total = (bits & _LOW) + ((bits >> _16) & _LOW) + ((bits >> _32) & _LOW) + (bits >> _48)
    return (float64(total) - 131070.0) * _NORMAL_SCALE


@numba.njit(nogil=True)
def _id_normal(tables_F: Any, f: Any, ids_F: Any, missing_F: Any) -> Any:
    """The normal of a sample's id in table ``f``, which depends on table and id alone. Missing values have one too."""
    return _normal(tables_F[f].effect_key, uint64(0) if missing_F[f] else uint64(ids_F[f] + 1))


@compiled_for(
    void(
        *(uint64, int64, int64, _nodes, int64, int64[::1], float64[::1], int64[::1], int32[:, ::1]),
        *(int64, float64, int64[:, ::1], boolean[:, ::1]),
    )
)
def draw_ids(  # noqa: PLR0917 - compiled functions take values by place
    key: Any,
    start: Any,
    total: Any,
    nodes_N: Any,
    num_latents: Any,
    blocks_B: Any,
    cumulative_K: Any,
    first_rank_K: Any,
    guide_FG: Any,
    hot_ranks: Any,
    renewed_frac: Any,
    out_ids_MF: Any,
    out_missing_MF: Any,
) -> Any:
    """Draw the ids of the samples ``start``, ``start + 1``, … of a file of ``total`` samples.

    Each node has a uniform number (see NODE; latent variables come first). The quantile function of a table maps it to
    a missing value (id 0) or to a rank, by buckets of equally likely ranks. The buckets lie in ``cumulative_K`` and
    ``first_rank_K``, table after table, each with a last entry (1.0, ranks + 1). The id is the rank minus 1. Of the
    ranks above ``hot_ranks`` a fraction ``renewed_frac`` is renewed in the course of the file: from a time of its own
    on, such a rank has an id that is ``num_ranks`` higher.
    """
    num_tables = out_ids_MF.shape[1]
    value_L = np.empty(num_latents)
    for m in range(len(out_ids_MF)):
        number = uint64(start + m) * uint64(_STRIDE)
        time = float64(start + m) / float64(total)
        for n in range(num_latents + num_tables):
            node = nodes_N[n]
            place = number + uint64(2 * n)
            if node.parent >= 0 and _uniform(key, place) < node.tie:
                value = value_L[node.parent]
                if node.num_blocks > 1:
                    scaled = value * node.num_blocks
                    block = min(int64(scaled), node.num_blocks - 1)
                    value = (blocks_B[node.first_block + block] + (scaled - block)) / node.num_blocks
            else:
                value = _uniform(key, place + uint64(1))
            if n < num_latents:
                value_L[n] = value
                continue
            f = n - num_latents
            is_missing = value < node.missing_frac
            out_missing_MF[m, f] = is_missing
            out_ids_MF[m, f] = 0
            if is_missing:
                continue
            value = min((value - node.missing_frac) / (1.0 - node.missing_frac), 1.0 - _UNIT)
            k = node.first_bucket + guide_FG[f, int64(value * GUIDE_SIZE)]
            while cumulative_K[k + 1] <= value:
                k += 1
            within = (value - cumulative_K[k]) / (cumulative_K[k + 1] - cumulative_K[k])
            width = first_rank_K[k + 1] - first_rank_K[k]
            rank = first_rank_K[k] + min(int64(within * width), width - 1)
            out_ids_MF[m, f] = rank - 1
            if rank > hot_ranks and _uniform(node.renewal_key, uint64(rank)) < time * renewed_frac:
                out_ids_MF[m, f] += node.num_ranks


@compiled_for(void(_nodes, float64, int64[:, ::1], boolean[:, ::1], float64[::1]))
def add_effects(tables_F: Any, taper: Any, ids_MF: Any, missing_MF: Any, out_score_M: Any) -> Any:
    """Add the effects of each sample's ids on the log-odds to ``out_score_M``.

    An effect is a normal of table and id, times the table's standard deviation, times ``(1 + r / 100) ** -taper`` for
    rank r, from 0. A missing value has a normal of its own and no taper.
    """
    for m in range(len(ids_MF)):
        for f in range(len(tables_F)):
            table = tables_F[f]
            effect = table.effect * _id_normal(tables_F, f, ids_MF[m], missing_MF[m])
            if taper > 0.0:
                effect *= (1.0 + (ids_MF[m, f] % table.num_ranks) / 100.0) ** -taper
            out_score_M[m] += effect


@compiled_for(
    void(
        *(uint64, int64, _integers, float64[::1], float64[:, ::1], _nodes, int64[:, ::1], boolean[:, ::1]),
        *(float64[:, ::1], boolean[:, ::1], float64[::1]),
    )
)
def draw_integers(  # noqa: PLR0917 - as above
    key: Any,
    start: Any,
    integers_I: Any,
    knot_Q: Any,
    value_IQ: Any,
    tables_F: Any,
    ids_MF: Any,
    missing_MF: Any,
    out_values_MI: Any,
    out_missing_MI: Any,
    out_score_M: Any,
) -> Any:
    """Draw the integers, as signed log1p before rounding, and set ``out_score_M`` to their effects on the log-odds.

    ``value_IQ``: the values of each integer at the values ``knot_Q`` of its normal variable; linear between knots,
    constant outside them. Whether a value is missing is drawn besides.
    """
    for m in range(len(out_score_M)):
        number = uint64(start + m) * uint64(_STRIDE)
        out_score_M[m] = 0.0
        for i in range(len(integers_I)):
            own = integers_I[i]
            place = number + uint64(_INTEGER + 2 * i)
            noise = np.sqrt(1.0 - own.load * own.load)
            value = own.load * _id_normal(tables_F, own.table, ids_MF[m], missing_MF[m]) + noise * _normal(key, place)
            out_score_M[m] += own.effect * value
            out_missing_MI[m, i] = _uniform(key, place + uint64(1)) < own.missing_frac
            q = 0
            while q < len(knot_Q) - 2 and knot_Q[q + 1] < value:
                q += 1
            slope = (value_IQ[i, q + 1] - value_IQ[i, q]) / (knot_Q[q + 1] - knot_Q[q])
            out_values_MI[m, i] = value_IQ[i, q] + slope * min(max(value - knot_Q[q], 0.0), knot_Q[q + 1] - knot_Q[q])
