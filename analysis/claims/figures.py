"""Figures of claims: AUC loss against lost samples, and what a sweep of one setting costs and loses."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.blocks import strategy_order
from analysis.cells import Cell
from analysis.claims.settings import natural
from analysis.claims.slopes import points_of, slope
from analysis.stats import BASELINE, estimate, estimate_pairs, pairs_of
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


def sweep(key: str, what: str) -> Draw:
    """Overhead and AUC loss of each strategy by the values of ``key``, with 95 % intervals."""

    def draw(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
        done = [cell for cell in cells if cell["status"] == "done"]
        values = sorted({cell[key] for cell in done if cell[key] is not None}, key=natural)
        names = {cell["strategy"] for cell in done if cell[key] is not None} - {BASELINE}
        for place, name in enumerate(sorted(names, key=strategy_order)):
            for panel, measure in enumerate((_overhead, _loss)):
                estimates = [measure(done, name, key, value) for value in values]
                shown = [(x + 0.06 * place, each) for x, each in enumerate(estimates) if each is not None]
                if shown:
                    bars = [each.half_width or 0.0 for _, each in shown]
                    axes[panel].errorbar(
                        [x for x, _ in shown],
                        [each.mean for _, each in shown],
                        yerr=bars,
                        color=colour(name),
                        label=name,
                        marker="o",
                        capsize=3,
                    )
        for panel, label in enumerate(("overhead, % of the job", "AUC lost to none, 10⁻³")):
            axes[panel].set_xticks(range(len(values)), [str(value) for value in values])
            axes[panel].set_xlabel(what)
            axes[panel].set_ylabel(label)
            if axes[panel].get_legend_handles_labels()[0]:
                axes[panel].legend(fontsize=7)

    return draw


def _overhead(cells: Sequence[Cell], name: str, key: str, value: Any) -> Any:
    return estimate(100 * c["overhead_frac"] for c in cells if (c["strategy"], c[key]) == (name, value))


def _loss(cells: Sequence[Cell], name: str, key: str, value: Any) -> Any:
    own = [cell for cell in cells if (cell["strategy"], cell[key]) == (name, value)]
    pairs = pairs_of(own, cells, "auc")
    return estimate_pairs([type(pair)(pair.seed, pair.trace, -1e3 * pair.difference) for pair in pairs])
