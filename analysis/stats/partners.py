"""Pairing of cells: the reference cell that each cell is compared with, and why some cells have none.

Replicates are cells of ``none`` of one seed and setting that differ in ``REPLICATE_KEYS`` only. Their results differ by
the rounding of sums alone.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from analysis.load import Frame
from analysis.stats.estimates import (
    AUC,
    BASELINE,
    MEASURES,
    Estimate,
    Measure,
    draws,
    estimate_pairs,
    relevant_to_none,
    setting_keys,
)

REPLICATE_KEYS = ("trainer.backend", "trainer.num_threads")
"""Keys that change nothing but the order of sums."""


@dataclass(frozen=True)
class Rounding:
    """Standard deviation of a run's result by the rounding of sums alone, pooled over seeds with replicates."""

    deviation: float
    num_seeds: int
    degrees: int
    """Degrees of freedom of the deviation."""

    def error_of(self, pairs: Frame) -> float:
        """The standard error that rounding alone gives the mean difference of ``pairs`` (columns ``seed``, ``draw``).

        Both runs of a pair are rounded; pairs of one seed share the run without failures.
        """
        of_seeds = pairs.drop_duplicates(["seed", "draw"])["seed"].value_counts()
        num = int(of_seeds.sum())
        return self.deviation * math.sqrt(1 / num + float((of_seeds**2).sum()) / num**2)


def estimate_rounded(pairs: Frame, column: str, rounding: Rounding | None) -> Estimate | None:
    """The mean of paired differences (:func:`estimate_pairs`), with an interval that is never narrower than rounding's.

    Differences that are all 0 are those of equal runs, which rounding does not tell apart.
    """
    value = estimate_pairs(pairs, column)
    if value is None or rounding is None or not pairs[column].any():
        return value
    return value.at_least(rounding.error_of(pairs), rounding.degrees)


def paired(cells: Frame, measure: Measure = AUC) -> Frame:
    """``cells`` with the columns ``partner``, ``auc_difference``, ``loss``, ``group_losses`` and ``draw``.

    ``partner``: index label of the finished cell of strategy ``none`` with equal seed and setting.
    ``auc_difference``: AUC minus the partner's AUC. ``loss``: difference of ``measure`` to the partner, positive is
    worse. ``group_losses``: array of the losses of AUC in the parts of the test set, or None. ``draw``: a number that
    is equal for cells of the same trace (and ``trace.seed``). Missing is NaN or NA.

    The result of strategy ``none``, which has no failures and no saves, does not depend on the engine, the trace, the
    profile, or a key of strategy, metrics, trace, profile or store. If ``none`` did not run under the same setting, a
    cell of ``none`` that differs only in these is the partner. If candidates differ in their AUC, there is no partner.

    In the difference of AUC to ``none``, the mean of a partner's replicates replaces the partner's own AUC. A cell
    whose AUC equals its partner's to the bit is an exception: it has the same rounding, so its difference is 0. Other
    measures keep the partner's own value, whose rounding they share (docs/log/statistics.md).
    """
    keys = setting_keys(cells)
    bases = cells[(cells["strategy"] == BASELINE) & (cells["status"] == "done")]
    found = None
    for own in (relevant_to_none(keys), keys):  # the last one that is met counts
        place = cells.groupby(["seed", *own], dropna=False, sort=False).ngroup()
        matches = bases["auc"].groupby(place[bases.index])
        partner = bases.index.to_series().groupby(place[bases.index]).first().astype("Int64")
        of_place = place.map(partner.where(matches.nunique(dropna=False) == 1)).astype("Int64")
        found = of_place if found is None else of_place.where(place.isin(partner.index), found)
    assert found is not None
    difference = {column: _difference(cells, found, bases, column) for column in {"auc", measure.name}}
    return cells.assign(
        partner=found,
        auc_difference=difference["auc"],
        loss=measure.sign * difference[measure.name],
        group_losses=_group_losses(cells, found, bases),
        draw=draws(cells),
    )


def _difference(cells: Frame, partner: Frame, bases: Frame, column: str) -> Frame:
    base = partner.map(bases[column]).astype(float)
    if column in MEASURES and MEASURES[column].in_hours:
        base *= cells["job_h"] / partner.map(bases["job_h"]).astype(float)  # without overhead, in a job of these hours
    if column == "auc":
        means = replicates(bases)["auc"].groupby(level=0).mean()
        mean = partner.map(_families(bases).map(means)).astype(float)
        base = base.where((cells[column] == base) | mean.isna(), mean)
    return cells[column] - base


def _group_losses(cells: Frame, partner: Frame, bases: Frame) -> Frame:
    """For each cell, an array of the partner's AUC less its own in each part of the test set; None if unknown."""
    known = bases["group_aucs"].to_dict() if "group_aucs" in cells else {}
    own = cells["group_aucs"] if known else cells["auc"]
    return [
        np.subtract(base, groups) if isinstance(base := known.get(label), list) and isinstance(groups, list) else None
        for label, groups in zip(partner.fillna(-1), own, strict=True)
    ]


def replicates(cells: Frame, column: str = "auc") -> Frame:
    """The different results (``column``) of replicates among ``cells``, and their ``seed``.

    Replicates of each other have the same number in the index. Replicates with equal results, such as runs of the
    backend `compiled` with other numbers of threads, count once. A cell without another result is left out.
    """
    is_own = (cells["strategy"] == BASELINE) & (cells["status"] == "done") & cells[column].notna()
    own = cells.loc[is_own, ["seed", column]].assign(family=_families(cells)[is_own])
    own = own.drop_duplicates(["family", column])
    return own[own["family"].duplicated(keep=False)].set_index("family")


def _families(cells: Frame) -> Frame:
    """A number for each cell; cells of ``none`` with the same number are replicates of each other."""
    keys = [key for key in relevant_to_none(setting_keys(cells)) if key not in REPLICATE_KEYS]
    return cells.groupby(["seed", *keys], dropna=False, sort=False).ngroup()


def rounding_of(references: Frame, cells: Frame, measure: Measure = AUC) -> Rounding | None:
    """The effect of rounding on the cells of ``none`` in ``references``, by their replicates among ``cells``.

    None if they have no replicates with other results.
    """
    found = replicates(cells, measure.name)[measure.name]
    own = found[found.index.isin(_families(cells)[references.index])].groupby(level=0)
    if not (degrees := int((own.size() - 1).sum())):
        return None
    squares = float((own.var(ddof=0) * own.size()).sum())
    return Rounding(math.sqrt(squares / degrees), own.ngroups, degrees)


def rounding_text(rounding: Rounding, measure: Measure = AUC) -> str:
    """The effect of rounding in one sentence."""
    seeds = f"{rounding.num_seeds} seed{'' if rounding.num_seeds == 1 else 's'}"
    mean = " Their mean is the baseline of such a seed." if measure is AUC else ""
    return (
        f"Rounding: alone it moves the {measure.title} of a run by a standard deviation of "
        f"{1e3 * rounding.deviation:.2f}·10⁻³, from replicates of none ({seeds}).{mean}"
    )


def without_replicates(cells: Frame) -> Frame:
    """``cells`` without cells of ``none`` whose values of ``REPLICATE_KEYS`` no cell of another strategy has."""
    keys = [key for key in REPLICATE_KEYS if key in cells]
    is_other = cells["strategy"] != BASELINE
    if not keys or not is_other.any():
        return cells
    place = cells.groupby(keys, dropna=False).ngroup()
    return cells[place.isin(place[is_other])]


def reasons(unpaired: Frame, cells: Frame) -> Iterator[tuple[int, str]]:
    """(seed, why it has no difference to a cell of strategy ``none`` among ``cells``) for each cell of ``unpaired``."""
    if unpaired.empty:
        return
    states = {seed: {*own} for seed, own in cells[cells["strategy"] == BASELINE].groupby("seed")["status"]}
    for seed, auc in zip(unpaired["seed"], unpaired["auc"].isna(), strict=True):
        if auc:
            yield seed, "its own AUC is unknown"
        elif seed not in states:
            yield seed, f"{BASELINE} has no result"
        elif others := sorted(states[seed] - {"done", "copy"}):
            yield seed, f"{BASELINE} has no result ({', '.join(others)})"
        else:
            yield seed, f"{BASELINE} has no result, or several, of the same setting"


def seeds_text(seeds: Iterable[int]) -> str:
    """The different seeds as text: ``seed 3``, or ``seeds 0–2, 5``."""
    ordered = sorted(set(seeds))
    runs = [[seed for _, seed in run] for _, run in groupby(enumerate(ordered), key=lambda item: item[1] - item[0])]
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"seed{'' if len(ordered) == 1 else 's'} {text}"


def cells_text(cells: Frame) -> str:
    """The strategies and seeds of cells as text: ``full seeds 0–2, partial seed 1``."""
    groups = cells.groupby("strategy", sort=False)["seed"]
    return ", ".join(f"{strategy} {seeds_text(own)}" for strategy, own in groups)
