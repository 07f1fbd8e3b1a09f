"""Quality of the model on the fixed evaluation set, or on its first samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from harness.client.embedding_client import EmbeddingClient
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.plans import Progress
from harness.data.dataset import Batch
from harness.model.metrics import Quality, measure
from harness.model.network import Network
from harness.run.spec import RunSpec


@dataclass
class Evaluator:
    """Evaluates the dense network and the embedding rows at a boundary. Changes no tracker, no counter and no cache.

    ``on_batch`` is called after each batch.
    """

    run_spec: RunSpec
    network: Network
    client: EmbeddingClient
    on_batch: Callable[[], None]

    def __call__(self, progress: Progress, *, is_whole: bool) -> Quality:
        """Quality on the whole set, with that of its parts, or on its first samples for the curve.

        Raises RolledBack if a full recovery took place meanwhile.
        """
        logits, labels = [], []
        for batch, plan in self._batches(self.run_spec.num_eval_samples) if is_whole else self._curve:
            rows_ND = self.client.look_up(plan, progress)
            logits.append(self.network.predict(batch.dense_BI, rows_ND, plan))
            labels.append(batch.labels_B)
            self.on_batch()
        return measure(torch.cat(logits), torch.cat(labels), has_groups=is_whole)

    @cached_property
    def _curve(self) -> list[tuple[Batch, BatchPlan]]:
        """The batches of the curve, kept in memory because every point of the curve uses the same."""
        return list(self._batches(self.run_spec.num_curve_samples))

    def _batches(self, num_samples: int) -> Iterator[tuple[Batch, BatchPlan]]:
        config, placement = self.run_spec.config.eval, self.run_spec.placement
        for batch in self.run_spec.dataset.eval_batches(config.split, config.batch_size, num_samples):
            yield batch, plan_batch(batch.ids_BF, placement, np.zeros(len(batch.ids_BF), dtype=bool))
