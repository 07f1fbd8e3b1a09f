"""Measures of claims: numbers of finished cells, with their means, 95 % intervals and paired differences."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from analysis.load import COLUMNS, Frame
from analysis.stats import (
    BASELINE,
    DRAWN,
    Estimate,
    estimate,
    estimate_pairs,
    paired,
    relevant_to_none,
    setting_keys,
)


def results_of(given: Frame | Sequence[Mapping[str, Any]]) -> Frame:
    """The results that a judge gets: the finished cells of a frame of ``load``, or the entries of a benchmark.

    Cells are paired with ``none`` (``analysis.stats.paired``: columns ``partner``, ``loss``, ``draw``), and have the
    column ``loss_in_samples``, the fraction of the samples that would cost as much AUC. An entry is a row; values of
    its nested mappings are columns ``a.b``.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    frame: Frame = given if isinstance(given, pd.DataFrame) else pd.json_normalize([*map(dict, given)])
    if frame.empty:
        frame = frame.reindex(columns=COLUMNS)
    if "status" not in frame:
        return frame
    found = paired(frame.reindex(columns=[*dict.fromkeys((*frame, *COLUMNS))])[frame["status"] == "done"])
    return found.assign(loss_in_samples=_in_samples(found))


def _in_samples(cells: Frame) -> Any:
    """For each cell, the fraction of the samples that would cost as much AUC as it loses; NaN if unknown.

    As ``analysis.stats.sample_equivalent``; the slope of AUC over the logarithm of the samples is the mean over all
    cells of ``none`` in the same setting, of any seed and trace.
    """
    keys = relevant_to_none(key for key in setting_keys(cells) if key not in ("trace", *DRAWN))
    slopes = cells["auc_per_log_sample"].where(cells["strategy"] == BASELINE)
    slope = slopes.groupby(cells.groupby(keys, dropna=False, sort=False).ngroup()).transform("mean")
    return -np.expm1(-cells["loss"] / slope.where(slope > 0))


def matching(results: Frame, values: Mapping[str, Any]) -> Frame:
    """The results whose columns have ``values``; a list means any of its values, None an unknown value."""
    for key, value in values.items():
        column, known = results.reindex(columns=[key])[key], value if isinstance(value, list) else [value]
        results = results[column.isin([each for each in known if each is not None]) | (column.isna() & (None in known))]
    return results


@dataclass(frozen=True)
class Measure:
    """A number of each cell.

    ``label``: its name and unit. ``of``: its values for a frame of cells. ``digits``: shown after the point.
    ``reference``: a strategy. With it a value is the cell's value minus the value of the strategy's cell with the same
    seed and setting. With ``is_part`` too, a value is the percentage by which the cell's value is below the other.
    """

    label: str
    of: Callable[[Frame], Any]
    digits: int = 2
    reference: str | None = None
    is_part: bool = False

    def values(self, own: Frame, cells: Frame) -> Any:
        """The known values of ``own``, a part of ``cells``, as a float series by index label."""
        values = self.of(own).astype(float)
        if self.reference is not None:
            partner = self._partners(own, cells)
            other = self.of(cells).astype(float).reindex(partner).set_axis(partner.index)
            values = values[partner.index]
            values = 100 * (1 - values / other.where(other != 0)) if self.is_part else values - other
        return values.replace([math.inf, -math.inf], math.nan).dropna()

    def _partners(self, own: Frame, cells: Frame) -> Any:
        """The index label of the reference of each cell that has one.

        It has an equal seed, and equal or missing values of the other keys. That of ``none`` is ``partner``, since its
        result depends on fewer keys.
        """
        if self.reference == BASELINE:
            found = own["partner"].where(own["partner"].isin(cells.index))
        else:
            keys = ["seed", *setting_keys(cells)]
            left, right = (each.reindex(columns=keys) for each in (own, matching(cells, {"strategy": self.reference})))
            pairs = left.reset_index(names="own").merge(right.reset_index(names="partner"), on="seed")
            for key in keys[1:]:
                pairs = pairs[(pairs[f"{key}_x"] == pairs[f"{key}_y"]) | pairs[f"{key}_y"].isna()]
            found = pairs.groupby("own")["partner"].first().reindex(own.index)
        return found[found.notna() & (found != found.index)]

    def mean(self, own: Frame, cells: Frame) -> Estimate | None:
        """The mean over ``own``, a part of ``cells``, with an interval for new seeds and traces; None without a value.

        Cells that share a seed or a trace are not independent (``analysis.stats.estimate_pairs``).
        """
        return estimate_pairs(own[["seed", "draw"]].join(self.values(own, cells).rename("value"), how="inner"), "value")

    def difference(self, own: Frame, others: Frame, cells: Frame) -> Estimate | None:
        """The mean over ``own`` minus the mean over ``others``, paired by seed; None without a common seed.

        Where seeds have several traces, pairs are of one seed and trace, and those that share either are not
        independent. A side with one trace for each seed is paired with all of the other's.
        """
        sides = [(frame, self.values(frame, cells)) for frame in (own, others)]

        def means_by(*keys: str) -> list[Any]:
            return [
                values.groupby([values.index.map(frame[key]).rename(key) for key in keys]).agg(fmean)
                for frame, values in sides
            ]

        left, right = means_by("seed")
        left_pairs, right_pairs = means_by("seed", "draw")
        by_seed = (left - right).dropna()
        if len(right_pairs) == len(right):
            by_both = left_pairs.sub(right, level="seed")
        elif len(left_pairs) == len(left):
            by_both = right_pairs.rsub(left, level="seed")
        else:
            by_both = left_pairs - right_pairs
        by_both = by_both.dropna().rename("value").reset_index()
        is_crossed = len(by_both) > len(by_seed) and {*by_both["seed"]} == {*by_seed.index}
        return estimate_pairs(by_both, "value") if is_crossed else estimate(by_seed)


MEASURES: Mapping[str, Measure] = {
    "auc_loss": Measure("AUC lost to none, 10⁻³", lambda cells: -1e3 * cells["auc"], reference=BASELINE),
    "goodput": Measure("goodput, %", lambda cells: 100 * cells["goodput_frac"]),
    "hours_to_samples": Measure("hours to all samples", lambda cells: cells["hours_to_samples"]),
    "rpo_h": Measure("RPO, hours", lambda cells: cells["rpo_h"]),
    "rto_h": Measure("RTO, hours", lambda cells: cells["rto_h"]),
    "drop": Measure("AUC lost at failures, 10⁻³", lambda cells: 1e3 * cells["drop"]),
    "log_loss_more": Measure(
        "log loss more than none's, 10⁻³", lambda cells: 1e3 * cells["log_loss"], reference=BASELINE
    ),
    "loss_in_samples": Measure("AUC lost to none, % of the samples", lambda cells: 100 * cells["loss_in_samples"]),
    "lost": Measure("lost updates, %", lambda cells: 100 * cells["update_pls"]),
    "lost_tracked": Measure("lost updates of tracked tables, %", lambda cells: 100 * cells["update_pls_tracked"]),
    "overhead": Measure("overhead, % of the job", lambda cells: 100 * cells["overhead_frac"]),
    "pls": Measure("PLS, %", lambda cells: 100 * cells["pls"]),
    "removed": Measure(
        "overhead of `full` that is removed, %", lambda cells: cells["overhead_frac"], reference="full", is_part=True
    ),
    "saves": Measure("overhead of saves, % of the job", lambda cells: 100 * cells["save_h"] / cells["job_h"]),
}
"""The measures that a claim's file may name. A judge may make others."""
