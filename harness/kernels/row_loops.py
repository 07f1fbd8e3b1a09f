"""Initial values, gather, scatter, sum, distance and optimizer step of embedding rows.

F tables, V vectors of a sample, N distinct rows of a batch, K rows of a request, M rows of a shard, S slots of a cache,
H rows that are held, P positions in an order of accesses, D embedding dim, X columns of a row: D values, then state.
"""

from typing import Any

import numba
import numpy as np
from numba import boolean, float32, float64, int32, int64, uint64, void

from harness.kernels.compiler import AHEAD, FLOATS_PER_LINE, compiled_for
from harness.kernels.native import prefetch
from harness.kernels.splitmix import word

ADAGRAD_EPS = np.float32(1e-10)
"""Added to the root of a sum of squared gradients: the default of torch.optim.Adagrad and of torchrec's optimizers."""


@numba.njit(nogil=True, error_model="numpy")
def adagrad(value: Any, gradient: Any, total: Any, learning_rate: Any) -> Any:
    """``value - learning_rate * gradient / (sqrt(total) + ADAGRAD_EPS)``, each operation rounded to float32.

    ``total``: the sum of squared gradients, this one included. Source: Duchi, Hazan, Singer, JMLR 2011, as in
    torch.optim.Adagrad.
    """
    return value - learning_rate * gradient / (np.sqrt(total) + ADAGRAD_EPS)


BETA_1, BETA_2, ADAM_EPS = 0.9, 0.999, 1e-8
"""Adam's decays of the two moments, and the number added to the root of the second: defaults of torch.optim.Adam."""

_DECAY_1, _WEIGHT_1 = np.float32(BETA_1), np.float32(1 - BETA_1)
_DECAY_2, _WEIGHT_2 = np.float32(BETA_2), np.float32(1 - BETA_2)
_LAST_1, _LAST_2 = 2**9, 2**16  # updates after which a decay's power is below 2^-54; later ones could underflow, slowly


@numba.njit(nogil=True, error_model="numpy")
def first_moment(first: Any, gradient: Any) -> Any:
    """The decayed mean of gradients, each operation rounded to float32."""
    return _DECAY_1 * first + _WEIGHT_1 * gradient


@numba.njit(nogil=True, error_model="numpy")
def second_moment(second: Any, gradient: Any) -> Any:
    """The decayed mean of squared gradients, each operation rounded to float32."""
    return _DECAY_2 * second + _WEIGHT_2 * (gradient * gradient)


@numba.njit(nogil=True, error_model="numpy")
def adam(value: Any, first: Any, second: Any, rate: Any, eps: Any) -> Any:
    """``value - rate * first / (sqrt(second) + eps)``, each operation rounded to float32.

    ``first``, ``second``: the moments, this gradient included. ``rate``, ``eps``: those of :func:`corrected`. Source:
    Kingma, Ba, ICLR 2015, algorithm 1.
    """
    return value - rate * first / (np.sqrt(second) + eps)


@numba.njit(nogil=True, error_model="numpy")
def corrected(learning_rate: Any, num_updates: Any) -> Any:
    """The learning rate and ADAM_EPS with the bias corrections of update ``num_updates``, counted from 1: two float32.

    ``learning_rate * root / (1 - BETA_1 ** num_updates)`` and ``ADAM_EPS * root`` with root the square root of
    ``1 - BETA_2 ** num_updates``, computed in float64 and rounded once.
    """
    root = np.sqrt(1.0 - _power(BETA_2, min(num_updates, _LAST_2)))
    return float32(learning_rate * root / (1.0 - _power(BETA_1, min(num_updates, _LAST_1)))), float32(ADAM_EPS * root)


@numba.njit(nogil=True, error_model="numpy")
def _power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` by repeated squaring in float64. The C library's ``pow`` rounds differently by machine."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@numba.njit(nogil=True, error_model="numpy")
def distance(left: Any, i: Any, right: Any, j: Any, dim: Any) -> Any:
    """The L2 distance of row i from row j over the first ``dim`` columns, float32; infinite if it would be NaN.

    Squares are added up in four sums, each of every fourth column, since additions to one sum would wait for each
    other.
    """
    sum_0 = sum_1 = sum_2 = sum_3 = float32(0)
    fours = dim - dim % 4
    for d in range(0, fours, 4):
        change = left[i, d] - right[j, d]
        sum_0 += change * change
        change = left[i, d + 1] - right[j, d + 1]
        sum_1 += change * change
        change = left[i, d + 2] - right[j, d + 2]
        sum_2 += change * change
        change = left[i, d + 3] - right[j, d + 3]
        sum_3 += change * change
    for d in range(fours, dim):
        change = left[i, d] - right[j, d]
        sum_0 += change * change
    return _norm(sum_0, sum_1, sum_2, sum_3)


@numba.njit(nogil=True, error_model="numpy")
def _norm(sum_0: Any, sum_1: Any, sum_2: Any, sum_3: Any) -> Any:
    norm = np.sqrt((sum_0 + sum_2) + (sum_1 + sum_3))
    return float32(np.inf) if np.isnan(norm) else norm


@compiled_for(float32[::1](float32[:, :], float32[:, :]))
def row_distances(left_ND: Any, right_ND: Any) -> Any:
    """The L2 distances between the rows of ``left_ND`` and the same rows of ``right_ND``: float32 (N,)."""
    num_rows, dim = left_ND.shape
    norms_N = np.empty(num_rows, np.float32)
    for n in range(num_rows):
        norms_N[n] = distance(left_ND, n, right_ND, n, dim)
    return norms_N


@compiled_for(void(float32[::1], int64[::1], float32[::1]))
def add_at(out_M: Any, rows_N: Any, values_N: Any) -> None:
    """Add ``values_N`` to ``out_M`` at ``rows_N``, which are distinct. Rows far apart in memory are prefetched."""
    num_rows = len(rows_N)
    for n in range(num_rows):
        if n + AHEAD < num_rows:
            prefetch(out_M.ctypes.data + rows_N[n + AHEAD] * 4)
        out_M[rows_N[n]] += values_N[n]


@compiled_for(void(boolean[::1], int64[::1]))
def mark(out_is_M: Any, rows_N: Any) -> None:
    """Set ``out_is_M`` at ``rows_N``, which are prefetched."""
    num_rows = len(rows_N)
    for n in range(num_rows):
        if n + AHEAD < num_rows:
            prefetch(out_is_M.ctypes.data + rows_N[n + AHEAD])
        out_is_M[rows_N[n]] = True


@compiled_for(float32[::1](float32[:, ::1], int64, int64[::1]))
def state_norms(rows_MX: Any, dim: int, rows_N: Any) -> Any:
    """The L2 norms of the columns behind the first ``dim``, of ``rows_N``: the distances of :func:`distance` from 0."""
    num_rows, width = len(rows_N), rows_MX.shape[1]
    states_MS, zeros_1S = rows_MX[:, dim:], np.zeros((1, width - dim), np.float32)
    norms_N = np.empty(num_rows, np.float32)
    for n in range(num_rows):
        if n + AHEAD < num_rows:
            for column in range(dim, width, FLOATS_PER_LINE):
                prefetch(rows_MX.ctypes.data + (rows_N[n + AHEAD] * width + column) * 4)
        norms_N[n] = distance(states_MS, rows_N[n], zeros_1S, 0, width - dim)
    return norms_N


_word = numba.njit(nogil=True)(word)


@compiled_for(void(uint64, uint64, uint64, float32, int64, float32[:, ::1]))
def draw_rows(key: int, first: int, stride: int, bound: float, dim: int, out_KX: Any) -> None:  # noqa: PLR0917
    """Set the first ``dim`` columns of each row to uniform numbers in [-bound, bound).

    Row k of ``out_KX`` is row r = ``first + k * stride`` of its table. Its value in column d follows from the 24
    highest bits of word ``r * dim + d`` of the stream ``key``.
    """
    for k in range(len(out_KX)):
        number = (uint64(k) * stride + first) * uint64(dim)
        for d in range(dim):
            unit = float32(int32(_word(key, number + uint64(d)) >> uint64(40))) * float32(2.0**-23)  # exact
            out_KX[k, d] = (unit - float32(1.0)) * bound


@numba.njit(nogil=True, error_model="numpy")
def sum_some_runs(  # noqa: PLR0917 - compiled functions take values by place
    values_XD: Any,
    order_P: Any,
    starts_N: Any,
    num_tables: int,
    num_vectors: int,
    first: int,
    last: int,
    out_ND: Any,
) -> None:
    """The part of :func:`sum_runs` for the runs from ``first`` up to but excluding ``last``."""
    skipped = num_vectors - num_tables
    for n in range(first, last):
        end = starts_N[n + 1] if n + 1 < len(starts_N) else len(order_P)
        for p in range(starts_N[n], end):
            value = order_P[p] + (order_P[p] // num_tables + 1) * skipped
            if p == starts_N[n]:
                for d in range(values_XD.shape[1]):
                    out_ND[n, d] = values_XD[value, d]
            else:
                for d in range(values_XD.shape[1]):
                    out_ND[n, d] += values_XD[value, d]


@compiled_for(
    [
        float32[:, ::1](float32[:, ::1], int64[::1], int64[::1], int64, int64),
        float64[:, ::1](float64[:, ::1], int64[::1], int64[::1], int64, int64),
    ]
)
def sum_runs(values_XD: Any, order_P: Any, starts_N: Any, num_tables: int, num_vectors: int) -> Any:
    """The sum of the values of each run of accesses, added in the order of the run: (N, D).

    ``order_P`` holds numbers of accesses; run n begins at position ``starts_N[n]``, the first at 0. ``values_XD`` holds
    V vectors for each sample, of which the last F, one for each table, belong to accesses. The value of access a is
    vector ``V - F + a % F`` of sample ``a // F``.
    """
    summed_ND = np.empty((len(starts_N), values_XD.shape[1]), values_XD.dtype)
    sum_some_runs(values_XD, order_P, starts_N, num_tables, num_vectors, 0, len(starts_N), summed_ND)
    return summed_ND


NO_COUNTS, NO_NORMS, NO_CHANGES = np.empty(0, np.int32), np.empty(0, np.float32), np.empty((0, 0), np.int32)
"""For ``step_rows``, where updates are not counted, not measured, or their changes of bits not needed."""

SGD, ROWWISE_ADAGRAD, ADAGRAD, ADAM = range(4)
"""Rules of an update, with 0, 1, D and 2 D + 1 columns of state."""
KNOWS_NORM = (SGD, ROWWISE_ADAGRAD)
"""Rules that know the norm of a row's change when they have made it."""


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _lower(rows_MX: Any, row: Any, d: Any, amount: Any) -> Any:
    """Subtract ``amount`` from one value; returns the square of its change."""
    before = rows_MX[row, d]
    after = before - amount
    rows_MX[row, d] = after
    return (after - before) * (after - before)


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _descend(rows_MX: Any, row: Any, grads_ND: Any, n: Any, rate: Any) -> Any:
    """Subtract ``rate * grads_ND[n]`` from a row; returns the norm of the change, as :func:`distance` would.

    Four columns a turn: the vectors that the compiler would make of a plain loop are longer than most rows.
    """
    dim = grads_ND.shape[1]
    sum_0 = sum_1 = sum_2 = sum_3 = float32(0)
    fours = dim - dim % 4
    for d in range(0, fours, 4):
        sum_0 += _lower(rows_MX, row, d, rate * grads_ND[n, d])
        sum_1 += _lower(rows_MX, row, d + 1, rate * grads_ND[n, d + 1])
        sum_2 += _lower(rows_MX, row, d + 2, rate * grads_ND[n, d + 2])
        sum_3 += _lower(rows_MX, row, d + 3, rate * grads_ND[n, d + 3])
    for d in range(fours, dim):
        sum_0 += _lower(rows_MX, row, d, rate * grads_ND[n, d])
    return _norm(sum_0, sum_1, sum_2, sum_3)


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _update(rule: Any, rows_MX: Any, row: Any, grads_ND: Any, n: Any, learning_rate: Any) -> Any:  # noqa: PLR0917
    """Update one row in place, each operation rounded to float32. All updates of rows use this function.

    Returns the norm of the change if the rule is one of ``KNOWS_NORM``, else 0.

    Row-wise Adagrad has one sum for each row, to which it adds the mean over D of the squared gradient, as FBGEMM
    (``rowwise_adagrad``) and torchrec do. Adam has the number of a row's updates in the last column.
    """
    dim, norm = grads_ND.shape[1], float32(0)
    if rule == SGD:
        norm = _descend(rows_MX, row, grads_ND, n, learning_rate)
    elif rule == ROWWISE_ADAGRAD:
        squares = float32(0)
        for d in range(dim):
            squares += grads_ND[n, d] * grads_ND[n, d]
        rows_MX[row, dim] += squares / float32(dim)
        norm = _descend(rows_MX, row, grads_ND, n, learning_rate / (np.sqrt(rows_MX[row, dim]) + ADAGRAD_EPS))
    elif rule == ADAGRAD:
        for d in range(dim):
            rows_MX[row, dim + d] += grads_ND[n, d] * grads_ND[n, d]
            rows_MX[row, d] = adagrad(rows_MX[row, d], grads_ND[n, d], rows_MX[row, dim + d], learning_rate)
    else:
        rows_MX[row, 3 * dim] += float32(1)
        rate, eps = corrected(learning_rate, int64(rows_MX[row, 3 * dim]))
        for d in range(dim):
            first = first_moment(rows_MX[row, dim + d], grads_ND[n, d])
            second = second_moment(rows_MX[row, dim + dim + d], grads_ND[n, d])
            rows_MX[row, dim + d], rows_MX[row, dim + dim + d] = first, second
            rows_MX[row, d] = adam(rows_MX[row, d], first, second, rate, eps)
    return norm


def _step_rows_by(rule: int) -> Any:
    """The loop of one rule. If the rule were a value of the loop, each row would cost a third more."""
    knows_norm = rule in KNOWS_NORM

    @compiled_for(
        void(
            *(float32[:, ::1], int64[::1], float32[:, ::1], float32),
            *(int32[::1], int32[::1], float32[::1], float32[::1], int32[:, ::1]),
        )
    )
    def step_rows(  # noqa: PLR0917 - compiled functions take values by place
        rows_MX: Any,
        rows_N: Any,
        grads_ND: Any,
        learning_rate: float,
        pending_M: Any,
        counts_N: Any,
        out_norms_N: Any,
        mass_M: Any,
        out_changes_NX: Any,
    ) -> None:
        """One optimizer step on the distinct rows ``rows_N`` of a shard, in place.

        Unless the array is empty: ``pending_M`` grows at these rows by ``counts_N``, ``mass_M`` by the L2 norm of each
        row's change, ``out_norms_N`` gets these norms, and ``out_changes_NX`` the XOR of each row's bits before and
        after. Rows lie far apart in memory, so they are prefetched.
        """
        num_rows, width = len(rows_N), rows_MX.shape[1]
        counts, tells = len(pending_M) > 0, len(out_changes_NX) > 0
        measures, sums = len(out_norms_N) > 0, len(mass_M) > 0
        dim, compares = grads_ND.shape[1], (measures or sums) and not knows_norm
        num_kept = width if tells else dim if compares else 0
        before_1X = np.empty((1, width), np.float32)
        bits_MX, before_bits_1X = rows_MX.view(np.int32), before_1X.view(np.int32)
        for n in range(num_rows):
            if n + AHEAD < num_rows:
                for line in range(0, width, FLOATS_PER_LINE):
                    prefetch(rows_MX.ctypes.data + (rows_N[n + AHEAD] * width + line) * 4)
                if counts:
                    prefetch(pending_M.ctypes.data + rows_N[n + AHEAD] * 4)
                if sums:
                    prefetch(mass_M.ctypes.data + rows_N[n + AHEAD] * 4)
            row = rows_N[n]
            for x in range(num_kept):
                before_1X[0, x] = rows_MX[row, x]
            norm = _update(rule, rows_MX, row, grads_ND, n, learning_rate)
            if compares:
                norm = distance(rows_MX, row, before_1X, 0, dim)
            if measures:
                out_norms_N[n] = norm
            if sums:
                mass_M[row] += norm
            if tells:
                for x in range(width):
                    out_changes_NX[n, x] = before_bits_1X[0, x] ^ bits_MX[row, x]
            if counts:
                pending_M[row] += counts_N[n]

    return step_rows


STEP_ROWS = tuple(map(_step_rows_by, range(4)))
"""``step_rows`` of each rule."""


@compiled_for(float32[:, ::1](float32[:, ::1], int64[::1]))
def take_rows(rows_SD: Any, slots_K: Any) -> Any:
    """The rows ``slots_K``, (K, D), as torch's ``index_select`` gives them, on one thread."""
    num_rows, dim = len(slots_K), rows_SD.shape[1]
    taken_KD = np.empty((num_rows, dim), np.float32)
    for k in range(num_rows):
        if k + AHEAD < num_rows:
            for line in range(0, dim, FLOATS_PER_LINE):
                prefetch(rows_SD.ctypes.data + (slots_K[k + AHEAD] * dim + line) * 4)
        for d in range(dim):
            taken_KD[k, d] = rows_SD[slots_K[k], d]
    return taken_KD


@compiled_for(void(float32[:, ::1], int64[::1], float32[:, ::1]))
def put_rows(out_SD: Any, slots_K: Any, values_KD: Any) -> None:
    """Write rows to ``slots_K``, as torch's ``index_copy_`` does, on one thread."""
    num_rows, dim = len(slots_K), out_SD.shape[1]
    for k in range(num_rows):
        if k + AHEAD < num_rows:
            for line in range(0, dim, FLOATS_PER_LINE):
                prefetch(out_SD.ctypes.data + (slots_K[k + AHEAD] * dim + line) * 4)
        for d in range(dim):
            out_SD[slots_K[k], d] = values_KD[k, d]


@compiled_for(void(int32[:, ::1], int64[::1], int32[:, ::1]))
def xor_rows(out_MX: Any, rows_N: Any, bits_NX: Any) -> None:
    """``out_MX[rows_N[n]] ^= bits_NX[n]`` for each n, also where a row is there several times."""
    num_rows, width = bits_NX.shape
    for n in range(num_rows):
        if n + AHEAD < num_rows:
            for line in range(0, width, FLOATS_PER_LINE):
                prefetch(out_MX.ctypes.data + (rows_N[n + AHEAD] * width + line) * 4)
        row = rows_N[n]  # out here, else the loop is not vectorised
        for x in range(width):
            out_MX[row, x] ^= bits_NX[n, x]


def _step_shared_rows_by(rule: int) -> Any:
    """As :func:`_step_rows_by`."""

    @compiled_for(void(float32[:, ::1], int64[::1], int64[::1], float32[:, ::1], float32[:, ::1], float32))
    def step_shared_rows(  # noqa: PLR0917 - compiled functions take values by place
        out_rows_HX: Any, keys_H: Any, keys_N: Any, rows_NX: Any, grads_ND: Any, learning_rate: float
    ) -> None:
        """For each key in both lists, set its row of ``out_rows_HX`` to its row of ``rows_NX`` after one step.

        ``keys_H`` and ``keys_N`` ascend. The bits are those of ``STEP_ROWS``.
        """
        n = 0
        for h in range(len(keys_H)):
            while n < len(keys_N) and keys_N[n] < keys_H[h]:
                n += 1
            if n < len(keys_N) and keys_N[n] == keys_H[h]:
                for x in range(rows_NX.shape[1]):
                    out_rows_HX[h, x] = rows_NX[n, x]
                _update(rule, out_rows_HX, h, grads_ND, n, learning_rate)

    return step_shared_rows


STEP_SHARED_ROWS = tuple(map(_step_shared_rows_by, range(4)))
"""``step_shared_rows`` of each rule."""
