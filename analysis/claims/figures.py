"""Figures of claims: AUC loss against lost samples, and measures by the values of a setting."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.blocks import strategy_order
from analysis.cells import Cell
from analysis.claims.settings import MEASURES, Measure, measured, values_by_seed, values_of
from analysis.claims.slopes import points_of, slope
from analysis.stats import BASELINE
from analysis.style import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[Sequence["Axes"], Sequence[Cell]], None]
"""Draws into two axes, side by side."""


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


def sweep(
    key: str, what: str, shows: tuple[Measure, Measure] = ("overhead", "loss"), *, has_runs: bool = False
) -> Draw:
    """Two measures of each strategy by the values of ``key``, with 95 % intervals; without the key, a dashed line.

    ``has_runs``: with each run of the first measure as a dot.
    """

    def draw(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
        for number, measure in enumerate(shows):
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
        if (reference := measured(done, name, key, None, measure)) is not None:
            axes.axhline(reference.mean, color=colour(name), linestyle="--", label=f"{name} (mean)")
        estimates = [measured(done, name, key, value, measure) for value in values]
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
            runs = values_by_seed(done, name, measure, key, value).values()
            dots = [MEASURES[measure][1] * each for each in runs]
            axes.plot([x + 0.06 * place + 0.03] * len(dots), dots, ".", color=colour(name), alpha=0.4)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlabel(what)
    axes.set_ylabel("AUC lost to none, 10⁻³" if measure == "loss" else MEASURES[measure][0])
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
