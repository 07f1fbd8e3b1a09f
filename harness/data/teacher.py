"""The distribution of the synthetic click log: 13 skewed integers, 26 Zipf tables, and a model of the log-odds.

The teacher's logit is a sum of terms: one of the dense features, one per table (an effect per row), and a few products
of two tables' rows. Terms are independent; each is standardised on a sample and then scaled to its share of the
variance. Effects drift along the file: a row's effect is ``a cos(w t) + b sin(w t)`` with its own a, b and t in [0, 1).

Shapes: N rows of a table, M samples, I = 13 integers, F = 26 tables, T terms, L = 2 latent factors of a pair.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.seeds import generator
from harness.data.records import NUM_DENSE, NUM_TABLES
from harness.data.text import MAX_INTEGER
from harness.data.zipf import Floats, Popularity, solve_exponent

LARGE_TABLES = (2, 3, 11, 15, 20, 23, 25)  # the seven largest, which CPR tracks: 99.58 % of Kaggle's rows
MIN_TABLE_ROWS = 4
LARGE_TOP_SHARE = 0.72  # wanted of each large table: the accesses of the top 1 % of its rows
SMALL_EXPONENT = 1.1
DEFAULT_TAPER = 0.5
MAX_TABLE_ROWS = 1 << 27  # so that the values of all tables fit side by side in 32 bits

# Made up after the look of the Kaggle log: fractions missing, and the spread of log(x) of the integers.
_CATEGORY_MISSING = {2: 0.03, 3: 0.03, 5: 0.12, 11: 0.03, 15: 0.03, 18: 0.44, 19: 0.44, 20: 0.03, 21: 0.76, 24: 0.44}
_INTEGER_MISSING = (0.45, 0, 0.21, 0.22, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.76, 0.22)
_INTEGER_MEAN = (0.5, 2, 1.5, 1.5, 7.5, 3.5, 1.5, 2, 3.5, -0.5, 0.5, -1, 1.5)  # of log(x)
_INTEGER_SPREAD = (1.2, 2, 1.4, 0.9, 2.2, 1.6, 1.5, 1.1, 1.4, 0.8, 1, 1, 1.1)
_INTEGER_SHIFT = (0, -2, *(0,) * 11)  # I2 is negative now and then, as Kaggle's is

# Shares of the variance of the logit.
_DENSE_SHARE, _SMALL_SHARE, _LARGE_SHARE, _PAIR_SHARE = 0.20, 0.25, 0.49, 0.06
_PAIRS = ((2, 8), (11, 19), (13, 16), (15, 22))  # C3 x C9, C12 x C20, C14 x C17, C16 x C23
_NUM_FACTORS = 2
_MAX_STRENGTH = 4.0  # standard deviation of the logit; 0.80 needs about 1.3
_NEWTON_STEPS = 8  # quadratic from a start this near: six reach the last bit
_TURN = 0.4  # radians by which effects turn from the first day to the last
_FULL_EFFECT_ROWS = 100  # effects of rarer rows shrink as (1 + rank / 100) ** -taper
_MIN_TEACHING_ROWS = 3  # a smaller table has too few distinct effects for a term of its own


@dataclass(frozen=True)
class Samples:
    """Drawn samples without labels."""

    time_M: Floats  # position in the file, [0, 1)
    integers_MI: NDArray[np.int64]
    integers_missing_MI: NDArray[np.bool_]
    rows_MF: NDArray[np.int64]  # row of each table, 0 where missing
    rows_missing_MF: NDArray[np.bool_]


def scaled_cardinalities(scale: float) -> tuple[int, ...]:
    """Kaggle's 26 table sizes times ``scale``, at least 4 or Kaggle's own if that is less, at most 2**27."""
    return tuple(
        min(max(round(size * scale), min(size, MIN_TABLE_ROWS)), MAX_TABLE_ROWS) for size in KAGGLE_CARDINALITIES
    )


def num_clamped(scale: float) -> tuple[int, int]:
    """How many tables of :func:`scaled_cardinalities` have more rows than ``scale`` gives, and how many have fewer."""
    pairs = list(zip(scaled_cardinalities(scale), (round(size * scale) for size in KAGGLE_CARDINALITIES), strict=True))
    return sum(rows > scaled for rows, scaled in pairs), sum(rows < scaled for rows, scaled in pairs)


def category_values(rows_MF: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The category value of each row in the file: 32 bits, never 0, distinct over all rows of all tables.

    MurmurHash3's finaliser (Appleby), a bijection on 32-bit words, of ``row + 1 + 2**27 table``.
    """
    words = (rows_MF + 1 + MAX_TABLE_ROWS * np.arange(NUM_TABLES)).astype(np.uint32)
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
    return words


class World:
    """Generator of samples without labels. ``num_samples``: how many will be drawn, needed to fit the skew."""

    def __init__(self, scale: float, num_samples: int, seed: int) -> None:
        self.cardinalities = scaled_cardinalities(scale)
        self.large = LARGE_TABLES
        self.category_missing_F = np.array([_CATEGORY_MISSING.get(table, 0.0) for table in range(NUM_TABLES)])
        self.exponents = tuple(
            solve_exponent(size, num_samples, LARGE_TOP_SHARE, self.category_missing_F[table])
            if table in self.large
            else SMALL_EXPONENT
            for table, size in enumerate(self.cardinalities)
        )
        self._tables = [
            Popularity(size, exponent, generator(seed, "synth", "popularity", table))
            for table, (size, exponent) in enumerate(zip(self.cardinalities, self.exponents, strict=True))
        ]

    def draw(self, random: np.random.Generator, time_M: Floats) -> Samples:
        """One sample for each time in ``time_M``, in [0, 1)."""
        num = len(time_M)
        logs_MI = random.standard_normal((num, NUM_DENSE)) * _INTEGER_SPREAD + np.array(_INTEGER_MEAN)
        integers_MI = np.minimum(np.exp(logs_MI), MAX_INTEGER).astype(np.int64) + np.array(_INTEGER_SHIFT)
        integers_missing_MI = random.random((num, NUM_DENSE)) < np.array(_INTEGER_MISSING)
        rows_FM = np.stack([table.draw(random, time_M) for table in self._tables])
        rows_missing_MF = random.random((num, NUM_TABLES)) < self.category_missing_F
        rows_MF = np.where(rows_missing_MF, 0, rows_FM.T)
        return Samples(time_M, integers_MI, integers_missing_MI, rows_MF, rows_missing_MF)


class Teacher:
    """The true model of the synthetic log: gives the log-odds of every sample.

    ``taper``: how fast the effect of a row on the label falls with its popularity rank; 0: all rows of a table alike.
    """

    def __init__(self, world: World, seed: int, *, taper: float = DEFAULT_TAPER) -> None:
        self._dense_I = generator(seed, "synth", "dense").standard_normal(NUM_DENSE)
        self._teaching = [t for t, size in enumerate(world.cardinalities) if size >= _MIN_TEACHING_ROWS]
        # Row by row the two ends of its turn; the last row, one past the table, stands for missing.
        self._effects = [
            _effects(generator(seed, "synth", "effects", table), world.cardinalities[table], taper)
            for table in self._teaching
        ]
        self._factors = {
            table: generator(seed, "synth", "factors", table).standard_normal(
                (world.cardinalities[table] + 1, _NUM_FACTORS), np.float32
            )
            for pair in _PAIRS
            for table in pair
        }
        self._sizes_F = np.array(world.cardinalities)
        self._shares_T = self._shares(world)
        self._mean_T = np.zeros(len(self._shares_T))
        self._weight_T = np.zeros(len(self._shares_T))
        self._bias = 0.0

    def fit(self, samples: Samples, *, positive_frac: float, auc: float) -> None:
        """Choose bias and scale so that ``samples`` have the wanted mean probability and best possible AUC."""
        terms_TM = self._terms(samples)
        self._mean_T = terms_TM.mean(axis=1)
        self._weight_T = np.sqrt(self._shares_T) / np.maximum(terms_TM.std(axis=1), 1e-9)
        score_M = self._weight_T @ (terms_TM - self._mean_T[:, None])
        low, high = 0.0, _MAX_STRENGTH
        for _ in range(20):
            strength = (low + high) / 2
            bias = _bias_for(strength * score_M, positive_frac)
            if expected_auc(strength * score_M + bias) < auc:
                low = strength
            else:
                high = strength
        self._weight_T *= high
        self._bias = _bias_for(high * score_M, positive_frac)

    def logits(self, samples: Samples) -> Floats:
        """Log-odds of a click, (M,)."""
        return self._weight_T @ (self._terms(samples) - self._mean_T[:, None]) + self._bias

    def _terms(self, samples: Samples) -> Floats:
        """All terms of the logit before standardisation, (T, M)."""
        seen_MI = np.log(np.maximum(np.where(samples.integers_missing_MI, 0, samples.integers_MI), 0) + 1.0)
        rows_MF = np.where(samples.rows_missing_MF, self._sizes_F, samples.rows_MF)
        cosine_M, sine_M = np.cos(_TURN * samples.time_M), np.sin(_TURN * samples.time_M)
        terms: list[Floats] = [(seen_MI / _INTEGER_SPREAD) @ self._dense_I]
        for table, effects in zip(self._teaching, self._effects, strict=True):
            ends_M2 = effects[rows_MF[:, table]].astype(np.float64)
            terms.append(ends_M2[:, 0] * cosine_M + ends_M2[:, 1] * sine_M)
        for left, right in _PAIRS:
            products_ML = self._factors[left][rows_MF[:, left]] * self._factors[right][rows_MF[:, right]]
            terms.append(products_ML.sum(axis=1, dtype=np.float64))
        return np.stack(terms)

    def _shares(self, world: World) -> Floats:
        """Each term's share of the logit's variance, (T,), summing to 1."""
        is_large = np.array([table in world.large for table in self._teaching])
        tables = np.where(is_large, _LARGE_SHARE / is_large.sum(), _SMALL_SHARE / (~is_large).sum())
        return np.concatenate([[_DENSE_SHARE], tables, np.full(len(_PAIRS), _PAIR_SHARE / len(_PAIRS))])


def _effects(random: np.random.Generator, num_rows: int, taper: float) -> NDArray[np.float32]:
    """The coefficients a, b of each row's effect, (N + 1, 2); with a ``taper`` above 0, smaller for rarer rows.

    A large effect of a rare row can hardly be learned from its few samples, and is mostly noise in the labels.
    """
    effects = random.standard_normal((num_rows + 1, 2), np.float32)
    rank = np.arange(num_rows + 1, dtype=np.float32)
    rank[num_rows] = 0  # missing
    effects *= ((1 + rank / _FULL_EFFECT_ROWS) ** -taper)[:, None]
    return effects


def expected_auc(logits_M: Floats) -> float:
    """Expected AUC of the true probabilities if labels are drawn by them: an upper bound for any predictor."""
    odds_M = 1 / (1 + np.exp(-np.sort(logits_M)))
    below_M = np.cumsum(1 - odds_M) - (1 - odds_M) / 2
    return float(odds_M @ below_M / (odds_M.sum() * (1 - odds_M).sum()))


def _bias_for(score_M: Floats, positive_frac: float) -> float:
    """The bias at which the mean probability is ``positive_frac``, by Newton's method; starts as if scores were 0."""
    bias = float(np.log(positive_frac / (1 - positive_frac)))
    for _ in range(_NEWTON_STEPS):
        odds_M = 1 / (1 + np.exp(-(score_M + bias)))
        bias -= (float(odds_M.mean()) - positive_frac) / float((odds_M * (1 - odds_M)).mean())
    return bias
