"""The figure of a failure trace: survival of the times between failures, observed and fitted."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

import numpy as np

from analysis.figures import colour, legend, log_scale, style, to_svg
from analysis.trace_show import LEVELS, levels_of
from harness.traces.statistics import Level, TraceStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = (
    "Share of the times between failures that are longer than so many hours: observed (steps, Kaplan-Meier with 95 % "
    "band) and fitted."
)
_FAMILY_COLOURS = {
    "exponential": colour("cpr_vanilla"),
    "gamma": colour("cpr_mfu"),
    "weibull": colour("never_save"),
    "lognormal": colour("full"),
}  # from the palette of strategies
_GREY = colour("none")
_MOST_POINTS = 300  # of a curve; more are not visible
_LEAST_GAPS = 5  # for a curve


def draw_trace(stats: TraceStatistics, folder: Path) -> list[Path]:
    """Write the figure into ``folder`` as ``survival.svg`` and ``survival.png``; returns the paths, [] for few gaps."""
    if not (levels := _levels(stats)):
        return []
    paths = [folder / "survival.svg", folder / "survival.png"]
    with style():
        figure = _row(levels, 5.2 * max(len(levels), 1.6))
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150)
    return paths


def trace_svgs(stats: TraceStatistics, prefix: str) -> list[str]:
    """The panels of the figure as SVG elements; ids begin with ``prefix``."""
    with style():
        return [
            to_svg(_row([level], 5.2), f"{prefix}-survival-{place}", "survival")
            for place, level in enumerate(_levels(stats))
        ]


def _levels(stats: TraceStatistics) -> list[tuple[str, Level]]:
    """The kinds of gap (of one rank, of any rank) with enough gaps for a curve."""
    return [(name, level) for name, level in levels_of(stats) if level.sample.num_events >= _LEAST_GAPS]


def _row(levels: Sequence[tuple[str, Level]], width: float) -> "Figure":
    """Survival curves of each level (gaps of one rank, of any rank), side by side; ``width`` in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - half a second

    figure = Figure(figsize=(width, 3.6), layout="constrained")
    for (name, level), axes in zip(levels, figure.subplots(1, len(levels), squeeze=False)[0], strict=True):
        _survival(axes, level)
        axes.set_title(LEVELS[name], fontsize=11, loc="left")
        if not figure.legends:  # one for all panels
            legend(axes)
    return figure


def _survival(axes: "Axes", level: Level) -> None:
    from scipy import stats  # noqa: PLC0415 - a third of a second

    curve = stats.ecdf(stats.CensoredData(level.sample.ended_E, right=level.sample.cut_C)).sf
    with catch_warnings(action="ignore"):  # the band is undefined where the curve is 0 or 1, and not drawn there
        band = curve.confidence_interval(method="log-log")
    num = len(curve.quantiles)
    chosen = np.unique(np.linspace(0, num - 1, min(num, _MOST_POINTS)).astype(int))  # the first and the last, too
    hours_T = curve.quantiles[chosen]
    look: dict[str, Any] = {"step": "post", "color": _GREY, "alpha": 0.15, "linewidth": 0}
    axes.fill_between(hours_T, band.low.probabilities[chosen], band.high.probabilities[chosen], **look)
    grid_G = _grid(level)
    hours, shares = np.append(min(grid_G[0], hours_T[0]), hours_T), np.append(1.0, curve.probabilities[chosen])
    axes.step(hours, shares, where="post", color=_GREY, linewidth=1.5, label="observed")
    for fit in level.fits:
        axes.plot(grid_G, fit.law.sf(grid_G), color=_FAMILY_COLOURS[fit.family], linewidth=1.2, label=fit.family)
    axes.set(ylim=(0, 1.02), xlim=(grid_G[0], grid_G[-1]))
    axes.set_xlabel("hours since the last failure")
    axes.set_ylabel("longer than so many hours")
    log_scale(axes, "x")


def _grid(level: Level) -> Any:
    """The hours at which fitted curves are drawn, over the range of the durations."""
    last = level.sample.all_N.max()
    first = max(float(np.quantile(level.sample.ended_E, 0.01)) / 2, last * 1e-6)
    return np.geomspace(min(first, last / 10), last, 200)
