"""What sweeps of one setting show: measures at each value, and expected trends and differences of strategies."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from analysis.claims.measures import LOSS, OVERHEAD, PLS, Measure
from analysis.claims.rows import NO_RUN, Row, Verdict, shown, signed
from analysis.load import Cell
from analysis.stats import BASELINE, Estimate, estimate


@dataclass(frozen=True)
class Trend:
    """An expected change of a measure from one value of a key to another: +1 rises, -1 falls, 0 stays.

    The values are the first and the last, unless named. To stay is to change by less than ``FLAT`` in the measure's
    unit. ``paper``: what it says, or ``–``.
    """

    strategy: str
    sign: Literal[-1, 0, 1]
    paper: str
    measure: Measure = OVERHEAD
    since: Any = None
    until: Any = None


@dataclass(frozen=True)
class Less:
    """At each value of a key, a measure of a strategy less that of another is expected to be below 0.

    The other may have run without the key.
    """

    strategy: str
    other: str
    paper: str
    measure: Measure = LOSS


FLAT = 0.1
REMOVED = Measure("part of full recovery's overhead that it removes", " %", lambda _: None)
"""Not of a cell alone: full recovery of the same seed is needed."""

Reference = Callable[[str, Any], tuple[str, Any]]
"""The strategy and the value of the key with which those of a row are compared."""


def settings(
    key: str,
    what: str,
    trends: Sequence[Trend | Less],
    measures: Sequence[Measure] = (OVERHEAD, PLS, LOSS),
    reference: Reference | None = None,
) -> Callable[[Sequence[Cell]], list[Row]]:
    """A judge of a sweep: a row for each strategy and value of ``key``, one for each trend, one a value for each less.

    A row has the means of ``measures``, and their differences to ``reference``, paired by seed. A strategy that ran
    without the key has one row.
    """

    def judge_cells(cells: Sequence[Cell]) -> list[Row]:
        done = [cell for cell in cells if cell["status"] == "done"]
        values = values_of(done, key)
        rows: list[Row] = []
        for name in dict.fromkeys(cell["strategy"] for cell in done if cell["strategy"] != BASELINE):
            for value in (*values, None):
                if own := cells_at(done, name, key, value):
                    text = f"`{name}`" if value is None else _spaced(f"`{name}`,", what, str(value))
                    others = cells_at(done, *_at(key, reference(name, value))) if reference else []
                    rows.append(replace(means(text, own, done, measures), why=_compared(own, others, measures)))
        for each in trends:
            if isinstance(each, Trend):
                rows.append(_trend_row(done, each, key, values, what))
            else:
                rows += [_less_row(done, each, key, value, what) for value in values]
        return rows

    return judge_cells


def values_of(cells: Iterable[Cell], key: str) -> list[Any]:
    """The values of ``key``, in order."""
    return sorted({cell[key] for cell in cells if cell[key] is not None}, key=natural)


def cells_at(cells: Iterable[Cell], name: str, key: str, value: Any) -> list[Cell]:
    """Those of a strategy at one value."""
    return [cell for cell in cells if (cell["strategy"], cell[key]) == (name, value)]


def _at(key: str, reference: tuple[str, Any]) -> tuple[str, str, Any]:
    name, value = reference
    return name, key, value


def means(text: str, own: Sequence[Cell], cells: Sequence[Cell], measures: Sequence[Measure]) -> Row:
    """A row of the means of ``own``, which are among ``cells``."""
    found = [(measure, measure.mean(own, cells)) for measure in measures]
    return Row(text, "–", "; ".join(m.text(value) for m, value in found if value), len(own), "ours")


def _compared(own: Sequence[Cell], others: Sequence[Cell], measures: Sequence[Measure]) -> str:
    """The differences to the reference; empty without one, and for the reference itself."""
    if own == others:
        return ""
    found = [(measure, measure.difference(own, others)) for measure in measures]
    return "; ".join(measure.change(value) for measure, value in found if value)


def _trend_row(cells: Sequence[Cell], trend: Trend, key: str, values: Sequence[Any], what: str) -> Row:
    label = f"`{trend.strategy}`: {trend.measure.label}"
    if not values:
        return Row(label, trend.paper, "–", 0, "cannot be told", NO_RUN)
    since = values[0] if trend.since is None else trend.since
    until = values[-1] if trend.until is None else trend.until
    first, last = (by_seed(cells, trend.strategy, trend.measure, key, value) for value in (since, until))
    change = _difference(last, first)
    text = _spaced(f"{label};", what, f"{until} less {since}")
    if change is None:
        return Row(text, trend.paper, "–", 0, "cannot be told", NO_RUN)
    if trend.sign == 0 and trend.paper != "–":
        verdict, why = _flat(change)
        return Row(text, trend.paper, shown(change), change.num, verdict, why)
    return signed(text, trend.paper, change, sign=-1 if trend.sign < 0 else 1)


def _less_row(cells: Sequence[Cell], less: Less, key: str, value: Any, what: str) -> Row:
    own = by_seed(cells, less.strategy, less.measure, key, value)
    other = by_seed(cells, less.other, less.measure, key, value)
    change = _difference(own, other or by_seed(cells, less.other, less.measure, key, None))
    text = _spaced(f"`{less.strategy}` less `{less.other}`: {less.measure.label};", what, str(value))
    if change is None:
        return Row(text, less.paper, "–", 0, "cannot be told", NO_RUN)
    return signed(text, less.paper, change, sign=-1, why="paired by seed")


def _difference(left: dict[int, float], right: dict[int, float]) -> Estimate | None:
    return estimate([left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())])


def _flat(change: Estimate) -> tuple[Verdict, str]:
    """Whether the interval of a change lies within ``FLAT`` of 0, and the rule, or why not."""
    low, high = change.interval or (-math.inf, math.inf)
    if low > -FLAT and high < FLAT:
        return "reproduced", f"flat: within {FLAT}"
    if low > FLAT or high < -FLAT:
        return "not reproduced", f"flat: within {FLAT}, and the interval lies outside"
    return "cannot be told", f"flat: within {FLAT}, and the interval lies in part outside"


def by_seed(cells: Sequence[Cell], name: str, measure: Measure, key: str, value: Any) -> dict[int, float]:
    """The measure of the strategy by seed; of what it removes, full recovery may have no value of the key."""
    own = cells_at(cells, name, key, value)
    if measure is not REMOVED:
        return measure.by_seed(own, cells)
    full = OVERHEAD.by_seed([c for c in cells if c["strategy"] == "full" and c[key] in (value, None)], cells)
    part = OVERHEAD.by_seed(own, cells)
    return {seed: 100 * (1 - part[seed] / full[seed]) for seed in part if full.get(seed)}


def _spaced(*words: str) -> str:
    return " ".join(filter(None, words))


def natural(value: Any) -> tuple[float, str]:
    """Numbers by size, also at the beginning of a text."""
    text = str(value)
    try:
        return float(text.split(maxsplit=1)[0]), text
    except ValueError:
        return math.inf, text
