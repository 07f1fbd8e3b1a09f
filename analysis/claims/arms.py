"""Strategies as a claim's cells have them: each with those of its options that have several values."""

from collections.abc import Mapping, Sequence

from analysis.load import Cell
from analysis.stats import BASELINE, strategy_order


def arms_of(cells: Sequence[Cell]) -> Mapping[str, list[Cell]]:
    """The finished cells of all strategies but ``none`` by name, such as ``differential (bits 8)``, in tables' order.

    An option is named where it has several values within the strategy.
    """
    done = [cell for cell in cells if cell["status"] == "done" and cell["strategy"] != BASELINE]
    found: dict[str, list[Cell]] = {}
    for strategy in sorted({cell["strategy"] for cell in done}, key=strategy_order):
        own = [cell for cell in done if cell["strategy"] == strategy]
        keys = [key for key in own[0] if key.startswith("strategy.") and len({cell[key] for cell in own}) > 1]
        for cell in own:
            options = ", ".join(f"{key.removeprefix('strategy.')} {cell[key]}" for key in keys)
            found.setdefault(f"{strategy} ({options})" if options else strategy, []).append(cell)
    return found
