"""Loops over the rows of a batch that neither numpy nor torch runs in one pass, compiled by Numba.

A batch has some 3,000 accesses; an operation of numpy or torch on so few costs 5 to 50 us, most of it not arithmetic,
and a step was made of sixty. These run without the interpreter lock, on one thread, and in the order that is written
here: no product is fused with a sum and no sum reordered, so any machine computes the same bits. Compiled code is kept
beside this file, in ``__pycache__``, where that can be written.

Arrays are in C order, results are new unless named ``out_…`` or said to be changed. No index is checked: who calls has
made them or has checked them.

B batch, F tables, V = F + 1 vectors of a sample, A = B*F accesses, N distinct rows of a batch, M rows of a shard,
D embedding dim, R ranks, O owners of rows, P = V (V - 1) / 2 pairs.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import float32, float64, int32, int64, uint32, uint64, void
from numba.np.numpy_support import carray

from harness.kernels.native import SOURCE_STAMP, pointer, prefetch

_F = TypeVar("_F", bound=Callable[..., Any])
_AHEAD = 16  # rows or records asked for before they are needed; more of them at once brings nothing


def compiled_for(signature: Any) -> Callable[[_F], _F]:
    """Compile for these types, when this module is imported: no step waits for a compiler."""

    def compile_it(function: _F) -> _F:
        try:
            compiled: Any = numba.njit(cache=True, nogil=True)(function)
        except RuntimeError:  # nowhere to keep what was compiled
            compiled = numba.njit(nogil=True)(function)
        else:
            # What was kept is good as long as the function's file is as it was, and what of ``native`` is in it.
            kept = compiled._cache._cache_file
            kept._source_stamp = kept._source_stamp, SOURCE_STAMP
        for each in signature if isinstance(signature, list) else [signature]:
            compiled.compile(each)
        compiled.disable_compile()
        return compiled

    return compile_it


# --- what a batch asks for --------------------------------------------------------------------------------------------


@compiled_for(int64[::1](int32[:, ::1], int64[:, ::1], int64))
def place(ids_BF: Any, origins_OF: Any, num_bits: int) -> Any:
    """Where each access reads in the rank-major order of all rows, and behind it, in ``num_bits``, which access it is.

    Row ``i`` of table f is at ``i // O + origins_OF[i % O, f]``.
    """
    num_samples, num_tables = ids_BF.shape
    num_owners = len(origins_OF)
    words_A = np.empty(num_samples * num_tables, np.int64)
    a = 0
    for b in range(num_samples):
        for f in range(num_tables):
            row = int64(ids_BF[b, f])
            local = row // num_owners
            words_A[a] = ((local + origins_OF[row - local * num_owners, f]) << num_bits) | a
            a += 1
    return words_A


@compiled_for(
    "Tuple((int64[::1], int64[::1], int32[::1], boolean[::1], int64[::1], int64[::1], int64[::1], int64[::1]))"
    "(int64[::1], int64, boolean[::1], int64[::1])"
)
def deduplicate(words_A: Any, num_bits: int, sampled_B: Any, base_R: Any) -> Any:
    """From sorted words of :func:`place`: keys_N, rows_N, counts_N, sampled_N, bounds_R, inverse_A, order_A, starts_N.

    ``base_R`` (R + 1): where each rank begins in the order of keys, and where the last one ends. ``rows_N`` are keys
    counted from their rank's beginning. The others are those of :class:`harness.core.lookup.BatchPlan`.
    """
    num_accesses = len(words_A)
    num_tables = num_accesses // len(sampled_B)
    number = (1 << num_bits) - 1
    num_keys = 0
    last = int64(-1)
    for a in range(num_accesses):
        key = words_A[a] >> num_bits
        num_keys += key != last
        last = key
    keys_N, rows_N, starts_N = np.empty(num_keys, np.int64), np.empty(num_keys, np.int64), np.empty(num_keys, np.int64)
    counts_N, sampled_N = np.empty(num_keys, np.int32), np.empty(num_keys, np.bool_)
    inverse_A, order_A = np.empty(num_accesses, np.int64), np.empty(num_accesses, np.int64)
    bounds_R = np.empty(len(base_R), np.int64)
    n, rank, last = -1, 0, int64(-1)
    for a in range(num_accesses):
        key, access = words_A[a] >> num_bits, words_A[a] & number
        if key != last:
            n += 1
            while rank < len(base_R) and key >= base_R[rank]:
                bounds_R[rank] = n
                rank += 1
            keys_N[n], rows_N[n], starts_N[n] = key, key - base_R[rank - 1], a
            counts_N[n], sampled_N[n] = 0, False
            last = key
        counts_N[n] += 1
        sampled_N[n] |= sampled_B[access // num_tables]
        inverse_A[access] = n
        order_A[a] = access
    bounds_R[rank:] = num_keys
    return keys_N, rows_N, counts_N, sampled_N, bounds_R, inverse_A, order_A, starts_N


@compiled_for(int64[::1](int64[::1], int32[::1], int64[::1]))
def sums_before(keys_N: Any, counts_N: Any, edges_E: Any) -> Any:
    """For each of ``edges_E`` (ascending) the sum of the counts of keys below it; ``keys_N`` ascend too."""
    sums_E = np.empty(len(edges_E), np.int64)
    n, total = 0, int64(0)
    for e in range(len(edges_E)):
        while n < len(keys_N) and keys_N[n] < edges_E[e]:
            total += counts_N[n]
            n += 1
        sums_E[e] = total
    return sums_E


@compiled_for("Tuple((int64[::1], int32[::1], int64[::1], int64[::1]))(int64[::1], int64, int32[::1])")
def merge(words_A: Any, num_bits: int, counts_A: Any) -> Any:
    """From sorted words, keys with the number of their access behind them in ``num_bits``: what is the same, together.

    keys_U, distinct; counts_U, the sums of their accesses' counts; inverse_A, which key each access has; and which
    access is the first of each key.
    """
    number = (1 << num_bits) - 1
    num_keys = 0
    last = int64(-1)
    for a in range(len(words_A)):
        key = words_A[a] >> num_bits
        num_keys += key != last
        last = key
    keys_U, firsts_U = np.empty(num_keys, np.int64), np.empty(num_keys, np.int64)
    counts_U, inverse_A = np.zeros(num_keys, np.int32), np.empty(len(words_A), np.int64)
    u, last = -1, int64(-1)
    for a in range(len(words_A)):
        key, access = words_A[a] >> num_bits, words_A[a] & number
        if key != last:
            u += 1
            keys_U[u], firsts_U[u] = key, access
            last = key
        counts_U[u] += counts_A[access]
        inverse_A[access] = u
    return keys_U, counts_U, inverse_A, firsts_U


@compiled_for(int64[::1](int64[::1], int64[::1]))
def places(keys_H: Any, keys_N: Any) -> Any:
    """``np.searchsorted(keys_H, keys_N)`` of two ascending arrays, in one pass through both: a tenth of its time."""
    places_N = np.empty(len(keys_N), np.int64)
    h = 0
    for n in range(len(keys_N)):
        while h < len(keys_H) and keys_H[h] < keys_N[n]:
            h += 1
        places_N[n] = h
    return places_N


# --- rows -------------------------------------------------------------------------------------------------------------


@compiled_for(
    [
        float32[:, ::1](float32[:, ::1], int64[::1], int64[::1], int64, int64),
        float64[:, ::1](float64[:, ::1], int64[::1], int64[::1], int64, int64),
    ]
)
def sum_runs(values_XD: Any, order_P: Any, starts_N: Any, num_tables: int, num_vectors: int) -> Any:
    """Sums of values over runs of ``order_P`` that begin at ``starts_N``, the first at 0: (N, D). Each in order.

    Access a reads the value of vector ``V - F + a % F`` of sample ``a // F``.
    """
    summed_ND = np.empty((len(starts_N), values_XD.shape[1]), values_XD.dtype)
    skipped = num_vectors - num_tables
    for n in range(len(starts_N)):
        end = starts_N[n + 1] if n + 1 < len(starts_N) else len(order_P)
        for p in range(starts_N[n], end):
            value = order_P[p] + (order_P[p] // num_tables + 1) * skipped
            if p == starts_N[n]:
                for d in range(values_XD.shape[1]):
                    summed_ND[n, d] = values_XD[value, d]
            else:
                for d in range(values_XD.shape[1]):
                    summed_ND[n, d] += values_XD[value, d]
    return summed_ND


NOBODY_COUNTS = np.empty(0, np.int32)


@compiled_for(void(float32[:, ::1], int64[::1], float32[:, ::1], float32, int32[::1], int32[::1]))
def sgd_step(  # noqa: PLR0917 - compiled functions take values by place
    rows_MD: Any, rows_N: Any, grads_ND: Any, learning_rate: float, pending_M: Any, counts_N: Any
) -> None:
    """One SGD step on distinct rows of a shard, in place, and its updates counted; ``pending_M`` may be empty.

    Rows lie far apart in memory, and the processor would wait for each: it is told some rows ahead.
    """
    num_rows, dim = len(rows_N), rows_MD.shape[1]
    counts = len(pending_M) > 0
    for n in range(num_rows):
        if n + _AHEAD < num_rows:
            for line in range(0, dim, 16):
                prefetch(rows_MD.ctypes.data + (rows_N[n + _AHEAD] * dim + line) * 4)
            if counts:
                prefetch(pending_M.ctypes.data + rows_N[n + _AHEAD] * 4)
        row = rows_N[n]
        for d in range(dim):
            rows_MD[row, d] -= learning_rate * grads_ND[n, d]
        if counts:
            pending_M[row] += counts_N[n]


@compiled_for(float32[:, ::1](float32[:, ::1], int64[::1]))
def take_rows(rows_SD: Any, slots_K: Any) -> Any:
    """Rows ``slots_K``: torch's ``index_select``, without its threads."""
    num_rows, dim = len(slots_K), rows_SD.shape[1]
    taken_KD = np.empty((num_rows, dim), np.float32)
    for k in range(num_rows):
        if k + _AHEAD < num_rows:
            for line in range(0, dim, 16):
                prefetch(rows_SD.ctypes.data + (slots_K[k + _AHEAD] * dim + line) * 4)
        for d in range(dim):
            taken_KD[k, d] = rows_SD[slots_K[k], d]
    return taken_KD


@compiled_for(void(float32[:, ::1], int64[::1], float32[:, ::1]))
def put_rows(out_SD: Any, slots_K: Any, values_KD: Any) -> None:
    """Rows to ``slots_K``: torch's ``index_copy_``, without its threads."""
    num_rows, dim = len(slots_K), out_SD.shape[1]
    for k in range(num_rows):
        if k + _AHEAD < num_rows:
            for line in range(0, dim, 16):
                prefetch(out_SD.ctypes.data + (slots_K[k + _AHEAD] * dim + line) * 4)
        for d in range(dim):
            out_SD[slots_K[k], d] = values_KD[k, d]


@compiled_for(void(float32[:, ::1], int64[::1], int64[::1], float32[:, ::1], float32[:, ::1], float32))
def sgd_step_shared(  # noqa: PLR0917 - as above
    out_rows_HD: Any, keys_H: Any, keys_N: Any, rows_ND: Any, grads_ND: Any, learning_rate: float
) -> None:
    """Where ``keys_H`` are also among ``keys_N``, both ascending: one SGD step on rows N, the new ones to rows H.

    The same bits as :func:`sgd_step`.
    """
    n = 0
    for h in range(len(keys_H)):
        while n < len(keys_N) and keys_N[n] < keys_H[h]:
            n += 1
        if n < len(keys_N) and keys_N[n] == keys_H[h]:
            for d in range(rows_ND.shape[1]):
                out_rows_HD[h, d] = rows_ND[n, d] - learning_rate * grads_ND[n, d]


# --- sub-sampled used rows --------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _word(key: Any, number: Any) -> Any:
    """Word ``number`` of the stream ``key``, as harness.core.seeds has it."""
    word = key + uint64(number) * uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


LISTS = np.dtype([(name, np.int64) for name in ("tables", "num_tables", "slots", "is_member", "num_words", "key")])
"""Lists of rows, for :func:`keep_sampled`: addresses and sizes, so that a call has few arguments to take apart.

``tables``: ``num_tables`` LIST, ascending by row; ``slots``: int32, the lists; ``is_member``: a bit for each row, in
``num_words`` of 64.
"""

LIST = np.dtype([(name, np.int64) for name in ("first_row", "last_row", "first_slot", "num_slots", "num_members")])
"""Rows of a table (from, to and without) and its list: where it begins, how long it may be, how long it is."""


@compiled_for(void(int64, int64, int64, int64, int64))
def keep_sampled(rows: int, sampled: int, num_rows: int, lists: int, step: int) -> None:
    """Put each row that is sampled and no member in the list of its table; where that is full, in place of a member.

    ``rows`` (int64, ascending), ``sampled`` (boolean) and ``lists`` (one LISTS) are addresses: to make an array of a
    tensor takes 0.6 us, as long as all the rest. Members are those before this step. Who gives up his place is a
    matter of ``key``, step and row.
    """
    rows_N = carray(pointer(rows), num_rows, np.int64)
    sampled_N = carray(pointer(sampled), num_rows, np.bool_)
    own = carray(pointer(lists), 1, LISTS)[0]
    num_tables = own.num_tables
    tables_T = carray(pointer(own.tables), num_tables, LIST)
    is_member_W = carray(pointer(own.is_member), own.num_words, np.uint64)
    candidates_N = np.empty(len(rows_N), np.int64)
    num_candidates, t = 0, 0
    for n in range(len(rows_N)):  # without branches that nobody can foresee
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
    step_key = _word(uint64(own.key), step)
    t = 0
    for n in range(num_new):
        row = candidates_N[n]
        while row >= tables_T[t].last_row:
            t += 1
        table = tables_T[t]
        if table.num_slots == 0:
            continue
        slots_K = carray(pointer(own.slots + 4 * table.first_slot), table.num_slots, np.int32)
        if table.num_members < table.num_slots:
            slot = table.num_members
            table.num_members += 1
        else:
            slot = int64(((_word(step_key, row) >> uint64(32)) * uint64(table.num_slots)) >> uint64(32))
            was = int64(slots_K[slot])
            is_member_W[was >> 6] &= ~(uint64(1) << uint64(was & 63))
        slots_K[slot] = row
        is_member_W[row >> 6] |= uint64(1) << uint64(row & 63)


@compiled_for(void(int32[::1], uint64[::1]))
def forget_members(rows_K: Any, is_member_W: Any) -> None:
    """Clear their bits."""
    for k in range(len(rows_K)):
        row = int64(rows_K[k])
        is_member_W[row >> 6] &= ~(uint64(1) << uint64(row & 63))


# --- records ----------------------------------------------------------------------------------------------------------


@compiled_for(
    'int64(Array(int32, 2, "C", readonly=True), int64[::1], uint32[::1], float32[:, ::1], int32[:, ::1], float32[::1])'
)
def unpack(  # noqa: PLR0917 - as above
    records_NC: Any, items_B: Any, limits_C: Any, out_dense_BI: Any, out_ids_BF: Any, out_labels_B: Any
) -> Any:
    """Split the records ``items_B`` into features, row ids and labels.

    Which of them is the first with a word that is not below its limit, and so damaged; -1: none.
    """
    num_dense, num_tables = out_dense_BI.shape[1], out_ids_BF.shape[1]
    dense_BI, labels_B = out_dense_BI.view(np.int32), out_labels_B.view(np.int32)
    damaged = int64(-1)
    num_samples, width = len(items_B), records_NC.shape[1]
    for b in range(num_samples):
        if b + _AHEAD < num_samples:
            for line in range(0, width + 15, 16):  # a record begins anywhere in its first
                prefetch(records_NC.ctypes.data + (items_B[b + _AHEAD] * width + min(line, width - 1)) * 4)
        record_C = records_NC[items_B[b]]
        is_sound = True
        for c in range(len(limits_C)):
            is_sound &= uint32(record_C[c]) < limits_C[c]
        if not is_sound and damaged < 0:
            damaged = b
        labels_B[b] = record_C[0]
        for i in range(num_dense):
            dense_BI[b, i] = record_C[1 + i]
        for f in range(num_tables):
            out_ids_BF[b, f] = record_C[1 + num_dense + f]
    return damaged


# --- between the matrix products of the dense network -----------------------------------------------------------------


@compiled_for(void(float32[:, ::1], int64[::1], float32[:, :], float32[:, :, ::1]))
def embed(rows_ND: Any, inverse_A: Any, bottom_BD: Any, out_BVD: Any) -> None:
    """The vectors of each sample: the bottom MLP's output, then the row that each access reads."""
    num_samples, num_vectors, dim = out_BVD.shape
    a = 0
    for b in range(num_samples):
        for d in range(dim):
            out_BVD[b, 0, d] = bottom_BD[b, d]
        for v in range(1, num_vectors):
            for d in range(dim):
                out_BVD[b, v, d] = rows_ND[inverse_A[a], d]
            a += 1


@compiled_for(void(float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1]))
def take_pairs(vectors_BVD: Any, products_BVV: Any, out_BX: Any) -> None:
    """First vector and products below the diagonal, row by row, to the first D + P columns of ``out_BX``."""
    num_samples, num_vectors, dim = vectors_BVD.shape
    for b in range(num_samples):
        for d in range(dim):
            out_BX[b, d] = vectors_BVD[b, 0, d]
        at = dim
        for i in range(1, num_vectors):
            for j in range(i):
                out_BX[b, at + j] = products_BVV[b, i, j]
            at += i


@compiled_for(void(float32[:, ::1], int64, float32[:, :, ::1]))
def mirror_pairs(grad_BX: Any, dim: int, out_BVV: Any) -> None:
    """The gradients of all pairs, from D columns on, below the diagonal and above; zeros on it."""
    num_samples, num_vectors, _ = out_BVV.shape
    for b in range(num_samples):
        at = dim
        out_BVV[b, 0, 0] = 0
        for i in range(1, num_vectors):
            for j in range(i):
                out_BVV[b, i, j] = grad_BX[b, at + j]
                out_BVV[b, j, i] = grad_BX[b, at + j]
            out_BVV[b, i, i] = 0
            at += i


@compiled_for(void(float32[:, :, ::1], float32[:, ::1], float32[:, ::1]))
def add_first(grad_BVD: Any, grad_BX: Any, out_BD: Any) -> None:
    """The gradient of each sample's first vector: as one of the pairs, and as what stands in D columns itself."""
    for b in range(len(out_BD)):
        for d in range(out_BD.shape[1]):
            out_BD[b, d] = grad_BVD[b, 0, d] + grad_BX[b, d]


@compiled_for(float64(float32[:, :], float32[::1], float32[:, ::1]))
def cross_entropy(logits_B1: Any, labels_B: Any, out_B1: Any) -> float:
    """Mean binary cross-entropy of logits a, and dL/da to ``out_B1``; in double precision, for a hundred numbers.

    With s = 1 - 2 y: L = mean of log(1 + exp(s a)), dL/da = s sigmoid(s a) / B.
    """
    num_samples = len(labels_B)
    total = 0.0
    for b in range(num_samples):
        sign = 1.0 - 2.0 * labels_B[b]
        against = sign * logits_B1[b, 0]
        small = math.exp(-abs(against))
        total += max(against, 0.0) + math.log1p(small)
        out_B1[b, 0] = sign * (1.0 if against >= 0 else small) / (1.0 + small) / num_samples
    return total / num_samples


# --- scores -----------------------------------------------------------------------------------------------------------


@compiled_for("UniTuple(uint32[::1], 2)(uint32[::1], float32[::1])")
def keys_by_label(bits_M: Any, labels_M: Any) -> Any:
    """From float32 scores, as their bits: integers in the order of the scores, of label 0 and of label 1 apart."""
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
    """Over all pairs of a negative and a positive, both ascending: 2 where the positive is greater, 1 where equal."""
    total = np.int64(0)
    below, upto = 0, 0  # negatives below this positive, and those not above it
    for positive in positives_M:
        while upto < len(negatives_M) and negatives_M[upto] <= positive:
            upto += 1
        while below < upto and negatives_M[below] < positive:
            below += 1
        total += below + upto
    return total
