"""What can be said of a failure trace, as tables on the console."""

import math
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from analysis.style import UNKNOWN
from harness.traces.fits import Fit
from harness.traces.levels import Level
from harness.traces.statistics import TraceStatistics
from harness.traces.survival import Interval

LEVELS = {"rank": "one rank", "system": "any rank"}
"""What the gaps are of, in words."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SURE = 0.05


def show_trace(told: TraceStatistics) -> RenderableType:
    """How often, which law, who, together, when, how long; every unknown as such."""
    parts: list[RenderableType] = [Text(headline(told), style="bold"), _often(told), *map(Text, often_notes(told))]
    for name, level in levels_of(told):
        parts += [Text(_gaps_title(name, level), style="bold"), *([_fits(level, told)] if level.fits else [])]
        parts += [Text(line) for line in (level.verdict, *_doubts(level))]
        if level.hazard:
            parts.append(_hazard(level))
    return Group(*parts, *map(Text, remarks(told)))


def headline(told: TraceStatistics) -> str:
    """Its title and size."""
    ranks = "ranks unknown" if told.num_ranks is None else f"{told.num_ranks:,} {_plural('rank', told.num_ranks)}"
    title = told.title or told.source
    num_instants = len(told.hour_I)
    deaths = f"{told.num_deaths:,} {_plural('death', told.num_deaths)}"
    return (
        f"{title}: {deaths} at {num_instants:,} {_plural('instant', num_instants)}, {number(told.length_h)} h, {ranks}"
    )


def levels_of(told: TraceStatistics) -> list[tuple[str, Level]]:
    """Ranks, if they are named, and the system."""
    return [*([("rank", told.rank)] if told.rank else []), ("system", told.system)]


def often_notes(told: TraceStatistics) -> Iterator[str]:
    """How to read the table of MTBFs."""
    if told.death_gap_mean_h is not None and told.death_gap_median_h is not None:
        yield (
            f"From one death to the next, those at one instant too: {number(told.death_gap_mean_h)} h on average, "
            f"{number(told.death_gap_median_h)} h in the median."
        )
    yield (
        "Failures at one instant are one failure of 'any rank'. Poisson: if failures strike independently at one rate; "
        "as dispersed: as their numbers scatter over ranks, or over windows of time."
    )
    if told.first == "left_out":
        yield "A window of a log, or as if from one: gaps are counted from each first failure on, not from hour 0."


def remarks(told: TraceStatistics) -> Iterator[str]:
    """Who, together, when, how long: a line each."""
    yield from _who(told)
    yield from _together(told)
    yield from _when(told)
    if told.repairs:
        down = "" if told.repairs.down_frac is None else f"; {told.repairs.down_frac:.3%} of all ranks' hours"
        unknown = f", {told.repairs.num_unknown:,} unknown" if told.repairs.num_unknown else ""
        yield (
            f"Repairs: {told.repairs.num:,} known{unknown}; {number(told.repairs.mean_h)} h on average, median "
            f"{number(told.repairs.median_h)}, nine in ten within {number(told.repairs.p90_h)}, longest "
            f"{number(told.repairs.longest_h)}{down}."
        )
    if not told.num_bootstraps and told.num_deaths:
        yield "Goodness of fit: p is a bound that can refute a family, not confirm it; --bootstrap B gives p itself."


def number(value: float | None) -> str:
    """Three digits, without an exponent as far as a reader can count."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞"
    if value == 0 or not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def between(interval: Interval | None) -> str:
    """An interval in words."""
    return UNKNOWN if interval is None else f"{number(interval.low)} to {number(interval.high)}"


def p_value(p: float) -> str:
    """Two digits, as far as it matters, with its sign."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def _plural(word: str, num: int) -> str:
    return word if num == 1 else f"{word}s"


def _often(told: TraceStatistics) -> Table:
    titles = ("MTBF, h", "95 % if Poisson", "95 % as dispersed", "dispersion", "mean gap, h", "median", "CV")
    columns = [Column(title, justify="right") for title in (*titles, "burstiness", "memory")]
    table = Table(Column("failure of"), *columns, box=SIMPLE_HEAD, pad_edge=False)
    for name, level in levels_of(told):
        gaps, mtbf = level.gaps, level.mtbf
        figures = (mtbf.dispersion, gaps.mean_h, gaps.median_h, gaps.cv, gaps.burstiness, gaps.memory)
        table.add_row(
            LEVELS[name], number(mtbf.hours), between(mtbf.poisson), between(mtbf.dispersed), *map(number, figures)
        )
    return table


def _gaps_title(name: str, level: Level) -> str:
    zero = f"; {level.gaps.num_zero:,} of no length left out" if level.gaps.num_zero else ""
    cut = f"{level.gaps.num_cut:,} cut short by the end{zero}"
    return f"\nTime between failures of {LEVELS[name]}: {level.gaps.num:,} {_plural('gap', level.gaps.num)}, {cut}"


def _fits(level: Level, told: TraceStatistics) -> Table:
    is_resampled = bool(told.num_bootstraps)
    columns = [
        Column(title, justify="right")
        for title in ("ΔAIC", "mean, h", "distance", "p" if is_resampled else "p at most")
    ]
    table = Table(
        Column("family"),
        *columns,
        Column("parameters (95 % by the likelihood)"),
        *([Column(f"(95 % by {told.num_bootstraps:,} samples)")] if is_resampled else []),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    least = min(fit.aic for fit in level.fits)
    for fit in sorted(level.fits, key=lambda fit: fit.aic):
        goodness = f"{fit.goodness.distance:.3f}", p_value(fit.goodness.p).removeprefix("p ").removeprefix("= ")
        resampled = (
            [", ".join(between(one) for one in (fit.bootstrap_intervals or {}).values())] if is_resampled else []
        )
        table.add_row(fit.family, f"{fit.aic - least:.1f}", number(fit.mean_h), *goodness, parameters(fit), *resampled)
    return table


def parameters(fit: Fit) -> str:
    """Each with its interval."""
    return ", ".join(
        f"{name} {number(value)} ({between(fit.intervals[name])})" for name, value in fit.parameters.items()
    )


def _doubts(level: Level) -> Iterator[str]:
    """What could not be fitted, and what speaks against the p-values."""
    yield from level.refused.values()
    if level.gaps.num >= 20 and level.gaps.num_different < 0.5 * level.gaps.num:
        yield (
            f"The {level.gaps.num:,} gaps have {level.gaps.num_different:,} different values only: the log's clock is "
            "coarse, and no smooth law can be near its steps, so p is too small."
        )


def _hazard(level: Level) -> Table:
    columns = [Column(title, justify="right") for title in ("hours since the last", "failures", "per 1000 h", "95 %")]
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for one in level.hazard:
        rate = Interval(1e3 * one.interval.low, 1e3 * one.interval.high)
        since = f"{number(one.from_h)} to {number(one.to_h)}"
        table.add_row(since, f"{one.num_events:,}", number(1e3 * one.rate_per_h), between(rate))
    return table


def _who(told: TraceStatistics) -> Iterator[str]:
    who = told.concentration
    if who is None:
        return
    top = f"the {who.num_top:,} that {'fails' if who.num_top == 1 else 'fail'} most: {who.top_share:.0%} of all deaths"
    yield f"Who: {who.num_failed:,} of {told.num_ranks:,} ranks failed; {top}.{_alike(who.p)}"
    if who.offenders:
        named = (f"ps{one.rank}{f' ({one.node})' if one.node else ''} {one.num_failures:,}×" for one in who.offenders)
        yield f"Again and again: {', '.join(named)}."


def _alike(p: float | None) -> str:
    if p is None:
        return ""
    told = "are not alike, and the gaps of 'one rank' mix theirs" if p < _SURE else "may well be alike"
    return f" Ranks {told} ({p_value(p)}, Poisson)."


def _together(told: TraceStatistics) -> Iterator[str]:
    groups = {size: num for size, num in told.group_sizes.items() if size > 1}
    if groups:
        num_deaths = sum(size * num for size, num in groups.items())
        yield (
            f"Together: {_listed(f'{num:,}× {size:,} ranks' for size, num in groups.items())} at one instant, "
            f"{num_deaths / told.num_deaths:.0%} of all deaths."
        )


def _listed(parts: Iterable[str]) -> str:
    shown = list(parts)
    return ", ".join(shown if len(shown) <= 6 else [*shown[:3], "…", *shown[-2:]])


def _when(told: TraceStatistics) -> Iterator[str]:
    if told.trend:
        crowd = "at the beginning" if told.trend.score < 0 else "towards the end"
        found = f"failures crowd {crowd}" if told.trend.p < _SURE else "no trend over time is seen"
        yield f"Trend: {found} (Lewis and Robinson's score {told.trend.score:.1f}, {p_value(told.trend.p)})."
    if told.time_of_day:
        hours, days = told.time_of_day.num_by_hour, told.time_of_day.num_by_weekday
        thirds = ", ".join(f"{first:02}–{first + 8:02} h {sum(hours[first : first + 8]):,}" for first in (0, 8, 16))
        week = ", ".join(f"{day} {num:,}" for day, num in zip(_DAYS, days, strict=True))
        yield f"Time of day: {thirds} (uniform: {p_value(told.time_of_day.p)}). {week}."
