"""Figures of frames, drawn into axes. Each function is ``(frame, *, x, y, by, ax=None) -> Axes``; ``by`` has a colour.

Columns have the units of ``analysis.load``; ``LABELS`` says in which unit they are shown, and any other column is shown
as it is. A half-width of ``y`` in column ``y_half_width`` is drawn as a bar. Without ``ax`` the axes are new ones of
pyplot, with a legend below them; given axes get labels, and no legend. A missing column raises KeyError.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from analysis.figures.data import SMALL, joined, legend, look
from analysis.figures.look import INK, THEMES, log_scale, style
from analysis.load import Frame
from analysis.stats import BASELINE, dominates, natural, strategy_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS: Mapping[str, tuple[float, str]] = {
    "loss": (1e3, "AUC lost to none, 10⁻³"),
    "drop": (1e3, "AUC lost at failures, 10⁻³"),
    "auc_difference": (1e3, "AUC − AUC of none, 10⁻³"),
    "auc": (1, "AUC"),
    "overhead_frac": (100, "emulated overhead, % of job time"),
    "pls": (100, "PLS, %"),
    "update_pls": (100, "lost updates, %"),
    "payload_bytes": (1e-6, "written, MB"),
    "hour": (1, "hour of the job, without overhead"),
}
"""Factor and label of the axis of a column."""

_NEAR = 0.04  # of the figure's sides: nearer points overlap
_MOST_LINES = 30  # across a figure, one for each hour of failures; more are marks at its lower edge
_MOST_GAPS = 20  # on an axis of numbers, of the smallest gap
_WIDEST = 40  # characters of the values in one row below the axis
_APART = 0.2  # of the gap between values, in which the points of one value are moved apart


def shown_as(column: str) -> tuple[float, str]:
    """Factor and label of the axis of ``column``."""
    return LABELS.get(column, (1.0, column))


def _new_axes() -> "Axes":
    from matplotlib import pyplot as plt  # noqa: PLC0415 - half a second; where axes are given it is not needed

    with style():
        return plt.subplots(layout="constrained")[1]


def _halves(frame: Frame, y: str) -> Any:
    return frame.reindex(columns=[f"{y}_half_width"])[f"{y}_half_width"]


def front(
    frame: Frame,
    *,
    x: str = "overhead_frac",
    y: str = "loss",
    by: str = "strategy",
    ax: "Axes | None" = None,
    margin: float | None = None,
    limits: tuple[float, float] | None = None,
) -> "Axes":
    """Draw a point for each row of ``analysis.table``, and the Pareto front: no other mean has less of both x and y.

    ``none`` and rows without ``y`` are left out. Bars are 95 % intervals; marks on the front have a black edge.
    ``margin``: a dotted line, in the unit of the column. ``limits``: of the axis of y, as shown; points beyond are
    triangles at the edge with their value. A column ``on_front`` replaces the front of the rows. Points that are equal
    have one mark, with both names; a ring is around a point near others.
    """
    is_new, ax = ax is None, ax or _new_axes()
    (x_scale, x_label), (y_scale, y_label) = shown_as(x), shown_as(y)
    rows = frame[(frame[by] != BASELINE) & frame[y].notna() & frame[x].notna()]
    xs, ys = [x_scale * each for each in rows[x]], [y_scale * each for each in rows[y]]
    halves = [None if math.isnan(each) else y_scale * each for each in _halves(rows, y).astype(float)]
    places = [*zip(xs, ys, strict=True)]
    unbeaten = [not any(dominates(other, each) for other in places) for each in places]
    best = [*rows["on_front"]] if "on_front" in rows else unbeaten
    ax.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    if margin is not None:
        ax.axhline(y_scale * margin, color=THEMES["muted"][0], linewidth=1, linestyle=":", label="margin")
    edges = sorted(each for each, is_best in zip(places, best, strict=True) if is_best)
    if len(edges) > 1:
        line: dict[str, Any] = {"color": THEMES["muted"][0], "linestyle": "--", "linewidth": 1}
        ax.step(*zip(*edges, strict=True), where="post", label="Pareto front of the means", **line)
    scale: Callable[[float], float] = math.log if all(each > 0 for each in xs) else float
    width = (scale(max(xs)) - scale(min(xs)) if xs else 0.0) or 1.0
    low, high = limits or (min(ys, default=0.0), max(ys, default=1.0))
    drawn: list[tuple[float, float]] = []
    points: dict[Any, Any] = {name: point for name, *point in zip(rows[by], xs, ys, halves, best, strict=True)}
    for point, seen in joined((name, points[name]) for name in sorted(points, key=_order)):
        place = scale(point[0]) / width, point[1] / ((high - low) or 1.0)
        num_near = sum(math.dist(place, other) < _NEAR for other in drawn)
        drawn.append(place)
        _draw_point(ax, point, seen, limits or (-math.inf, math.inf), num_near)
    if limits:
        ax.set_ylim(*limits)
    ax.set_ylabel(y_label)
    ax.set_xlabel(x_label)
    if xs and min(xs) > 0:
        ax.margins(x=0.12)
        if max(xs) > 2 * min(xs):  # else the ticks of a logarithmic axis would lie on each other
            log_scale(ax, "x")
            ax.set_xlabel(f"{x_label} (log)")
        else:
            ax.locator_params(axis="x", nbins=5)  # overheads that differ in the third digit have long labels
    if is_new:
        legend(ax)
    return ax


def _order(name: Any) -> tuple[int, str]:
    return strategy_order(str(name).partition(" ")[0])


def _draw_point(
    ax: "Axes", point: Sequence[Any], seen: dict[str, Any], limits: tuple[float, float], num_near: int
) -> None:
    """Draw a point (x, y, half-width, whether it is on the front); near to ``num_near`` others it is a ring."""
    (across, up, half, is_on_front), (low, high) = point, limits
    if low <= up <= high:
        if num_near:
            seen |= {"fillstyle": "none", "markeredgewidth": 1.4}
        elif is_on_front:
            seen |= {"markeredgecolor": THEMES[INK][0], "markeredgewidth": 1.4}
        size = {"markersize": 7 + 4 * num_near, "capsize": 3 + 2 * num_near}
        ax.errorbar(across, up, yerr=half, linestyle="", **size, **seen)
        return
    edge, seen["marker"] = (high, "^") if up > high else (low, "v")
    ax.plot(across, edge, linestyle="", markersize=9, clip_on=False, **seen)
    ax.annotate(signed_text(up), (across, edge), (7, -4), textcoords="offset points", fontsize=SMALL)


def signed_text(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def against(
    frame: Frame,
    *,
    x: str,
    y: str,
    by: str = "strategy",
    ax: "Axes | None" = None,
    limits: tuple[float, float] | None = None,
    dashed: Collection[str] = (),
    has_lines: bool = True,
) -> "Axes":
    """Draw a column of ``analysis.table`` against a swept key: a line for each strategy, ``none`` left out.

    A strategy without values of the key is a dashed line across. The axis has the numbers of the key where they can be
    told apart on it, else its values at equal distances, in the order of the frame. ``limits``: of y, as shown; points
    beyond are triangles at the edge. ``dashed``: names with dashed lines. ``has_lines``: whether points are joined.
    Raises ValueError for two rows of one strategy at one value.
    """
    is_new, ax = ax is None, ax or _new_axes()
    rows = frame[frame[by] != BASELINE]
    swept = rows[rows[x].notna()]
    if (twice := swept.duplicated([by, x])).any():
        name, value = swept[twice].iloc[0][[by, x]]
        raise ValueError(f"expected one row for each {by} and {x}, got several of {name} at {value}: select a setting")
    scale, label = shown_as(y)
    values = [*swept[x].unique()]
    values = sorted(values) if all(_is_number(each) for each in values) else values
    places = dict(zip(values, _places_of(values), strict=True))
    gap = min((right - left for left, right in pairwise(places.values())), default=1.0)
    for name, own in rows[rows[x].isna()].groupby(by, sort=False):
        ax.axhline(scale * own[y].mean(), color=look(name)["color"], linestyle="--", label=f"{name} (dashed)")
    names = sorted(swept[by].unique(), key=_order)
    for number, name in enumerate(names):
        moved = _APART * gap * ((number + 0.5) / len(names) - 0.5)
        own = swept[(swept[by] == name) & swept[y].notna()]
        if own.empty:
            continue
        at = [places[value] + moved for value in own[x]]
        means, halves = ([scale * each for each in column] for column in (own[y], _halves(own, y).fillna(0.0)))
        line = "--" if name in dashed else "-" if has_lines else ""
        _draw_line(ax, at, means, halves, seen=look(name) | {"linestyle": line, "linewidth": 1.2}, limits=limits)
    ax.set_xticks([*places.values()], [text_of(value) for value in values], **_tilted(map(text_of, values)))
    ax.set_xlabel(x)
    ax.set_ylabel(label)
    if limits:
        ax.set_ylim(*limits)
    if is_new:
        legend(ax)
    return ax


def _tilted(names: Any) -> dict[str, Any]:
    """The look of the labels of ticks: tilted where they have no room side by side."""
    return {"fontsize": SMALL} | ({"rotation": 30, "ha": "right"} if sum(map(len, names)) > _WIDEST else {})


def text_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _places_of(values: Sequence[Any]) -> list[float]:
    """The place of each value on an axis: the value itself, or its index 0, 1, 2 …

    The value itself if there are at least two values, all are numbers, they ascend, and no gap is so small that two
    values look like one on the axis.
    """
    if len(values) > 1 and all(_is_number(each) for each in values):
        numbers = [float(each) for each in values]
        if numbers[-1] - numbers[0] <= _MOST_GAPS * min(right - left for left, right in pairwise(numbers)):
            return numbers
    return [float(place) for place in range(len(values))]


def _draw_line(
    ax: "Axes",
    places: Sequence[float],
    means: Sequence[float],
    halves: Sequence[float],
    *,
    seen: dict[str, Any],
    limits: tuple[float, float] | None,
) -> None:
    """Draw means with their intervals as a line; outside of ``limits`` a triangle at the edge."""
    ax.errorbar(places, means, yerr=halves, capsize=3, markersize=6, **seen)
    low, high = limits or (min(means), max(means))
    for place, mean in zip(places, means, strict=True):
        if not low <= mean <= high:
            edge, marker = (high, "^") if mean > high else (low, "v")
            ax.plot(place, edge, marker=marker, color=seen["color"], markersize=8, clip_on=False)


def over_hours(
    frame: Frame, *, x: str = "hour", y: str = "auc", by: str = "strategy", ax: "Axes | None" = None
) -> "Axes":
    """Draw curves of ``analysis.curves``: the mean over the runs of each strategy, each run faint behind it.

    ``y``: ``auc``, or ``auc_difference`` to ``none`` at the same hour. A vertical line is an hour at which ranks died;
    where there are more than 30 of them, a mark at the lower edge. Strategies with equal curves have one line.
    """
    is_new, ax = ax is None, ax or _new_axes()
    scale, label = shown_as(y)
    points = frame[frame[y].notna()]
    curves = {
        name: [dict(zip(run[x], scale * run[y], strict=True)) for _, run in own.groupby("run", sort=False)]
        for name, own in points.groupby(by, sort=False)
    }
    drawn = joined(curves.items())
    for width, (runs, seen) in zip(widths(len(drawn)), drawn, strict=True):
        for run in runs if len(runs) > 1 else ():
            ax.plot(*zip(*run.items(), strict=True), linewidth=0.6, alpha=0.3, color=seen["color"])
        shared = [at for at in runs[0] if all(at in run for run in runs)]
        means = [sum(run[at] for run in runs) / len(runs) for at in shared]
        ax.plot(shared, means, linewidth=width, color=seen["color"], label=seen["label"])
    hours = sorted({*frame.loc[frame["is_failure"] & frame[by].isin([*curves]), x]})
    for number, hour in enumerate(hours):
        top, name = (1.0, "failure") if len(hours) <= _MOST_LINES else (0.05, "failures")
        ax.axvline(hour, ymax=top, color=THEMES["muted"][0], linewidth=0.8, ls="--", label=None if number else name)
    nums = " or ".join(f"{int(num):,}" for num in sorted({*points["num_samples"]}))
    samples = f"the first {nums} test samples"
    ax.set_ylabel(f"AUC less that of none on\n{samples}, 10⁻³" if y == "auc_difference" else f"{label} on {samples}")
    ax.set_xlabel(shown_as(x)[1])
    if is_new:
        legend(ax)
    return ax


def widths(num: int) -> list[float]:
    """The widths of ``num`` curves: a later one is thinner, so that it does not hide an earlier one."""
    return [1.2 + 0.5 * (num - 1 - place) for place in range(num)]


def timeline(frame: Frame, *, x: str = "hour", y: str = "rank", by: str = "fault", ax: "Axes | None" = None) -> "Axes":
    """Draw the entries of a trace file, as ``pandas.read_csv(path, comment="#")`` reads it: a mark for each.

    Ranks are lines from top to bottom. A number of ranks that are drawn at random is a line of its own. A column
    ``by`` that the file lacks is no error.
    """
    is_new, ax = ax is None, ax or _new_axes()
    names = sorted({str(each) for each in frame[y]}, key=natural)
    kinds = frame.reindex(columns=[by])[by].astype(object).fillna("kill").astype(str)
    for number, (kind, own) in enumerate(frame.groupby(kinds, sort=False)):
        marker, hue = "x+v^sD*"[number % 7], THEMES[("never_save", "cpr_mfu", "full", "cpr_vanilla")[number % 4]][0]
        rows = [names.index(str(each)) for each in own[y]]
        ax.plot(own[x], rows, marker, color=hue, markersize=7, markeredgewidth=1.5, linestyle="", label=kind)
    every = 1 + len(names) // _MOST_LINES
    ax.set_yticks(range(0, len(names), every), [f"{each} drawn" if each.isdigit() else each for each in names[::every]])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("hour of the job")
    if is_new:
        legend(ax)
    return ax
