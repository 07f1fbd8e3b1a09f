"""How AUC loss rises with the portion of lost samples (PLS)."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.claims.rows import Row, signed
from analysis.load import Cell
from analysis.stats import BASELINE, Partners, estimate

_LEAST_CELLS = 3  # of one seed, that a slope needs


def slopes(cells: Sequence[Cell]) -> list[Row]:
    done = [cell for cell in cells if cell["status"] == "done"]
    rows: list[Row] = []
    by_name: dict[str, dict[int, float]] = {}
    for name in dict.fromkeys(cell["strategy"] for cell in done if cell["strategy"] != BASELINE):
        points = points_of([cell for cell in done if cell["strategy"] == name], done)
        by_name[name] = by_seed = {seed: slope(own) for seed, own in points.items() if len(own) >= _LEAST_CELLS}
        value = estimate(by_seed.values())
        if value is None:
            continue
        every = [point for own in points.values() for point in own]
        what = f"AUC loss for each percent of lost samples, 10⁻³, `{name}`"
        why = f"correlation {_correlation(every):.2f}, residual {1e3 * _residual(every):.2f}·10⁻³; {value.num} seeds"
        paper = "–"
        if name == "cpr_vanilla":
            paper, why = "linear, correlation about 0.88 [recalled]", f"judged: that the slope is above 0; {why}"
        rows.append(replace(signed(what, paper, value, sign=1, scale=10.0, why=why), num=len(every)))
    for name in ("cpr_mfu", "cpr_ssu"):
        both = by_name.get(name, {}).keys() & by_name.get("cpr_vanilla", {}).keys()
        value = estimate([by_name[name][seed] - by_name["cpr_vanilla"][seed] for seed in sorted(both)])
        if value is not None:
            what = f"slope of `{name}` less that of `cpr_vanilla`"
            rows.append(signed(what, "lower [recalled]", value, sign=-1, scale=10.0, why="paired by seed"))
    return rows


Point = tuple[float, float]
"""PLS and AUC loss of a run."""


def points_of(own: Sequence[Cell], cells: Sequence[Cell]) -> dict[int, list[Point]]:
    """PLS and AUC loss of each run, by seed."""
    found: dict[int, list[Point]] = {}
    partners = Partners(cells)
    for cell in own:
        for pair in partners.pairs([cell], "auc"):
            found.setdefault(pair.seed, []).append((cell["pls"], -pair.difference))
    return found


def slope(points: Sequence[Point]) -> float:
    """Least squares through the origin, where nothing is lost."""
    squares = math.fsum(pls * pls for pls, _ in points)
    return math.fsum(pls * loss for pls, loss in points) / squares if squares else 0.0


def _residual(points: Sequence[Point]) -> float:
    """Root of the mean squared distance from the line of all points."""
    rate = slope(points)
    return math.sqrt(math.fsum((loss - rate * pls) ** 2 for pls, loss in points) / len(points))


def _correlation(points: Sequence[Point]) -> float:
    losses_AP = np.array(points).T
    return float(np.corrcoef(losses_AP)[0, 1]) if losses_AP.std(axis=1).all() else math.nan
