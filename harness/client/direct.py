"""The client without a cache: one message per step and rank, sent while the next step is computed.

N distinct rows of a batch, rank-major; D embedding dim, X columns of a row: D values, then state of the optimizer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from harness.client.embedding_client import ClientSpec, EmbeddingClient, Pulled, make_pushes
from harness.cluster.protocol import Push
from harness.core.lookup import TouchedRows
from harness.core.plans import Progress, Rank
from harness.recovery.requests import Sent


class DirectClient(EmbeddingClient):
    """Sends the gradients of a step and looks up the rows of the step after the next one in the same message.

    These rows lack the update of the step in between, which the trainer makes itself with the same optimizer. Rows are
    not looked up ahead across a boundary. When shards are restored without a rollback, all rows that were looked up
    ahead are dropped.

    No lost updates need a correction then (:meth:`shards_restored`). A message that is sent again holds a step that the
    ledger has not counted yet, or a step that the replacement does not apply again, so that its updates are lost.
    """

    def __init__(self, spec: ClientSpec) -> None:
        super().__init__(spec)
        self.reset()

    def reset(self) -> None:
        self._rows_NX: Tensor | None = None  # of the batch that was pulled last
        self._early_NX: Tensor | None = None  # that the last message looked up, if it was waited for early
        self._next_NX: Tensor | None = None  # of the batch after it
        self._sent: Sent | None = None  # the message in flight
        self._is_void = False  # a shard was restored since it was sent

    async def pull(self, progress: Progress) -> Pulled:
        batch, plan = self._batches(progress.step)
        self._rows_NX, self._next_NX = self._next_NX, None
        if self._rows_NX is None:
            await self._receive(progress)
            self._rows_NX = await self.look_up(plan, progress)
            if ahead := self._ahead(progress.step + 1):
                self._send(rows=ahead)
        return Pulled(batch, plan, self._rows_NX)

    async def push(
        self, grads_ND: Tensor, progress: Progress, *, is_boundary: bool, overlap: Callable[[], None]
    ) -> None:
        step = progress.step
        plan = self._batches(step)[1]
        next_NX = await self._receive(progress)
        if next_NX is not None:
            assert self._rows_NX is not None
            self._spec.run.optimizer.step_shared(
                next_NX,
                self._batches(step + 1)[1].keys_N,
                plan.keys_N,
                self._rows_NX,
                grads_ND,
                learning_rate=self._learning_rate,
            )
            self._next_NX = next_NX
        ahead = () if next_NX is None else self._ahead(step + 2)
        pushes = make_pushes(plan, grads_ND, step + 1, self._learning_rate)
        self._send(pushes, ahead)
        if step + 3 < self._spec.num_steps:
            self._batches(step + 3)
        overlap()
        if is_boundary:
            await self._receive(progress)

    async def look_up(self, plan: TouchedRows, progress: Progress) -> Tensor:
        """See EmbeddingClient. Waits for the message in flight, and keeps its rows for the next step."""
        if self._sent is not None:
            self._early_NX = await self._receive(progress)
        return await super().look_up(plan, progress)

    async def drain(self, progress: Progress) -> None:
        await self._receive(progress)
        self._next_NX = None

    def shards_restored(self, ranks: Iterable[Rank]) -> Mapping[Rank, tuple[int, int]]:
        self._next_NX = self._early_NX = None
        self._is_void = True
        return {}

    def _ahead(self, step: int) -> tuple[Tensor, ...]:
        """By rank, the rows of batch ``step``, if they may be looked up ahead; empty at a boundary or the end."""
        return () if step >= self._spec.num_steps or self._spec.is_boundary(step) else self._batches(step)[1].rows

    def _send(self, pushes: Sequence[Push] = (), rows: Sequence[Tensor] = ()) -> None:
        self._sent, self._is_void = self._requests.start(self._messages(pushes, rows)), False

    async def _receive(self, progress: Progress) -> Tensor | None:
        """Wait for the message in flight. Returns the rows that it looked up.

        Returns None if it looked up no rows, or if a shard was restored meanwhile.
        """
        sent, self._sent = self._sent, None
        early_NX, self._early_NX = self._early_NX, None
        if sent is None:
            return early_NX
        replies = list((await self._requests.finish(sent, progress)).values())
        return None if self._is_void or replies[0] is None else torch.cat(replies)
