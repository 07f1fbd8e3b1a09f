"""Laws of the quality of predictions. M scores."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.model.metrics import NUM_GROUPS, exact_auc, measure


def naive_auc(scores_M: Tensor, labels_M: Tensor) -> float:
    """The definition: over all pairs of a positive and a negative, 1 for a win and one half for a tie."""
    positive = scores_M[labels_M == 1].tolist()
    negative = scores_M[labels_M == 0].tolist()
    wins = sum(1 if p > n else 0.5 if p == n else 0 for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def make(num_scores: int, num_values: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores of at most so many values, of either sign, and labels that they tell something about."""
    rng = np.random.Generator(np.random.PCG64(seed))
    values = rng.normal(size=num_values).astype(np.float32)
    scores = rng.choice(values, num_scores)
    labels = (rng.random(num_scores) < 1 / (1 + np.exp(-scores - 0.5))).astype(np.float32)
    labels[:2] = 0, 1
    return torch.from_numpy(scores), torch.from_numpy(labels)


@pytest.mark.parametrize("num_values", [1, 2, 3, 20, 1000])
@pytest.mark.parametrize("num_scores", [2, 3, 50, 333])
def test_auc_is_its_definition(num_values: int, num_scores: int) -> None:
    """Equal to counting all pairs, ties one half, however many there are."""
    scores_M, labels_M = make(num_scores, num_values, seed=num_values * 1000 + num_scores)
    assert exact_auc(scores_M, labels_M) == pytest.approx(naive_auc(scores_M, labels_M), abs=1e-15)


def test_auc_knows_the_order_of_all_floats() -> None:
    """Infinities, denormals and both zeros stand where float comparison puts them; -0.0 equals 0.0."""
    tiny, huge = float(np.nextafter(np.float32(0), np.float32(1))), float(np.finfo(np.float32).max)
    ordered = [-math.inf, -huge, -1.5, -1.0, -tiny, 0.0, tiny, 1.0, 1.5, huge, math.inf]
    for low, high in pairwise(ordered):
        assert exact_auc(torch.tensor([low, high]), torch.tensor([0.0, 1.0])) == 1, (low, high)
        assert exact_auc(torch.tensor([low, high]), torch.tensor([1.0, 0.0])) == 0, (low, high)
    for value in ordered:
        assert exact_auc(torch.tensor([value, -value]), torch.tensor([1.0, 0.0])) == (value > 0) + 0.5 * (value == 0)
    scores_M = torch.tensor(ordered * 3)
    labels_M = torch.tensor([float(i % 2) for i in range(len(scores_M))])
    assert exact_auc(scores_M, labels_M) == naive_auc(scores_M, labels_M)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_auc_of_one_class_is_unknown(label: float) -> None:
    """Without a pair there is no AUC: None, and log loss and accuracy are known all the same."""
    quality = measure(torch.tensor([0.3, -0.2]), torch.tensor([label, label]))
    assert quality.auc is None
    assert quality.accuracy == 0.5
    assert quality.log_loss > 0


def test_auc_does_not_depend_on_the_order_of_samples() -> None:
    """Any permutation of the samples gives the same bits, and nothing of the input moves."""
    scores_M, labels_M = make(5000, 700, seed=1)
    first = exact_auc(scores_M, labels_M)
    before = scores_M.clone()
    for seed in range(3):
        order_M = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))
        assert exact_auc(scores_M[order_M], labels_M[order_M]) == first
    assert torch.equal(scores_M, before)


def test_log_loss_and_accuracy_are_numpys() -> None:
    """Mean binary cross-entropy in nats and accuracy at probability 0.5, by numpy in float64."""
    scores_M, labels_M = make(2000, 2000, seed=2)
    x, y = scores_M.double().numpy(), labels_M.double().numpy()
    p = 1 / (1 + np.exp(-x))
    quality = measure(scores_M, labels_M)
    assert quality.log_loss == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)), rel=1e-12)
    assert quality.accuracy == np.mean((p > 0.5) == (y == 1))
    assert quality.num_samples == 2000
    assert quality.auc == exact_auc(scores_M, labels_M)


def test_normalised_entropy_and_calibration_are_those_of_the_mean_label() -> None:
    """A model that always predicts the mean label has both 1; neither is known with one class."""
    labels_M = torch.tensor([1.0, 0.0, 0.0, 0.0] * 50)
    quality = measure(torch.full((200,), -float(np.log(3))), labels_M)
    assert (quality.normalised_entropy, quality.calibration) == pytest.approx((1, 1), rel=1e-6)
    twice = measure(torch.zeros(200), labels_M)
    assert twice.calibration == 2
    assert twice.normalised_entropy == pytest.approx(np.log(2) / (0.25 * np.log(4) + 0.75 * np.log(4 / 3)))
    one = measure(torch.zeros(2), torch.ones(2))
    assert one.normalised_entropy is one.calibration is None


def test_parts_of_the_set_tell_the_error_of_a_difference_of_aucs() -> None:
    """Law: between test sets, the difference of two models' AUC varies as its parts say (random groups)."""
    rng = np.random.default_rng(0)
    differences, errors = [], []
    for _ in range(200):
        labels_M = torch.from_numpy((rng.random(2000) < 0.25).astype(np.float32))
        shared_M = rng.standard_normal(2000) + labels_M.numpy()
        models = (torch.from_numpy((shared_M + 0.5 * rng.standard_normal(2000)).astype(np.float32)) for _ in range(2))
        first, second = (measure(scores_M, labels_M, has_groups=True) for scores_M in models)
        assert first.auc is not None
        assert second.auc is not None
        assert first.group_aucs is not None
        assert second.group_aucs is not None
        differences.append(first.auc - second.auc)
        errors.append(np.var(np.subtract(first.group_aucs, second.group_aucs), ddof=1) / NUM_GROUPS)
    assert np.mean(errors) / np.var(differences, ddof=1) == pytest.approx(1, abs=0.3)  # twice the error of a variance
    assert measure(torch.zeros(30), torch.tensor([0.0] * 29 + [1.0]), has_groups=True).group_aucs is None


def test_log_loss_of_certain_predictions_is_finite() -> None:
    """A logit of 200 saturates no logarithm: wrong costs 200 nats, right nothing; a logit of 0 counts as no click."""
    assert measure(torch.tensor([200.0, -200.0]), torch.tensor([0.0, 1.0])).log_loss == pytest.approx(200)
    assert measure(torch.tensor([200.0, -200.0]), torch.tensor([1.0, 0.0])).log_loss == pytest.approx(0, abs=1e-80)
    assert measure(torch.tensor([0.0, -0.0]), torch.tensor([0.0, 0.0])).accuracy == 1
