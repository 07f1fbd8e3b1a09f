"""The lookahead cache: rows that coming batches share live at the trainer (BagPipe, SOSP 2023, arXiv 2202.12429).

The order of batches is known, so an oracle (``client.oracle``) tells for each window of steps which rows to have,
which to keep for the next window, and which to write back. A window trains on the cache alone; one message per rank and
window carries what leaves and fetches, in the background, what the next window needs. Exact: a cached row is updated by
the arithmetic that its PS rank would use, and no row is read while a newer version is elsewhere.

Windows end where something is due: there every dirty row and every touch not yet told is flushed, so that a save, an
evaluation and a tracker's choice find what they would find without a cache, and every rank is asked again right after,
so that a kill is found at its own boundary.

When a shard is restored alone, all cached rows of it are discarded and fetched again: the run equals the uncached run
with the same kills. Or, with ``recovers_from_cache``, rows stay that are newer here than in the checkpoint. Then each
row is fetched with the number of its updates that no save has persisted, asked for again after every save, and messages
to the ranks carry all of these updates instead of the new ones: a replacement takes over rows, counts and all.

Keys are rows in the rank-major order of all rows (``Placement.positions``). U distinct keys of a window, H rows that
are held, N distinct rows of a batch, D embedding dim.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.client.direct import Batches, Fetched, pull
from harness.client.oracle import Keys, Oracle, Rows, Window
from harness.client.row_cache import RowCache, Traffic
from harness.cluster.protocol import Counted, Exchange, Request, Several, WriteBack
from harness.core.lookup import BatchPlan
from harness.core.plans import Progress, Rank, ps_index
from harness.core.pls import UpdateCounter
from harness.recovery.failover import Kept, Recovery, Underway

ID_BYTES, COUNT_BYTES, VALUE_BYTES = 8, 4, 4

SHARE_OF_WINDOW = 3
"""Rows of three windows at most are cached or under way at one time: of one that ended, the one at work, the next."""


class LookaheadPath:
    """A data path (``harness.client.direct``) whose rows mostly are here already.

    Args:
        lookahead: steps that the oracle sees; two windows.
        max_rows: bound on the rows that are cached or under way. A single step may need more.
        is_boundary: whether something is due after so many steps.
        recovers_from_cache: rows of a dead rank that are newer here than in the checkpoint survive.
        count_updates: counts updates as the ledger does.
        tells_samples: a tracker needs the rows of sub-sampled inputs, step by step.
    """

    def __init__(
        self,
        recovery: Recovery,
        batches: Batches,
        ranks: tuple[Rank, ...],
        *,
        dim: int,
        learning_rate: float,
        num_steps: int,
        lookahead: int,
        max_rows: int | None,
        is_boundary: Callable[[int], bool],
        recovers_from_cache: bool,
        count_updates: UpdateCounter,
        tells_samples: bool,
    ) -> None:
        self._recovery = recovery
        self._batches = batches
        self._ranks = ranks
        self._dim = dim
        self._learning_rate = learning_rate
        self._num_steps = num_steps
        self._window_steps = max(1, lookahead // 2)
        self._max_rows = max_rows
        self._is_boundary = is_boundary
        self._recovers = recovers_from_cache
        self._count_updates = count_updates
        self._tells_samples = tells_samples
        first_R = batches.placement.rank_base_R.tolist()
        self._spans = {rank: (first_R[k], first_R[k + 1]) for k, rank in enumerate(ranks)}  # keys of each rank
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="oracle")
        self.traffic = Traffic()
        self._num_evicted = self._minimum_bytes = 0
        recovery.listeners.append(self._hold_on)
        recovery.spared = self._spared
        if recovers_from_cache:
            recovery.save_listeners.append(self._ask_what_is_unsaved)
        self.reset()

    def reset(self) -> None:
        """Full recovery took place: every cached row is void."""
        max_window_rows = None if self._max_rows is None else max(1, self._max_rows // SHARE_OF_WINDOW)
        self._oracle = Oracle(self._batches, max_window_rows=max_window_rows)
        self._cache = RowCache(self._dim, max_rows=self._max_rows)
        self._held = Rows.none()  # here, or coming
        self._sampled: list[tuple[int, Keys]] = []
        self._window: Window | None = None
        self._following: Window | None = None
        self._planned: Future[Window] | None = None  # the window after the following one
        self._underway: tuple[Rows, Told | None, Underway] | None = None
        self._must_ask = True  # something was due: hear from every rank before going on
        self._knows_unsaved = True  # no save took place since these were asked for
        self._slots_N = torch.empty(0, dtype=torch.int64)  # of the batch that was fetched last
        self._flushing: BatchPlan | None = None  # the batch of the step that is flushed

    # --- the step loop's side ---------------------------------------------------------------------------------------

    def fetch(self, progress: Progress) -> Fetched:
        """The next batch, and which rows of the cache are its own."""
        if self._window is None or progress.step == self._window.stop:
            self._enter(progress)
        assert self._window is not None
        index = progress.step - self._window.first
        planned, self._slots_N = self._window.steps[index], self._window.slots[index]
        return Fetched(planned.batch, planned.plan, self._cache.values_SD, self._slots_N)

    def push(
        self,
        plan: BatchPlan,
        grads_ND: Tensor,
        progress: Progress,
        *,
        is_boundary: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Update the cached rows, by the arithmetic of ``Shard.apply``; at a boundary, flush."""
        assert self._window is not None
        self._cache.sgd_step(self._slots_N, grads_ND, self._learning_rate)
        if progress.step + 1 == self._window.stop:
            self._count(self._window)
        if is_boundary:
            assert progress.step + 1 == self._window.stop, "windows end at boundaries"
            self._flush(plan, progress, meanwhile)

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """The ranks hold everything: it has been flushed."""
        return pull(self._recovery, self._ranks, plan, progress)

    @property
    def buffer_bytes(self) -> int:
        """Memory of all cached rows and what is known of them."""
        return self._cache.num_bytes

    def summary(self) -> dict[str, float]:
        """What moved; ``minimum_bytes`` no cache with the same sight can do without (``oracle.least_rows``)."""
        beyond = {"evicted_rows": self._num_evicted, "minimum_bytes": self._minimum_bytes}
        return {**self.traffic.summary(), **beyond}

    def _count(self, window: Window) -> None:
        """Every step of ``window`` is done."""
        self._cache.count(window.rows.slots, window.counts_U)
        num_accessed = sum(len(slots_N) for slots_N in window.slots)
        num_sampled = 0
        if self._tells_samples:
            sampled = ((window.first + k, step.sampled_S) for k, step in enumerate(window.steps, start=1))
            self._sampled += sampled
            num_sampled = sum(len(step.sampled_S) for step in window.steps)
        row_bytes = ID_BYTES + VALUE_BYTES * self._dim
        counted = COUNT_BYTES if self._recovers else 0
        traffic = self.traffic
        traffic.accessed_rows += num_accessed
        traffic.uncached_bytes += num_accessed * (2 * row_bytes + COUNT_BYTES + 1)  # and whether it is sampled
        self._minimum_bytes += window.least.fetched * (row_bytes + counted)
        self._minimum_bytes += window.least.written * (row_bytes + COUNT_BYTES) + num_sampled * ID_BYTES

    # --- windows ------------------------------------------------------------------------------------------------------

    def _enter(self, progress: Progress) -> None:
        """Begin the window at ``progress.step``: have its rows, send off what leaves, ask for the window after."""
        window = self._following or self._plan(progress.step).result()
        assert window.first == progress.step
        self._receive(progress)
        if self._window is None:
            self._hold(window)
        following = self._look_ahead(window)
        staying = self._held if following is None else self._held[~following.is_leaving_H]
        missing = self._missing(staying)
        while self._must_ask or len(missing):
            # A boundary's deaths are found here, before anything is let go. They may leave new gaps.
            self._must_ask = False
            self._start(missing, None)
            self._receive(progress)
            missing = self._missing(staying)
        if following is not None:
            leaving = self._let_go(following, progress.step)
            self._hold(following)
            if leaving is not None or len(following.coming):
                self._start(following.coming, leaving)
        self._window, self._following = window, following

    def _hold(self, window: Window) -> None:
        """From now on the rows of the window before and of ``window`` are to be here."""
        self._held = window.held
        self._cache.reserve(window.num_slots)
        self.traffic.peak_rows = max(self.traffic.peak_rows, len(window.held))

    def _missing(self, staying: Rows) -> Rows:
        return staying[~self._cache.is_here_S[staying.slots]]

    def _look_ahead(self, window: Window) -> Window | None:
        """The window after ``window``, planned while the one before that ran; the next is begun now."""
        if window.stop >= self._num_steps:
            return None
        following = (self._planned or self._plan(window.stop)).result()
        self._planned = self._plan(following.stop) if following.stop < self._num_steps else None
        return following

    def _plan(self, first: int) -> Future[Window]:
        """Plan the window that begins at ``first``, in the background: numpy mostly works without the interpreter.

        It ends after so many steps, or where something is due, which is asked here: the trainer knows, and now.
        """
        last = min(first + self._window_steps, self._num_steps)
        stop = next((step for step in range(first + 1, last) if self._is_boundary(step)), last)
        return self._planner.submit(self._oracle.plan, first, stop, is_flushed=self._is_boundary(stop))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _let_go(self, following: Window, step: int) -> "Told | None":
        """Forget what the oracle does not see again; what of it to tell the ranks, touches included."""
        leaving = self._held[following.is_leaving_H]
        is_dirty = self._cache.untold_S[leaving.slots] > 0
        told = self._tell(leaving[is_dirty], step) if is_dirty.any() or self._sampled else None
        self._cache.forget(leaving.slots)
        self._num_evicted += len(leaving)
        self.traffic.peak_rows = max(self.traffic.peak_rows, len(self._held) + len(following.coming))
        return told

    def _tell(self, rows: Rows, step: int) -> "Told":
        """Rows to write back now, with their updates; they are clean then. All touches that are not yet told."""
        cache, sampled = self._cache, self._sampled
        counts_N = (cache.unsaved_S if self._recovers else cache.untold_S)[rows.slots]
        values_ND = cache.values(rows.slots)
        cache.untold_S[rows.slots] = 0
        self._sampled = []
        return Told(step, rows.keys, values_ND, counts_N, sampled, counts_all=self._recovers)

    def _start(self, wanted: Rows, told: "Told | None") -> None:
        """Ask every rank, for nothing if need be, so that no death goes unseen.

        What is looked up and what is told have no row in common, so the two travel in messages of their own, lookups
        first: rows come back while others are still on their way out.
        """
        empty_M = torch.empty(0, dtype=torch.int64)
        requests: dict[Rank, Request] = {}
        for rank, (first, last) in self._spans.items():
            pull_N = torch.from_numpy(wanted.between(first, last).keys - first)
            pull = Exchange(pull_N=pull_N, unsaved_M=empty_M if self._recovers else None)
            pushes = () if told is None else (Exchange(push=told.of(first, last)),)
            requests[rank] = Several((pull, *pushes))
        self._note(len(wanted), told)
        self._underway = wanted, told, self._recovery.start(requests)

    def _note(self, num_fetched: int, told: "Told | None") -> None:
        traffic = self.traffic
        traffic.fetched_rows += num_fetched
        traffic.sent_bytes += num_fetched * ID_BYTES
        traffic.received_bytes += num_fetched * (VALUE_BYTES * self._dim + (COUNT_BYTES if self._recovers else 0))
        if told is not None:
            traffic.written_rows += len(told.keys_N)
            traffic.sent_bytes += len(told.keys_N) * (ID_BYTES + VALUE_BYTES * self._dim + COUNT_BYTES)
            traffic.sent_bytes += sum(ID_BYTES * len(keys_S) for _, keys_S in told.sampled)

    def _receive(self, progress: Progress) -> None:
        """Add the rows that are under way to the cache."""
        if self._underway is None:
            return
        rows, _, underway = self._underway
        looked_up = [reply[0] for reply in self._recovery.finish(underway, progress).values()]
        self._underway = None
        if self._recovers:
            counted = cast("list[Counted]", looked_up)
            values_KD = torch.cat([each.rows_ND for each in counted])
            self._cache.take_in(rows.slots, values_KD, torch.cat([each.unsaved_NM for each in counted]))
        else:
            self._cache.take_in(rows.slots, torch.cat(looked_up), None)

    def _flush(self, plan: BatchPlan, progress: Progress, meanwhile: Callable[[], None]) -> None:
        """Give every rank what it would have without a cache. Rows stay, clean."""
        assert self._window is not None
        self._flushing = plan
        self._receive(progress)
        after = dataclasses.replace(
            progress,
            step=progress.step + 1,
            samples=progress.samples + len(self._window.steps[-1].batch.labels_B),
            previous_samples=progress.samples,
        )
        dirty = self._held[self._cache.untold_S[self._held.slots] > 0]
        self._start(Rows.none(), self._tell(dirty, after.step))
        self._must_ask = True
        meanwhile()
        self._receive(after)
        self._flushing = None

    # --- failures -----------------------------------------------------------------------------------------------------

    def _hold_on(self, casualties: frozenset[Rank]) -> dict[Rank, Kept]:
        """Shards were restored alone: discard their cached rows, or hold on to those that are newer."""
        kept: dict[Rank, Kept] = {}
        for rank in casualties:
            rows = self._held.between(*self._spans[rank])
            # With a save under way counts leave out what it froze, and the checkpoint is still the one before.
            if self._recovers and self._knows_unsaved and not self._recovery.is_saving:
                kept[rank] = self._keep(rank, rows[self._cache.is_here_S[rows.slots]])
            else:
                self._discard(rank, rows)
                kept[rank] = self._keep(rank, Rows.none())
        return kept

    def _discard(self, rank: Rank, rows: Rows) -> None:
        first, last = self._spans[rank]
        self._cache.forget(rows.slots)
        self._sampled = [(step, keys[(keys < first) | (keys >= last)]) for step, keys in self._sampled]

    def _keep(self, rank: Rank, rows: Rows) -> Kept:
        """Rows with unsaved updates are newer than the checkpoint: to be told again, all of it. Others equal it.

        Rows that are on their way back live on whether they are still held or not: the message is sent again.
        """
        told_keys, told_counts = np.empty(0, np.int64), np.empty(0, np.int32)
        told = self._underway[1] if self._underway and self._recovers else None
        if told is not None:
            cut = slice(*np.searchsorted(told.keys_N, self._spans[rank]))
            told_keys, told_counts = told.keys_N[cut], told.counts_N[cut]
        unsaved = self._cache.unsaved_S[rows.slots]
        is_newer = (unsaved > 0) & ~np.isin(rows.keys, told_keys, assume_unique=True)
        self._cache.untold_S[rows.slots[is_newer]] = unsaved[is_newer]
        keys = np.concatenate([rows.keys[is_newer], told_keys])
        order = np.argsort(keys)
        counts = np.concatenate([unsaved[is_newer], told_counts])
        updates_R, tracked_R = self._count_updates(keys[order], counts[order])
        return Kept(num_rows=len(keys), updates=(updates_R[ps_index(rank)], tracked_R[ps_index(rank)]))

    def _spared(self, rank: Rank) -> tuple[int, int]:
        """In a flush, less than nothing: the step's own updates do not count as sent yet, but are lost like others."""
        if self._flushing is None:
            return 0, 0
        updates_R, tracked_R = self._count_updates(self._flushing.keys_N, self._flushing.counts_N)
        return -updates_R[ps_index(rank)], -tracked_R[ps_index(rank)]

    def _ask_what_is_unsaved(self, progress: Progress) -> None:
        """A save persisted updates, and only the ranks know of which rows. Rows with news for them know better."""
        self._knows_unsaved = False
        cache, slots = self._cache, self._held.slots
        clean = self._held[(cache.untold_S[slots] == 0) & (cache.unsaved_S[slots] > 0) & cache.is_here_S[slots]]
        nothing_N = torch.empty(0, dtype=torch.int64)
        requests = {
            rank: Exchange(pull_N=nothing_N, unsaved_M=torch.from_numpy(clean.between(first, last).keys - first))
            for rank, (first, last) in self._spans.items()
        }
        replies = self._recovery.ask(requests, progress)
        cache.unsaved_S[clean.slots] = torch.cat([reply.unsaved_NM for reply in replies.values()]).numpy()
        self.traffic.sent_bytes += len(clean) * ID_BYTES
        self.traffic.received_bytes += len(clean) * COUNT_BYTES
        self._knows_unsaved = True


@dataclass(frozen=True)
class Told:
    """Dirty rows of all ranks, by ascending key, as of ``step``; the updates of each, and the sampled rows by step."""

    step: int
    keys_N: Keys
    values_ND: Tensor
    counts_N: NDArray[np.int32]
    sampled: list[tuple[int, Keys]]
    counts_all: bool

    def of(self, first: int, last: int) -> WriteBack:
        """The part of one rank, whose keys are ``first <= key < last``."""
        cut = slice(*np.searchsorted(self.keys_N, [first, last]))
        sampled = ((step, keys[slice(*np.searchsorted(keys, [first, last]))] - first) for step, keys in self.sampled)
        return WriteBack(
            step=self.step,
            rows_N=torch.from_numpy(self.keys_N[cut] - first),
            values_ND=self.values_ND[cut],
            counts_N=torch.from_numpy(self.counts_N[cut]),
            counts_all=self.counts_all,
            sampled=tuple((step, torch.from_numpy(keys)) for step, keys in sampled if len(keys)),
        )
