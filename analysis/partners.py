"""Cells that are compared with nothing: which ones, and why, in one line each."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from analysis.cells import Cell
from analysis.stats import BASELINE

if TYPE_CHECKING:
    from analysis.blocks import Block, Line


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


def partner_notes(blocks: Sequence["Block"]) -> list[str]:
    """A line for each strategy of which not every cell has a partner of strategy ``none``."""
    lines = [(block, line) for block in blocks for line in block.lines if line.unpaired and line.strategy != BASELINE]
    if lines and not any(line.strategy == BASELINE for block in blocks for line in block.lines):
        return [f"ΔAUC is unknown: there is no finished cell of {BASELINE}."]
    return [_note(block.title if len(blocks) > 1 else "", line) for block, line in lines]


def _note(title: str, line: "Line") -> str:
    where, num = f"{title}: " if title else "", len(line.cells)
    reasons: dict[str, list[int]] = {}
    for seed, why in line.unpaired:
        reasons.setdefault(why, []).append(seed)
    parts = "; ".join(f"{why} for {seeds_text(seeds)}" for why, seeds in reasons.items())
    kept = f"is over {num - len(line.unpaired)} of {num} cells" if len(line.unpaired) < num else "is unknown"
    return f"{where}ΔAUC of {line.label} {kept}: {parts}."


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
