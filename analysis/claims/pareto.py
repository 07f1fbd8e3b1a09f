"""What each strategy costs and loses, and which are dominated: by the rule of :func:`dominates`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.cells import Cell
from analysis.claims.arms import arms_of
from analysis.claims.measures import HOURS, LOSS, LOST, MEMORY, NODE_HOURS, WRITTEN, Measure
from analysis.claims.rows import Row
from analysis.claims.settings import means
from analysis.stats import Estimate
from analysis.style import THEMES, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSTS = (HOURS, WRITTEN, MEMORY)
_PANELS = ((HOURS, LOSS), (WRITTEN, LOST))
_PARTS = {
    "in everything": (*COSTS, LOST, LOSS),
    "in overhead and lost updates": (HOURS, LOST),
    "in overhead and AUC": (HOURS, LOSS),
}


def dominates(left: Sequence[Cell], right: Sequence[Cell], measures: Sequence[Measure]) -> bool:
    """Whether paired 95 % intervals show ``left`` below ``right`` in a measure, and above in none is possible.

    Of each measure the interval of the difference ends at 0 or below; of one at least, below 0.
    """
    ends = [_upper_end(measure.difference(left, right)) for measure in measures]
    return all(end <= 0 for end in ends) and any(end < 0 for end in ends)


def _upper_end(value: Estimate | None) -> float:
    """Infinity for one pair, which has no interval, and for none."""
    return float("inf") if value is None or value.interval is None else value.interval[1]


def pareto(cells: Sequence[Cell]) -> list[Row]:
    """A row for each strategy, with those that dominate it in all measures, and in overhead and one loss alone."""
    arms = arms_of(cells)
    done = [cell for cell in cells if cell["status"] == "done"]
    rows: list[Row] = []
    for name, own in arms.items():
        row = means(_quoted(name), own, done, (HOURS, NODE_HOURS, WRITTEN, MEMORY, LOST, LOSS))
        found = {part: _dominating(name, arms, measures) for part, measures in _PARTS.items()}
        why = [f"dominated {part} by {', '.join(map(_quoted, names))}" for part, names in found.items() if names]
        rows.append(replace(row, why="; ".join(why) or "not dominated"))
    return rows


def _quoted(name: str) -> str:
    strategy, space, options = name.partition(" ")
    return f"`{strategy}`{space}{options}"


def _dominating(name: str, arms: Mapping[str, Sequence[Cell]], measures: Sequence[Measure]) -> list[str]:
    return [other for other, own in arms.items() if other != name and dominates(own, arms[name], measures)]


def front(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
    """AUC loss against overhead, without the control; lost updates against bytes written. Dominated arms are grey.

    A line is the front of the means: no other strategy has both a lower cost and a lower loss.
    """
    done = [cell for cell in cells if cell["status"] == "done"]
    arms = arms_of(cells)
    for panel, (cost, loss) in enumerate(_PANELS):
        points: list[tuple[float, float]] = []
        for place, (name, own) in enumerate(arms.items()):
            x, y = cost.mean(own, done), loss.mean(own, done)
            if x is None or y is None or (loss is LOSS and name == "never_save"):
                continue
            points.append((x.mean, y.mean))
            is_grey = bool(_dominating(name, arms, (cost, loss)))
            axes[panel].errorbar(
                x.mean,
                y.mean,
                xerr=x.half_width,
                yerr=y.half_width,
                fmt=_MARKS[place % len(_MARKS)],
                markersize=5,
                color=THEMES["band"][0] if is_grey else colour(name.partition(" ")[0]),
                markeredgecolor=colour(name.partition(" ")[0]),
                markeredgewidth=1.2,
                label=name,
            )
        best = [p for p in sorted(points) if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
        if best:
            axes[panel].step(*zip(*best, strict=True), where="post", color=THEMES["ink"][0], linewidth=1.2, zorder=0)
        axes[panel].set_xscale("symlog", linthresh=0.1 if cost is HOURS else 10.0)
        axes[panel].set_xlabel(cost.label)
        axes[panel].set_ylabel(loss.label)
    axes[1].set_yscale("symlog", linthresh=0.1)
    axes[1].legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))


_MARKS = "osD^v<>pP*Xh8d"
