"""Quality of click predictions: exact AUC, log loss, accuracy, normalised entropy, calibration. M scores."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional

NUM_GROUPS = 20
_SIGN = np.uint32(1 << 31)
_SERIAL = 1 << 14  # values that torch adds up on one thread, however many it has


@dataclass(frozen=True)
class Quality:
    """The quality of predictions on a set of samples.

    ``log_loss``: the mean, in nats. ``accuracy``: at probability 0.5. ``normalised_entropy``: log loss divided by the
    entropy of the mean label. ``calibration``: mean prediction divided by mean label (both He et al. 2014, section 2).
    ``auc``, ``normalised_entropy`` and ``calibration`` are None if all labels are equal. ``group_aucs``: the AUC of
    each of ``NUM_GROUPS`` parts of the set, sample m in part m mod ``NUM_GROUPS``; None if not asked for, or if a part
    has no AUC.
    """

    auc: float | None
    log_loss: float
    accuracy: float
    num_samples: int
    normalised_entropy: float | None
    calibration: float | None
    group_aucs: list[float] | None


def measure(logits_M: Tensor, labels_M: Tensor, *, has_groups: bool = False) -> Quality:
    """Quality of float32 logits against labels in {0, 1}, on the CPU. ``has_groups``: with ``group_aucs``."""
    logits, labels = logits_M.double(), labels_M.double()
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    accuracy = ((logits_M > 0) == (labels_M > 0.5)).double().mean()
    loss = math.fsum(part.sum().item() for part in losses.split(_SERIAL)) / len(losses)
    # numpy's sum, unlike torch's, does not depend on the number of threads; 1 + tanh does not overflow
    label, prediction = float(labels.numpy().mean()), float((1 + np.tanh(logits.numpy() / 2)).mean() / 2)
    is_mixed = 0 < label < 1
    entropy = -label * math.log(label) - (1 - label) * math.log1p(-label) if is_mixed else math.nan
    return Quality(
        auc=exact_auc(logits_M, labels_M),
        log_loss=loss,
        accuracy=accuracy.item(),
        num_samples=len(logits_M),
        normalised_entropy=loss / entropy if is_mixed else None,
        calibration=prediction / label if is_mixed else None,
        group_aucs=_group_aucs(logits_M, labels_M) if has_groups else None,
    )


def _group_aucs(logits_M: Tensor, labels_M: Tensor) -> list[float] | None:
    aucs = [exact_auc(logits_M[part::NUM_GROUPS], labels_M[part::NUM_GROUPS]) for part in range(NUM_GROUPS)]
    known = [auc for auc in aucs if auc is not None]
    return known if len(known) == NUM_GROUPS else None


def exact_auc(scores_M: Tensor, labels_M: Tensor) -> float | None:
    """Area under the ROC curve of scores in float32; ties count one half. None if all labels are equal.

    It is the Mann-Whitney statistic, counted exactly: sums are integers, so the result does not depend on their order.
    Scores are sorted as integers: the 32 bits of the float, changed so that integers have the order of floats.
    """
    is_positive_M = labels_M.numpy() > 0.5
    bits_M = (scores_M.float().numpy() + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    keys_M = np.where(bits_M & _SIGN, ~bits_M, bits_M | _SIGN)
    negatives, positives = np.sort(keys_M[~is_positive_M]), np.sort(keys_M[is_positive_M])
    if not len(negatives) or not len(positives):
        return None
    twice_wins = sum(int(np.searchsorted(negatives, positives, side).sum()) for side in ("left", "right"))
    return twice_wins / (2 * len(negatives) * len(positives))
