"""The floor of rounding: how far runs without failures differ that differ in the order of floating-point sums only."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.load import Cell
from analysis.stats.estimates import BASELINE, relevant_to_none, setting_keys

REPLICATE_KEYS = ("trainer.backend", "trainer.num_threads")
"""Keys that change the order of sums, and nothing else."""


@dataclass(frozen=True)
class Rounding:
    """The largest difference of AUC between replicates, cells of ``none`` that differ in ``REPLICATE_KEYS`` only."""

    largest: float
    num_seeds: int


def rounding_of(references: Sequence[Cell], cells: Sequence[Cell]) -> Rounding | None:
    """The floor of rounding for the setting of ``references``, from the replicates of all seeds among ``cells``.

    None if there are no replicates, or all are equal to the bit, as those of backend `compiled` are: they tell nothing
    about other machines.
    """
    keys = _fixed_keys(cells)
    settings = {tuple(cell[key] for key in keys) for cell in references}
    families = [
        family
        for (_, *values), family in _families(cells, ["seed", *keys]).items()
        if tuple(values) in settings and len({tuple(cell.get(key) for key in REPLICATE_KEYS) for cell in family}) > 1
    ]
    largest = max((_range(family) for family in families), default=0.0)
    return Rounding(largest, len(families)) if largest else None


def rounding_text(rounding: Rounding | None) -> str:
    """The floor of rounding in one sentence."""
    if rounding is None:
        return "Floor of rounding: unknown, as there are no replicates of none with another backend or thread count."
    seeds = f"{rounding.num_seeds} seed{'' if rounding.num_seeds == 1 else 's'}"
    return (
        f"Floor of rounding: {1e3 * rounding.largest:.2f}·10⁻³, the largest difference of AUC between replicates of "
        f"none ({seeds})."
    )


def without_replicates(cells: Sequence[Cell]) -> list[Cell]:
    """``cells`` without those of ``none`` whose values of ``REPLICATE_KEYS`` no other strategy ran with."""
    keys = [key for key in REPLICATE_KEYS if cells and key in cells[0]]
    in_use = {tuple(cell[key] for key in keys) for cell in cells if cell["strategy"] != BASELINE}
    if not in_use:
        return list(cells)
    return [cell for cell in cells if tuple(cell[key] for key in keys) in in_use]


def _fixed_keys(cells: Sequence[Cell]) -> list[str]:
    return [key for key in relevant_to_none(setting_keys(cells)) if key not in REPLICATE_KEYS]


def _families(cells: Sequence[Cell], keys: Sequence[str]) -> dict[tuple[object, ...], list[Cell]]:
    """The finished cells of ``none`` by their values of ``keys``."""
    families: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        if cell["strategy"] == BASELINE and cell["status"] == "done" and cell["auc"] is not None:
            families.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    return families


def _range(family: Sequence[Cell]) -> float:
    return max(abs(left["auc"] - right["auc"]) for left, right in itertools.combinations(family, 2))
