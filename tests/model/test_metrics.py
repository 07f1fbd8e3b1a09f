"""Laws of the quality of predictions. M scores."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.model.metrics import NUM_GROUPS, Quality, exact_auc, measure


def naive_auc(scores_M: Tensor, labels_M: Tensor) -> float:
    """The definition: over all pairs of a positive and a negative, 1 for a win and one half for a tie."""
    positive = scores_M[labels_M == 1].tolist()
    negative = scores_M[labels_M == 0].tolist()
    wins = sum(1 if p > n else 0.5 if p == n else 0 for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def make(num_scores: int, num_values: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores of at most so many values, of either sign, and labels that they tell something about."""
    rng = np.random.default_rng(seed)
    scores = rng.choice(rng.normal(size=num_values).astype(np.float32), num_scores)
    labels = (rng.random(num_scores) < 1 / (1 + np.exp(-scores - 0.5))).astype(np.float32)
    labels[:2] = 0, 1
    return torch.from_numpy(scores), torch.from_numpy(labels)


def test_auc_is_its_definition() -> None:
    """Equal to counting all pairs, ties one half, however many there are. Floats have the order of comparison.

    Infinities, denormals and both zeros stand where it puts them; -0.0 equals 0.0.
    """
    for num_values, num_scores in product((1, 2, 3, 20, 1000), (2, 3, 50, 333)):
        scores_M, labels_M = make(num_scores, num_values, seed=num_values * 1000 + num_scores)
        assert exact_auc(scores_M, labels_M) == pytest.approx(naive_auc(scores_M, labels_M), abs=1e-15)
    tiny, huge = float(np.nextafter(np.float32(0), np.float32(1))), float(np.finfo(np.float32).max)
    ordered = [-math.inf, -huge, -1.5, -1.0, -tiny, 0.0, tiny, 1.0, 1.5, huge, math.inf]
    for low, high in pairwise(ordered):
        assert exact_auc(torch.tensor([low, high]), torch.tensor([0.0, 1.0])) == 1, (low, high)
        assert exact_auc(torch.tensor([low, high]), torch.tensor([1.0, 0.0])) == 0, (low, high)
    assert exact_auc(torch.tensor([0.0, -0.0]), torch.tensor([1.0, 0.0])) == 0.5


def test_the_number_of_threads_changes_no_bit() -> None:
    """Of no measure, on a set that torch divides among its threads."""
    found: list[Quality] = []
    for num_threads, seed in product((1, 2, 3, 5), range(3)):
        torch.set_num_threads(num_threads)
        found.append(measure(*make(100_001, 1000, seed), has_groups=True))
    assert found == found[:3] * 4


def test_log_loss_and_accuracy_are_numpys() -> None:
    """Mean binary cross-entropy in nats and accuracy at probability 0.5, by numpy in float64.

    Of certain predictions too: wrong costs 200 nats at a logit of 200, right nothing; a logit of 0 counts as no click.
    """
    scores_M, labels_M = make(2000, 2000, seed=2)
    x, y = scores_M.double().numpy(), labels_M.double().numpy()
    p = 1 / (1 + np.exp(-x))
    quality = measure(scores_M, labels_M)
    assert quality.log_loss == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)), rel=1e-12)
    assert quality.accuracy == np.mean((p > 0.5) == (y == 1))
    assert quality.num_samples == 2000
    assert quality.auc == exact_auc(scores_M, labels_M)
    certain_M = torch.tensor([200.0, -200.0])
    assert measure(certain_M, torch.tensor([0.0, 1.0])).log_loss == pytest.approx(200)
    assert measure(certain_M, torch.tensor([1.0, 0.0])).log_loss == pytest.approx(0, abs=1e-80)
    assert measure(torch.tensor([0.0, -0.0]), torch.tensor([0.0, 0.0])).accuracy == 1


def test_normalised_entropy_and_calibration_are_those_of_the_mean_label() -> None:
    """A model that always predicts the mean label has both 1; neither they nor the AUC are known with one class."""
    labels_M = torch.tensor([1.0, 0.0, 0.0, 0.0] * 50)
    quality = measure(torch.full((200,), -float(np.log(3))), labels_M)
    assert (quality.normalised_entropy, quality.calibration) == pytest.approx((1, 1), rel=1e-6)
    twice = measure(torch.zeros(200), labels_M)
    assert twice.calibration == 2
    assert twice.normalised_entropy == pytest.approx(np.log(2) / (0.25 * np.log(4) + 0.75 * np.log(4 / 3)))
    for label in (0.0, 1.0):
        one = measure(torch.tensor([0.3, -0.2]), torch.full((2,), label))
        assert one.auc is one.normalised_entropy is one.calibration is None
        assert one.accuracy == 0.5
        assert one.log_loss > 0


def test_parts_of_the_set_tell_the_error_of_a_difference_of_aucs() -> None:
    """Between test sets, the difference of two models' AUC varies as its parts say (random groups)."""
    rng = np.random.default_rng(0)
    differences, errors = [], []
    for _ in range(200):
        labels_M = torch.from_numpy((rng.random(2000) < 0.25).astype(np.float32))
        shared_M = rng.standard_normal(2000) + labels_M.numpy()
        models = (torch.from_numpy((shared_M + 0.5 * rng.standard_normal(2000)).astype(np.float32)) for _ in range(2))
        first, second = (measure(scores_M, labels_M, has_groups=True) for scores_M in models)
        differences.append(np.diff(np.array([first.auc, second.auc], np.float64)))
        errors.append(np.var(np.diff(np.array([first.group_aucs, second.group_aucs]), axis=0), ddof=1) / NUM_GROUPS)
    assert np.mean(errors) / np.var(differences, ddof=1) == pytest.approx(1, abs=0.3)  # twice the error of a variance
    assert measure(torch.zeros(30), torch.tensor([0.0] * 29 + [1.0]), has_groups=True).group_aucs is None
