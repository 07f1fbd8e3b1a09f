"""Embedding client ``blocking``, for ``cache.mode``."""

from collections.abc import Callable

from torch import Tensor

from harness.client.clients import CLIENTS
from harness.client.embedding_client import EmbeddingClient, Pulled, make_pushes
from harness.cluster.protocol import Exchange
from harness.core.plans import Progress


class BlockingClient(EmbeddingClient):
    """No cache and no look-ahead: a request to look rows up, a request to push gradients, each waited for."""

    async def pull(self, progress: Progress) -> Pulled:
        """Look the rows up now."""
        batch, self._plan = self._batches(progress.step)
        return Pulled(batch, self._plan, await self.look_up(self._plan, progress))

    async def push(
        self, grads_ND: Tensor, progress: Progress, *, is_boundary: bool, overlap: Callable[[], None]
    ) -> None:
        """Send the gradients, compute meanwhile, wait."""
        pushes = make_pushes(self._plan, grads_ND, progress.step + 1, self._learning_rate)
        sent = self._requests.start({rank: Exchange(push=push) for rank, push in zip(self._ranks, pushes, strict=True)})
        overlap()
        await self._requests.finish(sent, progress)


CLIENTS["blocking"] = BlockingClient
