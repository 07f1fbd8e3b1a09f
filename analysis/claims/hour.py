"""How a loss of AUC heals after one failure at a given hour (``trace.law: at:H``).

S seeds, T points of the curve after the failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.claims.figures import draw_sweep, legend_above
from analysis.claims.measures import LOSS, PLS
from analysis.claims.rows import Row, shown
from analysis.claims.settings import Trend, settings, values_of
from analysis.figures import colour
from analysis.load import Cell
from analysis.stats import BASELINE, Estimate, estimate, strategy_order
from harness.core.events import Evaluated
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEY = "trace.law"
_LINES = ("-", "--")  # of a strategy
_HUES = ("full", "never_save", "cpr_mfu", "other")  # of an hour: colours that the page knows
_SWEEP = settings(
    KEY,
    "failure",
    [
        Trend("never_save", +1, "above 0 (own claim)", LOSS),
        Trend("cpr_vanilla", +1, "above 0 (own claim)", LOSS),
        Trend("cpr_vanilla", 0, "–", PLS),
    ],
)


@dataclass(frozen=True)
class Healing:
    """AUC lost to the run without failures of the same seed, at points after a failure."""

    strategy: str
    law: str
    job_h: float
    hours_T: NDArray[np.float64]
    """Hours of training since the failure."""
    losses_ST: NDArray[np.float64]

    @property
    def half_h(self) -> Estimate | None:
        """Hours from the first point until the mean loss is half of what it was there, by the jackknife over seeds.

        None where the mean of some seeds does not fall to its half, or is not above 0 at the first point.
        """
        num = len(self.losses_ST)
        whole = self._half_h(self.losses_ST)
        without_S = [self._half_h(np.delete(self.losses_ST, s, axis=0)) for s in range(num)] if num > 1 else []
        if whole is None or None in without_S:
            return None
        return estimate([num * whole - (num - 1) * other for other in without_S if other is not None] or [whole])

    def _half_h(self, losses_ST: NDArray[np.float64]) -> float | None:
        means_T = losses_ST.mean(axis=0)
        below = np.flatnonzero(means_T <= means_T[0] / 2)
        if means_T[0] <= 0 or not len(below):
            return None
        last = below[0]
        part = (means_T[last - 1] - means_T[0] / 2) / (means_T[last - 1] - means_T[last])
        return float(self.hours_T[last - 1] + part * (self.hours_T[last] - self.hours_T[last - 1]) - self.hours_T[0])


def healings(cells: Sequence[Cell]) -> list[Healing]:
    """Of each strategy and hour, with the seeds that have a run without failures."""
    done = [cell for cell in cells if cell["status"] == "done"]
    reference = {cell["seed"]: _points(cell) for cell in done if cell["strategy"] == BASELINE}
    found: list[Healing] = []
    for name in sorted({cell["strategy"] for cell in done} - {BASELINE}, key=strategy_order):
        for law in values_of(done, KEY):
            own = [c for c in done if (c["strategy"], c[KEY]) == (name, law) and c["seed"] in reference]
            if not own:
                continue
            job_h, curves = own[0]["job_h"], [(_points(cell), reference[cell["seed"]]) for cell in own]
            hour = float(_hour_of(law))
            total = max(curves[0][0])
            after = [at for at in sorted(curves[0][0]) if job_h * at / total > hour]
            losses_ST = np.array([[other[at] - points[at] for at in after] for points, other in curves])
            found.append(Healing(name, law, job_h, job_h * np.array(after) / total - hour, losses_ST))
    return found


def _points(cell: Cell) -> dict[int, float]:
    """AUC of a run by the samples before the evaluation."""
    events = EventLog.of(RunDir(Path(cell["path"]))).events
    return {event.samples: event.auc for event in events if isinstance(event, Evaluated) and event.auc is not None}


def hour(cells: Sequence[Cell]) -> list[Row]:
    """The sweep of hours, and how long it takes until half of a loss is gone."""
    rows = _SWEEP(cells)
    for each in healings(cells):
        first, half = estimate(each.losses_ST[:, 0]), each.half_h
        if first is None or len(each.hours_T) < 2:
            continue
        what = f"`{each.strategy}`, failure {each.law}: hours until half of the loss is gone"
        why = f"{shown(first, 1e3)}·10⁻³ at {each.hours_T[0]:.1f} h"
        if half is None:
            rows.append(Row(what, "–", "–", len(each.losses_ST), "cannot be told", f"{why}; not halved for all seeds"))
        else:
            why += f"; {shown(half, 100 / each.job_h, 1)} % of the job"
            rows.append(Row(what, "–", shown(half), half.num, "ours", f"{why}; jackknife over seeds"))
    return rows


def draw_hours(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
    """AUC loss at the end by the hour of the failure, and against the hours since it."""
    draw_sweep(axes[0], cells, KEY, "hour of the failure", LOSS, scale="linear")
    legend_above(axes[0])
    found = [each for each in healings(cells) if len(each.hours_T) > 1]
    names = [*dict.fromkeys(each.strategy for each in found)]
    laws = [*dict.fromkeys(each.law for each in found)]
    for each in found:
        estimates = [estimate(losses_S) for losses_S in 1e3 * each.losses_ST.T]
        means_T = np.array([point.mean for point in estimates if point is not None])
        widths_T = np.array([point.half_width or 0.0 for point in estimates if point is not None])
        line, hue = _LINES[names.index(each.strategy) % 2], colour(_HUES[laws.index(each.law) % len(_HUES)])
        label = f"{each.strategy}, hour {_hour_of(each.law)}"
        axes[1].plot(each.hours_T, means_T, line, color=hue, label=label)
        axes[1].fill_between(each.hours_T, means_T - widths_T, means_T + widths_T, color=hue, alpha=0.15, linewidth=0)
    axes[1].set_xlabel("hours of training since the failure")
    axes[1].set_ylabel(LOSS.label)
    legend_above(axes[1])


def _hour_of(law: str) -> str:
    return law.partition(":")[2]
