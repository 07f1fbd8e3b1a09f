"""Popularity of the rows of a synthetic table: a drifting Zipf law, with its exponent fitted to a wanted skew.

Shapes: N rows of a table, M draws, K buckets of neighbouring ranks.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOP_FRAC = 0.01
_EXACT_RANKS = 4096
_NUM_BUCKETS = 2048
_MAX_EXPONENT = 4.0
_RANK_JITTER = 0.4  # standard deviation of a row's log rank between the first day and the last


def top_share(num_rows: int, exponent: float, num_draws: int, missing_frac: float = 0.0) -> float:
    """Expected share of ``num_draws`` draws that fall on the top 1 % of the rows drawn at least once.

    ``missing_frac``: the fraction of draws that hit the row for missing values, which counts as one of the top rows.
    Ranks beyond the first few thousand are summed in geometric buckets.
    """
    first_K, width_K = _buckets(num_rows)
    each_K = np.sqrt(first_K * (first_K + width_K - 1)) ** -exponent
    each_K /= float(each_K @ width_K)
    num_seen = float(width_K @ -np.expm1(-num_draws * (1 - missing_frac) * each_K))
    num_top = TOP_FRAC * num_seen - (1 if missing_frac else 0)
    covered = float(np.interp(num_top, np.cumsum(width_K), np.cumsum(each_K * width_K), left=num_top * each_K[0]))
    return missing_frac + (1 - missing_frac) * covered


def solve_exponent(num_rows: int, num_draws: int, share: float, missing_frac: float = 0.0) -> float:
    """The exponent at which the top 1 % of the drawn rows get ``share`` of the draws, by bisection.

    ``missing_frac``: the fraction of the draws that are missing values, which all go to one row. Returns the largest
    exponent tried if even that gives too little skew (few draws, or a few hundred rows).
    """
    low, high = 0.0, _MAX_EXPONENT
    for _ in range(40):
        middle = (low + high) / 2
        if top_share(num_rows, middle, num_draws, missing_frac) < share:
            low = middle
        else:
            high = middle
    return high


def _buckets(num_rows: int) -> tuple[Floats, Floats]:
    """First rank and width of buckets that cover the ranks 1..num_rows: one rank each at first, then ever wider."""
    first = np.arange(1, min(num_rows, _EXACT_RANKS) + 1, dtype=np.float64)
    if num_rows > _EXACT_RANKS:
        tail = np.floor(np.geomspace(_EXACT_RANKS + 1, num_rows + 1, _NUM_BUCKETS))[:-1]
        first = np.concatenate([first, np.unique(tail)])
    return first, np.diff(first, append=num_rows + 1.0)


class Popularity:
    """Draws rows of one table by a drifting Zipf law: row i has rank i at first, and a rank tens of % off at last."""

    def __init__(self, num_rows: int, exponent: float, generator: np.random.Generator) -> None:
        log_rank_N = np.log(np.arange(1, num_rows + 1, dtype=np.float64))
        self._cumulative_N = np.cumsum(np.exp(-exponent * log_rank_N))
        self._cumulative_N /= self._cumulative_N[-1]
        log_rank_N += _RANK_JITTER * generator.standard_normal(num_rows)
        self._last_order_N = np.argsort(log_rank_N).astype(np.int32)

    def draw(self, generator: np.random.Generator, time_M: Floats) -> NDArray[np.int64]:
        """One row (int64) for each time t in [0, 1): by the final ranks with probability t, else by the first ranks."""
        rank_M = np.searchsorted(self._cumulative_N, generator.random(len(time_M)), side="right")
        return np.where(generator.random(len(time_M)) < time_M, self._last_order_N[rank_M], rank_M)
