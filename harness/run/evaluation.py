"""Quality of the model on the fixed evaluation set, or on its first samples."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch

from harness.client.embedding_client import EmbeddingClient
from harness.config.model import EvalConfig
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress
from harness.data.dataset import Batch, Dataset
from harness.model.dlrm import DenseNetwork
from harness.model.metrics import Quality, measure


class Evaluator:
    """Evaluates the dense network and the embedding rows at a boundary. Changes no tracker, no counter and no cache."""

    def __init__(
        self,
        config: EvalConfig,
        *,
        dataset: Dataset,
        placement: Placement,
        network: DenseNetwork,
        client: EmbeddingClient,
        curve_samples: int,
        on_batch: Callable[[], None],
    ) -> None:
        """``on_batch`` is called after each batch."""
        self._config = config
        self._curve_samples = curve_samples
        self._on_batch = on_batch
        self._dataset = dataset
        self._placement = placement
        self._network = network
        self._client = client

    def __call__(self, progress: Progress, *, is_whole: bool) -> Quality:
        """AUC, log loss and accuracy on the whole set, or on its first ``curve_samples`` samples.

        Raises RolledBack if a failure voided it.
        """
        logits, labels = [], []
        for batch, plan in self._batches(self._config.max_samples) if is_whole else self._curve:
            rows_ND = self._client.look_up(plan, progress)
            logits.append(self._network.predict(batch.dense_BI, rows_ND, plan))
            labels.append(batch.labels_B)
            self._on_batch()
        return measure(torch.cat(logits), torch.cat(labels))

    @cached_property
    def _curve(self) -> list[tuple[Batch, BatchPlan]]:
        """The batches of the curve: the same at each of its points, so they are kept."""
        return list(self._batches(self._curve_samples))

    def _batches(self, max_samples: int | None) -> Iterator[tuple[Batch, BatchPlan]]:
        config = self._config
        for batch in self._dataset.eval_batches(config.split, config.batch_size, max_samples):
            yield batch, plan_batch(batch.ids_BF, self._placement, np.zeros(len(batch.ids_BF), dtype=bool))


def whole_samples(config: EvalConfig, dataset: Dataset) -> int:
    """Number of samples of the whole evaluation set."""
    available = dataset.num_eval(config.split)
    return min(available, config.max_samples or available)


def curve_samples(config: EvalConfig, dataset: Dataset, total_samples: int) -> int:
    """Number of samples of an evaluation of the curve. By default the whole curve costs 2 to 4 % of the training."""
    wanted = config.curve_samples or min(max(total_samples // 200, 256), 16_384)
    return min(wanted, whole_samples(config, dataset))


def steps_between(config: EvalConfig, num_steps: int) -> int | None:
    """Number of steps between evaluations of the curve; None without a curve."""
    if config.every_steps is not None:
        return config.every_steps
    return math.ceil(num_steps / config.points) if config.points else None
