"""Figures of claims: AUC loss against lost samples, and measures by the values of a setting."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from analysis.claims.measures import LOSS, OVERHEAD, Measure
from analysis.claims.settings import cells_at, values_of
from analysis.claims.slopes import points_of, slope
from analysis.figures import THEMES, colour
from analysis.load import Cell
from analysis.stats import BASELINE, STRATEGIES, strategy_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[Sequence["Axes"], Sequence[Cell]], None]
"""Draws into two axes, side by side."""

Scale = Literal["category", "linear", "log"]
"""Where the values of a setting stand on an axis: side by side, or where their numbers belong."""

LETTERS = 9
"""Size of the letters of legends and labels, in points."""

_MARKS = ".Xs<>^voDP*hp"
_MOST_LETTERS = 32  # of all labels of an axis, side by side
_MOST_COLUMNS = 6
_SPREADS: dict[Scale, float] = {"category": 0.5, "linear": 0.12, "log": 0.25}
"""Of the least gap between two values: what the strategies at one value take."""


def mark(strategy: str) -> str:
    """The marker of a strategy in every figure, so that strategies are told apart without colours too."""
    return _MARKS[STRATEGIES.index(strategy)] if strategy in STRATEGIES else "d"


def legend_above(axes: "Axes") -> None:
    """The legend of a panel, above it: it lies over no data."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, fontsize=LETTERS, frameon=False)


def common_legend(axes: Sequence["Axes"], columns: int = _MOST_COLUMNS) -> None:
    """One legend of both panels, above them."""
    found = {label: handle for each in axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    if found and (figure := axes[0].get_figure(root=True)) is not None:
        place = {"loc": "outside upper center", "ncols": min(len(found), columns)}
        figure.legend([*found.values()], [*found], fontsize=LETTERS, frameon=False, **place)


def symlog(axes: "Axes", name: Literal["x", "y"], least: float, label: str) -> None:
    """An axis that is linear up to ``least`` and logarithmic from there on, and says so."""
    getattr(axes, f"set_{name}scale")("symlog", linthresh=least)
    getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: f"{value:g}")
    getattr(axes, f"set_{name}label")(f"{label} (log above {least:g})")


def apart(number: int, count: int) -> float:
    """The offset of one of ``count`` marks at one place, from -0.5 to 0.5."""
    return number / (count - 1) - 0.5 if count > 1 else 0.0


def scatter(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
    """AUC loss of each run against its PLS, and the line of each strategy; on the right of those that save.

    Strategies of equal PLS are moved apart by a little.
    """
    done = [cell for cell in cells if cell["status"] == "done"]
    names = sorted({cell["strategy"] for cell in done} - {BASELINE}, key=strategy_order)
    for panel, skipped in zip(axes, (set[str](), {"never_save"}), strict=True):
        shown = [name for name in names if name not in skipped]
        points = {
            name: [each for own in points_of([c for c in done if c["strategy"] == name], done).values() for each in own]
            for name in shown
        }
        most_pct = 100 * max((pls for own in points.values() for pls, _ in own), default=0.0)
        for number, (name, own) in enumerate(points.items()):
            if not own:
                continue
            pls_P, loss_P = np.array(own).T
            moved_P = 100 * pls_P + 0.03 * most_pct * apart(number, len(shown))
            panel.plot(moved_P, 1e3 * loss_P, mark(name), markersize=3, color=colour(name), alpha=0.7, linewidth=0)
            ends = np.array([0.0, pls_P.max()])
            panel.plot(100 * ends, 1e3 * slope(own) * ends, color=colour(name))
            panel.plot([], [], mark(name), ls="-", markersize=4, color=colour(name), label=name)
        panel.set_xlabel("lost samples (PLS), %")
        panel.set_ylabel(LOSS.label)
    common_legend(axes)


def sweep(
    key: str,
    what: str,
    measures: Sequence[Measure] = (OVERHEAD, LOSS),
    *,
    scale: Scale = "category",
    has_runs: bool = False,
    without: Sequence[Sequence[str]] = ((), ()),
) -> Draw:
    """Two measures of each strategy by the values of ``key``, with 95 % intervals; without the key, a dashed line.

    ``has_runs``: with each run of the first measure as a dot. ``without``: strategies that a panel does not show.
    """

    def draw(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
        for number, measure in enumerate(measures):
            own = [cell for cell in cells if cell["strategy"] not in without[number]]
            draw_sweep(axes[number], own, key, what, measure, scale=scale, has_runs=has_runs and number == 0)
        common_legend(axes)

    return draw


def draw_sweep(
    axes: "Axes",
    cells: Sequence[Cell],
    key: str,
    what: str,
    measure: Measure,
    *,
    scale: Scale = "category",
    has_runs: bool = False,
) -> None:
    """A measure of each strategy by the values of ``key``: one panel of :func:`sweep`, without its legend.

    Strategies at one value stand side by side. Points of categories are not joined.
    """
    done = [cell for cell in cells if cell["status"] == "done"]
    values = values_of(done, key)
    places = _places(values, scale)
    room = _SPREADS[scale] * min((after - before for before, after in pairwise(places)), default=1.0)
    names = sorted({cell["strategy"] for cell in done} - {BASELINE}, key=strategy_order)
    for name in names:
        if (reference := measure.mean(cells_at(done, name, key, None), done)) is not None:
            axes.axhline(reference.mean, color=colour(name), linestyle="--", label=f"{name} (dashed)")
    swept = [name for name in names if any(cells_at(done, name, key, value) for value in values)]
    for number, name in enumerate(swept):
        estimates = [measure.mean(cells_at(done, name, key, value), done) for value in values]
        at = [place + room * apart(number, len(swept)) for place in places]
        shown = [(x, each) for x, each in zip(at, estimates, strict=True) if each is not None]
        if not shown:
            continue
        axes.errorbar(
            [x for x, _ in shown],
            [each.mean for _, each in shown],
            yerr=[each.half_width or 0.0 for _, each in shown],
            color=colour(name),
            label=name,
            fmt=mark(name),
            linestyle="none" if scale == "category" else "-",
            linewidth=1.2,
            markersize=5,
            capsize=3,
        )
        for x, value in zip(at, values if has_runs else (), strict=has_runs):
            runs = [*measure.by_seed(cells_at(done, name, key, value), done).values()]
            axes.plot(_beside(runs, x + 0.1 * room), runs, ".", color=colour(name), alpha=0.6)
    labels = [str(value) if scale == "category" else f"{_number(value):g}" for value in values]
    turn = 20 if sum(map(len, labels)) > _MOST_LETTERS else 0
    axes.set_xticks(places, labels, rotation=turn)
    axes.set_xlabel(f"{what} (log)" if scale == "log" else what)
    axes.set_ylabel(measure.label)
    if scale == "category" and values:
        axes.set_xlim(-0.5, len(values) - (0.35 if has_runs else 0.5))


def _places(values: Sequence[Any], scale: Scale) -> list[float]:
    if scale == "category":
        return [float(place) for place in range(len(values))]
    numbers = [*map(_number, values)]
    return numbers if scale == "linear" else [*map(math.log2, numbers)]


def _number(value: Any) -> float:
    """A number, or the first one in a text, such as ``at:13`` or ``1 of 8``."""
    if isinstance(value, str):
        found = re.search(r"\d+(\.\d+)?", value)
        assert found is not None, f"a number in {value}"
        value = found[0]
    return float(value)


def _beside(values: Sequence[float], x: float) -> list[float]:
    """Places right of ``x``; a value that is close to earlier ones stands beside them."""
    near = 0.02 * (max(values, default=0.0) - min(values, default=0.0))
    before = (sum(abs(other - value) <= near for other in values[:number]) for number, value in enumerate(values))
    return [x + 0.018 * (1 + count) for count in before]


def dots(places: Callable[[Cell], Any], measures: Sequence[Measure], *, log: Sequence[int] = ()) -> Draw:
    """Two measures, a line of dots for each of ``places``, a colour for each strategy; bars are cut at 0 if ``log``.

    ``log``: the panels with an axis that begins at 0, is linear up to 0.1 and logarithmic from there on.
    """

    def draw(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
        done = [cell for cell in cells if cell["status"] == "done"]
        shown = [cell for cell in done if cell["strategy"] != BASELINE]
        names = sorted({cell["strategy"] for cell in shown}, key=strategy_order)
        lines = sorted(set(map(places, shown)), key=lambda line: strategy_order(str(line)))
        has_own_line = len(lines) == len(names)
        for panel, measure in enumerate(measures):
            for number, name in enumerate(names):
                own = [[c for c in shown if (c["strategy"], places(c)) == (name, line)] for line in lines]
                found = [(y, measure.mean(cells_of_line, done)) for y, cells_of_line in enumerate(own)]
                offset = 0.0 if has_own_line else 0.75 * apart(number, len(names))
                known = [(y + offset, value) for y, value in found if value is not None]
                halves = [value.half_width or 0.0 for _, value in known]
                lower = [
                    min(half, value.mean) if panel in log else half
                    for half, (_, value) in zip(halves, known, strict=True)
                ]
                axes[panel].errorbar(
                    [value.mean for _, value in known],
                    [y for y, _ in known],
                    xerr=[lower, halves],
                    fmt=mark(name),
                    markersize=4,
                    color=colour(name),
                    label=name,
                )
            _line_ticks(axes[panel], lines if panel == 0 else ["" for _ in lines], has_bands=not has_own_line)
            axes[panel].set_xlabel(measure.label)
            if panel in log:
                symlog(axes[panel], "x", 0.1, measure.label)
                axes[panel].set_xlim(-0.02, 1.5 * axes[panel].get_xlim()[1])  # dots at both ends are whole
        if not has_own_line:
            if (figure := axes[0].get_figure(root=True)) is not None:
                figure.set_figheight(max(figure.get_figheight(), 1.5 + 0.055 * len(lines) * len(names)))
            common_legend(axes)

    return draw


def _line_ticks(axes: "Axes", lines: Iterable[Any], *, has_bands: bool) -> None:
    """A tick for each line, the first on top. ``has_bands``: every other line has a grey ground."""
    labels = [*map(str, lines)]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    if has_bands:
        axes.grid(visible=False, axis="y")
        for y in range(0, len(labels), 2):
            axes.axhspan(y - 0.5, y + 0.5, color=THEMES["grid"][0], alpha=0.5, linewidth=0, zorder=0)
