"""Quality of click predictions: exact AUC, log loss, accuracy. M scores."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional


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

    The 32 bits of a float, its sign folded so that unsigned order is float order, with the label appended, sort as one
    integer key: no argsort and no gather. Sums are integers throughout, so the result does not depend on their order.
    """
    bits_M = (scores_M.float() + 0.0).numpy().view(np.uint32)  # + 0.0 turns -0.0 into 0.0, which it equals
    ordered_M = np.where(bits_M >> 31, ~bits_M, bits_M | np.uint32(1 << 31))
    keys_M = (ordered_M.astype(np.uint64) << np.uint64(1)) | (labels_M.numpy() > 0.5).astype(np.uint64)
    keys_M.sort()
    is_positive_M = (keys_M & np.uint64(1)).astype(bool)
    num_positive = int(is_positive_M.sum())
    num_negative = len(keys_M) - num_positive
    if num_positive == 0 or num_negative == 0:
        return None
    scores = keys_M >> np.uint64(1)
    starts_G = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
    positive_G = np.add.reduceat(is_positive_M.astype(np.int64), starts_G)
    negative_G = np.diff(starts_G, append=len(keys_M)) - positive_G
    below_G = np.cumsum(negative_G) - negative_G
    twice_wins = int((positive_G * (2 * below_G + negative_G)).sum())
    return twice_wins / (2 * num_positive * num_negative)
