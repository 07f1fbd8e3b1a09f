"""The law of a synthetic click log, and samples drawn from it.

A law describes a whole log at the data set's full size; a file of fewer rows is a sample of it. The accesses of a table
follow a power law of the popularity rank of ids, whose exponent changes from piece to piece. Tables are tied by a tree
of latent variables: each variable and each table has a number in [0, 1) per sample, which with some probability is the
number of its parent, else a new draw. The quantile function of a table turns its number into an id. The log-odds of a
click are a sum of one effect per id and one per integer. ``benchmarks/click_law.py`` fits the constants to the
aggregates of a real log.

Shapes: M samples, I = 13 integers, F = 26 tables, K buckets of ranks of a table, L latent variables.
"""

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.config.words import mistakes_of
from harness.core.errors import DataError
from harness.core.seeds import derive, generator, words
from harness.data.criteo import MAX_INTEGER
from harness.data.records import NUM_DENSE, NUM_TABLES
from harness.files import expanded
from harness.kernels import click_draws

Floats = NDArray[np.float64]
Fraction = Annotated[float, Field(ge=0, le=1)]

LAWS = ("kaggle", "terabyte")
"""Names of the laws that are files of this package, each with the facts to which it was fitted."""
MAX_TABLE_IDS = 1 << 27  # so that the values of all tables fit side by side in 32 bits

_EXACT_RANKS = 4096
_NUM_BUCKETS = 1500
_NEWTON_STEPS = 8  # quadratic from a start this near: six reach the last bit
_LARGEST_NORMAL = 3.46  # of ``click_draws``: the end of a quantile function


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tie(_Part):
    """The tie of a latent variable or table to the latent variable ``parent``; None: drawn on its own.

    ``frac``: the probability that it has its parent's number. ``blocks``: the number of equal parts of [0, 1) that are
    put in another order before, so that the hottest ids of two tied tables do not always meet.
    """

    parent: Annotated[int, Field(ge=0)] | None = None
    frac: Fraction = 0.0
    blocks: Annotated[int, Field(ge=1, le=4096)] = 1


class TableLaw(_Part):
    """The law of the ids of one table.

    ``log_shares``: log of the share of accesses of the id at each of ``ranks`` (ascending from 1), up to a constant.
    Between two of these ranks the log share is linear in the log rank. ``effect``: standard deviation of the effects of
    the table's ids on the log-odds, before all effects are scaled. ``effects_seed``: the seed that gives each id its
    effect; the seed of a file does not change it.
    """

    missing_frac: Fraction
    ranks: tuple[Annotated[int, Field(ge=1, lt=MAX_TABLE_IDS // 2)], ...]
    log_shares: tuple[float, ...]
    effect: Annotated[float, Field(ge=0)]
    effects_seed: Annotated[int, Field(ge=0)]
    tie: Tie = Tie()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(self.log_shares) != len(self.ranks):
            raise ValueError(f"log_shares: expected one for each of the {len(self.ranks)} ranks")
        if self.ranks[:1] != (1,) or any(after <= before for before, after in pairwise(self.ranks)):
            raise ValueError("ranks: expected 1 and then ever larger ones")
        return self


class IntegerLaw(_Part):
    """The law of one integer: a quantile function of a normal variable, given by its value at each of ``Law.normals``.

    Each id of ``table`` has a normal variable, which also makes its effect on the log-odds. The integer's variable is
    ``load`` times the variable of the sample's id plus noise, and has variance 1: integers tell about ids, also about
    rare ones. Between the quantiles the function is linear in the signed logarithm of 1 + the absolute value.
    ``effect``: of the integer's variable on the log-odds.
    """

    missing_frac: Fraction
    quantiles: tuple[float, ...]
    effect: float
    table: Annotated[int, Field(ge=0, lt=NUM_TABLES)]
    load: Annotated[float, Field(ge=-1, le=1)]


class Law(_Part):
    """The whole law. ``bayes_auc``: the AUC of the true probabilities, to which all effects are scaled.

    ``renewed_frac``: the fraction of ids beyond rank ``hot_ranks`` that are replaced by new ids in the course of the
    log. ``positives_frac``: the fraction of clicks in each of the log's equal parts (days), in order.
    """

    tables: Annotated[tuple[TableLaw, ...], Field(min_length=NUM_TABLES, max_length=NUM_TABLES)]
    latents: Annotated[tuple[Tie, ...], Field(max_length=NUM_TABLES)]
    integers: Annotated[tuple[IntegerLaw, ...], Field(min_length=NUM_DENSE, max_length=NUM_DENSE)]
    normals: tuple[float, ...]
    positives_frac: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)]
    bayes_auc: Annotated[float, Field(gt=0.5, lt=1)]
    hot_ranks: Annotated[int, Field(ge=0)]
    renewed_frac: Fraction

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if any(tie.parent is not None and tie.parent >= number for number, tie in enumerate(self.latents)):
            raise ValueError("latents: expected parents that come before their children")
        if any(table.tie.parent is not None and table.tie.parent >= len(self.latents) for table in self.tables):
            raise ValueError(f"tables: expected parents among the {len(self.latents)} latents")
        if len(self.normals) < 2 or any(after <= before for before, after in pairwise(self.normals)):
            raise ValueError("normals: expected at least two, ascending")
        if any(len(each.quantiles) != len(self.normals) for each in self.integers):
            raise ValueError(f"integers: expected {len(self.normals)} quantiles each, as there are normals")
        return self

    @property
    def digest(self) -> str:
        """A hash of all constants, 16 hexadecimal digits."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=8).hexdigest()


def read_law(like: str) -> Law:
    """The law named ``like`` (one of :data:`LAWS`), or in a file of benchmarks/click_law.py.

    Raises DataError.
    """
    path = path_of_law(like)
    try:
        return Law.model_validate(json.loads(path.read_text())["law"])
    except OSError as error:
        laws = ", ".join(LAWS)
        raise DataError(f"--like: {like}: expected {laws} or a file ({error.strerror or error})") from error
    except (KeyError, TypeError, ValueError) as error:
        got = mistakes_of(error)[0] if isinstance(error, ValidationError) else "other content"
        raise DataError(f"--like: {path}: expected what benchmarks/click_law.py writes, got {got}") from error


def path_of_law(like: str) -> Path:
    """The file of the law with this name, or else ``like`` as a path."""
    return Path(__file__).parent / "laws" / f"{like}.json" if like in LAWS else Path(expanded(like))


@dataclass(frozen=True)
class Samples:
    """Drawn samples without labels. ``score_M``: the sum of all effects on the log-odds, before scale and intercept."""

    time_M: Floats  # position in the file, [0, 1)
    integers_MI: NDArray[np.int64]
    integers_missing_MI: NDArray[np.bool_]
    ids_MF: NDArray[np.int64]  # in the table, 0 where missing
    ids_missing_MF: NDArray[np.bool_]
    score_M: Floats


def buckets(num_ranks: int, num_exact: int = _EXACT_RANKS, num_wide: int = _NUM_BUCKETS) -> tuple[Floats, Floats]:
    """First rank and width of buckets that cover ranks 1 to ``num_ranks``: ``num_exact`` of one rank, then wider."""
    first = np.arange(1, min(num_ranks, num_exact) + 1, dtype=np.float64)
    if num_ranks > num_exact:
        tail = np.floor(np.geomspace(num_exact + 1, num_ranks + 1, num_wide))[:-1]
        first = np.concatenate([first, np.unique(tail)])
    return first, np.diff(first, append=num_ranks + 1.0)


def shares(ranks: Any, log_shares: Any, *size_of_buckets: int) -> tuple[Floats, Floats, Floats]:
    """First rank and width of each bucket of a table, and the share of accesses of one rank in it; (K,) each.

    The shares of all ranks sum to 1. ``size_of_buckets``: the optional arguments of :func:`buckets`.
    """
    first_K, width_K = buckets(int(ranks[-1]), *size_of_buckets)
    middle_K = np.sqrt(first_K * (first_K + width_K - 1))
    log_K = np.interp(np.log(middle_K), np.log(ranks), log_shares)
    each_K = np.exp(log_K - log_K.max())
    return first_K, width_K, each_K / (each_K @ width_K)


class World:
    """Generator of the samples of one file: ``rows`` samples of a law. Equal arguments give equal samples.

    ``taper``: the effect of an id of rank r is multiplied by ``(1 + r / 100) ** -taper``. ``tied``: False draws every
    table on its own.
    """

    def __init__(self, law: Law, rows: int, seed: int, *, taper: float = 0.0, tied: bool = True) -> None:
        self._law, self._rows, self._taper = law, rows, taper
        self._key = np.uint64(derive(seed, "synth", "rows"))
        self._label_key = derive(seed, "synth", "labels")
        self._nodes_N, self._blocks_B, self._buckets = _nodes(law, tied)
        self.tables_F = self._nodes_N[len(law.latents) :]
        """``click_draws.NODE`` of each table."""
        self._knots_Q = np.array((*law.normals, _LARGEST_NORMAL))
        fields = [(each.table, each.load, each.missing_frac, each.effect) for each in law.integers]
        self._integers_I = np.array(fields, dtype=click_draws.INTEGER)
        self._values_IQ = np.array([_quantile_function(each, law.normals) for each in law.integers])

    def draw(self, start: int, num: int) -> Samples:
        """The ``num`` samples of the file from number ``start`` on."""
        ids_MF, ids_missing_MF = self.draw_ids(start, num)
        values_MI, missing_MI, score_M = np.empty((num, NUM_DENSE)), np.empty((num, NUM_DENSE), np.bool_), np.empty(num)
        click_draws.draw_integers(
            *(self._key, start, self._integers_I, self._knots_Q, self._values_IQ),
            *(self.tables_F, ids_MF, ids_missing_MF, values_MI, missing_MI, score_M),
        )
        click_draws.add_effects(self.tables_F, self._taper, ids_MF, ids_missing_MF, score_M)
        integers_MI = np.sign(values_MI) * np.rint(np.expm1(np.abs(values_MI)))
        return Samples(
            np.arange(start, start + num) / self._rows,
            np.clip(integers_MI, -MAX_INTEGER, MAX_INTEGER).astype(np.int64),
            missing_MI,
            ids_MF,
            ids_missing_MF,
            score_M,
        )

    def draw_ids(self, start: int, num: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Ids of the ``num`` samples from number ``start`` on, and which of them are missing: (M, F) each."""
        ids_MF, missing_MF = np.empty((num, NUM_TABLES), np.int64), np.empty((num, NUM_TABLES), np.bool_)
        cumulative_K, first_rank_K, guide_FG = self._buckets
        click_draws.draw_ids(
            *(self._key, start, self._rows, self._nodes_N, len(self._law.latents), self._blocks_B),
            *(cumulative_K, first_rank_K, guide_FG, self._law.hot_ranks, self._law.renewed_frac, ids_MF, missing_MF),
        )
        return ids_MF, missing_MF

    def label_uniforms(self, start: int, num: int) -> Floats:
        """A float64 in [0, 1) for each sample: a sample is positive if this number is below its click probability."""
        bits_M = words(self._label_key, np.arange(start, start + num, dtype=np.uint64)) >> np.uint64(11)
        return bits_M.astype(np.float64) * 2.0**-53


def category_values(ids_MF: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The category value of each id in the file: 32 bits, never 0, distinct over all ids of all tables.

    MurmurHash3's finaliser (Appleby), a bijection on 32-bit words, of ``id + 1 + 2**27 table``.
    """
    words = (ids_MF + 1 + MAX_TABLE_IDS * np.arange(NUM_TABLES)).astype(np.uint32)
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
    return words


def expected_auc(logits_M: Floats) -> float:
    """Expected AUC of a predictor that knows the true probabilities: an upper bound for any predictor."""
    odds_M = 1 / (1 + np.exp(-np.sort(logits_M)))
    below_M = np.cumsum(1 - odds_M) - (1 - odds_M) / 2
    return float(odds_M @ below_M / (odds_M.sum() * (1 - odds_M).sum()))


def intercept(score_M: Floats, positives_frac: float) -> float:
    """The number that, added to all scores, makes the mean probability ``positives_frac``; by Newton's method."""
    found = float(np.log(positives_frac / (1 - positives_frac)))
    for _ in range(_NEWTON_STEPS):
        odds_M = 1 / (1 + np.exp(-(score_M + found)))
        found -= (float(odds_M.mean()) - positives_frac) / float((odds_M * (1 - odds_M)).mean())
    return found


def _quantile_function(law: IntegerLaw, normals: tuple[float, ...]) -> list[float]:
    """Signed log1p of the value at each of ``normals`` and at ``_LARGEST_NORMAL``, by the slope of the last piece."""
    values = np.sign(law.quantiles) * np.log1p(np.abs(law.quantiles))
    slope = (values[-1] - values[-2]) / (normals[-1] - normals[-2])
    return [*values, values[-1] + slope * (_LARGEST_NORMAL - normals[-1])]


def _nodes(law: Law, tied: bool) -> tuple[Any, NDArray[np.int64], tuple[Any, ...]]:
    """The arguments of ``click_draws.draw_ids``: nodes, blocks of all nodes, and buckets and guides of the tables.

    They depend on no file's seed: which ids occur together, and the effect of each, is part of the law.
    """
    num_latents = len(law.latents)
    nodes_N = np.zeros(num_latents + NUM_TABLES, dtype=click_draws.NODE)
    blocks: list[int] = []
    edges: list[Floats] = []
    first_ranks: list[Floats] = []
    guide_FG = np.empty((NUM_TABLES, click_draws.GUIDE_SIZE), np.int32)
    for number, tie in enumerate((*law.latents, *(table.tie for table in law.tables))):
        node = nodes_N[number]
        node["parent"] = -1 if tie.parent is None or not tied else tie.parent
        node["tie"], node["first_block"], node["num_blocks"] = tie.frac, len(blocks), tie.blocks
        blocks += generator(0, "synth", "blocks", number).permutation(tie.blocks).tolist()
    num_buckets = 0
    for number, table in enumerate(law.tables):
        node = nodes_N[num_latents + number]
        first_K, width_K, each_K = shares(table.ranks, table.log_shares)
        edge_K = np.concatenate([[0.0], np.cumsum(each_K * width_K)])
        edge_K /= edge_K[-1]
        starts_G = np.arange(click_draws.GUIDE_SIZE) / click_draws.GUIDE_SIZE
        guide_FG[number] = np.searchsorted(edge_K, starts_G, side="right") - 1
        node["first_bucket"], node["num_ranks"] = num_buckets, table.ranks[-1]
        node["missing_frac"], node["effect"] = table.missing_frac, table.effect
        node["renewal_key"] = derive(0, "synth", "renewal", number)
        node["effect_key"] = derive(table.effects_seed, "synth", "effects", number)
        edges.append(edge_K)
        first_ranks.append(np.append(first_K, table.ranks[-1] + 1.0))
        num_buckets += len(edge_K)
    buckets_K = np.concatenate(edges), np.concatenate(first_ranks).astype(np.int64)
    return nodes_N, np.array(blocks), (*buckets_K, guide_FG)
