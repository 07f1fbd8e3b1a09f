"""Rows of a claim: the paper's number beside ours, with a verdict. Papers' numbers: [read], [recalled] or [derived]."""

from dataclasses import dataclass
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


def sign(value: Estimate) -> Verdict:
    """Whether a value is above 0, with its 95 % interval."""
    if value.interval is None or value.interval[0] <= 0 <= value.interval[1]:
        return "cannot be told"
    return "reproduced" if value.mean > 0 else "not reproduced"


def shown(value: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    """Mean and half-width of the 95 % interval."""
    mean = f"{round(scale * value.mean, digits) + 0.0:.{digits}f}"  # no -0.00
    return mean if value.half_width is None else f"{mean} ± {scale * value.half_width:.{digits}f}"
