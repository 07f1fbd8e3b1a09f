"""What sweeps of one setting show: overhead, PLS and AUC loss at each value, and expected trends."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from analysis.cells import Cell
from analysis.claims.measures import LOSS, OVERHEAD, PLS, Measure
from analysis.claims.rows import Row, Verdict, shown, sign
from analysis.stats import BASELINE, Estimate, estimate


@dataclass(frozen=True)
class Trend:
    """An expected change of a measure from the first to the last value of a key: +1 rises, -1 falls, 0 stays.

    To stay is to change by less than ``FLAT`` percentage points. ``paper``: what it says, or ``–``.
    """

    strategy: str
    sign: Literal[-1, 0, 1]
    paper: str
    measure: Literal["overhead", "saves", "removed", "lost"] = "overhead"


FLAT = 0.1
_MEASURES = {
    "overhead": "overhead, % of the job",
    "saves": "overhead of saves, % of the job",
    "removed": "part of full recovery's overhead that it removes, %",
    "lost": "lost updates, %",
}

Reference = Callable[[str, Any], tuple[str, Any]]
"""The strategy and the value of the key with which those of a row are compared."""


def settings(
    key: str,
    what: str,
    trends: Sequence[Trend],
    measures: Sequence[Measure] = (OVERHEAD, PLS, LOSS),
    reference: Reference | None = None,
) -> Callable[[Sequence[Cell]], list[Row]]:
    """A judge of a sweep: one row for each strategy and value of ``key``, and one for each expected trend.

    A row has the means of ``measures``, and their differences to ``reference``, paired by seed.
    """

    def judge_cells(cells: Sequence[Cell]) -> list[Row]:
        done = [cell for cell in cells if cell["status"] == "done"]
        values = sorted({cell[key] for cell in done if cell[key] is not None}, key=natural)
        names = dict.fromkeys(
            cell["strategy"] for cell in done if cell[key] is not None and cell["strategy"] != BASELINE
        )
        rows: list[Row] = []
        for name in names:
            for value in values:
                others = _cells_of(done, key, *reference(name, value)) if reference else []
                if own := _cells_of(done, key, name, value):
                    row = measured(_joined(f"`{name}`,", what, str(value)), own, done, measures)
                    rows.append(replace(row, why=_compared(own, others, measures)))
        return [*rows, *(_trend_row(done, trend, key, values, what) for trend in trends)]

    return judge_cells


def _cells_of(cells: Sequence[Cell], key: str, name: str, value: Any) -> list[Cell]:
    return [cell for cell in cells if (cell["strategy"], cell[key]) == (name, value)]


def measured(text: str, own: Sequence[Cell], cells: Sequence[Cell], measures: Sequence[Measure]) -> Row:
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
    first, last = (_by_seed(cells, trend, key, value) for value in (values[0], values[-1]))
    change = estimate([100 * (last[seed] - first[seed]) for seed in sorted(first.keys() & last.keys())])
    text = _joined(f"`{trend.strategy}`: {_MEASURES[trend.measure]};", what, f"{values[-1]} less {values[0]}")
    if change is None:
        return Row(text, trend.paper, "–", 0, "cannot be told", "no finished run")
    verdict: Verdict = "ours"
    if trend.paper != "–":
        verdict = _flat(change) if trend.sign == 0 else sign(change if trend.sign > 0 else change.negated)
    return Row(text, trend.paper, shown(change), change.num, verdict, f"flat: within {FLAT}" if trend.sign == 0 else "")


def _flat(change: Estimate) -> Verdict:
    low, high = change.interval or (-math.inf, math.inf)
    if low > -FLAT and high < FLAT:
        return "reproduced"
    return "not reproduced" if low > FLAT or high < -FLAT else "cannot be told"


def _by_seed(cells: Sequence[Cell], trend: Trend, key: str, value: Any) -> dict[int, float]:
    """The measure of the strategy by seed; of what it removes, full recovery may have no value of the key."""
    own = _cells_of(cells, key, trend.strategy, value)
    if trend.measure == "saves":
        return {cell["seed"]: cell["save_h"] / cell["job_h"] for cell in own}
    if trend.measure == "lost":
        return {cell["seed"]: cell["update_pls"] for cell in own}
    if trend.measure == "overhead":
        return {cell["seed"]: cell["overhead_frac"] for cell in own}
    full = {c["seed"]: c["overhead_frac"] for c in cells if c["strategy"] == "full" and c[key] in (value, None)}
    return {cell["seed"]: 1 - cell["overhead_frac"] / full[cell["seed"]] for cell in own if full.get(cell["seed"])}


def _joined(*words: str) -> str:
    return " ".join(filter(None, words))


def natural(value: Any) -> tuple[float, str]:
    """Numbers by size, also at the beginning of a text."""
    text = str(value)
    try:
        return float(text.split(maxsplit=1)[0]), text
    except ValueError:
        return math.inf, text
