"""Rows of a claim: a published number beside the one here, with a verdict.

A tag such as [read] or [recalled] at a published number says how sure it is (``analysis.claims.page``).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from analysis.stats import Estimate

Verdict = Literal["reproduced", "not reproduced", "cannot be told", "calibrated", "identity"]
"""The verdict of a row. The last two judge nothing.

``calibrated``: constants were chosen so that the number agrees. ``identity``: it follows from formulas, whatever is
run.
"""

NO_RUN = "no finished run"
_WORST_FIRST: Sequence[Verdict] = ("not reproduced", "cannot be told", "reproduced", "calibrated", "identity")
_ONE_VALUE = "one value has no interval"
_ARITHMETIC = "equal in every run, so it follows from formulas"
_MAXIMUM = "the paper's number is the greatest over its settings, so that one setting below it refutes nothing"
_MOST_DIGITS = 4
_Placed = Callable[[float, float], tuple[Verdict, str]]


@dataclass(frozen=True)
class Row:
    """A row of a claim: name, the paper's number, ours with its 95 % interval, number of values, verdict, reason."""

    what: str
    paper: str
    ours: str
    num: int
    verdict: Verdict
    why: str = ""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of ``verdicts``; those that judge nothing count only where no other is. Raises ValueError for none."""
    return min(verdicts, key=_WORST_FIRST.index)


def verdict_of(rows: Sequence[Row]) -> str:
    """The verdict of a claim: the worst of its rows; "not run" without a row."""
    return worst(row.verdict for row in rows) if rows else "not run"


def within(
    what: str, paper: str, value: Estimate | None, low: float, high: float, *, digits: int = 2, why: str = ""
) -> Row:
    """A row: "reproduced" if our 95 % interval is inside [low, high], "not reproduced" if it is outside.

    "Identity" if it is inside and all of several values are equal. In other cases, and without a value or an interval,
    "cannot be told".
    """
    return _judged(
        what, paper, value, lambda first, last: _placed("the interval", first, last, low, high), digits=digits, why=why
    )


def signed(
    what: str, paper: str, value: Estimate | None, *, sign: Literal[-1, 1], digits: int = 2, why: str = ""
) -> Row:
    """A row as :func:`within`: "reproduced" if our 95 % interval is on side ``sign`` of 0, without 0 itself."""

    def placed(first: float, last: float) -> tuple[Verdict, str]:
        if first <= 0 <= last:
            return "cannot be told", "the interval contains 0"
        if sign * first > 0:
            return "reproduced", ""
        return "not reproduced", f"the interval lies {'below' if sign > 0 else 'above'} 0"

    return _judged(what, paper, value, placed, digits=digits, why=why)


def _judged(what: str, paper: str, value: Estimate | None, placed: _Placed, *, digits: int, why: str) -> Row:
    if value is None:
        return Row(what, paper, "–", 0, "cannot be told", NO_RUN)
    row = Row(what, paper, shown(value, digits=digits), value.num, "cannot be told", why)
    if value.interval is None:
        return replace(row, why=joined(_ONE_VALUE, why))
    verdict, reason = placed(*value.interval)
    if verdict == "reproduced" and not value.half_width:
        verdict, reason = "identity", _ARITHMETIC
    return replace(row, verdict=verdict, why=joined(reason, why))


def _placed(what: str, first: float, last: float, low: float, high: float) -> tuple[Verdict, str]:
    """The verdict on a span in the range [low, high], and the reason; the reason is empty if the span is inside."""
    if first >= low and last <= high:
        return "reproduced", ""
    if last < low:
        return "not reproduced", f"{what} lies below {low:g}"
    if first > high:
        return "not reproduced", f"{what} lies above {high:g}"
    met = [f"{end:g}" for end in (low, high) if first <= end <= last]
    return "cannot be told", f"{what} contains {' and '.join(met)}"


def measured(
    what: str, paper: str, values: Sequence[float], low: float, high: float, *, digits: int = 2, why: str = ""
) -> Row:
    """A row with the median, least and greatest of measured rounds; "reproduced" if all rounds are inside [low, high].

    "Not reproduced" if all are on one side of the range, and spread no wider than the range: otherwise the machine was
    too noisy. In other cases "cannot be told".
    """
    if not values:
        return Row(what, paper, "–", 0, "cannot be told", "not run here")
    verdict, reason = _placed("the span of the rounds", min(values), max(values), low, high)
    if verdict == "not reproduced" and max(values) - min(values) > high - low:
        verdict, reason = "cannot be told", f"{reason}, and spreads wider than the range"
    return Row(what, paper, middle(values, digits), len(values), verdict, joined(reason, why))


def up_to(
    what: str,
    paper: str,
    ours: str,
    num: int,
    *,
    reached: float,
    most: float,
    kept: Verdict = "reproduced",
    why: str,
) -> Row:
    """A row for a published "up to ``most``". ``reached``: the low end of our interval or rounds; NaN: unknown.

    The published number is a maximum over the paper's settings. If ours reaches it, the verdict is ``kept``, that of
    the side condition under which it must be reached; otherwise "cannot be told".
    """
    if reached >= most:
        return Row(what, paper, ours, num, kept, why)
    reason = NO_RUN if math.isnan(reached) else _MAXIMUM
    return Row(what, paper, ours, num, "cannot be told", joined(reason, why))


def middle(values: Sequence[float], digits: int = 2) -> str:
    """The median of several values as text, with the least and the greatest in brackets; a single value alone."""
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{median(values):.{digits}f} ({between(min(values), max(values), digits)})"


def between(low: float, high: float, digits: int = 2) -> str:
    """A range as text: ``1.00–2.00``, or ``-1.00 to 2.00`` if its low end is negative."""
    return f"{low:.{digits}f}{' to ' if low < 0 else '–'}{high:.{digits}f}"


def joined(*reasons: str) -> str:
    """The reasons that are not empty, joined by semicolons."""
    return "; ".join(filter(None, reasons))


def confirms_nothing(row: Row, kind: Literal["calibrated", "identity"]) -> Row:
    """``row`` with the verdict ``kind``; a row that is "not reproduced" or has no values is returned as it is."""
    return row if row.verdict == "not reproduced" or not row.num else replace(row, verdict=kind)


def shown(value: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    """Mean ± half-width of the 95 % interval as text, both times ``scale``.

    It has more than ``digits`` digits, but at most 4, if the half-width would be shown as 0 otherwise.
    """
    half = None if value.half_width is None else abs(scale * value.half_width)
    if half is not None:
        digits = next((each for each in range(digits, _MOST_DIGITS + 1) if round(half, each)), digits)
    mean = f"{round(scale * value.mean, digits) + 0.0:.{digits}f}"  # no -0.00
    return mean if half is None else f"{mean} ± {half:.{digits}f}"
