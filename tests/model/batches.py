"""Tables, batches and their plans, for tests of the dense network.

B batch, F tables, D embedding dim, N distinct rows of a batch, I integer features.
"""

import numpy as np
import torch
from torch import Tensor

from harness.config.model import BackendName
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.model_options import CRITEO
from harness.core.placement import Placement
from harness.core.shard import Shard
from harness.model import dlrm

BACKENDS: list[BackendName] = sorted(dlrm.BACKENDS)
"""Those that can run on this machine, whatever its processor."""

CARDINALITIES = tuple(3 + 7 * table for table in range(CRITEO.num_tables))


def initial_tables(dim: int, seed: int, cardinalities: tuple[int, ...] = CARDINALITIES) -> list[Tensor]:
    """The initial values of every table, by the one rank of a world of one."""
    shard = Shard(Placement("row", cardinalities, 1), 0, dim, seed=seed, count_updates=False)
    shard.initialise(applied_step=0)
    return [shard.rows_MD[shard.span(table)].clone() for table in range(len(cardinalities))]


def make_batch(batch_size: int, seed: int) -> tuple[Tensor, np.ndarray, Tensor]:
    """dense_BI, ids_BF with many rows met more than once, labels_B."""
    rng = np.random.Generator(np.random.PCG64(seed))
    dense_BI = torch.from_numpy(np.log1p(rng.integers(0, 50, (batch_size, CRITEO.num_dense))).astype(np.float32))
    ids_BF = np.stack([rng.zipf(1.3, batch_size) % size for size in CARDINALITIES], axis=1).astype(np.int32)
    return dense_BI, ids_BF, torch.from_numpy((rng.random(batch_size) < 0.25).astype(np.float32))


def looked_up(tables: list[Tensor], ids_BF: np.ndarray) -> tuple[BatchPlan, Tensor]:
    """The plan of a batch for a world of one rank, and its rows."""
    plan = plan_batch(ids_BF, Placement("row", CARDINALITIES, 1), np.zeros(len(ids_BF), dtype=bool))
    return plan, torch.cat(tables)[plan.rows[0]]
