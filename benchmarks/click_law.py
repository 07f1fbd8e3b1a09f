"""The laws of synthetic click logs: fit one to the aggregates of a log, or set the log of a law beside them.

    benchmarks/click_law.py kaggle --out law.json     the law like Kaggle again, in three minutes
    benchmarks/click_law.py demo/k --beside kaggle    the tables of docs/DATA.md

A source is the name of a law, whose file has the aggregates (*facts*) that it was fitted to, or a folder of prepared
data with Criteo's columns. Facts hold no row and no id. Prepared data tell neither missing values nor integers: there a
missing value is an id as others are, and the integers are Kaggle's.

Three fits follow each other: popularity of each table's ranks, to the expected facts of samples of the law; ties, to
the mutual information of tables in drawn samples; effects of ids, to the spread of click rates between ids there.

Shapes: K buckets of ranks of a table, F = 26 tables, L latent variables, N ids of a table, M samples, C = 31 codes.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.optimize import least_squares
from scipy.spatial.distance import squareform
from scipy.special import entr, expit, logit, ndtri, pdtr

from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, KAGGLE_ROWS, TERABYTE_CARDINALITIES
from harness.core.errors import DataError
from harness.data.facts import measure
from harness.data.law import (
    Floats,
    IntegerLaw,
    Law,
    Samples,
    TableLaw,
    Tie,
    World,
    buckets,
    expected_auc,
    intercept,
    path_of_law,
    shares,
)
from harness.data.records import NUM_DENSE, NUM_TABLES, RECORDS_NAME, read_meta
from harness.kernels import click_draws

Facts = dict[str, Any]
"""The facts of a log, of one of its tables, or of one of its integers, as the files of laws have them."""

PAIRS = "pairs_of_tables_normalised_mutual_information_top30"
COUNT_BINS: tuple[tuple[int, int | None], ...] = ((1, 1), (2, 4), (5, 19), (20, 99), (100, 999), (1000, None))
"""Groups of ids by number of accesses: the least and the most accesses of a group; None: no limit."""
MIN_IDS = 3
"""Least number of ids for which a spread of click rates is computed."""
NUM_TOP_IDS = 30
"""Mutual information tells apart this number of ids of a table, the most frequent ones; all others count as one id."""
_GROWTH_ROWS = 1_000, 3_000, 10_000, 30_000, 100_000, 137_139, 300_000, 1_000_000, 3_000_000, 10_000_000
_RANKS = 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000
_MAX_PAIR_SAMPLES = 1 << 20

NUM_LARGE = 8  # tables whose spreads count most; they include the seven that CPR tracks
HOT_RANKS = 100
RENEWED_FRAC = 0.25
"""``Law.renewed_frac``, a choice: the aggregates do not tell how many ids are replaced in the course of the log."""
EFFECTS_SEEDS = range(1, 17)
"""Seeds of the effects of a table's ids, tried in order. The first is taken that spreads the click rates of the table's
hottest ids nearly as in the facts; if there is none, the best. Since these ids are few, their spread differs between
seeds."""
LOAD = 0.75
"""``IntegerLaw.load`` (how much integers tell about ids), chosen so that failures cause the same AUC losses as on
Kaggle's own rows."""
DENSE_SCALE = 1.55
"""Effect of an integer divided by its correlation with the label, chosen by the AUC of models without tables."""

_KNOTS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 100_000, 300_000, 10**6, 3 * 10**6)
_EACH_RANK_BELOW = 70  # ranks of a table that has a knot for each
_FEW_IDS = 30  # whose numbers are compared as they are, not by their logs
_SLOPES = (1.0, 0.9, 1.1, 0.8, 1.2, 0.7, 1.3, 0.6, 1.4, 0.5, 1.5)
_TABLE_ROUNDS = 200
_COARSE = 256, 250  # buckets: ranks one by one, and wider ones
_SEEN_OF_FULL = 0.97  # of a table's ids that occur in the whole log
_MAX_CHANCE = 1 - 1e-6
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_SPLITS = list(zip((_NODES + 1) / 2, _WEIGHTS / 2, strict=True))  # when an id is replaced, as a fraction of the log

_TIE_SAMPLES = 50_000  # at most
_TIE_SWEEPS = 5
_LEAST_SIMILARITY = 0.07  # mutual information of two groups of tables below which they are drawn independently
_SAME_SIMILARITY = 0.04  # a group and a part of it this near are one
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
_MOST_TIED = 0.9995

_EFFECT_SAMPLES = 200_000  # at most
_EFFECT_ROUNDS = 12
_USUAL_LOG_EFFECT = -2.5
_WEIGHT_OF_LARGE = 1.0
_EFFECT_PULL = 0.01  # towards the usual effect, where few clicks tell
_HOTTEST_DIFFERENCE = 0.019  # of the spread from that of the facts
_HOT_PULL = 0.12  # towards 0, by accesses of ids with 20 and more: what models learn of real ids is little


@dataclass(frozen=True)
class FullLog:
    """A whole click log: its samples, and the rows of each of its tables."""

    rows: int
    cardinalities: tuple[int, ...]


FULL_LOGS = {
    "kaggle": FullLog(KAGGLE_ROWS, KAGGLE_CARDINALITIES),
    "terabyte": FullLog(4_373_472_329, TERABYTE_CARDINALITIES),
}
"""Criteo's logs by name. Kaggle's has seven days of samples, Terabyte's 24 days."""

# --- facts ------------------------------------------------------------------------------------------------------------


def facts_of(source: str) -> Facts:
    """The facts of a law's file, or of a prepared folder. Raises DataError if the folder has not Criteo's columns."""
    path = path_of_law(source)
    if path.is_file():
        return json.loads(path.read_text())["facts"]
    *tables, pooled = measure(path)
    meta = read_meta(path)
    if meta.columns is not None:
        raise DataError(f"{source}: expected data of Criteo's columns")
    records_MC = np.fromfile(path / RECORDS_NAME, np.int32).reshape(meta.num_rows, -1)
    labels_M = records_MC[:, 0].copy().view(np.float32).astype(np.float64)
    ids_FM = records_MC[:, 1 + NUM_DENSE :].T.copy()
    matrix_FF = mutual_information(ids_FM[:, :: math.ceil(meta.num_rows / _MAX_PAIR_SAMPLES)].T)
    pairs = matrix_FF[np.triu_indices(NUM_TABLES, 1)]
    return {
        "rows": meta.num_rows,
        "positives_frac": labels_M.mean(),
        "positives_frac_by_seventh_in_file_order": [part.mean() for part in np.array_split(labels_M, 7)],
        "pooled": {
            "distinct": pooled.distinct,
            "top_0.1_percent_share": pooled.top_01_percent_share,
            "top_1_percent_share": pooled.top_1_percent_share,
            "top_10_percent_share": pooled.top_10_percent_share,
            "seen_once_frac_of_ids": pooled.seen_once_frac_of_ids,
            "distinct_rows_per_batch_of_128": pooled.distinct_per_batch_of_128,
        },
        PAIRS: {"frac_above_0.1": np.mean(pairs > 0.1), "frac_above_0.5": np.mean(pairs > 0.5), "matrix": matrix_FF},
        "tables": [asdict(own) | _facts_of_ids(ids_M, labels_M) for own, ids_M in zip(tables, ids_FM, strict=True)],
        "integers": facts_of("kaggle")["integers"],
    }


def _facts_of_ids(ids_M: NDArray[np.int32], labels_M: Floats) -> Facts:
    """What :func:`measure` leaves out of a table: growth, ranks, and ids by number of accesses."""
    num_rows = len(ids_M)
    _, first_N, place_M, counts_N = np.unique(ids_M, return_index=True, return_inverse=True, return_counts=True)
    shares_N, bins = np.sort(counts_N)[::-1] / num_rows, _bins(counts_N)
    spreads = [math.nan, *_spreads(labels_M, place_M, counts_N, bins[1:])]
    sizes = [size for size in (*_GROWTH_ROWS, num_rows) if size <= num_rows]
    return {
        "missing_frac": None,
        "distinct_after_rows": {str(size): np.count_nonzero(first_N < size) for size in sizes},
        "share_of_accesses_of_rank": {str(rank): shares_N[rank - 1] for rank in _RANKS if rank <= len(shares_N)},
        "by_count": [
            {
                "count": count,
                "ids": len(ids),
                "accesses_frac": counts_N[ids].sum() / num_rows,
                "ctr_sd_between_ids": None if math.isnan(spread) else spread,
            }
            for count, ids, spread in zip(COUNT_BINS, bins, spreads, strict=True)
        ],
    }


def _bins(counts_N: NDArray[Any]) -> list[NDArray[np.intp]]:
    """The positions of the ids in each group of ``COUNT_BINS``."""
    return [np.flatnonzero((counts_N >= least) & (counts_N <= (most or math.inf))) for least, most in COUNT_BINS]


def _spreads(
    clicks_M: Floats, place_M: NDArray[np.intp], counts_N: NDArray[Any], groups: Sequence[NDArray[np.intp]]
) -> list[float]:
    """Standard deviation of click rates between the ids of each of ``groups``; NaN for fewer than ``MIN_IDS`` ids.

    ``clicks_M``: label or click probability of each sample. ``place_M``: position of its id. ``counts_N``: accesses of
    each id, by which ids are weighted. The noise of few labels per id is left out: for an id of c accesses and k
    clicks, the expected value of k (k - 1) / (c (c - 1)) is the square of its rate.
    """
    sum_N, square_N = np.bincount(place_M, clicks_M), np.bincount(place_M, clicks_M**2)
    found: list[float] = []
    for ids in groups:
        total = counts_N[ids].sum()
        square = (sum_N[ids] ** 2 - square_N[ids]) / (counts_N[ids] - 1)
        variance = square.sum() / total - (sum_N[ids].sum() / total) ** 2 if len(ids) >= MIN_IDS else math.nan
        found.append(math.sqrt(max(variance, 0.0)))
    return found


def mutual_information(ids_MF: NDArray[Any]) -> Floats:
    """Mutual information of each pair of columns, divided by the lesser of their entropies: (F, F), 0 on the diagonal.

    In each column all but the 30 most frequent ids count as one id.
    """
    num_codes, codes_FM = NUM_TOP_IDS + 1, np.empty(ids_MF.T.shape, np.int64)
    for codes_M, ids_M in zip(codes_FM, ids_MF.T, strict=True):
        _, place_M, counts_N = np.unique(ids_M, return_inverse=True, return_counts=True)
        rank_N = np.argsort(np.argsort(-counts_N, kind="stable"))
        codes_M[:] = np.minimum(rank_N, NUM_TOP_IDS)[place_M]
    matrix_FF = np.zeros((len(codes_FM), len(codes_FM)))
    for f, g in zip(*np.triu_indices(len(codes_FM), 1), strict=True):
        counts_CC = np.bincount(num_codes * codes_FM[f] + codes_FM[g], minlength=num_codes**2)
        joint_CC = counts_CC.reshape(num_codes, num_codes) / len(ids_MF)
        own, other = (entr(joint_CC.sum(axis=axis)).sum() for axis in (1, 0))
        shared = own + other - entr(joint_CC).sum()
        matrix_FF[f, g] = matrix_FF[g, f] = max(shared, 0.0) / max(min(own, other), 1e-12)
    return matrix_FF


# --- popularity of ranks ----------------------------------------------------------------------------------------------


def fit_law(facts: Facts, full: FullLog) -> Law:
    """The law whose samples have the facts nearest to ``facts``, for a whole log of the size of ``full``."""
    law = Law(
        tables=tuple(
            _fit_table(own, facts["rows"], size, full.rows)
            for own, size in zip(facts["tables"], full.cardinalities, strict=True)
        ),
        latents=(),
        integers=_integer_laws(facts),
        normals=tuple(round(float(ndtri(float(chance))), 5) for chance in facts["integers"][0]["quantiles"]),
        positives_frac=tuple(facts["positives_frac_by_seventh_in_file_order"]),
        bayes_auc=0.8,
        hot_ranks=HOT_RANKS,
        renewed_frac=RENEWED_FRAC,
    )
    return _with_effects(_with_few_ids(_with_ties(law, facts), facts), facts)


def _fit_table(facts: Facts, rows: int, size: int, full_rows: int) -> TableLaw:
    """The law of ranks of one table: the logs of shares at the knots, by least squares of differences from the facts.

    The facts are the growth of distinct ids, ids and accesses by number of accesses, shares of single ranks, distinct
    ids in a batch, and the ids of the whole log. ``size``: ids of the table in all, of which some replace others in the
    course of the log.
    """
    missing_frac = facts["missing_frac"] or 0.0
    num_ids = max(1, size - (missing_frac > 0))
    num_ranks = num_ids if num_ids <= HOT_RANKS else HOT_RANKS + round((num_ids - HOT_RANKS) / (1 + RENEWED_FRAC))
    few = num_ranks < _EACH_RANK_BELOW
    knots = (*(range(1, num_ranks) if few else (knot for knot in _KNOTS if knot < 0.8 * num_ranks)), num_ranks)
    judge = _TableJudge(facts, rows, full_rows, size, knots)
    start, log_shares = np.log(1.1 * np.diff(np.log(knots))), np.zeros(1)
    if len(start):
        log_shares = _falling(least_squares(judge.residuals, start, bounds=(-12, 2), max_nfev=_TABLE_ROUNDS).x)
    return TableLaw(
        missing_frac=missing_frac,
        ranks=knots,
        log_shares=tuple(np.round(log_shares, 5).tolist()),
        effect=0.0,
        effects_seed=EFFECTS_SEEDS[0],
    )


def _falling(log_steps: Floats) -> Floats:
    """Logs of shares that start at 0 and fall by these steps."""
    return -np.concatenate([[0.0], np.cumsum(np.exp(log_steps))])


class _TableJudge:
    """Compares the expected facts of samples of a law of ranks with the facts of a table."""

    def __init__(self, facts: Facts, rows: int, full_rows: int, size: int, knots: Sequence[int]) -> None:
        self._facts, self._rows, self._full_rows, self._size, self._knots = facts, rows, full_rows, size, knots
        self._missing = facts["missing_frac"] or 0.0
        first_K, width_K = buckets(knots[-1], *_COARSE)
        self._width_K, self._middle_K = width_K, np.sqrt(first_K * (first_K + width_K - 1))
        self._renewed_K = np.where(first_K > HOT_RANKS, RENEWED_FRAC, 0.0)
        ranks = {int(rank): share for rank, share in facts["share_of_accesses_of_rank"].items()}
        missing_rank = min(ranks, key=lambda rank: abs(ranks[rank] - self._missing)) if self._missing else math.inf
        of_ids = {rank - (rank > missing_rank): share for rank, share in ranks.items() if rank != missing_rank}
        self._shares = {rank: share for rank, share in of_ids.items() if rank <= min(2000, knots[-1])}

    def residuals(self, log_steps: Floats) -> Floats:
        """Weighted differences from the facts, where the log of the share falls from knot to knot by these steps."""
        facts, rows, log_shares = self._facts, self._rows, _falling(log_steps)
        _, _, each_K = shares(self._knots, log_shares, *_COARSE)
        chance_K = np.minimum(each_K * (1 - self._missing), _MAX_CHANCE)
        found: list[float] = []
        for number, distinct in facts["distinct_after_rows"].items():
            weight = 1.0 if int(number) == rows else math.sqrt(min(distinct, 1e3) / 1e3)
            found.append(3 * weight * math.log(self._distinct(chance_K, int(number), int(number) / rows) / distinct))
        for part in facts["by_count"]:
            ids, accesses = self._by_count(chance_K, *part["count"])
            if part["ids"] >= _FEW_IDS:
                found.append(math.sqrt(min(part["ids"], 1e3) / 1e3) * math.log(max(ids, 1e-9) / part["ids"]))
            found.append(2 * (accesses - part["accesses_frac"]))
        if facts["distinct"] < _FEW_IDS:
            once, _ = self._by_count(chance_K, 1, 1)
            found.append(2 * (once / facts["distinct"] - facts["seen_once_frac_of_ids"]))
        for rank, share in self._shares.items():
            log_share = np.interp(math.log(rank), np.log(self._middle_K), np.log(chance_K))
            found.append(0.5 * min(max(math.sqrt(share * rows) / 30, 0.02), 1) * (log_share - math.log(share)))
        found.append(3 * math.log(self._distinct(chance_K, 128, 0.0) / facts["distinct_per_batch_of_128"]))
        found.append(math.log(self._distinct(chance_K, self._full_rows, 1.0) / (_SEEN_OF_FULL * self._size)))
        bends = 0.05 * np.diff(log_shares, 2) if len(log_shares) > 3 else ()
        return np.array([*found, *bends])

    def _distinct(self, chance_K: Floats, num_samples: int, span: float) -> float:
        """Distinct ids expected in ``num_samples`` samples from a part ``span`` of the log."""
        mean_K = -num_samples * np.log1p(-chance_K)
        seen_K = -np.expm1(-mean_K)
        seen_of_both_K = 2 * (1 - seen_K / mean_K)  # of an id and its successor, over all times of the change
        renewed_K = self._renewed_K * span
        missing = 1 - (1 - self._missing) ** num_samples
        return float(self._width_K @ (seen_K + renewed_K * (seen_of_both_K - seen_K)) + missing)

    def _by_count(self, chance_K: Floats, first: int, last: int | None) -> tuple[float, float]:
        """Expected number of ids with ``first`` to ``last`` accesses in the sample, and their fraction of accesses."""

        def between(mean_K: Floats, low: int, high: float) -> Floats:
            return pdtr(high, mean_K) - (pdtr(low - 1, mean_K) if low else 0.0)

        end = math.inf if last is None else last
        mean_K, width_K = chance_K * self._rows, self._width_K
        kept_K, kept_accesses_K = between(mean_K, first, end), chance_K * between(mean_K, first - 1, end - 1)
        ids_K, accesses_K = kept_K.copy(), kept_accesses_K.copy()
        for split, weight in _SPLITS:
            share_K, part_K = 2 * weight * self._renewed_K, split * mean_K
            part_accesses_K = split * chance_K * between(part_K, first - 1, end - 1)
            ids_K += share_K * (between(part_K, first, end) - kept_K / 2)
            accesses_K += share_K * (part_accesses_K - kept_accesses_K / 2)
        has_missing = first <= self._missing * self._rows <= end
        return float(width_K @ ids_K) + has_missing, float(width_K @ accesses_K) + has_missing * self._missing


def _integer_laws(facts: Facts) -> tuple[IntegerLaw, ...]:
    """The law of each integer. The higher its correlation with the label, the larger the table it tells about."""
    tables, integers = facts["tables"], facts["integers"]
    by_size = sorted(range(NUM_TABLES), key=lambda f: tables[f]["distinct"], reverse=True)
    by_corr = sorted(range(len(integers)), key=lambda place: abs(integers[place]["corr_label"]), reverse=True)
    table_of = dict(zip(by_corr, by_size, strict=False))
    return tuple(
        IntegerLaw(
            missing_frac=each["missing_frac"],
            quantiles=tuple(each["quantiles"].values()),
            effect=round(DENSE_SCALE * each["corr_label"], 4),
            table=table_of[place],
            load=math.copysign(LOAD, each["corr_label"]),
        )
        for place, each in enumerate(integers)
    )


# --- ties between tables ----------------------------------------------------------------------------------------------


def _with_ties(law: Law, facts: Facts) -> Law:
    """``law`` with ties fitted to the mutual information of the facts, by coordinate descent on drawn samples."""
    wanted_FF, num = np.array(facts[PAIRS]["matrix"]), min(facts["rows"], _TIE_SAMPLES)  # few samples seem more tied
    law = _with_tree(law, wanted_FF)
    ties = [*law.latents, *(own.tie for own in law.tables)]
    best, step = _tie_loss(law, wanted_FF, num), [0.7] * len(ties)
    for sweep in range(_TIE_SWEEPS):
        for number, tie in enumerate(ties):
            if tie.parent is None:
                continue
            fracs = expit(logit(tie.frac) + np.array([step[number], -step[number]])).clip(0.01, _MOST_TIED).round(5)
            tries = [tie.model_copy(update={"frac": frac}) for frac in fracs.tolist()]
            if sweep < 2:
                tries += [tie.model_copy(update={"blocks": blocks}) for blocks in _BLOCKS if blocks != tie.blocks]
            laws = [_tied(law, [*ties[:number], other, *ties[number + 1 :]]) for other in tries]
            losses = [_tie_loss(other, wanted_FF, num) for other in laws]
            least = int(np.argmin(losses))
            step[number] *= 1.3 if min(losses[:2]) < best else 0.5
            if losses[least] < best:
                best, law, ties[number] = losses[least], laws[least], tries[least]
    return law


def _with_tree(law: Law, wanted_FF: Floats) -> Law:
    """``law`` with the tree of ties to start from: a latent variable for each group that average linkage finds."""
    distance_FF = 1 - (wanted_FF + wanted_FF.T) / 2
    np.fill_diagonal(distance_FF, 0)
    latents, ties = list[Tie](), [Tie()] * NUM_TABLES

    def add(group: Any, parent: int | None, similarity: float) -> None:
        if group.is_leaf():
            frac = math.sqrt(similarity) if parent is not None else 0.0
            ties[group.id] = Tie(parent=parent, frac=min(frac, 0.99))
            return
        own = 1 - group.dist
        if own >= _LEAST_SIMILARITY and (parent is None or own > similarity + _SAME_SIMILARITY):
            latents.append(Tie(parent=parent, frac=0.0 if parent is None else math.sqrt(similarity / own), blocks=16))
            parent, similarity = len(latents) - 1, own
        add(group.left, parent, similarity)
        add(group.right, parent, similarity)

    add(to_tree(linkage(squareform(distance_FF, checks=False), "average")), None, 0.0)
    return _tied(law, [*latents, *ties])


def _tied(law: Law, ties: Sequence[Tie]) -> Law:
    """``law`` with ``ties``: first the ties of the latent variables, then the ties of the tables."""
    pairs = zip(law.tables, ties[-NUM_TABLES:], strict=True)
    tables = tuple(own.model_copy(update={"tie": tie}) for own, tie in pairs)
    return law.model_copy(update={"latents": tuple(ties[:-NUM_TABLES]), "tables": tables})


def _ids(law: Law, num: int) -> NDArray[np.int64]:
    """The ids of the first ``num`` samples of the log of seed 0, -1 for a missing value: (M, F)."""
    ids_MF, missing_MF = World(law, num, 0).draw_ids(0, num)
    return np.where(missing_MF, -1, ids_MF)


def _tie_loss(law: Law, wanted_FF: Floats, num: int) -> float:
    """Mean square difference of mutual information in ``num`` samples, plus differences in numbers of tied pairs."""
    pairs = np.triu_indices(NUM_TABLES, 1)
    found, wanted = mutual_information(_ids(law, num))[pairs], wanted_FF[pairs]
    counts = sum(abs(float(np.mean(found > bound) - np.mean(wanted > bound))) for bound in (0.1, 0.5))
    return float(np.mean((found - wanted) ** 2)) + 0.01 * counts


def _with_few_ids(law: Law, facts: Facts) -> Law:
    """``law`` whose tables with few ids have as many ids, and ids seen once, in the log of seed 0 as in the facts.

    One id is a large part of such a table, and samples of one law differ by more than one. For the ids that the facts
    have once or not at all, the slope of the logs of shares is multiplied by the best of ``_SLOPES``, the first of
    equally good ones.
    """
    tables = [*law.tables]
    for number, (own, its) in enumerate(zip(law.tables, facts["tables"], strict=True)):
        if its["distinct"] >= _FEW_IDS:
            continue
        is_rare_K = np.array(own.ranks) > sum(part["ids"] for part in its["by_count"][1:]) - (own.missing_frac > 0)
        first, logs_K = int(np.argmax(is_rare_K)) - 1, np.array(own.log_shares)
        best = math.inf
        for slope in _SLOPES if is_rare_K.any() else ():
            bent_K = np.where(is_rare_K, logs_K[first] + slope * (logs_K - logs_K[first]), logs_K)
            tried = own.model_copy(update={"log_shares": tuple(np.round(bent_K, 5).tolist())})
            ids_MF = _ids(_with(law, number, tried), facts["rows"])
            counts_N = np.unique(ids_MF[:, number], return_counts=True)[1]
            num_once = int(np.sum(counts_N == 1))
            difference = abs(len(counts_N) - its["distinct"]) + abs(num_once - its["by_count"][0]["ids"])
            if difference < best:
                best, tables[number] = difference, tried
    return law.model_copy(update={"tables": tuple(tables)})


def _with(law: Law, number: int, own: TableLaw) -> Law:
    return law.model_copy(update={"tables": (*law.tables[:number], own, *law.tables[number + 1 :])})


# --- effects of ids ---------------------------------------------------------------------------------------------------


def _with_effects(law: Law, facts: Facts) -> Law:
    """``law`` with an effect per table such that the spread of click rates between ids is as in the facts."""
    judge = _EffectJudge(law, facts)
    start = np.full(NUM_TABLES, _USUAL_LOG_EFFECT)
    found = least_squares(judge.residuals, start, bounds=(-7, 1), max_nfev=_EFFECT_ROUNDS, diff_step=0.05)
    effects_F = np.exp(found.x)
    for number in judge.large:
        tried = [(judge.hottest_difference(number, effects_F), law, judge)]
        for seed in EFFECTS_SEEDS[1:]:
            if tried[-1][0] <= _HOTTEST_DIFFERENCE:
                break
            other = _with(law, number, law.tables[number].model_copy(update={"effects_seed": seed}))
            judge = _EffectJudge(other, facts)
            tried.append((judge.hottest_difference(number, effects_F), other, judge))
        _, law, judge = min(tried, key=itemgetter(0))
    effects = [round(float(effect), 4) for effect in effects_F]
    tables = (own.model_copy(update={"effect": effect}) for own, effect in zip(law.tables, effects, strict=True))
    return law.model_copy(update={"tables": tuple(tables), "bayes_auc": round(judge.bayes_auc(effects_F), 4)})


def unit_effects(world: World, samples: Samples) -> Floats:
    """The effect of the id of each sample and table, at standard deviation 1 and without taper: (M, F)."""
    effects_FM = np.zeros(samples.ids_MF.T.shape)
    for table, effects_M in enumerate(effects_FM):
        column = slice(table, table + 1)
        own_1 = world.tables_F[column].copy()
        own_1["effect"] = 1.0
        ids_M1, missing_M1 = samples.ids_MF[:, column].copy(), samples.ids_missing_MF[:, column].copy()
        click_draws.add_effects(own_1, 0.0, ids_M1, missing_M1, effects_M)
    return effects_FM.T


class _EffectJudge:
    """Compares the spread of click rates between ids of drawn samples with the facts."""

    def __init__(self, law: Law, facts: Facts) -> None:
        num, tables = min(facts["rows"], _EFFECT_SAMPLES), facts["tables"]
        self._positives_frac = facts["positives_frac"]
        self._effects: list[Floats] = []  # (M, F) each, of standard deviation 1
        self._dense: list[Floats] = []
        self._groups: list[list[tuple[NDArray[np.intp], Floats]]] = []
        for seed in (1, 2):
            world = World(law, num, seed)
            samples = world.draw(0, num)
            self._effects.append(unit_effects(world, samples))
            self._dense.append(samples.score_M)  # no table has an effect yet
            ids_FM = np.where(samples.ids_missing_MF, -1, samples.ids_MF).T
            groups = [np.unique(ids_M, return_inverse=True, return_counts=True)[1:] for ids_M in ids_FM]
            self._groups.append([(place_M, counts_N.astype(np.float64)) for place_M, counts_N in groups])
        of_part = itemgetter("ids", "accesses_frac", "ctr_sd_between_ids")
        parts_FB3 = np.array([[of_part(part) for part in own["by_count"][1:]] for own in tables], np.float64)
        num_ids_FB, frac_FB, self._wanted = np.moveaxis(parts_FB3, 2, 0)  # NaN where the facts have no spread
        self._weight = _weights(num_ids_FB, frac_FB, self._wanted, facts)
        self.large = np.argsort([own["distinct"] for own in tables])[-NUM_LARGE:].tolist()
        self._num_hottest_F = num_ids_FB[:, -1].astype(int)
        self._weight[self.large] = _WEIGHT_OF_LARGE
        self._hot_F = frac_FB[:, 2:].sum(axis=1)
        self._hot_F[self.large] = 0.0  # the facts decide

    def residuals(self, log_effects_F: Floats) -> Floats:
        """The residuals of least squares for the logs of the tables' effects.

        First the weighted differences of the spreads from the facts. Then two pulls for each table: to the usual
        effect; and to 0, in proportion to the share of accesses of its hot ids (none for the large tables).
        """
        found: list[Floats] = []
        for number, groups in enumerate(self._groups):
            odds_M = self._odds(number, np.exp(log_effects_F))
            spreads = np.array([_spreads(odds_M, *group, _bins(group[1])[1:]) for group in groups])
            found.append(np.nan_to_num((spreads - self._wanted) * self._weight).ravel())
        pulls = _EFFECT_PULL * (log_effects_F - _USUAL_LOG_EFFECT), _HOT_PULL * self._hot_F * np.exp(log_effects_F)
        return np.concatenate([*found, *pulls])

    def hottest_difference(self, number: int, effects_F: Floats) -> float:
        """Difference of the spread between a table's hottest ids from the facts; 0 for fewer than ``MIN_IDS``.

        The hottest ids are as many as the facts have with 1000 accesses or more.
        """
        if self._num_hottest_F[number] < MIN_IDS:
            return 0.0
        found: list[float] = []
        for sample, groups in enumerate(self._groups):
            place_M, counts_N = groups[number]
            hottest = np.argsort(-counts_N, kind="stable")[: self._num_hottest_F[number]]
            found.append(_spreads(self._odds(sample, effects_F), place_M, counts_N, [hottest])[0])
        return abs(float(np.mean(found)) - self._wanted[number, -1])

    def bayes_auc(self, effects_F: Floats) -> float:
        odds_M = self._odds(0, effects_F)
        return expected_auc(logit(odds_M))

    def _odds(self, sample: int, effects_F: Floats) -> Floats:
        score_M = self._dense[sample] + self._effects[sample] @ effects_F
        return expit(score_M + intercept(score_M, self._positives_frac))


def _weights(num_ids_FB: Floats, frac_FB: Floats, spread_FB: Floats, facts: Facts) -> Floats:
    """Weights of spreads: more for more accesses, less the larger the standard error; NaN or 0 for unknown ones."""
    variance = facts["positives_frac"] * (1 - facts["positives_frac"])
    error_FB = variance * np.sqrt(2 * num_ids_FB) / np.maximum(frac_FB * facts["rows"], 1)
    share_FB = np.sqrt(frac_FB) * np.minimum(1.0, np.sqrt(num_ids_FB / 30))
    return share_FB / (1 + error_FB / (0.04 * np.maximum(spread_FB, 0.05)))


# --- a log beside the facts -------------------------------------------------------------------------------------------

_OF_TABLE = [
    *("distinct_per_batch_of_128", "top_1_percent_share", "seen_once_frac_of_ids", "accesses_to_seen_once_frac"),
    "reuse_within_1280_rows_in_file_order",
]
_SPREADS = [f"spread {least}+" if most is None else f"spread {least}–{most}" for least, most in COUNT_BINS[1:]]


def beside(found: Facts, wanted: Facts) -> list[str]:
    """The tables of docs/DATA.md: all tables as one, the largest difference of a table, and spreads of click rates.

    Differences of numbers of ids are relative, all others absolute, and of spreads among the tables with most ids.
    """
    own, its = (_by_table(facts, str(wanted["rows"])) for facts in (found, wanted))
    change = own - its
    change.iloc[:, :2] = own.iloc[:, :2] / its.iloc[:, :2] - 1
    change.loc[~change.index.isin([each["column"] for each in _largest(wanted)]), _SPREADS] = math.nan
    places = change.abs().dropna(axis=1, how="all").idxmax()
    parts = {
        "all tables as one": pd.DataFrame({"facts": _pooled(wanted), "this log": _pooled(found)}),
        "largest difference": pd.DataFrame({"": [change.loc[at, name] for name, at in places.items()], "in": places}),
        "spread of click rates, this log": own[_SPREADS],
        "spread of click rates, facts": its[_SPREADS],
    }
    return [line for title, part in parts.items() for line in (title, part.round(4).to_string(), "")]


def _largest(facts: Facts) -> list[Facts]:
    """The seven tables with most ids."""
    return sorted(facts["tables"], key=itemgetter("distinct"))[1 - NUM_LARGE :]


def _pooled(facts: Facts) -> pd.Series:
    once = {"accesses to those, seven tables": np.mean([own["accesses_to_seen_once_frac"] for own in _largest(facts)])}
    pairs = {f"pairs of tables, {name}": facts[PAIRS][name] for name in ("frac_above_0.1", "frac_above_0.5")}
    return pd.Series({**facts["pooled"], **once, **pairs, "positives_frac": facts["positives_frac"]}, dtype=float)


def _by_table(facts: Facts, num_rows: str) -> pd.DataFrame:
    """A row for each table."""
    frame = pd.DataFrame(facts["tables"]).set_index("column")
    ids = pd.DataFrame({f"ids after {int(num_rows):,} samples": frame["distinct_after_rows"].map(itemgetter(num_rows))})
    spreads = [[part["ctr_sd_between_ids"] for part in own["by_count"][1:]] for own in facts["tables"]]
    of_spreads = pd.DataFrame(spreads, index=frame.index, columns=_SPREADS)
    return pd.concat([ids, frame[_OF_TABLE], of_spreads], axis=1).astype(float)


def write_law(path: Path, law: Law, facts: Facts) -> None:
    """Write a file that ``run.py data synth --like`` reads, with the facts to which the law was fitted."""
    parts = {"law": law.model_dump(), "facts": facts}
    path.write_text(json.dumps(parts, default=lambda value: value.tolist()) + "\n")


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", help="kaggle, terabyte, or a folder of `run.py data prepare`")
    made.add_argument("--beside", metavar="LAW", help="show the source beside the facts of this law")
    made.add_argument("--sizes", choices=[*FULL_LOGS], default="kaggle", help="log of which the source is a sample")
    made.add_argument("--out", type=Path, metavar="LAW.json", help="fit a law, and write it to this file")
    options = made.parse_args()
    facts = facts_of(options.source)
    if options.beside is not None:
        sys.stdout.write("\n".join([*beside(facts, facts_of(options.beside)), ""]))
    if options.out is not None:
        write_law(options.out, fit_law(facts, FULL_LOGS[options.sizes]), facts)


if __name__ == "__main__":
    main()
