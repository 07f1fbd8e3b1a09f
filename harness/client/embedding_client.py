"""The base of the embedding clients, which the step loop uses; their batches, messages and traffic.

The step loop calls ``pull`` and then ``push`` in each step. ``progress.step`` counts finished steps. So it is t in both
calls for batch number t, counted from 0, and the batch's gradients are those of step t + 1, counted from 1.

N distinct rows of a batch, rank-major; S rows of a cache or of a batch; D embedding dim, X columns of a row: D values,
then state of the optimizer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.cluster.protocol import Exchange, Push
from harness.config.model import CacheConfig
from harness.core.lookup import BatchPlan, TouchedRows, plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank
from harness.core.resumable import Resumable
from harness.core.trackers import Tracker
from harness.data.dataset import Batch, Dataset
from harness.recovery.kinds import RunFacts
from harness.recovery.requests import Requests

Keys = NDArray[np.int64]
"""Rows as places in the rank-major order of all rows (``Placement.rank_base_R``)."""


@dataclass(frozen=True)
class Pulled:
    """A batch, its plan, and its N rows, float32.

    The rows are ``rows_SX`` or, with ``slots_N`` (int64), ``rows_SX[slots_N]``. ``rows_SX`` is then the memory of a
    cache, which the push of this batch changes.
    """

    batch: Batch
    plan: BatchPlan
    rows_SX: Tensor
    slots_N: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ClientSpec:
    """The parameters of an embedding client.

    ``is_boundary(step)``: whether a save, an evaluation, a planned fault or the end of the run is due after ``step``
    finished steps, as forecast now. ``needs_all(step)``: whether a save or the end is due there. The forecasts change
    only at boundaries, and in the recovery from a failure (``harness.run.boundaries``). ``tracker``: class of the
    ranks' tracker, which says what calls it needs.
    """

    requests: Requests
    batches: "Batches"
    run: RunFacts
    num_steps: int
    is_boundary: Callable[[int], bool]
    needs_all: Callable[[int], bool]
    cache: CacheConfig
    tracker: type[Tracker]


class EmbeddingClient(Resumable, ABC):
    """The trainer's client for embedding rows: it fetches rows from the PS ranks and sends them gradients.

    A client without state between steps implements :meth:`pull` and :meth:`push` alone. Where a method awaits replies,
    the step is suspended. It goes on when all are there, through deaths and recoveries of ranks, or never, if all
    return to a checkpoint: :meth:`reset` is called then.
    """

    def __init__(self, spec: ClientSpec) -> None:
        self._spec = spec
        self._requests = spec.requests
        self._ranks = spec.requests.ranks
        self._batches = spec.batches
        self._learning_rate = spec.run.learning_rate
        bases_R = spec.batches.placement.rank_base_R.tolist()
        self._spans = dict(zip(self._ranks, pairwise(bases_R), strict=True))  # first and last (exclusive) key of each

    @abstractmethod
    async def pull(self, progress: Progress) -> Pulled:
        """Return batch number ``progress.step`` with its rows, which do not change until the batch is pushed."""

    @abstractmethod
    async def push(
        self, grads_ND: Tensor, progress: Progress, *, is_boundary: bool, overlap: Callable[[], None]
    ) -> None:
        """Apply the gradients of the batch that was pulled last.

        ``is_boundary``: whether a save, an evaluation, a planned fault or the end of the run is due after this step.
        If so, no request is in flight when this method returns, and every rank has all updates. A client that is not
        exact guarantees the latter only before a save and at the end. ``overlap`` is called once, while requests are in
        flight, if this method sends any; otherwise it is not called.
        """

    async def look_up(self, plan: TouchedRows, progress: Progress) -> Tensor:
        """The rows of any plan, (N, X), as of the last step, for an evaluation. May be called whenever no push runs.

        Changes no tracker, counter or cache, and no later request but for the deaths that it detects.
        """
        replies = await self._requests.ask(self._messages(rows=plan.rows), progress)
        return torch.cat(list(replies.values()))

    def sends_at(self, step: int) -> bool:
        """Whether the pull or the push after ``step`` finished steps sends requests."""
        return True

    def reset(self) -> None:
        """Drop all rows and updates that this client holds. Called after a full recovery."""

    def summary(self) -> dict[str, float] | None:
        """Counts of the cache's traffic, for the Finished event; None without a cache."""
        return None

    async def drain(self, progress: Progress) -> None:
        """Wait for all messages in flight, between two steps. Later results have the same bits as without this call.

        Called before :meth:`state`.
        """

    def shards_restored(self, ranks: Iterable[Rank]) -> Mapping[Rank, tuple[int, int]]:
        """Discard the copies of rows of ``ranks``, and the updates not yet sent to these ranks.

        Called when the shards of ``ranks`` were restored without a rollback. Returns by rank the correction of lost
        updates, of all and of tracked tables: updates that the ledger has counted as sent and that are not lost, since
        the message in flight is sent again to the replacement. It is negative if more updates are lost that the ledger
        has not counted yet. No correction is needed for a rank that is left out.
        """
        return {}

    def _messages(self, pushes: Sequence[Push | None] = (), rows: Sequence[Tensor | None] = ()) -> dict[Rank, Exchange]:
        """A message to every rank, even if it has no content, so that every death is detected."""
        nothing = [None] * len(self._ranks)
        each = zip(self._ranks, pushes or nothing, rows or nothing, strict=True)
        return {rank: Exchange(push=push, pull_N=rows_N) for rank, push, rows_N in each}


class Batches:
    """The training batches, each with the plan of its rows: a pure function of the step.

    The last four are cached, since a client asks for a batch ahead, while messages are in flight, and again when it
    trains on it. ``sample_period``: the sub-sample for trackers is each sample whose global index is a multiple of it.
    """

    def __init__(self, dataset: Dataset, placement: Placement, *, batch_size: int, sample_period: int) -> None:
        self.placement = placement

        @lru_cache(maxsize=4)
        def planned(step: int) -> tuple[Batch, BatchPlan]:
            batch = dataset.train_batch(step, batch_size)
            index_B = batch.first_sample + np.arange(len(batch.ids_BF))
            return batch, plan_batch(batch.ids_BF, placement, index_B % sample_period == 0)

        self._planned = planned

    def __call__(self, step: int) -> tuple[Batch, BatchPlan]:
        return self._planned(step)


def within(keys_N: Keys, first: int, last: int) -> slice:
    """The slice of ``keys_N``, which ascend, with ``first <= key < last``."""
    return slice(*np.searchsorted(keys_N, [first, last]))


def local_rows(keys_N: Keys, first: int, last: int) -> Tensor:
    """The local flat rows, int64, that ``keys_N`` (ascending) has of the rank with keys ``first <= key < last``."""
    return torch.from_numpy(keys_N[within(keys_N, first, last)] - first)


def make_pushes(touched: TouchedRows, grads_ND: Tensor, step: int, learning_rate: float) -> list[Push]:
    """The push to each rank, in rank order, with the gradients of step ``step``, counted from 1."""
    return [
        Push(
            step=step,
            rows_N=touched.rows[k],
            grads_ND=grads_ND[first:last],
            counts_N=torch.from_numpy(touched.counts_N[first:last]),
            sampled_N=torch.from_numpy(touched.sampled_N[first:last]),
            learning_rate=learning_rate,
        )
        for k, (first, last) in enumerate(pairwise(touched.bounds))
    ]


ID_BYTES, VALUE_BYTES, COUNT_BYTES, FLAG_BYTES = 8, 4, 4, 1


@dataclass
class Traffic:
    """Counts of rows and bytes moved between a cache and the PS ranks.

    ``dim``: values of a gradient. ``width``: columns of a row. ``sent_bytes`` go to the ranks, ``received_bytes`` come
    from them. ``uncached_bytes``: both together as they would be without a cache, with one deduplicated message a step
    and rank. ``peak_rows``: the most rows cached or in flight at one time.
    """

    dim: int
    width: int
    accessed_rows: int = 0
    fetched_rows: int = 0
    written_rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    uncached_bytes: int = 0
    peak_rows: int = 0

    @property
    def row_bytes(self) -> int:
        return VALUE_BYTES * self.width

    def access(self, num_rows: int) -> None:
        """Count distinct rows that a batch reads. Without a cache each costs a lookup and the push of a gradient."""
        self.accessed_rows += num_rows
        moved_bytes = 2 * ID_BYTES + self.row_bytes + VALUE_BYTES * self.dim + COUNT_BYTES + FLAG_BYTES
        self.uncached_bytes += num_rows * moved_bytes

    def fetch(self, num_rows: int) -> None:
        self.fetched_rows += num_rows
        self.sent_bytes += num_rows * ID_BYTES
        self.received_bytes += num_rows * self.row_bytes

    def write_back(self, num_rows: int) -> None:
        """Count rows that are sent to the ranks, each with its id and its number of updates."""
        self.written_rows += num_rows
        self.sent_bytes += num_rows * (ID_BYTES + self.row_bytes + COUNT_BYTES)

    def push(self, num_rows: int) -> None:
        """Count gradients that are sent to the ranks, each with a row id, a number of updates and a flag."""
        self.written_rows += num_rows
        self.sent_bytes += num_rows * (ID_BYTES + VALUE_BYTES * self.dim + COUNT_BYTES + FLAG_BYTES)

    def peak(self, num_rows: int) -> None:
        """Raise ``peak_rows`` to the number of rows that are cached or in flight now, if that is larger."""
        self.peak_rows = max(self.peak_rows, num_rows)

    def summary(self) -> dict[str, float]:
        """The counts as fields of the Finished event's ``cache``."""
        return {
            "hit_rate": 1 - self.fetched_rows / self.accessed_rows if self.accessed_rows else 0.0,
            "accessed_rows": self.accessed_rows,
            "fetched_rows": self.fetched_rows,
            "written_rows": self.written_rows,
            "peak_rows": self.peak_rows,
            "bytes": self.sent_bytes + self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "uncached_bytes": self.uncached_bytes,
        }
