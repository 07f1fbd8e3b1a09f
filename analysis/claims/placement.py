"""How much the ranks of a placement differ in what their failure loses."""

from collections.abc import Sequence
from statistics import median

from analysis.claims.measures import LOSS, LOST, OVERHEAD, PLS, Measure
from analysis.claims.rows import Row, shown
from analysis.claims.settings import Less, Trend, by_seed, settings, values_of
from analysis.load import Cell
from analysis.stats import estimate

KEY = "cluster.placement"
_SAVING = ("cpr_vanilla", "cpr_mfu")
_SWEEP = settings(
    KEY,
    "placement",
    [
        *(Trend(name, +1, "–") for name in _SAVING),
        *(Trend(name, +1, "–", measure) for name in _SAVING for measure in (PLS, LOST, LOSS)),
        Less("cpr_mfu", "cpr_vanilla", "–"),
    ],
    (OVERHEAD, PLS, LOST, LOSS),
)


def placement(cells: Sequence[Cell]) -> list[Row]:
    """The sweep of both placements, and the spread over failures that strike at one hour."""
    done = [cell for cell in cells if cell["status"] == "done"]
    return [
        *_SWEEP(cells),
        *(
            row
            for name in _SAVING
            for measure in (PLS, LOST)
            for value in values_of(done, KEY)
            for row in _spread(done, name, value, measure)
        ),
    ]


def _spread(cells: Sequence[Cell], name: str, value: str, measure: Measure) -> list[Row]:
    """How far a failure is from the median one, as in Brown and Forsythe's test of variances."""
    found = [*by_seed(cells, name, measure, KEY, value).values()]
    if not found:
        return []
    middle = median(found)
    distance = estimate([abs(each - middle) for each in found])
    assert distance is not None
    what = f"`{name}`, placement {value}: mean distance of failures from the median one; {measure.label}"
    return [Row(what, "–", shown(distance), len(found), "ours", f"from {min(found):.2f} to {max(found):.2f}")]
