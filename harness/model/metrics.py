"""Quality of click predictions: exact AUC, log loss, accuracy, normalised entropy, calibration. M scores."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from harness.core.events import error_of

Keys = NDArray[np.uint32]

NUM_GROUPS = 20
_SIGN = np.uint32(1 << 31)
_SERIAL = 1 << 14  # values that torch adds up on one thread, however many it has


@dataclass(frozen=True)
class Quality:
    """The quality of predictions on a set of samples.

    ``log_loss``: the mean, in nats. ``accuracy``: at probability 0.5. ``normalised_entropy``: log loss divided by the
    entropy of the mean label. ``calibration``: mean prediction divided by mean label (both He et al. 2014, section 2).
    ``standard_error``: of ``auc``, by the choice of samples. ``auc``, ``standard_error``, ``normalised_entropy`` and
    ``calibration`` are None if all labels are equal. ``group_aucs``: the AUC of
    each of ``NUM_GROUPS`` parts of the set, sample m in part m mod ``NUM_GROUPS``; None if not asked for, or if a part
    has no AUC.
    """

    auc: float | None
    standard_error: float | None
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
        standard_error=error_of(deviations) if (deviations := auc_deviations(logits_M, labels_M)) else None,
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
    """
    positives, negatives, _ = _ordered(scores_M, labels_M)
    if not len(negatives) or not len(positives):
        return None
    return int(_twice_wins(np.sort(positives), np.sort(negatives)).sum()) / (2 * len(negatives) * len(positives))


def auc_deviations(scores_M: Tensor, labels_M: Tensor) -> list[float]:
    """By part of the set, sample m in part m mod ``NUM_GROUPS``, how much its samples deviate from the AUC of the set.

    The deviation of a sample is (its structural component minus the AUC) / number of samples with its label
    (DeLong et al. 1988, equations 6 and 7). Deviations of all samples add up to 0. Those of a difference, or a sum, of
    AUCs on the same samples are the differences, or sums, of theirs. Empty if all labels are equal.
    """
    positives, negatives, is_positive_M = _ordered(scores_M, labels_M)
    num_pairs = len(positives) * len(negatives)
    if not num_pairs:
        return []
    deviation_M = np.empty(len(is_positive_M))
    wins = _twice_wins(positives, np.sort(negatives))
    losses = 2 * len(positives) - _twice_wins(negatives, np.sort(positives))
    deviation_M[is_positive_M] = wins / (2 * num_pairs)
    deviation_M[~is_positive_M] = losses / (2 * num_pairs)
    for of_label in (is_positive_M, ~is_positive_M):
        deviation_M[of_label] -= deviation_M[of_label].mean()
    return np.bincount(np.arange(len(deviation_M)) % NUM_GROUPS, deviation_M, NUM_GROUPS).tolist()


def _ordered(scores_M: Tensor, labels_M: Tensor) -> tuple[Keys, Keys, NDArray[np.bool_]]:
    """The scores of positive and of negative samples as integers of the same order, and which samples are positive.

    The 32 bits of a float are changed so that integers have the order of floats, and are sorted faster.
    """
    is_positive_M = labels_M.numpy() > 0.5
    bits_M = (scores_M.float().numpy() + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    keys_M = np.where(bits_M & _SIGN, ~bits_M, bits_M | _SIGN)
    return keys_M[is_positive_M], keys_M[~is_positive_M], is_positive_M


def _twice_wins(keys_N: Keys, sorted_K: Keys) -> NDArray[np.int64]:
    """Twice the number of ``sorted_K`` below each of ``keys_N``; one that is equal counts one half."""
    return np.searchsorted(sorted_K, keys_N, "left") + np.searchsorted(sorted_K, keys_N, "right")
