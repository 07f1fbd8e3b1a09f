"""What sweeps of one setting show: overhead, PLS and AUC loss at each value, and expected trends and differences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.cells import Cell
from analysis.claims.rows import Row, Verdict, shown, sign
from analysis.stats import BASELINE, Estimate, estimate, estimate_pairs, pairs_of

Measure = Literal["overhead", "saves", "removed", "pls", "updates", "tracked", "loss"]


@dataclass(frozen=True)
class Trend:
    """An expected change of a measure between two values of a key: +1 rises, -1 falls, 0 stays.

    To stay is to change by less than ``FLAT``. ``paper``: what it says, or ``–``. ``since``, ``until``: the values, by
    default the first and the last.
    """

    strategy: str
    sign: Literal[-1, 0, 1]
    paper: str
    measure: Measure = "overhead"
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
    measure: Measure = "loss"


FLAT = 0.1
MEASURES: dict[Measure, tuple[str, float]] = {
    "overhead": ("overhead, % of the job", 100.0),
    "saves": ("overhead of saves, % of the job", 100.0),
    "removed": ("part of full recovery's overhead that it removes, %", 100.0),
    "pls": ("lost samples (PLS), %", 100.0),
    "updates": ("lost updates, %", 100.0),
    "tracked": ("lost updates of tracked tables, %", 100.0),
    "loss": ("AUC loss, 10⁻³", 1000.0),
}
"""What a measure is, with its unit, and the factor to that unit."""
_COLUMNS = {"overhead": "overhead_frac", "pls": "pls", "updates": "update_pls", "tracked": "update_pls_tracked"}
_SHORT = {"overhead": "overhead", "pls": "PLS", "updates": "lost updates", "tracked": "lost updates of tracked tables"}


def settings(
    key: str, what: str, trends: Sequence[Trend | Less], shows: Sequence[Measure] = ("overhead", "pls")
) -> Callable[[Sequence[Cell]], list[Row]]:
    """A judge of a sweep: a row for each strategy and value of ``key``, one for each trend, one a value for each less.

    ``shows``: what a row has besides AUC loss. A strategy that ran without the key has one row.
    """

    def judge_cells(cells: Sequence[Cell]) -> list[Row]:
        done = [cell for cell in cells if cell["status"] == "done"]
        values = values_of(done, key)
        rows = [
            _setting_row(done, name, (key, value), what, shows)
            for name in dict.fromkeys(cell["strategy"] for cell in done if cell["strategy"] != BASELINE)
            for value in (*values, None)
            if any((cell["strategy"], cell[key]) == (name, value) for cell in done)
        ]
        for each in trends:
            if isinstance(each, Trend):
                rows.append(_trend_row(done, each, key, values, what))
            else:
                rows += [_less_row(done, each, key, value, what) for value in values]
        return rows

    return judge_cells


def values_of(cells: Sequence[Cell], key: str) -> list[Any]:
    """The values of ``key``, in order."""
    return sorted({cell[key] for cell in cells if cell[key] is not None}, key=natural)


def measured(cells: Sequence[Cell], name: str, key: str, value: Any, measure: Measure) -> Estimate | None:
    """The mean of a measure at one value, in the unit of ``MEASURES``."""
    scale = MEASURES[measure][1]
    if measure == "loss":
        own = [cell for cell in cells if (cell["strategy"], cell[key]) == (name, value)]
        pairs = pairs_of(own, cells, "auc")
        return estimate_pairs([type(pair)(pair.seed, pair.trace, -scale * pair.difference) for pair in pairs])
    return estimate([scale * each for each in values_by_seed(cells, name, measure, key, value).values()])


def _setting_row(
    cells: Sequence[Cell], name: str, setting: tuple[str, Any], what: str, shows: Sequence[Measure]
) -> Row:
    key, value = setting
    num = sum((cell["strategy"], cell[key]) == (name, value) for cell in cells)
    ours = [
        f"{_SHORT[measure]} {shown(found)} %"
        for measure in shows
        if (found := measured(cells, name, key, value, measure)) is not None
    ]
    if (loss := measured(cells, name, key, value, "loss")) is not None:
        ours.append(f"AUC loss {shown(loss)}·10⁻³")
    text = f"`{name}`" if value is None else _joined(f"`{name}`,", what, str(value))
    return Row(text, "–", "; ".join(ours), num, "ours")


def _trend_row(cells: Sequence[Cell], trend: Trend, key: str, values: Sequence[Any], what: str) -> Row:
    if not values:
        return Row(f"`{trend.strategy}`: {MEASURES[trend.measure][0]}", trend.paper, "–", 0, "cannot be told", _NO_RUN)
    since = values[0] if trend.since is None else trend.since
    until = values[-1] if trend.until is None else trend.until
    first, last = (values_by_seed(cells, trend.strategy, trend.measure, key, value) for value in (since, until))
    label, scale = MEASURES[trend.measure]
    change = _difference(last, first, scale)
    text = _joined(f"`{trend.strategy}`: {label};", what, f"{until} less {since}")
    if change is None:
        return Row(text, trend.paper, "–", 0, "cannot be told", _NO_RUN)
    if trend.paper == "–":
        return Row(text, trend.paper, shown(change), change.num, "ours")
    if trend.sign == 0:
        return Row(text, trend.paper, shown(change), change.num, _flat(change), f"flat: within {FLAT}")
    verdict = sign(change if trend.sign > 0 else change.negated)
    return Row(text, trend.paper, shown(change), change.num, verdict)


def _less_row(cells: Sequence[Cell], less: Less, key: str, value: Any, what: str) -> Row:
    own = values_by_seed(cells, less.strategy, less.measure, key, value)
    other = values_by_seed(cells, less.other, less.measure, key, value)
    other = other or values_by_seed(cells, less.other, less.measure, key, None)
    label, scale = MEASURES[less.measure]
    text = _joined(f"`{less.strategy}` less `{less.other}`: {label};", what, str(value))
    change = _difference(own, other, scale)
    if change is None:
        return Row(text, less.paper, "–", 0, "cannot be told", _NO_RUN)
    verdict: Verdict = "ours" if less.paper == "–" else sign(change.negated)
    return Row(text, less.paper, shown(change), change.num, verdict, "paired by seed")


_NO_RUN = "no finished run"


def _difference(left: dict[int, float], right: dict[int, float], scale: float) -> Estimate | None:
    return estimate([scale * (left[seed] - right[seed]) for seed in sorted(left.keys() & right.keys())])


def _flat(change: Estimate) -> Verdict:
    low, high = change.interval or (-math.inf, math.inf)
    if low > -FLAT and high < FLAT:
        return "reproduced"
    return "not reproduced" if low > FLAT or high < -FLAT else "cannot be told"


def values_by_seed(cells: Sequence[Cell], name: str, measure: Measure, key: str, value: Any) -> dict[int, float]:
    """The measure of the strategy by seed; of what it removes, full recovery may have no value of the key."""
    own = [cell for cell in cells if (cell["strategy"], cell[key]) == (name, value)]
    if measure == "loss":
        return {pair.seed: -pair.difference for pair in pairs_of(own, cells, "auc")}
    if measure == "saves":
        return {cell["seed"]: cell["save_h"] / cell["job_h"] for cell in own}
    if measure != "removed":
        column = _COLUMNS[measure]
        return {cell["seed"]: cell[column] for cell in own if cell[column] is not None}
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
