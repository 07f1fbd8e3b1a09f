"""Quality of the model on the fixed evaluation set."""

import numpy as np
import torch

from harness.client.protocol import EmbeddingClient
from harness.config.model import EvalConfig
from harness.core.lookup import plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress
from harness.data.dataset import Dataset
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
    ) -> None:
        self._config = config
        self._dataset = dataset
        self._placement = placement
        self._network = network
        self._client = client

    def __call__(self, progress: Progress) -> Quality:
        """AUC, log loss and accuracy. Raises RolledBack if a failure voided it."""
        logits, labels = [], []
        config = self._config
        for batch in self._dataset.eval_batches(config.split, config.batch_size, config.max_samples):
            plan = plan_batch(batch.ids_BF, self._placement, np.zeros(len(batch.ids_BF), dtype=bool))
            rows_ND = self._client.look_up(plan, progress)
            logits.append(self._network.predict(batch.dense_BI, rows_ND, plan))
            labels.append(batch.labels_B)
        return measure(torch.cat(logits), torch.cat(labels))
