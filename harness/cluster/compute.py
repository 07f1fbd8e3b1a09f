"""The code of a compute rank on engine ``rpc``: a server that computes shares of batches and holds no state."""

import traceback

from harness.cluster.protocol import Compute, Failure, Reply, Request
from harness.core.errors import RankFailed
from harness.core.plans import Rank
from harness.core.shares import ShareTrainer


class ComputeServer:
    """Serves the requests to compute rank ``rank``; ``train`` computes a share."""

    def __init__(self, rank: Rank, train: ShareTrainer) -> None:
        self.rank = rank
        self._train = train

    def handle(self, request: Request) -> Reply:
        """Serve one request and return the reply; an exception is returned as a :class:`Failure`."""
        try:
            assert isinstance(request, Compute)
            assert request.share is not None
            return self._train(request.share)
        except Exception:  # noqa: BLE001 - the boundary of a rank: the caller must hear of any bug, as a value
            return Failure(RankFailed(f"{self.rank} failed at a share:\n{traceback.format_exc()}"))

    def close(self) -> None:
        """End nothing: there is nothing to abandon."""
