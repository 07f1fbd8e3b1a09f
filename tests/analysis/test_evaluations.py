"""Results from the evaluations of a run."""

import math
from dataclasses import replace

import pytest

from analysis.load.evaluations import evaluation_results
from harness.core.events import Evaluated

FINAL = Evaluated(
    step=100, samples=1000, auc=0.8, log_loss=0.5, accuracy=0.7, num_samples=10, normalised_entropy=0.9, final=True
)


def curve(num: int) -> list[Evaluated]:
    """Evaluations at equal distances, whose AUC grows by 0.1 for each factor e of samples."""
    samples = [1000 * number // num for number in range(1, num + 1)]
    return [replace(FINAL, samples=each, auc=0.1 * math.log(each), final=False) for each in samples]


def test_the_last_ten_evaluations_and_the_slope_are_of_the_curve() -> None:
    """The final evaluation is of other samples and no point of the curve; it stands in where there is none."""
    found = evaluation_results([*curve(20), FINAL])
    last = [event.auc for event in curve(20)[-10:] if event.auc is not None]
    assert (found["auc_mean10"], found["num_mean10"]) == (pytest.approx(sum(last) / 10), 10)
    assert found["auc_per_log_sample"] == pytest.approx(0.1)
    assert found["ne"] == 0.9
    alone = evaluation_results([FINAL])
    assert (alone["auc_mean10"], alone["num_mean10"], alone["auc_per_log_sample"]) == (0.8, 1, None)
    assert evaluation_results([*curve(2), FINAL])["num_mean10"] == 2
    assert evaluation_results(curve(3)) == {}
