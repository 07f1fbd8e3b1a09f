"""Figures of a failure trace: deaths over time, survival and hazard with the fits, time of day."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

import numpy as np

from analysis.panels import legend
from analysis.style import colour, log_scale, style, to_svg, whole_ticks
from analysis.trace_show import LEVELS, levels_of
from harness.traces.levels import Level
from harness.traces.statistics import TraceStatistics
from harness.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Draw = Callable[[Axes], None]

FAMILY_COLOURS = {
    "exponential": colour("cpr_vanilla"),
    "gamma": colour("cpr_mfu"),
    "weibull": colour("never_save"),
    "lognormal": colour("full"),
}
"""The colour of each family, from the palette of strategies."""
CAPTIONS = {
    "time": "Deaths over time: each dot is a death of a rank, the line their number; straight if the rate is constant.",
    "survival": "Share of the times between failures that are longer than so many hours: observed (steps, Kaplan-Meier "
    "with 95 % band) and fitted.",
    "hazard": "Failures per hour of gaps that have lasted so long: in classes with equal numbers of failures (bars: "
    "class width and 95 % interval), and fitted. A constant hazard has no memory; a falling one means bursts.",
    "clock": "Instants of failure by the hour of the day, and by the day of the week.",
}
_GREY = colour("none")
_MOST_POINTS = 300  # of a curve; more are not visible
_LEAST_GAPS = 5  # for a curve
_MOST_DOTS = 2_000  # drawn as vectors; more would make a page of megabytes


def draw_trace(trace: Trace, stats: TraceStatistics, folder: Path) -> list[Path]:
    """Write each figure into ``folder`` as ``NAME.svg`` and ``NAME.png``."""
    paths: list[Path] = []
    with style():
        for name, panels in _panels(trace, stats).items():
            figure = _row(panels, 5.2 * max(len(panels), 1.6))
            paths += [folder / f"{name}.svg", folder / f"{name}.png"]
            figure.savefig(paths[-2], metadata={"Date": None})
            figure.savefig(paths[-1], dpi=150)
    return paths


def trace_svgs(trace: Trace, stats: TraceStatistics, prefix: str) -> dict[str, str]:
    """The panels of each figure as SVG elements, by its name in ``CAPTIONS``; ids begin with ``prefix``."""
    with style():
        return {
            name: "".join(
                to_svg(_row([draw], 5.2), f"{prefix}-{name}-{place}", name) for place, draw in enumerate(all_)
            )
            for name, all_ in _panels(trace, stats).items()
        }


def _panels(trace: Trace, stats: TraceStatistics) -> dict[str, list["Draw"]]:
    """The panels of those figures that the trace has data for."""
    levels = [(name, level) for name, level in levels_of(stats) if level.sample.num_events >= _LEAST_GAPS]
    drawn: dict[str, list[Draw]] = {
        "time": [lambda axes: _time(axes, trace, stats)] if stats.observed.num_deaths else [],
        "survival": [lambda axes, of=of: _survival(axes, *of) for of in levels],
        "hazard": [lambda axes, of=of: _hazard(axes, *of) for of in levels],
        "clock": [lambda axes: _hours(axes, stats), lambda axes: _weekdays(axes, stats)] if stats.time_of_day else [],
    }
    return {name: panels for name, panels in drawn.items() if panels}


def _row(panels: Sequence["Draw"], width: float) -> "Figure":
    """The panels beside each other; ``width`` in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - half a second

    figure = Figure(figsize=(width, 3.6), layout="constrained")
    for draw, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        draw(axes)
    return figure


def _time(axes: "Axes", trace: Trace, stats: TraceStatistics) -> None:
    """Deaths by hour and rank, and their number; the number alone where ranks are unknown."""
    observed = stats.observed
    hour_I, num_I = observed.instants
    counts = axes
    if observed.rank_E is not None:
        axes.plot(
            observed.hour_E,
            observed.rank_E,
            linestyle="",
            marker=".",
            markersize=4 if stats.observed.num_deaths < 300 else 2,
            color=FAMILY_COLOURS["weibull"],
            rasterized=stats.observed.num_deaths > _MOST_DOTS,
        )
        axes.set_ylabel("rank", color=FAMILY_COLOURS["weibull"])
        if observed.num_ranks is not None:
            axes.set_ylim(-0.5, observed.num_ranks - 0.5)  # a rank that never died is shown, too
        whole_ticks(axes.yaxis)
        counts = axes.twinx()
        counts.grid(visible=False)
        counts.spines["right"].set_visible(True)
    chosen = _thinned(len(hour_I))
    total_I = np.cumsum(num_I)
    hours = np.concatenate([[0.0], hour_I[chosen], [observed.length_h]])
    counts.step(hours, np.concatenate([[0], total_I[chosen], [total_I[-1]]]), where="post", color=_GREY, linewidth=1.3)
    counts.set_ylabel("deaths so far", color=_GREY)
    counts.set_ylim(bottom=0)
    whole_ticks(counts.yaxis)
    axes.set_xlim(0, observed.length_h)
    axes.set_xlabel("hours")


def _survival(axes: "Axes", name: str, level: Level) -> None:
    from scipy import stats  # noqa: PLC0415 - a third of a second

    curve = stats.ecdf(stats.CensoredData(level.sample.ended_E, right=level.sample.cut_C)).sf
    with catch_warnings(action="ignore"):  # the band is undefined where the curve is 0 or 1, and not drawn there
        band = curve.confidence_interval(method="log-log")
    chosen = _thinned(len(curve.quantiles))
    hours_T = curve.quantiles[chosen]
    look: dict[str, Any] = {"step": "post", "color": _GREY, "alpha": 0.15, "linewidth": 0}
    axes.fill_between(hours_T, band.low.probabilities[chosen], band.high.probabilities[chosen], **look)
    grid_G = _grid(level)
    hours, shares = np.append(min(grid_G[0], hours_T[0]), hours_T), np.append(1.0, curve.probabilities[chosen])
    axes.step(hours, shares, where="post", color=_GREY, linewidth=1.5, label="observed")
    for fit in level.fits:
        axes.plot(grid_G, fit.law.sf(grid_G), color=FAMILY_COLOURS[fit.family], linewidth=1.2, label=fit.family)
    axes.set(ylim=(0, 1.02), xlim=(grid_G[0], grid_G[-1]))
    log_scale(axes, "x")
    _finish(axes, name, "longer than so many hours")


def _hazard(axes: "Axes", name: str, level: Level) -> None:
    grid_G = _grid(level)
    seen = [one for one in level.hazard if one.num_events]
    from_K, to_K, rate_K, low_K, high_K = np.array(
        [(max(o.from_h, grid_G[0]), o.to_h, o.rate_per_h, o.interval.low, o.interval.high) for o in seen]
    ).T
    middle_K = np.sqrt(from_K * to_K)
    look: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4, "color": _GREY, "elinewidth": 1}
    widths_2K, bars_2K = (middle_K - from_K, to_K - middle_K), (rate_K - low_K, high_K - rate_K)
    axes.errorbar(middle_K, rate_K, xerr=widths_2K, yerr=bars_2K, label="observed", **look)
    for fit in level.fits:
        axes.plot(grid_G, fit.hazard(grid_G), color=FAMILY_COLOURS[fit.family], linewidth=1.2, label=fit.family)
    axes.set(xlim=(grid_G[0], grid_G[-1]), ylim=(0.5 * low_K.min(), 2 * high_K.max()))
    log_scale(axes, "x")
    log_scale(axes, "y")
    _finish(axes, name, "failures per hour")


def _hours(axes: "Axes", stats: TraceStatistics) -> None:
    assert stats.time_of_day is not None
    axes.bar(np.arange(24) + 0.5, stats.time_of_day.num_by_hour, width=0.9, color=FAMILY_COLOURS["lognormal"])
    axes.set(xlim=(0, 24), xticks=range(0, 25, 6), xlabel="hour of the day", ylabel="instants of failure")
    axes.grid(visible=False, axis="x")


def _weekdays(axes: "Axes", stats: TraceStatistics) -> None:
    assert stats.time_of_day is not None
    axes.bar(range(7), stats.time_of_day.num_by_weekday, color=FAMILY_COLOURS["lognormal"])
    axes.set_xticks(range(7), ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    axes.set_ylabel("instants of failure")
    axes.grid(visible=False, axis="x")


def _finish(axes: "Axes", name: str, what: str) -> None:
    axes.set_xlabel("hours since the last failure")
    axes.set_ylabel(what)
    axes.set_title(LEVELS[name], fontsize=11, loc="left")
    if axes.figure and not axes.figure.legends:  # one for all panels
        legend(axes)


def _grid(level: Level) -> Any:
    """Hours at which fits are drawn: the range of the durations."""
    sample = level.sample
    last = sample.all_N.max()
    first = max(float(np.quantile(sample.ended_E, 0.01)) / 2, last * 1e-6)
    return np.geomspace(min(first, last / 10), last, 200)


def _thinned(num: int) -> Any:
    """Indices of at most ``_MOST_POINTS``, the first and the last among them."""
    return np.unique(np.linspace(0, num - 1, min(num, _MOST_POINTS)).astype(int))
