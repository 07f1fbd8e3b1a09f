"""Results of a run from its evaluations."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from harness.core.events import Evaluated, Event

NUM_LAST = 10
"""Evaluations that ``auc_mean10`` is the mean of."""
_LEAST_POINTS = 3  # of a slope


def evaluation_results(events: Sequence[Event]) -> dict[str, Any]:
    """Columns from the evaluations of a finished run; None where unknown.

    ``auc_mean10``: mean AUC of the last ten evaluations of the curve, of those there are if fewer, and of the final one
    if there is no curve; ``num_mean10``: their number. ``auc_per_log_sample``: slope of the AUC by the natural
    logarithm of the number of samples, by least squares over the evaluations in the second half of the run. ``ne``:
    normalised entropy; ``calibration`` and ``group_aucs``: those of the final evaluation
    (:class:`harness.model.metrics.Quality`).
    """
    known = [event for event in events if isinstance(event, Evaluated) and event.auc is not None]
    finals = [event for event in known if event.final]
    if not finals:
        return {}
    final = finals[-1]
    curve = [(event.samples, event.auc) for event in known if not event.final and event.auc is not None]
    last = [auc for _, auc in curve[-NUM_LAST:]] or [final.auc or math.nan]
    return {
        "auc_mean10": fmean(last),
        "num_mean10": len(last),
        "auc_per_log_sample": _slope([point for point in curve if 2 * point[0] >= final.samples]),
        "ne": final.normalised_entropy,
        "calibration": final.calibration,
        "group_aucs": final.group_aucs,
    }


def _slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Slope of the AUC by the logarithm of the samples; None for fewer than three points."""
    if len({samples for samples, _ in points}) < _LEAST_POINTS:
        return None
    logs = [math.log(samples) for samples, _ in points]
    middle, mean = fmean(logs), fmean(auc for _, auc in points)
    products = math.fsum((log - middle) * (auc - mean) for log, (_, auc) in zip(logs, points, strict=True))
    return products / math.fsum((log - middle) ** 2 for log in logs)
