"""The floor of rounding: the AUC difference of runs without failures that differ only in the order of float sums."""

from dataclasses import dataclass

from analysis.load import Frame
from analysis.stats.estimates import BASELINE, relevant_to_none, setting_keys

REPLICATE_KEYS = ("trainer.backend", "trainer.num_threads")
"""Keys that change the order of sums, and nothing else."""


@dataclass(frozen=True)
class Rounding:
    """The largest difference of AUC between replicates, cells of ``none`` that differ in ``REPLICATE_KEYS`` only."""

    largest: float
    num_seeds: int


def rounding_of(references: Frame, cells: Frame, families: Frame = None) -> Rounding | None:
    """The floor of rounding for the setting of ``references`` (cells of ``none``), from replicates among ``cells``.

    ``families``: :func:`replicates` of ``cells``, if known. None if there are no replicates, or if all are equal to the
    bit, as with backend `compiled`: they tell nothing about other machines.
    """
    families = replicates(cells) if families is None else families
    keys = [*families.columns.difference(["low", "high"])]
    auc = families.merge(references[keys].drop_duplicates(), on=keys) if keys else families
    largest = float((auc["high"] - auc["low"]).max()) if len(auc) else 0.0
    return Rounding(largest, len(auc)) if largest else None


def replicates(cells: Frame) -> Frame:
    """A row for each seed and setting with several replicates: their least AUC, ``low``, and greatest, ``high``."""
    varied = [key for key in REPLICATE_KEYS if key in cells]
    keys = [key for key in relevant_to_none(setting_keys(cells)) if key not in REPLICATE_KEYS] if varied else []
    is_own = (cells["strategy"] == BASELINE) & (cells["status"] == "done") & cells["auc"].notna()
    own = cells.loc[is_own, ["seed", "auc", *keys, *varied]]
    own["variant"] = own.groupby(varied, dropna=False).ngroup() if varied else 0
    families = own.groupby(["seed", *keys], dropna=False)
    found = families["auc"].agg(low="min", high="max")[families["variant"].nunique() > 1]
    return found.reset_index(keys).reset_index(drop=True)


def rounding_text(rounding: Rounding | None) -> str:
    """The floor of rounding in one sentence."""
    if rounding is None:
        return "Floor of rounding: unknown, as there are no replicates of none with another backend or thread count."
    seeds = f"{rounding.num_seeds} seed{'' if rounding.num_seeds == 1 else 's'}"
    return (
        f"Floor of rounding: {1e3 * rounding.largest:.2f}·10⁻³, the largest difference of AUC between replicates of "
        f"none ({seeds})."
    )


def without_replicates(cells: Frame) -> Frame:
    """``cells`` without those of ``none`` whose values of ``REPLICATE_KEYS`` no other strategy ran with."""
    keys = [key for key in REPLICATE_KEYS if key in cells]
    is_other = cells["strategy"] != BASELINE
    if not keys or not is_other.any():
        return cells
    place = cells.groupby(keys, dropna=False).ngroup()
    return cells[place.isin(place[is_other])]
