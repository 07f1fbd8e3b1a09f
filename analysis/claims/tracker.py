"""What part of CPR's gain is its tracker's: saves of random rows between those of all rows and of chosen ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.claims.arms import arms_of
from analysis.claims.measures import LOSS, LOST, LOST_TRACKED, WRITTEN, Measure
from analysis.claims.rows import Row, joined, shown, signed
from analysis.claims.settings import means
from analysis.load import Cell
from analysis.stats import Estimate, estimate

_ALL, _RANDOM = "cpr_vanilla", "cpr_random"
_PAPER = {"cpr_mfu": "above 0 [recalled]", "cpr_ssu": "above 0 [recalled]"}


def tracker_part(cells: Sequence[Cell]) -> list[Row]:
    """What each strategy loses at the same bytes; then what is gained on saving all rows, in two parts."""
    done = [cell for cell in cells if cell["status"] == "done"]
    arms = arms_of(cells)
    rows = [means(f"`{name}`", own, done, (LOST_TRACKED, LOST, LOSS, WRITTEN)) for name, own in arms.items()]
    if not {_ALL, _RANDOM} <= arms.keys():
        return rows
    for measure in (LOST_TRACKED, LOSS):
        rows += _gain(f"by parts of random rows, `{_RANDOM}` on `{_ALL}`", arms[_RANDOM], arms[_ALL], measure)
        for name in [name for name in arms if name not in {_ALL, _RANDOM}]:
            rows += _gain(f"by the tracker, `{name}` on `{_RANDOM}`", arms[name], arms[_RANDOM], measure)
            for row in _gain(f"in all, `{name}` on `{_ALL}`", arms[name], arms[_ALL], measure, _PAPER.get(name, "–")):
                part, whole = (measure.differences(arms[other], arms[name]) for other in (_RANDOM, _ALL))
                rows.append(replace(row, why=joined(row.why, _share(part, whole))))
    return rows


def _gain(text: str, own: Sequence[Cell], others: Sequence[Cell], measure: Measure, paper: str = "–") -> list[Row]:
    """How much less ``own`` loses than ``others``, paired."""
    value = measure.difference(others, own)
    if value is None:
        return []
    what = f"gain {text}: {measure.title}, {measure.unit.strip(' ·')}"
    return [signed(what, paper, value, sign=1)]


def _share(part: Mapping[int, float], whole: Mapping[int, float]) -> str:
    """The tracker's share of a gain that is shown to be one; over 100 % where random rows lose more than all rows."""
    gain = estimate(whole.values())
    if gain is None or gain.interval is None or gain.interval[0] <= 0:
        return "the gain is not shown"
    value = ratio([part[seed] for seed in whole], [*whole.values()])
    return f"the tracker's share: {shown(value, 100, 0)} % of the whole gain"


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """The ratio of two means of pairs, with the interval of its linear approximation (delta method)."""
    mean = math.fsum(wholes) / len(wholes)
    value = math.fsum(parts) / len(parts) / mean
    found = estimate([value + (part - value * whole) / mean for part, whole in zip(parts, wholes, strict=True)])
    assert found is not None, "there is a pair"
    return found
