"""Tables, and batches with their plans, for tests of the dense network.

B batch, F tables, D embedding dim, N distinct rows of a batch, I dense features, W values of a row.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.config.model import BackendName
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.model_options import CRITEO, DlrmOptions, Shape
from harness.core.placement import Placement
from harness.core.shard import Shard
from harness.model import dlrm

BACKENDS: list[BackendName] = sorted(dlrm.BACKENDS)
"""Those that can run on this machine, whatever its processor."""
Batch = tuple[Tensor, Tensor, BatchPlan, Tensor]
"""What train() takes: dense_BI, rows_NW, plan, labels_B."""


def dlrm_of(size: str, **parts: Any) -> DlrmOptions:
    """The options of DLRM of a named size, with these parts instead of its own."""
    return DlrmOptions(name="dlrm", size=size, **parts)


def batch_of(
    num_samples: int, seed: int, width: int = 16, shape: Shape = CRITEO, dtype: torch.dtype = torch.float32
) -> Batch:
    """A batch of float32 values, for a world of one rank; many rows are met more than once."""
    rng = np.random.default_rng(seed)
    cardinalities = tuple(3 + 5 * table for table in range(shape.num_tables))
    ids_BF = np.stack([rng.integers(0, size, num_samples) for size in cardinalities], axis=1).astype(np.int32)
    plan = plan_batch(ids_BF, Placement("row", cardinalities, 1), np.zeros(num_samples, dtype=bool))
    rows_NW, dense_BI = rng.normal(0, 0.3, (len(plan.keys_N), width)), rng.random((num_samples, shape.num_dense))
    dense_BI, rows_NW, labels_B = (
        torch.tensor(each, dtype=torch.float32).to(dtype) for each in (dense_BI, rows_NW, rng.random(num_samples) < 0.3)
    )
    return dense_BI, rows_NW, plan, labels_B


def initial_tables(dim: int, seed: int, cardinalities: tuple[int, ...]) -> list[Tensor]:
    """The initial values of every table, by the one rank of a world of one."""
    shard = Shard(Placement("row", cardinalities, 1), 0, dim, seed=seed, counts_updates=False)
    shard.initialise(applied_step=0)
    return [shard.rows_MD[shard.span(table)].clone() for table in range(len(cardinalities))]
