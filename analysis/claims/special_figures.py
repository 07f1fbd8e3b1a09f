"""Figures that a claim's keys cannot describe: a Pareto front, curves after a failure, numbers of pairs, jobs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.claims.figures import LETTERS, Panel, apart, common_legend, draw_panel, mark, symlog
from analysis.claims.measures import HOURS, LOSS, LOST, WRITTEN, matching
from analysis.claims.own import PAIRED_STRATEGY, arms_of, dominating, spreads, table_of
from analysis.claims.papers import healings, hour_of
from analysis.figures import INK, THEMES, colour, log_scale, whole_ticks
from analysis.load import Frame
from analysis.stats import Estimate, estimate, pairs_for_power, pairs_for_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = THEMES[INK][0]
_LINES = ("-", "--", "-.")  # of a strategy, or of a length of jobs
_HUES = ("full", "never_save", "cpr_mfu", "other")  # of an hour: colours that the page knows
_PANELS = ((HOURS, LOSS), (WRITTEN, LOST))
_FURTHER_MARKS = "dH81"  # of further arms of a strategy
_STEP_PT = 5.0


def front(axes: Sequence["Axes"], cells: Frame) -> None:
    """Draw two panels: AUC loss against overhead (without never_save), and lost updates against bytes written.

    Marks of dominated arms (``own.arms_of``, ``own.dominating``) are hollow. The line is the Pareto front of the means.
    Marks of equal cost are drawn beside each other.
    """
    from matplotlib.transforms import offset_copy  # noqa: PLC0415 - as matplotlib

    figure = axes[0].get_figure(root=True)
    assert figure is not None, "axes are drawn into a figure"
    figure.set_figheight(5.2)
    arms = arms_of(cells)
    marks = _marks(arms)
    for panel, (cost, loss) in enumerate(_PANELS):
        points: dict[str, tuple[Estimate, Estimate]] = {}
        for name, own in arms.items():
            x, y = (measure.mean(own, cells) for measure in (cost, loss))
            if x is not None and y is not None and not (loss is LOSS and name == "never_save"):
                points[name] = (x, y)
        dominated = dominating(arms, (cost, loss))
        moved_pt = _moved_pt({name: x.mean for name, (x, _) in points.items()})
        for name, (x, y) in points.items():
            hue = colour(name.partition(" ")[0])
            axes[panel].errorbar(
                x.mean,
                y.mean,
                xerr=x.half_width,
                yerr=y.half_width,
                fmt=marks[name],
                markersize=6,
                color=hue,
                markerfacecolor="none" if dominated[name] else hue,
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
    """A marker for each arm: its strategy's, or another one if an earlier arm has that."""
    found: dict[str, str] = {}
    for name in arms:
        own = mark(name.partition(" ")[0])
        found[name] = next((each for each in (own, *_FURTHER_MARKS) if each not in found.values()), own)
    return found


def _moved_pt(costs: Mapping[str, float]) -> dict[str, float]:
    """By how many points to move each arm's mark, so that marks of equal cost (to three digits) are side by side."""
    by_cost: dict[str, list[str]] = {}
    for name, cost in costs.items():
        by_cost.setdefault(f"{cost:.3g}", []).append(name)
    return {
        name: _STEP_PT * (len(equal) - 1) * apart(number, len(equal))
        for equal in by_cost.values()
        for number, name in enumerate(equal)
    }


def hours(axes: Sequence["Axes"], cells: Frame) -> None:
    """Draw two panels: the final AUC loss by hour of the failure, and the AUC loss by hours since the failure."""
    panel = Panel(x="trace.law", label="hour of the failure", y=["auc_loss"], scale="linear")
    draw_panel(axes[0], panel, cells)
    _legend_above(axes[0])
    found = [each for each in healings(cells) if len(each.hours_T) > 1]
    names = [*dict.fromkeys(each.strategy for each in found)]
    laws = [*dict.fromkeys(each.law for each in found)]
    for each in found:
        estimates = [estimate(losses_S) for losses_S in 1e3 * each.losses_ST.T]
        means_T = np.array([point.mean for point in estimates if point is not None])
        widths_T = np.array([point.half_width or 0.0 for point in estimates if point is not None])
        line, hue = _LINES[names.index(each.strategy) % 2], colour(_HUES[laws.index(each.law) % len(_HUES)])
        label = f"{each.strategy}, hour {hour_of(each.law)}"
        axes[1].plot(each.hours_T, means_T, line, color=hue, label=label)
        axes[1].fill_between(each.hours_T, means_T - widths_T, means_T + widths_T, color=hue, alpha=0.15, linewidth=0)
    axes[1].set_xlabel("hours of training since the failure")
    axes[1].set_ylabel(LOSS.label)
    _legend_above(axes[1])


def _legend_above(axes: "Axes") -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, fontsize=LETTERS, frameon=False)


def planning(axes: Sequence["Axes"], cells: Frame) -> None:
    """Draw two panels: the AUC loss of each pair by trace, and the number of pairs needed by difference to be shown.

    Draws nothing unless every pair has run.
    """
    table_ST = table_of(cells)
    if table_ST is None:
        return
    num_seeds, num_traces = table_ST.shape
    places = np.broadcast_to(np.arange(num_traces), (num_seeds, num_traces))
    axes[0].plot(places.T, -1e3 * table_ST.T, ".", color=colour(PAIRED_STRATEGY), alpha=0.6)
    axes[0].plot(-1e3 * table_ST.mean(axis=0), "_", color=_INK, markersize=14)
    whole_ticks(axes[0].xaxis)
    axes[0].set_xlabel("draw of the failures")
    axes[0].set_ylabel("AUC lost to none, 10⁻³")
    spread = spreads(table_ST)[3]
    wanted = np.geomspace(5e-5, 2e-3, 40)
    lines = {"half-width of the interval": (pairs_for_width, "-"), "80 % power": (pairs_for_power, "--")}
    for name, (number, line) in lines.items():
        axes[1].plot(1e3 * wanted, [number(spread, each) for each in wanted], line, color=_INK, label=name)
    for name in ("x", "y"):
        log_scale(axes[1], name)
    axes[1].set_xlabel("difference of AUC, 10⁻³ (log)")
    axes[1].set_ylabel("pairs of seed and trace (log)")
    common_legend(axes)


def draw_production(axes: Sequence["Axes"], results: Frame) -> None:
    """Draw two panels: the distribution of overhead over jobs, and full recovery's P90 against the spread of costs."""
    drawn = results[results["what"] == "population"]
    for length_h, line in zip(drawn["length_h"].unique(), _LINES, strict=False):
        for name in drawn["strategy"].unique():
            own = matching(drawn, {"length_h": length_h, "strategy": name})
            over_J = np.sort(100 * np.concatenate([*own["overheads"]]))
            label = f"{name}, jobs of {length_h:g} h"
            axes[0].plot(
                over_J, 100 * np.arange(1, len(over_J) + 1) / len(over_J), line, color=colour(name), label=label
            )
    symlog(axes[0], "x", 1, "overhead, % of the job")
    axes[0].set_xlim(0, 200)
    axes[0].plot([30], [90], "x", color=_INK, markeredgewidth=2, linestyle="none", label="published P90", zorder=3)
    axes[0].set_ylabel("jobs with at most this overhead, %")
    for length_h, line in zip(results["length_h"].unique(), _LINES, strict=False):
        own = matching(results, {"what": "search", "length_h": length_h})
        look: dict[str, Any] = {"color": colour("full"), "label": f"full, jobs of {length_h:g} h"}
        axes[1].plot(own["sigma"], 100 * own["p90"], f"o{line}", **look)
        if len(own):
            best = own.loc[own["p90"].idxmax()]
            ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": _INK, "linestyle": "none"}
            axes[1].plot([best["sigma"]], [100 * best["p90"]], "o", **ring)
    axes[1].axhline(30, color=_INK, linestyle=":", label="published P90: over 30 %")
    axes[1].set_xlabel("sigma, spread of the costs over jobs")
    axes[1].set_ylabel("P90 of the overhead, % of the job")
    common_legend(axes, columns=4)
