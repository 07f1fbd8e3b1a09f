"""Rows of a claim: a paper's number beside ours, with a verdict.

A tag such as [read] or [recalled] at a paper's number names its source (``analysis.claims.page``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from analysis.stats import Estimate

Verdict = Literal["reproduced", "not reproduced", "cannot be told", "calibrated", "identity", "study"]
"""The verdict of a row. The last three judge nothing.

``calibrated``: constants were chosen so that the number agrees. ``identity``: a formula is compared with itself.
``study``: nobody has published the number.
"""

_JUDGED: Sequence[Verdict] = ("not reproduced", "cannot be told", "reproduced")  # the worst first

UNPUBLISHED = "–"
NO_RUN = "no finished run"
_ONE_VALUE = "one value has no interval"
_MOST_DIGITS = 4


@dataclass(frozen=True)
class Row:
    """A row of a claim: name, the paper's number, ours with its 95 % interval, number of values, verdict, reason."""

    what: str
    paper: str
    ours: str
    num: int
    verdict: Verdict
    why: str = ""


def verdict_of(rows: Sequence[Row]) -> str:
    """The verdict of a claim: the worst of its judged rows.

    Without a judged row it is "study", "calibrated" or "identity", as the rows are; without any row, "not run".
    """
    found = [row.verdict for row in rows]
    return next((verdict for verdict in (*_JUDGED, "study", "calibrated", "identity") if verdict in found), "not run")


def study(what: str, ours: str, num: int, why: str = "") -> Row:
    """The row of a measured value that is compared with no published value; its verdict is ``study``."""
    return Row(what, UNPUBLISHED, ours, num, "study", why)


def within(
    what: str, paper: str, value: Estimate | None, low: float, high: float, *, digits: int = 2, why: str = ""
) -> Row:
    """A row: "reproduced" if our 95 % interval is inside [low, high], "not reproduced" if it is outside.

    In other cases, and without a value or an interval, "cannot be told".
    """
    if value is None:
        return Row(what, paper, "–", 0, "cannot be told", NO_RUN)
    ours = shown(value, digits=digits)
    if value.interval is None:
        return Row(what, paper, ours, value.num, "cannot be told", joined(_ONE_VALUE, why))
    verdict, reason = _placed("the interval", *value.interval, low, high)
    return Row(what, paper, ours, value.num, verdict, joined(reason, why))


def signed(
    what: str, paper: str, value: Estimate | None, *, sign: Literal[-1, 1], digits: int = 2, why: str = ""
) -> Row:
    """A row: "reproduced" if our 95 % interval is on side ``sign`` of 0, "not reproduced" if it is on the other.

    In other cases, and without a value or an interval, "cannot be told". A value without a published number (``paper``
    is ``–``) is a study.
    """
    if value is None:
        return Row(what, paper, "–", 0, "cannot be told", NO_RUN)
    ours = shown(value, digits=digits)
    if paper == UNPUBLISHED:
        return study(what, ours, value.num, why)
    if value.interval is None:
        return Row(what, paper, ours, value.num, "cannot be told", joined(_ONE_VALUE, why))
    low, high = sorted(sign * end for end in value.interval)
    if low <= 0 <= high:
        return Row(what, paper, ours, value.num, "cannot be told", joined("the interval contains 0", why))
    if low > 0:
        return Row(what, paper, ours, value.num, "reproduced", why)
    side = "below" if sign > 0 else "above"
    return Row(what, paper, ours, value.num, "not reproduced", joined(f"the interval lies {side} 0", why))


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
    too noisy. In other cases "cannot be told". Rounds without a published number (``paper`` is ``–``) are a study.
    """
    if not values:
        return Row(what, paper, "–", 0, "cannot be told", "not run here")
    if paper == UNPUBLISHED:
        return study(what, middle(values, digits), len(values), why)
    verdict, reason = _placed("the span of the rounds", min(values), max(values), low, high)
    if verdict == "not reproduced" and max(values) - min(values) > high - low:
        verdict, reason = "cannot be told", f"{reason}, and spreads wider than the range"
    return Row(what, paper, middle(values, digits), len(values), verdict, joined(reason, why))


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
