"""The code of a compute rank: a server that computes shares of batches and holds no state."""

import traceback
from collections.abc import Callable

from harness.cluster.protocol import Compute, Failure, Reply, Request
from harness.core.errors import RankFailed
from harness.core.plans import Rank
from harness.core.shares import ShareTrainer


class ComputeServer:
    """Serves the requests to compute rank ``rank``.

    ``make_trainer``: makes what computes shares; None on engine ``local``, where the trainer computes whole batches.
    """

    def __init__(self, rank: Rank, make_trainer: Callable[[], ShareTrainer] | None) -> None:
        self.rank = rank
        self._train = make_trainer and make_trainer()

    def handle(self, request: Request) -> Reply:
        """Serve one request and return the reply; an exception is returned as a :class:`Failure`."""
        try:
            assert isinstance(request, Compute)
            if request.share is None:
                return None
            assert self._train is not None, "a run with compute ranks divides its batches"
            return self._train(request.share)
        except Exception:  # noqa: BLE001 - the boundary of a rank: the caller must hear of any bug, as a value
            return Failure(RankFailed(f"{self.rank} failed at a share:\n{traceback.format_exc()}"))

    def close(self) -> None:
        """A no-op: nothing is held."""
