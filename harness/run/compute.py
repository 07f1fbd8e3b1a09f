"""The division of a batch among the trainer and the compute ranks, in spite of their deaths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.client.embedding_client import Pulled
from harness.cluster.protocol import Compute
from harness.core.plans import Progress
from harness.core.shares import Helpers, Share
from harness.model.dlrm import DenseNetwork
from harness.model.network import Network
from harness.recovery.failover import FailoverClient


@dataclass(kw_only=True, eq=False)
class ComputeRanks(Helpers):
    """The compute ranks of a run. A share whose rank dies is sent again to the replacement, which needs nothing else.

    Args:
        drain: finishes the messages in flight to PS ranks. Called when a compute rank is found dead: the generation in
            which they were sent ends with it.
        progress: gives the present progress of the run.
    """

    network: Network
    failover: FailoverClient
    drain: Callable[[Progress], None]
    progress: Callable[[], Progress]

    @property
    def num_shares(self) -> int:
        """Number of shares of a batch: one for each trainer."""
        return 1 + len(self.failover.cluster.compute_ranks)

    def __post_init__(self) -> None:
        cluster = self.failover.cluster
        if cluster.compute_ranks and cluster.overlaps:
            assert isinstance(self.network, DenseNetwork), "a run with compute ranks divides its batches"
            self.network.divide(self)

    def train(self, pulled: Pulled) -> tuple[float, Tensor]:
        """As :meth:`DenseNetwork.train`, of the batch pulled. Raises as :meth:`FailoverClient.finish`."""
        batch, cluster = pulled.batch, self.failover.cluster
        if cluster.compute_ranks and not cluster.overlaps:
            self._send([Compute()] * len(cluster.compute_ranks))()
        return self.network.train(batch.dense_BI, pulled.rows_SX, pulled.plan, batch.labels_B, pulled.slots_N)

    def begin(self, shares: Sequence[Share]) -> Callable[[], Sequence[Tensor]]:
        """See :class:`Helpers`."""
        return self._send([*map(Compute, shares)])

    def _send(self, requests: Sequence[Compute]) -> Callable[[], list[Tensor]]:
        progress = self.progress()
        started = self.failover.start(dict(zip(self.failover.cluster.compute_ranks, requests, strict=True)))
        return lambda: [*self.failover.finish(started, progress, drain=self.drain).values()]
