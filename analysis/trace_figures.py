"""The figure of a failure trace (survival of the times between failures), and the traces of a grid in its report."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

import numpy as np
from pydantic import ValidationError

from analysis.figures import colour, frame_of, legend, log_scale, style, timeline, to_svg, write_figure
from analysis.load import Frame
from analysis.trace_show import LEVELS, between, headline, levels_of, number, remarks
from harness.config.model import Config
from harness.core.errors import ConfigError, TraceError
from harness.core.events import Injected
from harness.files import store_errors
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir, flatten, read_config
from harness.traces.fits import MIN_EVENTS, verdict
from harness.traces.job_trace import job_trace
from harness.traces.statistics import Level, TraceStatistics, describe
from harness.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FAMILY_LOOKS = {
    "exponential": (colour("cpr_vanilla"), "-"),
    "gamma": (colour("cpr_mfu"), (0, (6, 2))),
    "weibull": (colour("never_save"), (0, (3, 2))),
    "lognormal": (colour("full"), (0, (1, 1.5))),
}  # colours from the palette of strategies; dashes show through where laws coincide
_GREY = colour("none")
_SIZE = 5.2, 3.6  # inches
_TIMELINE = (
    "Each fault of the trace, at its hour. Of ranks that a run draws by its seed there is a line for each number that "
    "die at once."
)
_MOST_POINTS = 300  # of a curve; more are not visible
_LEAST_GAPS = 5  # for a curve


def draw_trace(stats: TraceStatistics, folder: Path) -> list[Path]:
    """Write the figure into ``folder`` as ``survival.svg`` and ``survival.png``; returns the paths.

    Writes nothing and returns [] if no kind of gap has at least 5 gaps. Raises StoreError if they cannot be written.
    """
    if not (levels := _levels(stats)):
        return []
    with style(), store_errors(folder, "written"):
        figure = _row(levels)
        lines = textwrap.wrap(caption(stats, levels), 78 * len(levels))
        figure.set_figheight(figure.get_figheight() + len(lines) / 6)
        figure.suptitle("\n".join(lines), x=0.01, horizontalalignment="left", fontsize=9)
        return write_figure(figure, folder, "survival", ("svg", "png"))


def trace_panels(stats: TraceStatistics, prefix: str) -> list[tuple[str, str]]:
    """The panels of the figure as SVG elements, whose ids begin with ``prefix``, each with its caption.

    [] as in :func:`draw_trace`.
    """
    with style():
        return [
            (to_svg(_row([level]), f"{prefix}-survival-{place}", "survival"), caption(stats, [level]))
            for place, level in enumerate(_levels(stats))
        ]


def caption(stats: TraceStatistics, levels: Sequence[tuple[str, Level]]) -> str:
    """What a figure of ``levels`` shows, in words that need no other text."""
    counts = (
        f"{LEVELS[name]}: {one.sample.num_events:,} times and {len(one.sample.cut_C):,} cut" for name, one in levels
    )
    return (
        f"{headline(stats)}. Share of the times between failures that are longer than the hours on the axis: observed "
        "(black steps, Kaplan-Meier, with its 95 % band; ticks are times cut by the end of the trace), and laws fitted "
        f"to at least {MIN_EVENTS} times (in colour). Of {'; of '.join(counts)}."
    )


def _levels(stats: TraceStatistics) -> list[tuple[str, Level]]:
    """:func:`levels_of`, without those that have too few gaps for a curve."""
    return [(name, level) for name, level in levels_of(stats) if level.sample.num_events >= _LEAST_GAPS]


def _row(levels: Sequence[tuple[str, Level]]) -> "Figure":
    """Survival curves of each level (gaps of one rank, of any rank), side by side."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - half a second

    figure = Figure(figsize=(_SIZE[0] * len(levels), _SIZE[1]), layout="constrained")
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
    ended_E, last_h = level.sample.ended_E, max(curve.quantiles[-1], level.sample.cut_C.max(initial=0.0))
    first_h = min(max(float(np.quantile(ended_E, 0.01)) / 2, last_h * 1e-6), last_h / 10)
    grid_G = np.geomspace(first_h, last_h, 200)
    hours, shares = np.append(min(grid_G[0], hours_T[0]), hours_T), np.append(1.0, curve.probabilities[chosen])
    axes.step(hours, shares, where="post", color=_GREY, linewidth=1.5, label="observed")
    cut_C = np.clip(np.unique(level.sample.cut_C), grid_G[0], None)
    axes.plot(cut_C, shares[np.searchsorted(hours, cut_C, "right") - 1], "|", color=_GREY, markersize=8)
    for fit in level.fits if level.sample.num_events >= MIN_EVENTS else ():  # fewer cannot tell laws apart
        tone, dashes = _FAMILY_LOOKS[fit.family]
        axes.plot(grid_G, fit.law.sf(grid_G), color=tone, linestyle=dashes, linewidth=1.2, label=fit.family)
    axes.set(ylim=(0, 1.02), xlim=(grid_G[0], grid_G[-1]))
    axes.set_xlabel("hours since the last failure")
    axes.set_ylabel("longer than so many hours")
    log_scale(axes, "x")


# --- the report -------------------------------------------------------------------------------------------------------


def trace_sections(frame: Frame) -> Iterator[Mapping[str, Any]]:
    """A section for each trace of finished cells: ``title``, ``notes``, and ``panels`` (SVG, caption).

    Cells whose traces differ in window, stretch or clock have sections of their own.
    """
    done = frame[frame["trace"].notna() & (frame["status"] == "done")]
    by_trace: dict[_Key, list[Path]] = {}
    for path, trace in zip(map(Path, done["path"]), done["trace"], strict=True):
        by_trace.setdefault(_key_of(path, trace), []).append(path)
    for place, key in enumerate(sorted(by_trace)):
        path, window, is_stretched, job_h, clock = key
        how = f", {window} {job_h:g} h" * bool(window) + f", stretched to {job_h:g} h" * is_stretched
        how += ", on the wall clock" * (clock == "wall")
        notes, panels = _section(key, by_trace[key], f"trace{place}")
        yield {"title": f"Failure trace {Path(path).stem}{how}", "notes": notes, "panels": panels}


_Key = tuple[str, str, bool, float, str]
"""Path or name of a trace; window (empty: none); stretch; hours of the job (0 without window and stretch); clock."""


def _key_of(run: Path, trace: str) -> _Key:
    flat = flatten(read_config(run))
    window, is_stretched = flat.get("trace.window") or "", bool(flat.get("trace.stretch"))
    job_h = float(flat["profile.job_h"]) if window or is_stretched else 0.0
    is_drawn = window == "random" or flat.get("trace.path") is None
    path = trace if is_drawn else str(flat["trace.path"])
    return path, window, is_stretched, job_h, flat.get("trace.clock") or "samples"


def _section(key: _Key, runs: Sequence[Path], prefix: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The notes on one trace, and the panels of its figure as SVG with captions.

    Only a note if the trace cannot be read again, has changed, or the config is of another version.
    """
    path, *_, clock = key
    try:
        config = Config.model_validate(read_config(runs[0]))
        trace, met = job_trace(config), job_trace(config, goes_on=clock == "wall")
        assert trace is not None
        assert met is not None
        stats = describe(trace)
    except ValidationError:
        return [f"No statistics: the config of {runs[0].name} is of another version."], []
    except (TraceError, ConfigError) as error:
        return [f"No statistics: {error}"], []
    if not _is_as_replayed(met, runs):
        return [f"{path} has changed since these runs."], []
    return [*_lines(stats)], [*_timeline(trace, prefix), *trace_panels(stats, prefix)]


def _timeline(trace: Trace, prefix: str) -> Iterator[tuple[str, str]]:
    """The timeline of a trace as SVG, with its caption; nothing of an empty trace."""
    if trace.entries:
        from matplotlib.figure import Figure  # noqa: PLC0415 - half a second

        rows = ({"hour": entry.hour, "rank": entry.who, "fault": entry.fault.name} for entry in trace.entries)
        with style():
            figure = Figure(figsize=_SIZE, layout="constrained")
            legend(timeline(frame_of(rows), ax=figure.subplots()))
            yield to_svg(figure, f"{prefix}-timeline", "timeline"), _TIMELINE


def _is_as_replayed(trace: Trace, runs: Sequence[Path]) -> bool:
    """Whether every loss of a rank in the runs' records has the hour and line of an entry of ``trace``."""
    hours = {(entry.line, entry.hour) for entry in trace.entries}
    events = (event for run in runs for event in EventLog.of(RunDir(run)).events)
    return all((event.line, event.hour) in hours for event in events if isinstance(event, Injected) and event.loss)


def _lines(stats: TraceStatistics) -> Iterator[str]:
    yield f"{headline(stats)}."
    for name, level in levels_of(stats):
        dispersed = "" if level.dispersed is None else f", {between(level.dispersed)} as dispersed"
        yield (
            f"A failure of {LEVELS[name]} every {number(level.mtbf_h)} h (95 %: {between(level.poisson)} if "
            f"Poisson{dispersed}). {verdict(level.fits, level.sample)}"
        )
    yield from remarks(stats)
