"""Figures of claims: AUC loss against lost samples, and measures by the values of a setting."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.blocks import strategy_order
from analysis.cells import Cell
from analysis.claims.measures import LOSS, OVERHEAD, Measure
from analysis.claims.settings import cells_at, values_of
from analysis.claims.slopes import points_of, slope
from analysis.stats import BASELINE
from analysis.style import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[Sequence["Axes"], Sequence[Cell]], None]
"""Draws into two axes, side by side."""


_MOST_LETTERS = 32  # of all labels of an axis, side by side


def scatter(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
    """AUC loss of each run against its PLS, and the line of each strategy; on the right of those that save."""
    done = [cell for cell in cells if cell["status"] == "done"]
    names = sorted({cell["strategy"] for cell in done} - {BASELINE}, key=strategy_order)
    for place, skipped in enumerate((set[str](), {"never_save"})):
        for name in [name for name in names if name not in skipped]:
            points = [
                each for own in points_of([c for c in done if c["strategy"] == name], done).values() for each in own
            ]
            if not points:
                continue
            pls_P, loss_P = np.array(points).T
            axes[place].plot(100 * pls_P, 1e3 * loss_P, ".", color=colour(name), alpha=0.6)
            ends = np.array([0.0, pls_P.max()])
            axes[place].plot(100 * ends, 1e3 * slope(points) * ends, color=colour(name), label=name)
        axes[place].set_xlabel("lost samples (PLS), %")
        axes[place].set_ylabel("AUC lost to none, 10⁻³")
        axes[place].legend(fontsize=7)


def sweep(key: str, what: str, measures: Sequence[Measure] = (OVERHEAD, LOSS), *, has_runs: bool = False) -> Draw:
    """Two measures of each strategy by the values of ``key``, with 95 % intervals; without the key, a dashed line.

    ``has_runs``: with each run of the first measure as a dot.
    """

    def draw(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
        for number, measure in enumerate(measures):
            draw_sweep(axes[number], cells, key, what, measure, has_runs=has_runs and number == 0)

    return draw


def draw_sweep(
    axes: "Axes", cells: Sequence[Cell], key: str, what: str, measure: Measure, *, has_runs: bool = False
) -> None:
    """A measure of each strategy by the values of ``key``: one panel of :func:`sweep`."""
    done = [cell for cell in cells if cell["status"] == "done"]
    values = values_of(done, key)
    names = {cell["strategy"] for cell in done} - {BASELINE}
    for place, name in enumerate(sorted(names, key=strategy_order)):
        if (reference := measure.mean(cells_at(done, name, key, None), done)) is not None:
            axes.axhline(reference.mean, color=colour(name), linestyle="--", label=f"{name} (mean)")
        estimates = [measure.mean(cells_at(done, name, key, value), done) for value in values]
        shown = [(x + 0.06 * place, each) for x, each in enumerate(estimates) if each is not None]
        if not shown:
            continue
        axes.errorbar(
            [x for x, _ in shown],
            [each.mean for _, each in shown],
            yerr=[each.half_width or 0.0 for _, each in shown],
            color=colour(name),
            label=name,
            marker="o",
            capsize=3,
        )
        for x, value in enumerate(values if has_runs else ()):
            runs = [*measure.by_seed(cells_at(done, name, key, value), done).values()]
            axes.plot([x + 0.06 * place + 0.03] * len(runs), runs, ".", color=colour(name), alpha=0.4)
    labels = [str(value) for value in values]
    turn = 20 if sum(map(len, labels)) > _MOST_LETTERS else 0
    axes.set_xticks(range(len(values)), labels, rotation=turn)
    axes.set_xlabel(what)
    axes.set_ylabel(measure.label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def dots(places: Callable[[Cell], Any], measures: Sequence[Measure], *, log: Sequence[int] = ()) -> Draw:
    """Two measures, a line of dots for each of ``places``, a colour for each strategy.

    ``log``: the panels with an axis that begins at 0, is linear up to 0.1 and logarithmic from there on.
    """

    def draw(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
        done = [cell for cell in cells if cell["status"] == "done"]
        shown = [cell for cell in done if cell["strategy"] != BASELINE]
        names = sorted({cell["strategy"] for cell in shown}, key=strategy_order)
        lines = sorted(set(map(places, shown)), key=lambda line: strategy_order(str(line)))
        for panel, measure in enumerate(measures):
            for name in names:
                own = [[c for c in shown if (c["strategy"], places(c)) == (name, line)] for line in lines]
                found = [(y, measure.mean(cells_of_line, done)) for y, cells_of_line in enumerate(own)]
                offset = 0.0 if len(lines) == len(names) else 0.7 * (names.index(name) / max(1, len(names) - 1) - 0.5)
                known = [(y + offset, value) for y, value in found if value is not None]
                axes[panel].errorbar(
                    [value.mean for _, value in known],
                    [y for y, _ in known],
                    xerr=[value.half_width or 0.0 for _, value in known],
                    fmt="o",
                    markersize=4,
                    color=colour(name),
                    label=name,
                )
            axes[panel].set_yticks(range(len(lines)), [str(line) for line in lines] if panel == 0 else [])
            axes[panel].invert_yaxis()
            axes[panel].set_xlabel(measure.label)
            if panel in log:
                axes[panel].set_xscale("symlog", linthresh=0.1)
                axes[panel].set_xlim(-0.02, 1.5 * axes[panel].get_xlim()[1])  # dots at both ends are whole
        if len(lines) != len(names):
            axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))

    return draw
