"""The figure of a claim, as its YAML file describes it: panels with measures against a key or another measure."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from analysis.claims.expect import text_of, values_of
from analysis.claims.measures import MEASURES, Measure, Model, Names, matching
from analysis.claims.papers import slope
from analysis.figures import INK, THEMES, colour, log_scale
from analysis.load import Frame
from analysis.stats import BASELINE, STRATEGIES, strategy_order
from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[Sequence["Axes"], Frame], None]
"""A function that draws results into two axes, side by side. It may raise ConfigError."""

LETTERS = 9
"""Font size of legends and labels, in points."""

_MARKS = ".Xs<^voDP*h>p"
_OTHER_MARKS = "os^Dv"  # of what is no strategy
_OTHER_COLOURS = ("full", "never_save", "cpr_mfu", "cpr_vanilla", "other")  # a page knows them
_MOST_LETTERS = 32  # of all labels of an axis, side by side
_MOST_COLUMNS = 6
_SPREADS = {"category": 0.5, "linear": 0.12, "log": 0.25}
"""The room that the groups at one value take, as a fraction of the least gap between two values."""

Scale = Literal["category", "linear", "log"]


class Line(Model):
    """A published number in a figure: a dotted line at ``x`` or at ``y``, or a cross at the point of both."""

    x: float | None = None
    y: float | None = None
    label: str


class Panel(Model):
    """Measures ``y`` against ``x``: a key (default: the claim's, else the strategy) or a measure.

    Each value of the key ``group`` has a colour and a mark; ``none`` is not shown.

    Against a key: means of runs with 95 % intervals, or the median of a benchmark's rounds with the least and the
    greatest; groups at one value are beside each other. A group without a value of the key is a dashed line. ``runs``:
    adds a dot for each seed. ``flat``: the values of the key are listed from top to bottom, and measures are on the
    horizontal axis; dashed lines and dots are left out.

    Against a measure: a point per result. ``joined``: the points are joined by lines. ``fit``: adds a line through the
    origin by least squares. ``means``: a key; there is one point, with intervals, per value of it instead.
    """

    y: Names = ()
    x: str | None = None
    label: str = ""
    """The label of the axis of ``x``. ``y_label``: of the other axis; by default the name of the first measure."""
    y_label: str = ""
    title: str = ""
    group: str = "strategy"
    scale: Scale = "category"
    y_log: bool | float = False
    """Whether the axis of ``y`` is logarithmic; a number: logarithmic above it, linear below."""
    where: Mapping[str, Any] = {}
    without: Names = ()
    """Strategies that are not shown."""
    means: str | None = None
    runs: bool = False
    flat: bool = False
    fit: bool = False
    joined: bool = False
    lines: Sequence[Line] = ()


class Figure(Panel):
    """Two ``panels``, with the figure's own keys as defaults; if none are given, one for each of two measures ``y``."""

    panels: Sequence[Panel] = ()

    @property
    def places(self) -> Iterator[tuple[tuple[Any, ...], Panel]]:
        """(keys that lead to it in the figure's mapping, panel with the figure's defaults) for each panel."""
        given = {key: getattr(self, key) for key in self.model_fields_set - {"panels"}}
        for number, panel in enumerate(self.panels):
            own = {key: getattr(panel, key) for key in panel.model_fields_set}
            yield ("panels", number), Panel.model_construct(**{**given, **own})
        for name in () if self.panels else self.y:
            yield (), Panel.model_construct(**{**given, "y": [name]})


def drawn(figure: Figure, measures: Mapping[str, Measure], by: str | None, names: Mapping[str, str]) -> Draw:
    """The function that draws ``figure``. ``by``: the claim's key. ``names``: words for the key's values."""

    def draw(axes: Sequence["Axes"], results: Frame) -> None:
        panels = [panel for _, panel in figure.places]
        for number, panel in enumerate(panels[: len(axes)]):
            x = panel.x or by or "strategy"
            _Drawing(axes[number], panel, results, measures, x, names).draw(is_first=number == 0)
        if panels and not (panels[0].flat and panels[0].x == panels[0].group):
            common_legend(axes)

    return draw


def draw_panel(axes: "Axes", panel: Panel, results: Frame) -> None:
    """Draw a panel of the project's measures, without a legend."""
    _Drawing(axes, panel, results, MEASURES, str(panel.x), {}).draw(is_first=True)


@dataclass(frozen=True)
class _Series:
    label: str
    measure: Measure
    results: Frame
    mark: str
    hue: str


@dataclass(frozen=True)
class _Drawing:
    """One panel and its data. ``done``: all results, also references. ``x``: a key, or the name of a measure."""

    axes: "Axes"
    panel: Panel
    done: Frame
    measures: Mapping[str, Measure]
    x: str
    names: Mapping[str, str]

    def draw(self, *, is_first: bool) -> None:
        """Draw the series, the published numbers, and the names of the axes."""
        panel, axes = self.panel, self.axes
        label = panel.label or (self.measures[self.x].label if self.x in self.measures else self.x)
        if self.x in self.measures:
            for number, series in enumerate(self.series):
                self._draw_points(series, number)
            if panel.scale == "log":
                log_scale(axes, "x")
        elif panel.flat:
            self._draw_lines(is_first=is_first)
        else:
            self._draw_columns()
        y_label = panel.y_label or self.measures[panel.y[0]].label
        self._set_measure_axis("x" if panel.flat else "y", y_label)
        if not panel.flat:
            axes.set_xlabel(f"{label} (log)" if panel.scale == "log" else label)
        axes.set_title(panel.title, fontsize=LETTERS)
        for line in panel.lines:
            _draw_published(axes, line)

    @property
    def _shown(self) -> Frame:
        labels = [label for series in self.series for label in series.results.index]
        return self.done.loc[[*dict.fromkeys(labels)]]

    @property
    def series(self) -> list[_Series]:
        """A series for each group except ``none``, and each measure; without groups, one for each measure."""
        panel = self.panel
        shown = matching(self.done, panel.where)
        shown = shown[~shown.reindex(columns=["strategy"])["strategy"].isin(panel.without)]
        groups: list[Any] = shown.reindex(columns=[panel.group])[panel.group].dropna().unique().tolist()
        groups = sorted((each for each in groups if each != BASELINE), key=lambda g: strategy_order(str(g)))
        found: list[_Series] = []
        for group in groups or [None]:
            own = shown if group is None else shown[shown[panel.group] == group]
            for name in panel.y:
                measure, place = self.measures[name], len(found)
                label = measure.name if group is None else str(group)
                is_strategy = group in STRATEGIES
                symbol = mark(label) if is_strategy else _OTHER_MARKS[place % len(_OTHER_MARKS)]
                hue = colour(label if is_strategy else _OTHER_COLOURS[place % len(_OTHER_COLOURS)])
                is_alone = group is None and len(panel.y) == 1
                found.append(_Series("" if is_alone else label, measure, own, symbol, hue))
        return found

    def _at(self, series: _Series, value: Any) -> Frame:
        return matching(series.results, {self.x: value})

    def _name(self, value: Any) -> str:
        if self.panel.scale == "category":
            return self.names.get(text_of(value), text_of(value))
        return f"{_number(value):g}"

    def _draw_points(self, series: _Series, number: int) -> None:
        """Draw a point for each result, or for each value of the key ``means``."""
        panel, x = self.panel, self.measures[self.x]
        if panel.means is not None:
            for value in values_of(series.results, panel.means):
                own = matching(series.results, {panel.means: value})
                across, up = x.point(own, self.done), series.measure.point(own, self.done)
                if up is None and series.measure.is_reference(own):
                    up = 0.0, 0.0, 0.0
                if across is not None and up is not None:
                    errors: dict[str, Any] = {"xerr": _errors([across]), "yerr": _errors([up])}
                    self.axes.errorbar(across[0], up[0], fmt=series.mark, color=series.hue, capsize=3, **errors)
                    place = {"xytext": (5, 5), "textcoords": "offset points"}
                    self.axes.annotate(
                        self.names.get(text_of(value), text_of(value)), (across[0], up[0]), fontsize=LETTERS, **place
                    )
            return
        points = _by_round({"x": x, "y": series.measure}, series.results, self.done)
        if points.empty:
            return
        xs_P, ys_P = points["x"].to_numpy(), points["y"].to_numpy()
        line = {"ls": "-" if panel.fit or panel.joined else "none", "color": series.hue, "label": series.label or None}
        if panel.joined:
            self.axes.plot(xs_P, ys_P, series.mark, markersize=5, linewidth=1, **line)
            return
        moved = 0.03 * xs_P.max() * apart(number, len(self.series))  # groups of equal x
        self.axes.plot(xs_P + moved, ys_P, series.mark, markersize=3, color=series.hue, alpha=0.7, linewidth=0)
        self.axes.plot([], [], series.mark, markersize=4, **line)
        if panel.fit:
            ends = np.array([0.0, xs_P.max()])
            self.axes.plot(ends, slope(points) * ends, color=series.hue)

    def _draw_columns(self) -> None:
        """Draw the values of the key from left to right; points of categories are not joined by lines."""
        axes, panel = self.axes, self.panel
        values = values_of(self._shown, self.x)
        places = _places(values, panel.scale)
        room = _SPREADS[panel.scale] * min((after - before for before, after in pairwise(places)), default=1.0)
        for each in self.series:
            if (reference := each.measure.point(self._at(each, None), self.done)) is not None:
                axes.axhline(reference[0], color=each.hue, linestyle="--", label=f"{each.label} (dashed)")
        swept = [each for each in self.series if each.results.reindex(columns=[self.x])[self.x].notna().any()]
        for number, series in enumerate(swept):
            at = [place + room * apart(number, len(swept)) for place in places]
            points = [series.measure.point(self._at(series, value), self.done) for value in values]
            known = [(place, point) for place, point in zip(at, points, strict=True) if point is not None]
            if not known:
                continue
            look = {
                "fmt": series.mark,
                "color": series.hue,
                "label": series.label or None,
                "markersize": 5,
                "capsize": 3,
            }
            line = {"linestyle": "none" if panel.scale == "category" else "-", "linewidth": 1.2}
            middles = [point[0] for _, point in known]
            axes.errorbar([x for x, _ in known], middles, yerr=_errors([p for _, p in known]), **look, **line)
            for x, value in zip(at, values, strict=True) if panel.runs else ():
                runs = series.measure.by_seed(self._at(series, value), self.done).to_list()
                axes.plot(_beside(runs, x + 0.1 * room), runs, ".", color=series.hue, alpha=0.6)
        labels = [*map(self._name, values)]
        axes.set_xticks(places, labels, rotation=20 if sum(map(len, labels)) > _MOST_LETTERS else 0)
        if panel.scale == "category" and values:
            axes.set_xlim(-0.5, len(values) - (0.35 if panel.runs else 0.5))

    def _draw_lines(self, *, is_first: bool) -> None:
        """Draw the values of the key from top to bottom; groups at one value are below each other."""
        axes, panel, series = self.axes, self.panel, self.series
        values = sorted(values_of(self._shown, self.x) or [None], key=lambda value: strategy_order(str(value)))
        has_bands = self.x != panel.group
        for number, each in enumerate(series):
            offset = 0.75 * apart(number, len(series)) if has_bands else 0.0
            points = [each.measure.point(self._at(each, value), self.done) for value in values]
            known = [(y + offset, point) for y, point in enumerate(points) if point is not None]
            ends = _errors([point for _, point in known])
            if panel.y_log is not False:  # bars are cut at 0
                ends = [[min(low, point[0]) for low, (_, point) in zip(ends[0], known, strict=True)], ends[1]]
            look = {"fmt": each.mark, "markersize": 4, "color": each.hue, "label": each.label}
            axes.errorbar([point[0] for _, point in known], [y for y, _ in known], xerr=ends, **look)
        labels = [*map(self._name, values)]
        axes.set_yticks(range(len(labels)), labels if is_first else ["" for _ in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        if has_bands:
            axes.grid(visible=False, axis="y")
            for y in range(0, len(labels), 2):
                axes.axhspan(y - 0.5, y + 0.5, color=THEMES["grid"][0], alpha=0.5, linewidth=0, zorder=0)
            if (figure := axes.get_figure(root=True)) is not None:
                figure.set_figheight(max(figure.get_figheight(), 1.5 + 0.055 * len(labels) * len(series)))

    def _set_measure_axis(self, name: Literal["x", "y"], label: str) -> None:
        axes, log = self.axes, self.panel.y_log
        if log is True:
            log_scale(axes, name)
            label += " (log)"
        getattr(axes, f"set_{name}label")(label)
        if log is not True and log:
            symlog(axes, name, log, label)
            if name == "x":
                axes.set_xlim(-0.02, 1.5 * axes.get_xlim()[1])  # dots at both ends are whole


def _by_round(measures: Mapping[str, Measure], own: Frame, done: Frame) -> Frame:
    """A frame with a column per measure and a row per result and round; rows with an unknown measure are left out."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    values = {name: measure.values(own, done) for name, measure in measures.items()}
    rounds = {
        name: each.to_frame(name).set_index(each.groupby(level=0).cumcount(), append=True)
        for name, each in values.items()
    }
    return pd.concat([*rounds.values()], axis=1, join="inner")


def _draw_published(axes: "Axes", line: Line) -> None:
    look: dict[str, Any] = {"color": THEMES[INK][0], "label": line.label}
    if line.x is None and line.y is not None:
        axes.axhline(line.y, linestyle=":", **look)
    elif line.x is not None and line.y is None:
        axes.axvline(line.x, linestyle=":", **look)
    elif line.x is not None and line.y is not None:
        axes.plot([line.x], [line.y], "x", markeredgewidth=2, linestyle="none", zorder=3, **look)


def _errors(points: Sequence[tuple[float, float, float]]) -> list[list[float]]:
    """Lengths of the error bars below and above each (middle, low, high)."""
    return [[middle - low for middle, low, _ in points], [high - middle for middle, _, high in points]]


def mark(strategy: str) -> str:
    """The marker of a strategy in every figure, so that strategies can be told apart without colours."""
    return _MARKS[STRATEGIES.index(strategy)] if strategy in STRATEGIES else "d"


def common_legend(axes: Iterable["Axes"], columns: int = _MOST_COLUMNS) -> None:
    """Add one legend for all panels, above them."""
    axes = [*axes]
    found = {label: handle for each in axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    if found and (figure := axes[0].get_figure(root=True)) is not None:
        place = {"loc": "outside upper center", "ncols": min(len(found), columns)}
        figure.legend([*found.values()], [*found], fontsize=LETTERS, frameon=False, **place)


def symlog(axes: "Axes", name: Literal["x", "y"], least: float, label: str) -> None:
    """Make an axis linear up to ``least`` and logarithmic above, and say so in its label."""
    getattr(axes, f"set_{name}scale")("symlog", linthresh=least)
    getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: f"{value:g}")
    getattr(axes, f"set_{name}label")(f"{label} (log above {least:g})")


def apart(number: int, count: int) -> float:
    """The offset of mark ``number`` of ``count`` marks at one place: from -0.5 to 0.5, 0 for a single mark."""
    return number / (count - 1) - 0.5 if count > 1 else 0.0


def _places(values: Sequence[Any], scale: Scale) -> list[float]:
    if scale == "category":
        return [float(place) for place in range(len(values))]
    numbers = [*map(_number, values)]
    return numbers if scale == "linear" else [*map(math.log2, numbers)]


def _number(value: Any) -> float:
    """A number, or the first one in a text such as ``at:13`` or ``1 of 8``. Raises ConfigError for other texts."""
    if isinstance(value, str):
        found = re.search(r"\d+(\.\d+)?", value)
        if found is None:
            raise ConfigError(f"figure.scale: expected category, as the value {value} has no number")
        value = found[0]
    return float(value)


def _beside(values: Sequence[float], x: float) -> list[float]:
    """The x positions of dots right of ``x``; dots of nearly equal value are beside each other."""
    near = 0.02 * (max(values, default=0.0) - min(values, default=0.0))
    before = (sum(abs(other - value) <= near for other in values[:number]) for number, value in enumerate(values))
    return [x + 0.018 * (1 + count) for count in before]
