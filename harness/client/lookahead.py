"""The lookahead cache: the trainer holds rows that coming batches share (BagPipe, SOSP 2023, arXiv 2202.12429).

Batches are known in advance, so an oracle plans windows of ``cache.lookahead / 2`` steps in the background: the rows
that a window needs, those of them that the next one needs too, and those that can go. A window trains on the cache
alone. One message a rank and window writes back what leaves and fetches what the next window needs. The client is
exact: the cache updates a row as the optimizer of its PS rank would, and a batch always reads the newest version of a
row.

Windows end where a save, an evaluation or a kill is due. There all dirty rows and touches are flushed, so that a save
means the same with and without a cache. After the actions at a boundary every rank is sent a message, so that a kill is
detected at its own boundary. The forecast of boundaries can change only there. If a planned window should now end
elsewhere, the cache is emptied and all windows are planned anew. Rows of a shard that is restored alone are discarded
and fetched again; after a rollback the cache starts empty.

Keys are rows in the rank-major order of all rows (``Placement.rank_base_R``). U distinct keys of a window, H rows that
are held, N distinct rows of a batch, or rows to write back, S slots or rows that a step touched, K rows that a call
addresses, D embedding dim, X columns of a row: D values, then state of the optimizer.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.client.embedding_client import (
    COUNT_BYTES,
    ID_BYTES,
    ClientSpec,
    EmbeddingClient,
    Keys,
    Pulled,
    Traffic,
    local_rows,
    within,
)
from harness.client.oracle import Oracle, Placing, Rows, Window
from harness.client.slots import SlotPool, Slots, grown
from harness.cluster.protocol import Exchange, Request, Several, WriteBack
from harness.core.errors import RunFailed
from harness.core.lookup import BatchPlan, TouchedRows
from harness.core.plans import Progress, Rank
from harness.core.resumable import Resumable
from harness.core.trackers import Tracker
from harness.kernels import row_loops
from harness.recovery.requests import Sent

_GROWTH = 1.25  # of the buffer, beyond what is needed: few copies, little waste


class RowCache(Resumable):
    """The cached rows, by slot: their newest values, and how many updates of each its PS rank lacks.

    A row keeps its slot for as long as it is cached. ``dirty_S`` (int32): the number of updates that the row's rank
    lacks; a row with any is dirty.
    """

    _state = ("values_SX", "dirty_S", "is_cached_S")

    def __init__(self, width: int, *, max_rows: int | None) -> None:
        self._max_rows = max_rows
        self.values_SX = torch.empty((0, width))
        self.dirty_S = np.zeros(0, np.int32)
        self.is_cached_S = np.zeros(0, bool)

    def reserve(self, num_slots: int) -> None:
        """Grow to at least ``num_slots`` slots, with some to spare; to more than ``max_rows`` only if needed."""
        if num_slots <= len(self.values_SX):
            return
        spacious = int(num_slots * _GROWTH)
        size = spacious if self._max_rows is None else max(num_slots, min(spacious, self._max_rows))
        for name in self._state:
            setattr(self, name, grown(getattr(self, name), size))

    def insert(self, slots_K: Slots, values_KX: Tensor) -> None:
        """Insert rows that were fetched from their ranks. They must be clean."""
        row_loops.put_rows(self.values_SX.numpy(), slots_K, values_KX.numpy())
        self.is_cached_S[slots_K] = True

    def values(self, slots_K: Slots) -> Tensor:
        """The present values of the rows, (K, X): a copy."""
        return torch.from_numpy(row_loops.take_rows(self.values_SX.numpy(), slots_K))

    def evict(self, slots_K: Slots) -> None:
        """Drop rows, with the updates that their ranks lack."""
        self.is_cached_S[slots_K] = False
        self.dirty_S[slots_K] = 0


Touches = tuple[int, Keys, *tuple[NDArray[Any], ...]]
"""The number of a finished step, counted from 1, the keys of rows that it touched (S, ascending), and for some trackers
one array with a value of each row: a count or a norm."""

Touching = dict[str, list[Touches]]
"""Touches by the field of ``WriteBack`` that carries them. ``sampled``: rows that inputs of the sub-sample touched.
``touched``: all touched rows with counts. ``moved``: all touched rows with the norms of their changes. Fields that the
ranks' tracker does not need are left out."""


class TouchLog(Resumable):
    """The touches of finished steps that have not been sent to the ranks' trackers yet, in the order of steps."""

    _state = ("_touching",)

    def __init__(self, tracker: type[Tracker]) -> None:
        needs = {"sampled": tracker.needs_samples, "touched": tracker.needs_touches, "moved": tracker.needs_norms}
        self._touching: Touching = {name: [] for name, is_needed in needs.items() if is_needed}

    def __bool__(self) -> bool:
        return any(self._touching.values())

    def add(self, window: Window, norms: Sequence[Tensor]) -> int:
        """Add the touches of all steps of ``window``; returns their bytes on the wire.

        ``norms``: by step, the norms of the rows' changes; empty if the tracker does not need them.
        """
        added_bytes = 0
        for place, (_, plan) in enumerate(window.steps):
            step, keys_N = window.first + 1 + place, plan.keys_N
            for name, log in self._touching.items():
                if name == "sampled":
                    log.append((step, keys_N[plan.sampled_N]))
                else:
                    log.append((step, keys_N, plan.counts_N if name == "touched" else norms[place].numpy()))
                added_bytes += _num_bytes(log[-1])
        return added_bytes

    def take(self) -> Touching:
        """Return all touches, and empty this log."""
        taken, self._touching = self._touching, {name: [] for name in self._touching}
        return taken

    def discard(self, first: int, last: int) -> None:
        """Drop touches of rows ``first <= key < last``."""
        for log in self._touching.values():
            for place, (step, keys_S, *values) in enumerate(log):
                stays = (keys_S < first) | (keys_S >= last)
                log[place] = step, keys_S[stays], *(values_S[stays] for values_S in values)


@dataclass(frozen=True)
class DirtyRows:
    """Rows of all ranks to write back, by ascending key, as of ``step``, and the touches to send with them.

    ``counts_N``: updates of each row since it was last written back.
    """

    step: int
    keys_N: Keys
    values_ND: Tensor
    counts_N: NDArray[np.int32]
    touching: Touching

    def of(self, first: int, last: int) -> WriteBack:
        """The message to the rank with keys ``first <= key < last``."""
        part = within(self.keys_N, first, last)
        return WriteBack(
            step=self.step,
            rows_N=local_rows(self.keys_N, first, last),
            values_ND=self.values_ND[part],
            counts_N=torch.from_numpy(self.counts_N[part]),
            **{name: tuple(_of_rank(log, first, last)) for name, log in self.touching.items()},
        )

    @property
    def touch_bytes(self) -> int:
        return sum(_num_bytes(touches) for log in self.touching.values() for touches in log)


def _num_bytes(touches: Touches) -> int:
    """Bytes of one step's touches on the wire: 8 for a row id, 4 for a value."""
    return sum(array.nbytes for array in touches[1:])


def _of_rank(log: list[Touches], first: int, last: int) -> Iterator[tuple]:
    """For each step of ``log`` that touched rows of the rank: the step, the local rows, and their values, if any."""
    for step, keys_S, *values in log:
        part = within(keys_S, first, last)
        if part.start < part.stop:
            yield step, local_rows(keys_S, first, last), *(torch.from_numpy(values_S[part]) for values_S in values)


WINDOWS_AT_ONCE = 3
"""The most windows whose rows are cached or in flight at one time: the window before, the present and the next one."""


class LookaheadClient(EmbeddingClient):
    """Trains on cached rows, in windows of at most ``cache.lookahead / 2`` steps.

    The rows of the next window are fetched during the present one: a row is fetched at most ``cache.lookahead`` steps
    before its use. ``cache.max_rows`` bounds the rows that are cached or in flight, unless a single step needs more.
    """

    _state = (
        *("_cache", "_touches", "_norms", "_before", "_latest_stops", "_must_ask", "traffic", "_num_evicted"),
        "_minimum_bytes",
    )
    _state_types = (Traffic, Placing, Rows, SlotPool)

    def __init__(self, spec: ClientSpec) -> None:
        super().__init__(spec)
        self._window_steps = max(1, spec.cache.lookahead // 2)
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="oracle")
        self.traffic = Traffic(spec.run.dim, spec.run.width)
        self._num_evicted = self._minimum_bytes = 0
        self.reset()

    def reset(self) -> None:
        max_rows = self._spec.cache.max_rows
        max_window_rows = None if max_rows is None else max(1, max_rows // WINDOWS_AT_ONCE)
        self._oracle = Oracle(self._batches, max_window_rows=max_window_rows)
        self._cache = RowCache(self._spec.run.width, max_rows=max_rows)
        self._held = Rows()  # cached, or under way
        self._touches = TouchLog(self._spec.tracker)
        self._norms: list[Tensor] = []  # of the changes of the window's steps so far
        self._window: Window | None = None
        self._before = Placing()  # what the present window was planned from
        self._following: Window | None = None
        self._planned: Future[Window] | None = None  # the window after the following one
        self._latest_stops: dict[int, tuple[int, bool]] = {}  # by first step, of windows that are not over
        self._under_way: tuple[Rows, Sent] | None = None
        self._must_ask = True  # something was due: every rank must answer before the next window begins
        self._slots_N = torch.empty(0, dtype=torch.int64)  # of the batch that was pulled last
        self._flushing: BatchPlan | None = None  # the batch of the step that is being flushed

    async def pull(self, progress: Progress) -> Pulled:
        if self._window is None or progress.step == self._window.stop:
            await self._enter(progress)
        assert self._window is not None
        index = progress.step - self._window.first
        self._slots_N = self._window.slots[index]
        return Pulled(*self._window.steps[index], self._cache.values_SX, self._slots_N)

    def sends_at(self, step: int) -> bool:
        """A message is sent where a window begins, and where it ends at a boundary."""
        return self._window is None or step == self._window.stop or self._spec.is_boundary(step + 1)

    async def look_up(self, plan: TouchedRows, progress: Progress) -> Tensor:
        """See EmbeddingClient. Rows in the cache have updates that their ranks lack, until the next boundary."""
        await self.drain(progress)
        rows_NX = await super().look_up(plan, progress)
        places_N = np.searchsorted(self._held.keys, plan.keys_N).clip(max=max(len(self._held) - 1, 0))
        if len(self._held):
            slots_N = self._held.slots[places_N]
            is_here_N = (self._held.keys[places_N] == plan.keys_N) & self._cache.is_cached_S[slots_N]
            rows_NX[torch.from_numpy(is_here_N)] = self._cache.values(slots_N[is_here_N])
        return rows_NX

    async def push(
        self, grads_ND: Tensor, progress: Progress, *, is_boundary: bool, overlap: Callable[[], None]
    ) -> None:
        assert self._window is not None
        self._update(grads_ND)
        if progress.step + 1 == self._window.stop:
            self._count(self._window)
        if is_boundary:
            if progress.step + 1 != self._window.stop:
                raise RunFailed(
                    f"step {progress.step + 1}: expected no failure within a window of cache.mode=lookahead; a death "
                    "that the trace does not name moved the wall clock (trace.clock) past one; run it again"
                )
            await self._flush(progress, overlap)

    def _update(self, grads_ND: Tensor) -> None:
        """Update the cached rows of the batch that was pulled last."""
        norms_N = torch.empty(len(grads_ND)) if self._spec.tracker.needs_norms else None
        self._spec.run.optimizer.step(
            self._cache.values_SX, self._slots_N, grads_ND, self._learning_rate, norms_N=norms_N
        )
        if norms_N is not None:
            self._norms.append(norms_N)

    def summary(self) -> dict[str, float]:
        """Counts of the traffic, the number of evicted rows, and ``minimum_bytes``.

        ``minimum_bytes``: a lower bound on the bytes moved by any cache with the same windows (``oracle.least_rows``).
        """
        beyond = {"evicted_rows": self._num_evicted, "minimum_bytes": self._minimum_bytes}
        return {**self.traffic.summary(), **beyond}

    def _count(self, window: Window) -> None:
        """Count the updates, touches and traffic of ``window``, whose last step was made."""
        self._cache.dirty_S[window.rows.slots] += window.counts_U
        touch_bytes = self._touches.add(window, self._norms)
        self._norms = []
        self.traffic.access(sum(len(slots_N) for slots_N in window.slots))
        row_bytes = ID_BYTES + self.traffic.row_bytes
        fetched, written = window.least
        self._minimum_bytes += fetched * row_bytes + written * (row_bytes + COUNT_BYTES) + touch_bytes

    def _loaded(self) -> None:
        """Plan again the present window and those after it that had been planned, with the ends that they had."""
        if not self._latest_stops:
            return
        self._window = self._plan(self._before, min(self._latest_stops)).result()
        self._held = self._window.after.held
        if self._window.stop in self._latest_stops:
            self._following = self._plan(self._window.after, self._window.stop).result()
            self._held = self._following.after.held
            if self._following.stop in self._latest_stops:
                self._planned = self._plan(self._following.after, self._following.stop)

    async def _enter(self, progress: Progress) -> None:
        """Begin the window at ``progress.step``.

        Wait for the window's rows, evict rows, and begin to fetch rows for the window after it.
        """
        await self.drain(progress)
        if self._window is not None:
            del self._latest_stops[self._window.first]
        if self._must_ask:
            # Deaths at a boundary are detected here, before anything is evicted.
            self._must_ask = False
            self._start(wanted=Rows(), dirty=None)
            await self.drain(progress)
            if any(self._latest_stop_of(first) != stop for first, stop in self._latest_stops.items()):
                self.reset()  # the forecast of saves or kills was revised: plan anew, with an empty cache
                self._must_ask = False
        window = self._following or self._plan(Placing(), progress.step).result()
        assert window.first == progress.step
        if self._window is None:
            self._hold(window)
        following = self._look_ahead(window)
        staying = self._held if following is None else self._held[~following.is_leaving_H]
        while len(missing := staying[~self._cache.is_cached_S[staying.slots]]):  # a recovery may leave new gaps
            self._start(missing, dirty=None)
            await self.drain(progress)
        if following is not None:
            dirty = self._evict(following, progress.step)
            self._hold(following)
            if dirty is not None or len(following.coming):
                self._start(following.coming, dirty)
        self._window, self._before, self._following = window, window.before, following

    def _hold(self, window: Window) -> None:
        """Reserve slots for the rows of ``window`` and of the window before, cached or in flight from now on."""
        self._held = window.after.held
        self._cache.reserve(window.after.pool.capacity)
        self.traffic.peak(len(window.after.held))

    def _look_ahead(self, window: Window) -> Window | None:
        """Return the window after ``window``, planned in the background, and begin to plan the one after that."""
        num_steps = self._spec.num_steps
        if window.stop >= num_steps:
            return None
        following = (self._planned or self._plan(window.after, window.stop)).result()
        self._planned = self._plan(following.after, following.stop) if following.stop < num_steps else None
        return following

    def _plan(self, before: Placing, first: int) -> Future[Window]:
        """Plan the window from step ``first`` in a thread: numpy mostly runs without the interpreter lock.

        ``before``: what the plan of the window before left: rows, slots, and the last two windows. The latest end of a
        window is fixed when it is first planned, and kept in the state: a resumed run plans the same window again. It
        ends earlier, and is not flushed there, where its rows would exceed the bound by ``cache.max_rows``.
        """
        if first not in self._latest_stops:
            self._latest_stops[first] = self._latest_stop_of(first)
        latest_stop, is_flushed_there = self._latest_stops[first]
        return self._planner.submit(self._oracle.plan, before, first, latest_stop, is_flushed=is_flushed_there)

    def _latest_stop_of(self, first: int) -> tuple[int, bool]:
        """The latest end of the window that begins at ``first``, in finished steps, and whether an action is due there.

        A window ends after ``lookahead / 2`` steps, or at the first boundary, if that is earlier.
        """
        is_boundary = self._spec.is_boundary
        last = min(first + self._window_steps, self._spec.num_steps)
        stop = next((step for step in range(first + 1, last) if is_boundary(step)), last)
        return stop, is_boundary(stop)

    def _evict(self, following: Window, step: int) -> DirtyRows | None:
        """Evict the rows that neither the window that begins nor ``following`` needs.

        Returns the dirty rows among them to write back, with all unsent touches; None if there are neither.
        """
        leaving = self._held[following.is_leaving_H]
        is_dirty = self._cache.dirty_S[leaving.slots] > 0
        dirty = self._take_dirty(leaving[is_dirty], step) if is_dirty.any() or self._touches else None
        self._cache.evict(leaving.slots)
        self._num_evicted += len(leaving)
        self.traffic.peak(len(self._held) + len(following.coming))
        return dirty

    def _take_dirty(self, rows: Rows, step: int) -> DirtyRows:
        """Take the dirty ``rows``, to be written back now, and all unsent touches. Marks the rows as clean."""
        cache = self._cache
        counts_N, values_ND = cache.dirty_S[rows.slots], cache.values(rows.slots)
        cache.dirty_S[rows.slots] = 0
        return DirtyRows(step, rows.keys, values_ND, counts_N, self._touches.take())

    def _start(self, wanted: Rows, dirty: DirtyRows | None) -> None:
        """Send a message to every rank, even if it has no content, so that every death is detected.

        No row is both fetched and written back. So the lookup and the write-back are messages of their own, the lookup
        first: its rows arrive while the others are still being sent.
        """
        requests: dict[Rank, Request] = {}
        for rank, (first, last) in self._spans.items():
            pull_N = local_rows(wanted.keys, first, last)
            pushes = () if dirty is None else (Exchange(push=dirty.of(first, last)),)
            requests[rank] = Several((Exchange(pull_N=pull_N), *pushes))
        self.traffic.fetch(len(wanted))
        if dirty is not None:
            self.traffic.write_back(len(dirty.keys_N))
            self.traffic.sent_bytes += dirty.touch_bytes
        self._under_way = wanted, self._requests.start(requests)

    async def drain(self, progress: Progress) -> None:
        """Wait for the rows in flight, and insert them. No cached row is overwritten: each row has its own slot."""
        if self._under_way is None:
            return
        rows, sent = self._under_way
        replies = [reply[0] for reply in (await self._requests.finish(sent, progress)).values()]
        self._under_way = None
        self._cache.insert(rows.slots, torch.cat(replies))

    async def _flush(self, progress: Progress, overlap: Callable[[], None]) -> None:
        """Write back all dirty rows and touches, so that the ranks' state is as without a cache. The rows stay cached.

        A shard that is restored meanwhile is restored as of the end of this step, so it has lost this step's updates
        too.
        """
        assert self._window is not None
        batch, self._flushing = self._window.steps[-1]
        after = dataclasses.replace(
            progress,
            step=progress.step + 1,
            samples=progress.samples + len(batch.labels_B),
            previous_samples=progress.samples,
        )
        await self.drain(after)
        dirty = self._held[self._cache.dirty_S[self._held.slots] > 0]
        self._start(wanted=Rows(), dirty=self._take_dirty(dirty, after.step))
        self._must_ask = True
        overlap()
        await self.drain(after)
        self._flushing = None

    def shards_restored(self, ranks: Iterable[Rank]) -> Mapping[Rank, tuple[int, int]]:
        """See EmbeddingClient. During a flush the present step's updates are lost, and the ledger has not counted them.

        So the correction is minus their number.
        """
        for rank in ranks:
            first, last = self._spans[rank]
            self._cache.evict(self._held.slots[within(self._held.keys, first, last)])
            self._touches.discard(first, last)
        if self._flushing is None:
            return {}
        updates_R, tracked_R = self._spec.run.count_updates(self._flushing.keys_N, self._flushing.counts_N)
        return {rank: (-updates_R[k], -tracked_R[k]) for k, rank in enumerate(self._ranks)}
