"""Cells that are compared with nothing: which ones, and why."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from analysis.cells import Cell
from analysis.stats import BASELINE


def reason(cell: Cell, cells: Sequence[Cell], baseline: str = BASELINE) -> str:
    """Why a finished cell has no difference to ``baseline`` among ``cells``, finished or not; without the seed."""
    if cell["auc"] is None:
        return "its own AUC is unknown"
    same_seed = [other for other in cells if (other["strategy"], other["seed"]) == (baseline, cell["seed"])]
    if not same_seed:
        return f"{baseline} has no result"
    if states := sorted({other["status"] for other in same_seed} - {"done", "copy"}):
        return f"{baseline} has no result ({', '.join(states)})"
    return f"{baseline} has no result, or several, of the same setting"


def seeds_text(seeds: Iterable[int]) -> str:
    """``seed 3``, or ``seeds 0–2, 5``."""
    ordered = sorted(set(seeds))
    runs = [[seed for _, seed in run] for _, run in groupby(enumerate(ordered), key=lambda item: item[1] - item[0])]
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"seed{'' if len(ordered) == 1 else 's'} {text}"


def cells_text(cells: Iterable[Cell]) -> str:
    """Cells by strategy: ``full seeds 0–2, partial seed 1``."""
    seeds: dict[str, list[int]] = {}
    for cell in cells:
        seeds.setdefault(cell["strategy"], []).append(cell["seed"])
    return ", ".join(f"{strategy} {seeds_text(own)}" for strategy, own in seeds.items())
