"""The exact AUC of this harness against the method of scikit-learn's ``roc_auc_score``, written in numpy.

The method: a stable argsort of the scores, sums over it, a trapezoid per group of ties. Scores are logits in float32,
once as they are and once rounded to about 1,000 values, so that nearly all are tied. Both are timed in turn; the
results must agree to 1e-12, or the exit code is 1.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._common import Spread, parser, report, table
from harness.core.seeds import generator
from harness.model.metrics import exact_auc

TOLERANCE = 1e-12


def argsort_auc(labels_M: NDArray[np.float32], scores_M: NDArray[np.float32]) -> float:
    """Area under the ROC curve, by the method of ``sklearn.metrics.roc_auc_score``."""
    order_M = np.argsort(scores_M, kind="stable")[::-1]
    sorted_M, positive_M = scores_M[order_M], labels_M[order_M].astype(np.float64)
    ends_G = np.r_[np.flatnonzero(np.diff(sorted_M)), len(sorted_M) - 1]
    hits_G = np.r_[0.0, np.cumsum(positive_M)[ends_G]]
    misses_G = np.r_[0.0, 1.0 + ends_G - hits_G[1:]]
    return float(np.trapezoid(hits_G / hits_G[-1], misses_G / misses_G[-1]))


def timed(action: Callable[[], float | None]) -> tuple[float, float]:
    """(seconds, AUC)."""
    began_s = time.perf_counter()
    found = action()
    seconds = time.perf_counter() - began_s
    assert found is not None, "both classes are there"
    return seconds, found


def main() -> None:
    """Measure, print, write as JSON if asked; exit code 1 where the results differ."""
    made = parser(__doc__, rounds=7)
    made.add_argument("--scores", type=int, default=3_000_000)
    options = made.parse_args()
    torch.set_num_threads(1)
    rng = generator(1, "auc")
    logits_M = rng.normal(-1.0, 1.0, options.scores).astype(np.float32)
    labels_M = (rng.random(options.scores) < 1 / (1 + np.exp(-logits_M))).astype(np.float32)
    rows, cases, worst = [], {}, 0.0
    for kind, scores_M in (("distinct", logits_M), ("tied", np.round(logits_M * 100) / np.float32(100))):
        tensors = torch.from_numpy(scores_M), torch.from_numpy(labels_M)
        rounds = [
            (timed(lambda: exact_auc(*tensors)), timed(lambda: argsort_auc(labels_M, scores_M)))  # noqa: B023 - called at once
            for _ in range(options.rounds + 1)
        ][1:]
        ours, theirs = (Spread.of(each[side][0] for each in rounds) for side in (0, 1))
        ratio = Spread.of(mine[0] / its[0] for mine, its in rounds)
        difference = max(abs(mine[1] - its[1]) for mine, its in rounds)
        worst = max(worst, difference)
        rows.append((kind, ours.show(3), theirs.show(3), ratio.show(3), f"{difference:.1e}"))
        cases[kind] = {"ours_s": ours, "other_s": theirs, "ratio": ratio, "difference": difference}
    report(options, table(("scores", "ours s", "other s", "ours / other", "difference"), rows), {"cases": cases})
    if worst > TOLERANCE:
        sys.exit(f"the results differ by {worst:.1e}, expected at most {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
