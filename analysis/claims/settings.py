"""What sweeps of one setting show: overhead, PLS and AUC loss at each value, and expected trends."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.cells import Cell
from analysis.claims.rows import Row, Verdict, shown, sign
from analysis.stats import BASELINE, Estimate, estimate, estimate_pairs, pairs_of


@dataclass(frozen=True)
class Trend:
    """An expected change of a measure from the first to the last value of a key: +1 rises, -1 falls, 0 stays.

    To stay is to change by less than ``FLAT`` percentage points. ``paper``: what it says, or ``–``.
    """

    strategy: str
    sign: Literal[-1, 0, 1]
    paper: str
    measure: Literal["overhead", "saves", "removed"] = "overhead"


FLAT = 0.1
_MEASURES = {
    "overhead": "overhead, % of the job",
    "saves": "overhead of saves, % of the job",
    "removed": "part of full recovery's overhead that it removes, %",
}


def settings(key: str, what: str, trends: Sequence[Trend]) -> Callable[[Sequence[Cell]], list[Row]]:
    """A judge of a sweep: one row for each strategy and value of ``key``, and one for each expected trend."""

    def judge_cells(cells: Sequence[Cell]) -> list[Row]:
        done = [cell for cell in cells if cell["status"] == "done"]
        values = sorted({cell[key] for cell in done if cell[key] is not None}, key=natural)
        names = dict.fromkeys(
            cell["strategy"] for cell in done if cell[key] is not None and cell["strategy"] != BASELINE
        )
        rows = [_setting_row(done, name, key, value, what) for name in names for value in values]
        return [*rows, *(_trend_row(done, trend, key, values, what) for trend in trends)]

    return judge_cells


def _setting_row(cells: Sequence[Cell], name: str, key: str, value: Any, what: str) -> Row:
    own = [cell for cell in cells if (cell["strategy"], cell[key]) == (name, value)]
    loss, overhead = estimate_pairs(pairs_of(own, cells, "auc")), estimate(100 * cell["overhead_frac"] for cell in own)
    lost = estimate(100 * cell["pls"] for cell in own)
    ours = [f"overhead {shown(overhead)} %" if overhead else "", f"PLS {shown(lost)} %" if lost else ""]
    ours.append(f"AUC loss {shown(loss.negated, 1e3)}·10⁻³" if loss else "")
    return Row(_joined(f"`{name}`,", what, str(value)), "–", "; ".join(filter(None, ours)), len(own), "ours")


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
    own = [cell for cell in cells if (cell["strategy"], cell[key]) == (trend.strategy, value)]
    if trend.measure == "saves":
        return {cell["seed"]: cell["save_h"] / cell["job_h"] for cell in own}
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
