"""Quality of click predictions: exact AUC, log loss, accuracy. M scores."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional

from harness.kernels.scores import keys_by_label, twice_wins


@dataclass(frozen=True)
class Quality:
    """``auc`` is None if all labels are equal. ``log_loss`` in nats, mean; ``accuracy`` at probability 0.5."""

    auc: float | None
    log_loss: float
    accuracy: float
    num_samples: int


def measure(logits_M: Tensor, labels_M: Tensor) -> Quality:
    """Quality of float32 logits against labels in {0, 1}."""
    loss = functional.binary_cross_entropy_with_logits(logits_M.double(), labels_M.double())
    accuracy = ((logits_M > 0) == (labels_M > 0.5)).double().mean()
    return Quality(exact_auc(logits_M, labels_M), loss.item(), accuracy.item(), len(logits_M))


def exact_auc(scores_M: Tensor, labels_M: Tensor) -> float | None:
    """Area under the ROC curve, exact, ties counted one half: the Mann-Whitney statistic. None with one class only.

    A score sorts as an integer: the 32 bits of the float, changed so that the order of integers is that of floats. So
    there is no argsort and no gather. Sums are integers, so the result does not depend on their order.
    """
    labels = labels_M.float().contiguous().numpy()
    negatives, positives = keys_by_label(scores_M.float().contiguous().numpy().view(np.uint32), labels)
    if not len(negatives) or not len(positives):
        return None
    negatives.sort()
    positives.sort()
    return twice_wins(negatives, positives) / (2 * len(negatives) * len(positives))
