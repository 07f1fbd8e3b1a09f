"""The statistics of a failure trace as tables and sentences on the console."""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from analysis.tables import UNKNOWN, Fitted, Heading, counted, rich_table
from harness.core.plans import Rank, ps_rank
from harness.traces.fits import Interval, verdict
from harness.traces.statistics import Level, TraceStatistics

LEVELS = {"rank": "one rank", "system": "any rank"}
"""The words for the two kinds of gap between failures."""
_SIGNIFICANT = 0.05
_NUM_OFFENDERS = 5
_NOTE = (
    "Failures at one instant are one failure of 'any rank'. Poisson: independent failures at one rate; as dispersed: "
    "by the scatter of their numbers over ranks, or over windows of time."
)
_WINDOW = "A window of a log, or generated like one: gaps count from each first failure on, not from hour 0."
_BOUND = "Goodness of fit: p is a bound that can refute a family, not confirm it."


def show_trace(stats: TraceStatistics) -> RenderableType:
    """All statistics of a trace for the console; an unknown value is a dash."""
    parts: list[RenderableType] = [Text(headline(stats), style="bold"), _often(stats), Text(_NOTE)]
    if stats.first == "left_out":
        parts.append(Text(_WINDOW))
    for name, level in levels_of(stats):
        gaps = f"{counted(level.sample.num_events, 'gap')}, {len(level.sample.cut_C):,} censored by the end"
        parts.append(Text(f"\nTime between failures of {LEVELS[name]}: {gaps}", style="bold"))
        parts += [*([_fits(level)] if level.fits else []), Text(verdict(level.fits, level.sample))]
    return Group(*parts, *map(Text, remarks(stats)), *([Text(_BOUND)] if stats.observed.num_deaths else []))


def headline(stats: TraceStatistics) -> str:
    """One line: the trace's title and its numbers of deaths, instants, ranks, and hours, which may end at a failure."""
    num_ranks = stats.observed.num_ranks
    ranks = "number of ranks not given" if num_ranks is None else counted(num_ranks, "rank")
    counts = f"{counted(stats.observed.num_deaths, 'death')} at {counted(len(stats.observed.instants[0]), 'instant')}"
    hours = f"{number(stats.observed.length_h)} h"
    if stats.observed.length_h in stats.observed.instants[0]:
        hours += " up to the last failure (length_h in the header sets other hours)"
    return f"{stats.title}: {counts}, {hours}, {ranks}"


def levels_of(stats: TraceStatistics) -> list[tuple[str, Level]]:
    """(key of ``LEVELS``, statistics) of gaps between failures of one rank, if these are known, and of any rank."""
    return [*([("rank", stats.rank)] if stats.rank else []), ("system", stats.system)]


def remarks(stats: TraceStatistics) -> Iterator[str]:
    """A sentence for each of these that the trace has: repeated lines, trainers, ranks, groups, repairs, notices."""
    if num := stats.observed.num_repeated:
        lines = "1 line names" if num == 1 else f"{num:,} lines name"
        yield f"Repeated: {lines} a rank that dies at that hour already; as in a run, it counts once."
    if num := stats.observed.num_of_trainers:
        yield f"Trainers: {num:,} line{'s name one' if num > 1 else ' names one'}; statistics are of PS ranks."
    yield from _who(stats)
    yield from _together(stats)
    if num := len(stats.repair_K):
        unknown = f", {stats.num_unknown_repairs:,} unknown" if stats.num_unknown_repairs else ""
        median, most, longest = map(number, np.quantile(stats.repair_K, [0.5, 0.9, 1.0]).tolist())
        mean = number(float(stats.repair_K.mean()))
        yield (
            f"Repairs: {num:,} known{unknown}; {mean} h on average, median {median}, nine in ten within {most}, "
            f"longest {longest}."
        )
    if num := stats.num_with_notice:
        yield f"Notice: {num:,} of {counted(stats.observed.num_deaths, 'death')} had one."


def number(value: float | None) -> str:
    """A number as text with three significant digits; from 1,000 to ten million rounded to a whole number.

    Numbers from 0.0001 to ten million have no exponent. Unknown (None or NaN) is a dash.
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞"
    if value == 0 or not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def between(interval: Interval | None) -> str:
    return UNKNOWN if interval is None else f"{number(interval.low)} to {number(interval.high)}"


def p_value(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def _often(stats: TraceStatistics) -> Fitted:
    titles = "MTBF, h", "95 % if Poisson", "95 % as dispersed", "median gap, h"
    rows: list[tuple[str, ...]] = []
    for name, level in levels_of(stats):
        median_h = float(np.median(level.sample.ended_E)) if level.sample.num_events else None
        intervals = between(level.poisson), between(level.dispersed)
        rows.append((LEVELS[name], number(level.mtbf_h), *intervals, number(median_h)))
    return rich_table([Heading("failure of", is_text=True), *map(Heading, titles)], rows)


def _fits(level: Level) -> Fitted:
    texts = Heading("family", is_text=True), Heading("parameters", is_text=True)
    headings = [texts[0], *map(Heading, ("ΔAIC", "mean, h", "distance", "p at most")), texts[1]]
    rows: list[tuple[str, ...]] = []
    for fit in level.fits:
        p = p_value(fit.p).removeprefix("p ").removeprefix("= ")
        numbers = f"{fit.aic - level.fits[0].aic:.1f}", number(fit.mean_h), f"{fit.distance:.3f}", p
        rows.append((fit.family, *numbers, ", ".join(f"{name} {number(of)}" for name, of in fit.parameters.items())))
    return rich_table(headings, rows)


def _who(stats: TraceStatistics) -> Iterator[str]:
    """Sentences on the tenth of the ranks with most deaths, and on the worst five ranks, if they died repeatedly."""
    num_R, p = stats.num_R, stats.p_alike
    if num_R is None:
        return
    order_R, num_top = np.argsort(-num_R, kind="stable"), max(1, len(num_R) // 10)
    share = num_R[order_R[:num_top]].sum() / num_R.sum()
    top = f"the {num_top:,} that {'fails' if num_top == 1 else 'fail'} most: {share:.0%} of all deaths"
    alike = ""
    if p is not None:
        unlike = "have different rates, and the gaps of 'one rank' mix them"
        alike = f" Ranks {unlike if p < _SIGNIFICANT else 'may have equal rates'} ({p_value(p)}, Poisson)."
    yield f"Who: {(num_R > 0).sum():,} of {len(num_R):,} ranks failed; {top}.{alike}"
    worst = [(ps_rank(rank), num_R[rank]) for rank in order_R[:_NUM_OFFENDERS].tolist() if num_R[rank] > 1]
    if worst:
        yield f"Again and again: {', '.join(f'{_named(rank, stats)} {num:,}×' for rank, num in worst)}."
    if any(len(of_rank) > 1 for of_rank in stats.nodes.values()):
        failed = sum(map(Counter, stats.nodes.values()), Counter[str]())
        often = [f"{node} {num:,}×" for node, num in failed.most_common(_NUM_OFFENDERS) if num > 1]
        again = f"again and again {', '.join(often)}" if often else "none of them twice"
        yield f"Nodes of the source, several to a rank: {len(failed):,} failed, {again}."


def _named(rank: Rank, stats: TraceStatistics) -> str:
    """A rank, with its node if that is one, else with the number of nodes that failed in its place."""
    match [*stats.nodes.get(rank, ())]:
        case []:
            return rank
        case [node]:
            return f"{rank} ({node})"
        case nodes:
            return f"{rank} ({len(nodes)} nodes)"


def _together(stats: TraceStatistics) -> Iterator[str]:
    groups = {size: num for size, num in stats.group_sizes.items() if size > 1}
    if groups:
        shown = [f"{num:,}× {size:,} ranks" for size, num in groups.items()]
        shown = shown if len(shown) <= 6 else [*shown[:3], "…", *shown[-2:]]
        share = sum(size * num for size, num in groups.items()) / stats.observed.num_deaths
        yield f"Together: {', '.join(shown)} at one instant, {share:.0%} of all deaths."
