"""What each strategy costs and loses, and which are dominated: by the rule of :func:`dominates`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.claims.arms import arms_of
from analysis.claims.figures import apart, common_legend, mark, symlog
from analysis.claims.measures import HOURS, LOSS, LOST, MEMORY, NODE_HOURS, WRITTEN, Measure
from analysis.claims.rows import Row
from analysis.claims.settings import means
from analysis.figures import THEMES, colour, log_scale
from analysis.load import Cell
from analysis.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSTS = (HOURS, WRITTEN, MEMORY)
_PANELS = ((HOURS, LOSS), (WRITTEN, LOST))
_FURTHER_MARKS = "dH81"  # of further arms of a strategy
_STEP_PT = 5.0
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
    """AUC loss against overhead, without the control; lost updates against bytes written. Dominated arms are hollow.

    A line is the front of the means: no other strategy has both a lower cost and a lower loss. Arms of one cost are
    moved apart by a little.
    """
    from matplotlib.transforms import offset_copy  # noqa: PLC0415 - as matplotlib

    figure = axes[0].get_figure(root=True)
    assert figure is not None, "axes are drawn into a figure"
    figure.set_figheight(5.2)
    done = [cell for cell in cells if cell["status"] == "done"]
    arms = arms_of(cells)
    marks = _marks(arms)
    for panel, (cost, loss) in enumerate(_PANELS):
        points: dict[str, tuple[Estimate, Estimate]] = {}
        for name, own in arms.items():
            x, y = cost.mean(own, done), loss.mean(own, done)
            if x is not None and y is not None and not (loss is LOSS and name == "never_save"):
                points[name] = (x, y)
        moved_pt = _moved_pt({name: x.mean for name, (x, _) in points.items()})
        for name, (x, y) in points.items():
            hue = colour(name.partition(" ")[0])
            is_dominated = bool(_dominating(name, arms, (cost, loss)))
            axes[panel].errorbar(
                x.mean,
                y.mean,
                xerr=x.half_width,
                yerr=y.half_width,
                fmt=marks[name],
                markersize=6,
                color=hue,
                markerfacecolor="none" if is_dominated else hue,
                ecolor=hue,
                elinewidth=1,
                markeredgecolor=hue,
                markeredgewidth=1.2,
                transform=offset_copy(axes[panel].transData, figure, moved_pt[name], units="points"),
            )
            axes[panel].plot([], [], marks[name], markersize=6, color=hue, label=name)
            half_x, half_y = x.half_width or 0.0, y.half_width or 0.0  # moved marks do not count for the limits
            axes[panel].update_datalim([(x.mean - half_x, y.mean - half_y), (x.mean + half_x, y.mean + half_y)])
        axes[panel].autoscale_view()
        _front_line(axes[panel], [(x.mean, y.mean) for x, y in points.values()])
    log_scale(axes[0], "x")
    axes[0].set_xlabel(f"{HOURS.label} (log)")
    axes[0].set_ylabel(LOSS.label)
    symlog(axes[1], "x", 10, WRITTEN.label)
    symlog(axes[1], "y", 0.1, LOST.label)
    common_legend(axes, columns=3)


def _front_line(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    best = [p for p in sorted(set(points)) if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
    if best:
        line = {"color": THEMES["muted"][0], "linewidth": 4, "alpha": 0.5, "zorder": 1}
        axes.step(*zip(*best, strict=True), where="post", label="front of the means", **line)


def _marks(arms: Iterable[str]) -> dict[str, str]:
    """A marker for each arm: its strategy's, if no other arm of it has that."""
    found: dict[str, str] = {}
    for name in arms:
        own = mark(name.partition(" ")[0])
        found[name] = next((each for each in (own, *_FURTHER_MARKS) if each not in found.values()), own)
    return found


def _moved_pt(costs: Mapping[str, float]) -> dict[str, float]:
    """Points by which each arm is moved: those of equal cost, to three digits, stand side by side."""
    by_cost: dict[str, list[str]] = {}
    for name, cost in costs.items():
        by_cost.setdefault(f"{cost:.3g}", []).append(name)
    return {
        name: _STEP_PT * (len(equal) - 1) * apart(number, len(equal))
        for equal in by_cost.values()
        for number, name in enumerate(equal)
    }
