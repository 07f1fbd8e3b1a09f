"""Judge and figure of claim `pls`: whether AUC loss is linear in PLS, and whose slope is lower."""

import math
from typing import Any

import numpy as np

from analysis.claims import MEASURES, Row, signed, within
from analysis.figures import look
from analysis.stats import DEFAULT_MARGIN, estimate

_LEAST_CELLS = 3  # of one seed
_VANILLA, _PRIORITY = "cpr_vanilla", ("cpr_mfu", "cpr_ssu")


def judge(cells: Any) -> list[Row]:
    """Rows: the departure of ``cpr_vanilla`` from a line, and the slopes of priority saves less its slope."""
    points = {name: _points(cells, name) for name in (_VANILLA, *_PRIORITY)}
    seeds = {name: [*own.groupby("seed")] for name, own in points.items()}
    enough = {name: {seed: own for seed, own in each if len(own) >= _LEAST_CELLS} for name, each in seeds.items()}
    most = max(points[_VANILLA]["x"], default=0.0)
    bends = [_bend(own, most) for own in enough[_VANILLA].values()]
    slopes = {name: {seed: _slope(own) for seed, own in each.items()} for name, each in enough.items()}
    tolerance = 1e3 * DEFAULT_MARGIN
    row = within(
        f"`{_VANILLA}`: AUC loss at half of the greatest PLS less half of that at the greatest, 10⁻³",
        "0, as of a line; correlation about 0.88 [recalled]",
        estimate(bends),
        -tolerance,
        tolerance,
        why=f"greatest PLS {most:.1f} %; correlation {_correlation(points[_VANILLA]):.2f}",
    )
    rows = [row]
    for name in _PRIORITY:
        both = sorted(slopes[name].keys() & slopes[_VANILLA].keys())
        value = estimate([slopes[name][seed] - slopes[_VANILLA][seed] for seed in both])
        what = f"slope of `{name}` less that of `{_VANILLA}`, 10⁻³ of AUC for each % of PLS"
        rows.append(signed(what, "lower [recalled]", value, sign=-1, why="paired by seed"))
    return rows


def _points(cells: Any, strategy: str) -> Any:
    """PLS in % (``x``) and AUC loss in 10⁻³ (``y``) of each run of a strategy, and its seed."""
    own = cells[cells["strategy"] == strategy]
    return own.assign(x=100 * own["pls"], y=MEASURES["auc_loss"].values(own, cells))[["x", "y", "seed"]].dropna()


def _slope(points: Any) -> float:
    """The least-squares slope through the origin, since no lost samples mean no loss."""
    squares = math.fsum(points["x"] ** 2)
    return math.fsum(points["x"] * points["y"]) / squares if squares else 0.0


def _bend(points: Any, most: float) -> float:
    """The loss at half of ``most`` less half of the loss at ``most``, by the parabola a x + b x² of least squares.

    It is -b most² / 4: 0 for a line, above 0 where the loss flattens.
    """
    x_P = points["x"].to_numpy()
    (_, curvature), *_ = np.linalg.lstsq(np.stack([x_P, x_P**2], axis=1), points["y"].to_numpy())
    return -float(curvature) * most**2 / 4


def _correlation(points: Any) -> float:
    both = points[["x", "y"]].to_numpy().T
    return float(np.corrcoef(both)[0, 1]) if len(points) > 1 and both.std(axis=1).all() else math.nan


def draw(cells: Any, ax: Any) -> None:
    """A point for each run, and the line through the origin of each strategy."""
    for name in (_VANILLA, *_PRIORITY):
        points = _points(cells, name)
        if len(points):
            ends = [0.0, max(points["x"])]
            ax.plot(points["x"], points["y"], linestyle="", markersize=4, alpha=0.7, **look(name))
            ax.plot(ends, [_slope(points) * end for end in ends], color=look(name)["color"])
    ax.set_xlabel("PLS, %")
    ax.set_ylabel("AUC lost to none, 10⁻³")
