"""Rows of a claim: the paper's number beside ours, with a verdict. Papers' numbers: [read], [recalled] or [derived]."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from analysis.stats import Estimate

Verdict = Literal["reproduced", "not reproduced", "cannot be told", "calibrated", "ours"]
"""``calibrated``: constants were chosen so that it comes out, which confirms nothing. ``ours``: no paper has it."""


@dataclass(frozen=True)
class Row:
    """One number: what it is, the paper's with its certainty, ours with its 95 % interval, and what follows."""

    what: str
    paper: str
    ours: str
    num: int
    verdict: Verdict
    why: str = ""


def within(what: str, paper: str, value: Estimate | None, low: float, high: float) -> Row:
    """Reproduced where our 95 % interval lies in the published range, not where it lies outside; else open."""
    if value is None:
        return Row(what, paper, "–", 0, "cannot be told", "no finished run")
    first, last = value.interval or (value.mean, value.mean)
    verdict: Verdict = "cannot be told"
    if first >= low and last <= high:
        verdict = "reproduced"
    elif last < low or first > high:
        verdict = "not reproduced"
    return Row(what, paper, shown(value), value.num, verdict)


def measured(what: str, paper: str, values: Sequence[float], low: float, high: float, *, why: str = "") -> Row:
    """Median with least and greatest of what a machine was measured at; reproduced where all lie in the range.

    Not reproduced where all lie on one side of it. Open between, and where they spread wider than the range: then the
    machine was too noisy to tell. ``paper`` ``–``: no paper has the number.
    """
    if not values:
        return Row(what, paper, "–", 0, "cannot be told", "not run here")
    least, most = min(values), max(values)
    verdict: Verdict = "cannot be told"
    if paper == "–":
        verdict = "ours"
    elif low <= least and most <= high:
        verdict = "reproduced"
    elif (most < low or least > high) and most - least <= high - low:
        verdict = "not reproduced"
    return Row(what, paper, middle(values), len(values), verdict, why)


def middle(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and greatest of at least one value."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def calibrated(row: Row) -> Row:
    """``row`` of a number for which constants were chosen: that it comes out confirms nothing."""
    return row if row.verdict == "not reproduced" else replace(row, verdict="calibrated")


def sign(value: Estimate) -> Verdict:
    """Whether a value is above 0, with its 95 % interval."""
    if value.interval is None or value.interval[0] <= 0 <= value.interval[1]:
        return "cannot be told"
    return "reproduced" if value.mean > 0 else "not reproduced"


def shown(value: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    """Mean and half-width of the 95 % interval."""
    mean = f"{round(scale * value.mean, digits) + 0.0:.{digits}f}"  # no -0.00
    return mean if value.half_width is None else f"{mean} ± {scale * value.half_width:.{digits}f}"
