"""The cell that each cell is compared with; cells that are compared with nothing, and why."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from analysis.load import Cell
from analysis.stats.estimates import BASELINE, DRAWN, Pair, relevant_to_none, setting_keys


class Partners:
    """Finds of each cell its reference among ``cells``: the finished one of strategy ``baseline`` with equal seed and
    setting.

    The result of strategy ``none``, which has no failures and no saves, does not depend on the engine, the trace, the
    profile, or a key of strategy, trace, profile or store. If ``none`` did not run under the same setting, a cell of
    ``none`` that differs only in these is the partner. Candidates that differ in their AUC leave none.
    """

    def __init__(self, cells: Sequence[Cell], baseline: str = BASELINE) -> None:
        keys = setting_keys(cells)
        self._indexes: list[tuple[list[str], dict[tuple[Any, ...], list[Cell]]]] = [(keys, {})]
        if baseline == BASELINE:
            self._indexes.append((relevant_to_none(keys), {}))
        for cell in cells:
            if (cell["strategy"], cell["status"]) == (baseline, "done"):
                for index_keys, index in self._indexes:
                    index.setdefault(_place(cell, index_keys), []).append(cell)

    def of(self, cell: Cell) -> Cell | None:
        """The partner of ``cell``; None if there is none."""
        for keys, index in self._indexes:
            if matches := index.get(_place(cell, keys)):
                return matches[0] if len({other["auc"] for other in matches}) == 1 else None
        return None

    def pairs(self, group: Iterable[Cell], column: str) -> list[Pair]:
        """``column`` of each cell of ``group`` minus that of its partner; left out where either is unknown."""
        partners = [(cell, self.of(cell)) for cell in group]
        return [
            Pair(cell["seed"], tuple(cell.get(key) for key in ("trace", *DRAWN)), cell[column] - partner[column])
            for cell, partner in partners
            if partner is not None and cell[column] is not None and partner[column] is not None
        ]


def _place(cell: Cell, keys: Sequence[str]) -> tuple[Any, ...]:
    return cell["seed"], *(cell[key] for key in keys)


def pairs_of(group: Iterable[Cell], cells: Sequence[Cell], column: str, baseline: str = BASELINE) -> list[Pair]:
    """As :meth:`Partners.pairs`, of partners among ``cells``."""
    return Partners(cells, baseline).pairs(group, column)


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
