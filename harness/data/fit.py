"""The fit of a law of synthetic click logs to the aggregates of a real log.

There are three fits, one after another. The first fits the popularity of each table's ranks to the expected facts of
samples of the law. The second fits the ties between tables to the mutual information of tables in drawn samples. The
third fits the effects of ids to the spread of click rates between ids in drawn samples. None of them sees a row of the
log.

Shapes: K buckets of ranks of a table, F = 26 tables, L latent variables, M samples.
"""

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.optimize import least_squares
from scipy.spatial.distance import squareform
from scipy.special import ndtri, pdtr

from harness.core.criteo_sizes import FULL_LOGS
from harness.data.facts import COUNT_BINS, MIN_IDS, CountBin, Facts, TableFacts, mutual_information
from harness.data.law import Floats, IntegerLaw, Law, TableLaw, Tie, World, buckets, expected_auc, intercept, shares
from harness.data.records import NUM_TABLES
from harness.data.sources import Progress

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


def fit_law(facts: Facts, full_log: str, *, progress: Progress | None = None) -> Law:
    """The law whose samples have the facts nearest to ``facts``, for a whole log of the size of ``full_log``.

    ``full_log``: a key of ``FULL_LOGS``. ``facts`` must have integers. ``progress`` is called with the number of parts
    done and the number of all. Takes two minutes.
    """
    full = FULL_LOGS[full_log]
    say = progress or (lambda _done, _all: None)
    steps = NUM_TABLES + _TIE_SWEEPS + 1
    tables: list[TableLaw] = []
    for table, size in zip(facts.tables, full.cardinalities, strict=True):
        tables.append(_fit_table(table, facts.rows, size, full.rows))
        say(len(tables), steps)
    law = Law(
        tables=tuple(tables),
        latents=(),
        integers=_integer_laws(facts),
        normals=tuple(round(float(ndtri(chance)), 5) for chance in facts.integers[0].quantiles),
        positives_frac=facts.positives_frac_by_seventh_in_file_order,
        bayes_auc=0.8,
        hot_ranks=HOT_RANKS,
        renewed_frac=RENEWED_FRAC,
    )
    law = _with_ties(law, facts, lambda done: say(NUM_TABLES + done, steps))
    law = _with_few_ids(law, facts)
    law = _with_effects(law, facts)
    say(steps, steps)
    return law


def _num_ranks(size: int) -> int:
    """Ranks of a table with ``size`` ids in all, of which some replace others in the course of the log."""
    return size if size <= HOT_RANKS else HOT_RANKS + round((size - HOT_RANKS) / (1 + RENEWED_FRAC))


def _fit_table(facts: TableFacts, rows: int, size: int, full_rows: int) -> TableLaw:
    """The law of ranks of one table: the logs of shares at the knots, by least squares of differences from the facts.

    The facts are the growth of distinct ids, ids and accesses by number of accesses, shares of single ranks, distinct
    ids in a batch, and the ids of the whole log.
    """
    missing_frac = facts.missing_frac or 0.0
    num_ranks = max(1, _num_ranks(size - (missing_frac > 0)))
    few = num_ranks < _EACH_RANK_BELOW
    knots = (*(range(1, num_ranks) if few else (knot for knot in _KNOTS if knot < 0.8 * num_ranks)), num_ranks)
    judge = _TableJudge(facts, rows, full_rows, size, knots)
    start = np.log(1.1 * np.diff(np.log(knots)))
    log_shares = np.zeros(1)
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

    def __init__(self, facts: TableFacts, rows: int, full_rows: int, size: int, knots: Sequence[int]) -> None:
        self._facts, self._rows, self._full_rows, self._size, self._knots = facts, rows, full_rows, size, knots
        self._missing = facts.missing_frac or 0.0
        first_K, width_K = buckets(knots[-1], *_COARSE)
        self._width_K, self._middle_K = width_K, np.sqrt(first_K * (first_K + width_K - 1))
        self._renewed_K = np.where(first_K > HOT_RANKS, RENEWED_FRAC, 0.0)
        ranks = facts.share_of_accesses_of_rank
        missing_rank = min(ranks, key=lambda rank: abs(ranks[rank] - self._missing)) if self._missing else math.inf
        self._shares = {
            rank - (rank > missing_rank): share
            for rank, share in ranks.items()
            if rank != missing_rank and rank - (rank > missing_rank) <= min(2000, knots[-1])
        }

    def residuals(self, log_steps: Floats) -> Floats:
        """Weighted differences from the facts, where the log of the share falls from knot to knot by these steps."""
        facts, rows, log_shares = self._facts, self._rows, _falling(log_steps)
        _, _, each_K = shares(self._knots, log_shares, *_COARSE)
        chance_K = np.minimum(each_K * (1 - self._missing), _MAX_CHANCE)
        found: list[float] = []
        for number, distinct in facts.distinct_after_rows.items():
            weight = 1.0 if number == rows else math.sqrt(min(distinct, 1e3) / 1e3)
            found.append(3 * weight * math.log(self._distinct(chance_K, number, number / rows) / distinct))
        for part in facts.by_count:
            ids, accesses = self._by_count(chance_K, *part.count)
            if part.ids >= _FEW_IDS:
                found.append(math.sqrt(min(part.ids, 1e3) / 1e3) * math.log(max(ids, 1e-9) / part.ids))
            found.append(2 * (accesses - part.accesses_frac))
        if facts.distinct < _FEW_IDS:
            once, _ = self._by_count(chance_K, 1, 1)
            found.append(2 * (once / facts.distinct - facts.seen_once_frac_of_ids))
        for rank, share in self._shares.items():
            log_share = np.interp(math.log(rank), np.log(self._middle_K), np.log(chance_K))
            found.append(0.5 * min(max(math.sqrt(share * rows) / 30, 0.02), 1) * (log_share - math.log(share)))
        in_batch = self._distinct(chance_K, 128, 0.0)
        found.append(3 * math.log(in_batch / facts.distinct_per_batch_of_128))
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
            upto_K = pdtr(high, mean_K) if high < math.inf else np.ones_like(mean_K)
            return upto_K - pdtr(low - 1, mean_K) if low else upto_K

        end = math.inf if last is None else last
        mean_K, width_K = chance_K * self._rows, self._width_K
        ids_K, accesses_K = between(mean_K, first, end), chance_K * between(mean_K, first - 1, end - 1)
        is_renewed = self._renewed_K > 0
        ids_R, accesses_R = ids_K[is_renewed], accesses_K[is_renewed]  # if none were replaced
        for split, weight in _SPLITS if is_renewed.any() else ():
            share_R, part_R = 2 * weight * self._renewed_K[is_renewed], split * mean_K[is_renewed]
            accesses = split * chance_K[is_renewed] * between(part_R, first - 1, end - 1)
            ids_K[is_renewed] += share_R * (between(part_R, first, end) - ids_R / 2)
            accesses_K[is_renewed] += share_R * (accesses - accesses_R / 2)
        has_missing = first <= self._missing * self._rows <= end
        return float(width_K @ ids_K) + has_missing, float(width_K @ accesses_K) + has_missing * self._missing


def _integer_laws(facts: Facts) -> tuple[IntegerLaw, ...]:
    """The law of each integer. The higher its correlation with the label, the larger the table it tells about."""
    by_size = sorted(range(NUM_TABLES), key=lambda table: facts.tables[table].distinct, reverse=True)
    by_corr = sorted(range(len(facts.integers)), key=lambda place: abs(facts.integers[place].corr_label), reverse=True)
    table_of = dict(zip(by_corr, by_size, strict=False))
    return tuple(
        IntegerLaw(
            missing_frac=each.missing_frac,
            quantiles=tuple(each.quantiles.values()),
            effect=round(DENSE_SCALE * each.corr_label, 4),
            table=table_of[place],
            load=math.copysign(LOAD, each.corr_label),
        )
        for place, each in enumerate(facts.integers)
    )


def _with_ties(law: Law, facts: Facts, done: Callable[[int], None]) -> Law:
    """``law`` with ties fitted to the mutual information of the facts, by coordinate descent on drawn samples."""
    wanted_FF, num = np.array(facts.pairs.matrix), min(facts.rows, _TIE_SAMPLES)  # few samples seem more tied
    law = _with_tree(law, wanted_FF)
    ties = [*law.latents, *(table.tie for table in law.tables)]
    best, step = _tie_loss(law, wanted_FF, num), [0.7] * len(ties)
    for sweep in range(_TIE_SWEEPS):
        for number, tie in enumerate(ties):
            if tie.parent is None:
                continue
            odds = math.log(tie.frac / (1 - tie.frac))
            fracs = [1 / (1 + math.exp(-(odds + shift))) for shift in (step[number], -step[number])]
            tries = [tie.model_copy(update={"frac": round(min(max(frac, 0.01), _MOST_TIED), 5)}) for frac in fracs]
            if sweep < 2:
                tries += [tie.model_copy(update={"blocks": blocks}) for blocks in _BLOCKS if blocks != tie.blocks]
            laws = [_tied(law, [*ties[:number], other, *ties[number + 1 :]]) for other in tries]
            losses = [_tie_loss(other, wanted_FF, num) for other in laws]
            least = int(np.argmin(losses))
            step[number] *= 1.3 if min(losses[:2]) < best else 0.5
            if losses[least] < best:
                best, law, ties[number] = losses[least], laws[least], tries[least]
        done(sweep + 1)
    return law


def _with_tree(law: Law, wanted_FF: Floats) -> Law:
    """``law`` with the tree of ties to start from: a latent variable for each group that average linkage finds."""
    distance_FF = 1 - (wanted_FF + wanted_FF.T) / 2
    np.fill_diagonal(distance_FF, 0)
    latents: list[Tie] = []
    tables = [*law.tables]

    def add(group: Any, parent: int | None, similarity: float) -> None:
        if group.is_leaf():
            frac = math.sqrt(similarity) if parent is not None else 0.0
            tables[group.id] = tables[group.id].model_copy(update={"tie": Tie(parent=parent, frac=min(frac, 0.99))})
            return
        own = 1 - group.dist
        if own >= _LEAST_SIMILARITY and (parent is None or own > similarity + _SAME_SIMILARITY):
            latents.append(Tie(parent=parent, frac=0.0 if parent is None else math.sqrt(similarity / own), blocks=16))
            parent, similarity = len(latents) - 1, own
        add(group.left, parent, similarity)
        add(group.right, parent, similarity)

    add(to_tree(linkage(squareform(distance_FF, checks=False), "average")), None, 0.0)
    return law.model_copy(update={"latents": tuple(latents), "tables": tuple(tables)})


def _apart(ids_MF: NDArray[np.int64], missing_MF: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ids, with -1 for a missing value, which thus counts as an id of its own."""
    return np.where(missing_MF, -1, ids_MF)


def _tied(law: Law, ties: Sequence[Tie]) -> Law:
    """``law`` with ``ties``: first the ties of the latent variables, then the ties of the tables."""
    num_latents = len(law.latents)
    pairs = zip(law.tables, ties[num_latents:], strict=True)
    tables = tuple(table.model_copy(update={"tie": tie}) for table, tie in pairs)
    return law.model_copy(update={"latents": tuple(ties[:num_latents]), "tables": tables})


def _with(tables: Sequence[TableLaw], number: int, own: TableLaw) -> tuple[TableLaw, ...]:
    return (*tables[:number], own, *tables[number + 1 :])


def _tie_loss(law: Law, wanted_FF: Floats, num: int) -> float:
    """Mean square difference of mutual information in ``num`` samples, plus differences in numbers of tied pairs."""
    ids_MF = _apart(*World(law, num, 0).draw_ids(0, num))
    pairs = np.triu_indices(NUM_TABLES, 1)
    found, wanted = mutual_information(ids_MF)[pairs], wanted_FF[pairs]
    counts = sum(abs(float(np.mean(found > bound) - np.mean(wanted > bound))) for bound in (0.1, 0.5))
    return float(np.mean((found - wanted) ** 2)) + 0.01 * counts


def _with_few_ids(law: Law, facts: Facts) -> Law:
    """``law`` whose tables with few ids have as many ids, and ids seen once, in the log of seed 0 as in the facts.

    One id is a large part of such a table, and samples of one law differ by more than one. For the ids that the facts
    have once or not at all, the slope of the logs of shares is multiplied by the best of ``_SLOPES``, the first of
    equally good ones.
    """
    tables = [*law.tables]
    for number, (own, its) in enumerate(zip(law.tables, facts.tables, strict=True)):
        if its.distinct >= _FEW_IDS:
            continue
        is_rare_K = np.array(own.ranks) > sum(part.ids for part in its.by_count[1:]) - (own.missing_frac > 0)
        first, logs_K = int(np.argmax(is_rare_K)) - 1, np.array(own.log_shares)
        best = math.inf
        for slope in _SLOPES if is_rare_K.any() else ():
            bent_K = np.where(is_rare_K, logs_K[first] + slope * (logs_K - logs_K[first]), logs_K)
            tried = own.model_copy(update={"log_shares": tuple(np.round(bent_K, 5).tolist())})
            other = law.model_copy(update={"tables": _with(tables, number, tried)})
            ids_MF = _apart(*World(other, facts.rows, 0).draw_ids(0, facts.rows))
            counts_N = np.unique(ids_MF[:, number], return_counts=True)[1]
            difference = abs(len(counts_N) - its.distinct) + abs(int(np.sum(counts_N == 1)) - its.by_count[0].ids)
            if difference < best:
                best, tables[number] = difference, tried
    return law.model_copy(update={"tables": tuple(tables)})


def _with_effects(law: Law, facts: Facts) -> Law:
    """``law`` with an effect per table such that the spread of click rates between ids is as in the facts."""
    judge = _EffectJudge(law, facts)
    start = np.full(NUM_TABLES, _USUAL_LOG_EFFECT)
    found = least_squares(judge.residuals, start, bounds=(-7, 1), max_nfev=_EFFECT_ROUNDS, diff_step=0.05)
    effects_F = np.exp(found.x)
    for table in judge.large:
        tried = [(judge.hottest_difference(table, effects_F), law, judge)]
        for seed in EFFECTS_SEEDS[1:]:
            if tried[-1][0] <= _HOTTEST_DIFFERENCE:
                break
            own = law.tables[table].model_copy(update={"effects_seed": seed})
            other = law.model_copy(update={"tables": _with(law.tables, table, own)})
            judge = _EffectJudge(other, facts)
            tried.append((judge.hottest_difference(table, effects_F), other, judge))
        _, law, judge = min(tried, key=itemgetter(0))
    tables = tuple(
        table.model_copy(update={"effect": round(float(effect), 4)})
        for table, effect in zip(law.tables, effects_F, strict=True)
    )
    return law.model_copy(update={"tables": tables, "bayes_auc": round(judge.bayes_auc(effects_F), 4)})


class _EffectJudge:
    """Compares the spread of click rates between ids of drawn samples with the facts."""

    def __init__(self, law: Law, facts: Facts) -> None:
        num = min(facts.rows, _EFFECT_SAMPLES)
        self._positives_frac = facts.positives_frac
        self._worlds = [World(law, num, seed) for seed in (1, 2)]
        self._effects: list[Floats] = []  # (M, F) each, of standard deviation 1
        self._dense: list[Floats] = []
        self._groups: list[list[tuple[NDArray[np.intp], Floats]]] = []
        for world in self._worlds:
            samples = world.draw(0, num)
            self._effects.append(world.unit_effects(samples))
            self._dense.append(samples.score_M)  # no table has an effect yet
            groups = [
                np.unique(ids, return_inverse=True, return_counts=True)[1:]
                for ids in _apart(samples.ids_MF, samples.ids_missing_MF).T
            ]
            self._groups.append([(place, counts.astype(np.float64)) for place, counts in groups])
        spreads = [[part.ctr_sd_between_ids for part in table.by_count[1:]] for table in facts.tables]
        self._wanted = np.array(spreads, dtype=np.float64)  # NaN where the facts have none
        bins = [table.by_count[1:] for table in facts.tables]
        self._weight = np.array([[_weight(part, facts.rows, facts.positives_frac) for part in own] for own in bins])
        self.large = np.argsort([table.distinct for table in facts.tables])[-NUM_LARGE:].tolist()
        self._num_hottest_F = [table.by_count[-1].ids for table in facts.tables]
        self._weight[self.large] = _WEIGHT_OF_LARGE
        self._hot_F = np.array([sum(part.accesses_frac for part in table.by_count[3:]) for table in facts.tables])
        self._hot_F[self.large] = 0.0  # the facts decide

    def residuals(self, log_effects_F: Floats) -> Floats:
        """The residuals of least squares for the logs of the tables' effects.

        First the weighted differences of the spreads from the facts. Then two pulls for each table: to the usual
        effect; and to 0, in proportion to the share of accesses of its hot ids (none for the large tables).
        """
        found: list[Floats] = []
        for number in range(len(self._worlds)):
            odds_M = self._odds(number, np.exp(log_effects_F))
            spreads = np.array([_spreads(odds_M, *group, _bins(group[1])) for group in self._groups[number]])
            found.append(np.nan_to_num((spreads - self._wanted) * self._weight).ravel())
        pulls = _EFFECT_PULL * (log_effects_F - _USUAL_LOG_EFFECT), _HOT_PULL * self._hot_F * np.exp(log_effects_F)
        return np.concatenate([*found, *pulls])

    def hottest_difference(self, table: int, effects_F: Floats) -> float:
        """Difference of the spread between the hottest ids of ``table`` from the facts; 0 for fewer than ``MIN_IDS``.

        The hottest ids are as many as the facts have with 1000 accesses or more.
        """
        if self._num_hottest_F[table] < MIN_IDS:
            return 0.0
        found: list[float] = []
        for number, groups in enumerate(self._groups):
            place_M, counts_N = groups[table]
            hottest = np.argsort(-counts_N, kind="stable")[: self._num_hottest_F[table]]
            found.append(_spreads(self._odds(number, effects_F), place_M, counts_N, [hottest])[0])
        return abs(float(np.mean(found)) - self._wanted[table, -1])

    def bayes_auc(self, effects_F: Floats) -> float:
        odds_M = self._odds(0, effects_F)
        return expected_auc(np.log(odds_M / (1 - odds_M)))

    def _odds(self, number: int, effects_F: Floats) -> Floats:
        score_M = self._dense[number] + self._effects[number] @ effects_F
        return 1 / (1 + np.exp(-(score_M + intercept(score_M, self._positives_frac))))


def _weight(part: CountBin, rows: int, positives_frac: float) -> float:
    """Weight of a spread: more for more accesses, less the larger its standard error; 0 if it is unknown."""
    if part.ctr_sd_between_ids is None:
        return 0.0
    error = positives_frac * (1 - positives_frac) * math.sqrt(2 * part.ids) / (part.accesses_frac * rows)
    share = math.sqrt(part.accesses_frac) * min(1.0, math.sqrt(part.ids / 30))
    return share / (1 + error / (0.04 * max(part.ctr_sd_between_ids, 0.05)))


def _bins(counts_N: Floats) -> list[NDArray[np.intp]]:
    """The positions of the ids in each group of ``COUNT_BINS`` but the first."""
    return [
        np.flatnonzero((counts_N >= first) & (counts_N <= (math.inf if last is None else last)))
        for first, last in COUNT_BINS[1:]
    ]


def _spreads(
    odds_M: Floats, place_M: NDArray[np.intp], counts_N: Floats, groups: Sequence[NDArray[np.intp]]
) -> list[float]:
    """Standard deviation of click rates between the ids of each of ``groups``; NaN for fewer than ``MIN_IDS`` ids.

    ``odds_M``: click probability of each sample. ``place_M``: position of its id. ``counts_N``: accesses of each id.
    """
    sum_N, square_N = np.bincount(place_M, odds_M), np.bincount(place_M, odds_M**2)
    found: list[float] = []
    for ids in groups:
        if len(ids) < MIN_IDS:
            found.append(math.nan)
            continue
        total = counts_N[ids].sum()
        square = (sum_N[ids] ** 2 - square_N[ids]) / (counts_N[ids] - 1)
        found.append(math.sqrt(max(square.sum() / total - (sum_N[ids].sum() / total) ** 2, 0.0)))
    return found
