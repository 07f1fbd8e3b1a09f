"""The lookahead cache: rows that coming batches share live at the trainer (BagPipe, SOSP 2023, arXiv 2202.12429).

The order of batches is known, so an oracle tells for each window of steps which rows to have, which to keep for the
next window, and which to write back. A window trains on the cache alone; one message per rank and window carries what
leaves and fetches, in the background, what the next window needs. Exact: a cached row is updated by the arithmetic that
its PS rank would use, and no row is read while a newer version is elsewhere.

Windows end where something is due: there every dirty row and every touch not yet told is flushed, so that a save, an
evaluation and a tracker's choice find what they would find without a cache, and every rank is asked again right after,
so that a kill is found at its own boundary. When a shard is restored alone, all cached rows of it are discarded and
fetched again: the run equals the uncached run with the same kills.

Keys are rows in the rank-major order of all rows (``Placement.positions``). U distinct keys of a window, K keys of the
cache, N distinct rows of a batch, D embedding dim.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.cluster.protocol import Exchange, WriteBack
from harness.core.lookup import BatchPlan
from harness.core.plans import Progress, Rank, ps_index
from harness.data.dataset import Batch
from harness.datapath import Batches, pull
from harness.recovery import Recovery, Underway

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class PlannedStep:
    """A batch, its plan, and the keys of its distinct rows, ascending (N,)."""

    batch: Batch
    plan: BatchPlan
    keys_N: Keys


@dataclass(frozen=True)
class Window:
    """Consecutive steps, the first number ``first``, and all keys they touch, ascending (U,)."""

    first: int
    steps: tuple[PlannedStep, ...]
    keys_U: Keys

    @property
    def stop(self) -> int:
        """Number of finished steps after the window."""
        return self.first + len(self.steps)


@dataclass
class Traffic:
    """Rows moved, and bytes of all tensors on the wire; ``uncached`` is what one message a step would have moved."""

    accessed_rows: int = 0
    fetched_rows: int = 0
    written_rows: int = 0
    num_bytes: int = 0
    uncached_bytes: int = 0
    peak_rows: int = 0

    def summary(self) -> dict[str, float]:
        """For the record."""
        return {
            "hit_rate": 1 - self.fetched_rows / self.accessed_rows if self.accessed_rows else 0.0,
            "fetched_rows": self.fetched_rows,
            "written_rows": self.written_rows,
            "peak_rows": self.peak_rows,
            "bytes": self.num_bytes,
            "uncached_bytes": self.uncached_bytes,
        }


class Cache:
    """Rows by ascending key: values (K, D), which are newer than the PS rank's, and updates not yet told of."""

    def __init__(self, dim: int) -> None:
        self.keys_K: Keys = np.empty(0, np.int64)
        self.values_KD = torch.empty((0, dim))
        self.is_dirty_K = np.empty(0, bool)
        self.counts_K = np.empty(0, np.int32)

    def missing(self, keys_U: Keys) -> Keys:
        """Those of ``keys_U`` that are not here."""
        return np.setdiff1d(keys_U, self.keys_K, assume_unique=True)

    def keep(self, is_kept_K: NDArray[np.bool_]) -> None:
        """Forget all other rows."""
        if not is_kept_K.all():
            self.keys_K = self.keys_K[is_kept_K]
            self.values_KD = self.values_KD[torch.from_numpy(is_kept_K)]
            self.is_dirty_K = self.is_dirty_K[is_kept_K]
            self.counts_K = self.counts_K[is_kept_K]

    def add(self, keys_U: Keys, values_UD: Tensor) -> None:
        """Rows that are not here, clean."""
        if not len(keys_U):
            return
        keys = np.concatenate([self.keys_K, keys_U])
        order = np.argsort(keys, kind="stable")
        self.keys_K = keys[order]
        self.values_KD = torch.cat([self.values_KD, values_UD])[torch.from_numpy(order)]
        self.is_dirty_K = np.concatenate([self.is_dirty_K, np.zeros(len(keys_U), bool)])[order]
        self.counts_K = np.concatenate([self.counts_K, np.zeros(len(keys_U), np.int32)])[order]


class LookaheadPath:
    """A data path (``harness.datapath``) whose rows mostly are here already.

    Args:
        lookahead: steps that the oracle sees; two windows.
        max_rows: bound on the rows of the cache; windows are cut short to keep it. A single step may need more.
        is_boundary: whether something is due after so many steps.
        tells_samples: a tracker needs the rows of sub-sampled inputs, step by step.
        tells_counts: somebody counts updates.
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
        tells_counts: bool,
        tells_samples: bool,
    ) -> None:
        self._recovery = recovery
        self._batches = batches
        self._ranks = ranks
        self._dim = dim
        self._learning_rate = learning_rate
        self._num_steps = num_steps
        self._window_steps = max(1, lookahead // 2)
        self._max_window_rows = None if max_rows is None else max(1, max_rows // 2)
        self._is_boundary = is_boundary
        self._tells_counts = tells_counts
        self._tells_samples = tells_samples
        self._base_R = batches.placement.rank_base_R
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="oracle")
        self.traffic = Traffic()
        recovery.listeners.append(self._discard)
        self.reset()

    def reset(self) -> None:
        """Full recovery took place: every cached row is void."""
        self._cache = Cache(self._dim)
        self._sampled: list[tuple[int, Keys]] = []
        self._window: Window | None = None
        self._following: Window | None = None
        self._planned: Future[Window] | None = None  # the window after the following one
        self._underway: tuple[Keys, Underway] | None = None
        self._must_ask = True  # something was due: hear from every rank before going on
        self._slots: list[Tensor] = []
        self._fetched: tuple[Tensor, Tensor] | None = None

    # --- the step loop's side ---------------------------------------------------------------------------------------

    def fetch(self, progress: Progress) -> tuple[Batch, BatchPlan, Tensor]:
        """The next batch with its rows, from the cache."""
        if self._window is None or progress.step == self._window.stop or self._must_ask:
            self._enter(progress)
        assert self._window is not None
        index = progress.step - self._window.first
        planned, slots_N = self._window.steps[index], self._slots[index]
        rows_ND = self._cache.values_KD.index_select(0, slots_N)
        self._fetched = slots_N, rows_ND
        return planned.batch, planned.plan, rows_ND

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
        assert self._fetched is not None
        slots_N, rows_ND = self._fetched
        self._cache.values_KD.index_put_((slots_N,), torch.sub(rows_ND, grads_ND, alpha=self._learning_rate))
        slots = slots_N.numpy()
        self._cache.is_dirty_K[slots] = True
        if self._tells_counts:
            self._cache.counts_K[slots] += plan.counts_N
        if self._tells_samples:
            is_sampled_N = plan.sampled_N
            keys_N = self._window.steps[progress.step - self._window.first].keys_N
            self._sampled.append((progress.step + 1, keys_N[is_sampled_N]))
        self.traffic.accessed_rows += len(slots)
        self.traffic.uncached_bytes += len(slots) * (8 + 4 * self._dim + 8 + 4 * self._dim + 4 + 1)
        if is_boundary:
            assert progress.step + 1 == self._window.stop, "windows end at boundaries"
            self._flush(progress)

    def look_up(self, plan: BatchPlan, progress: Progress) -> Tensor:
        """The ranks hold everything: it has been flushed."""
        return pull(self._recovery, self._ranks, plan, progress)

    def summary(self) -> dict[str, float]:
        """What the cache saved."""
        return self.traffic.summary()

    # --- windows ------------------------------------------------------------------------------------------------------

    def _enter(self, progress: Progress) -> None:
        """Begin the window at ``progress.step``: have its rows, send off what leaves, ask for the window after."""
        window = self._following or self._plan(progress.step).result()
        assert window.first == progress.step
        self._receive(progress)
        following = self._following = self._look_ahead(window)
        needed_U = window.keys_U if following is None else np.union1d(window.keys_U, following.keys_U)
        leaving = self._leaving(needed_U, progress.step)
        missing = self._cache.missing(window.keys_U)
        while self._must_ask or len(missing):
            self._must_ask = False
            self._sent(missing, leaving)
            self._underway = missing, self._recovery.start(self._messages(missing, leaving))
            leaving = None  # told; what is asked again below is rows alone
            self._receive(progress)
            missing = self._cache.missing(window.keys_U)  # a shard may have been restored meanwhile
        coming = np.empty(0, np.int64) if following is None else self._cache.missing(following.keys_U)
        if leaving is not None or len(coming):
            self._sent(coming, leaving)
            self._underway = coming, self._recovery.start(self._messages(coming, leaving))
        self._window = window
        keys_K = self._cache.keys_K
        self._slots = [torch.from_numpy(np.searchsorted(keys_K, step.keys_N)) for step in window.steps]
        self.traffic.peak_rows = max(self.traffic.peak_rows, len(keys_K) + len(coming))

    def _look_ahead(self, window: Window) -> Window | None:
        """The window after ``window``, planned while the one before that ran; the next is begun now."""
        if window.stop >= self._num_steps:
            return None
        following = (self._planned or self._plan(window.stop)).result()
        self._planned = self._plan(following.stop) if following.stop < self._num_steps else None
        return following

    def _plan(self, first: int) -> Future[Window]:
        """Plan the window that begins at ``first``, in the background: numpy mostly works without the interpreter."""
        return self._planner.submit(self._plan_until, first, self._stop_of(first))

    def _stop_of(self, first: int) -> int:
        """Where a window that begins at ``first`` ends: after so many steps, or where something is due."""
        last = min(first + self._window_steps, self._num_steps)
        return next((step for step in range(first + 1, last) if self._is_boundary(step)), last)

    def _plan_until(self, first: int, stop: int) -> Window:
        steps = tuple(self._plan_step(step) for step in range(first, stop))
        keys_U = np.unique(np.concatenate([step.keys_N for step in steps]))
        while self._max_window_rows is not None and len(keys_U) > self._max_window_rows and len(steps) > 1:
            steps = steps[: len(steps) // 2]
            keys_U = np.unique(np.concatenate([step.keys_N for step in steps]))
        return Window(first, steps, keys_U)

    def _plan_step(self, step: int) -> PlannedStep:
        batch, plan = self._batches(step)
        return PlannedStep(batch, plan, plan.keys_N)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _leaving(self, needed_U: Keys, step: int) -> "Leaving | None":
        """Take out of the cache what the oracle does not see again; what of it to tell the ranks, touches included."""
        cache = self._cache
        is_kept_K = np.isin(cache.keys_K, needed_U, assume_unique=True)
        is_told_K = cache.is_dirty_K & ~is_kept_K
        leaving = self._take(is_told_K, step) if is_told_K.any() or self._sampled else None
        cache.keep(is_kept_K)
        return leaving

    def _take(self, is_told_K: NDArray[np.bool_], step: int) -> "Leaving":
        """Dirty rows to write back now, with the updates that each had; they are clean then."""
        cache = self._cache
        leaving = Leaving(
            step,
            cache.keys_K[is_told_K],
            cache.values_KD[torch.from_numpy(is_told_K)],
            cache.counts_K[is_told_K],
            self._sampled,
        )
        cache.counts_K[is_told_K] = 0
        cache.is_dirty_K = cache.is_dirty_K & ~is_told_K
        self._sampled = []
        return leaving

    def _messages(self, wanted_U: Keys, leaving: "Leaving | None") -> dict[Rank, Exchange]:
        """One message to every rank, empty if need be, so that no death goes unseen."""
        cuts = np.searchsorted(wanted_U, self._base_R)
        return {
            rank: Exchange(
                push=None if leaving is None else leaving.of(self._base_R[k], self._base_R[k + 1]),
                pull_N=torch.from_numpy(wanted_U[cuts[k] : cuts[k + 1]] - self._base_R[k]),
            )
            for k, rank in enumerate(self._ranks)
        }

    def _sent(self, wanted_U: Keys, leaving: "Leaving | None") -> None:
        num_written = 0 if leaving is None else len(leaving.keys_N)
        self.traffic.fetched_rows += len(wanted_U)
        self.traffic.written_rows += num_written
        self.traffic.num_bytes += len(wanted_U) * (8 + 4 * self._dim) + num_written * (8 + 4 * self._dim + 8 + 4)
        if leaving is not None:
            self.traffic.num_bytes += sum(8 * len(keys) for _, keys in leaving.sampled)

    def _receive(self, progress: Progress) -> None:
        """Add the rows that are under way to the cache."""
        if self._underway is not None:
            keys_U, underway = self._underway
            self._underway = None
            replies = self._recovery.finish(underway, progress)
            self._cache.add(keys_U, torch.cat([reply for reply in replies.values() if reply is not None]))

    def _flush(self, progress: Progress) -> None:
        """Give every rank what it would have without a cache. Rows stay, clean."""
        assert self._window is not None
        self._receive(progress)
        after = dataclasses.replace(
            progress,
            step=progress.step + 1,
            samples=progress.samples + len(self._window.steps[-1].batch.labels_B),
            previous_samples=progress.samples,
        )
        leaving = self._take(self._cache.is_dirty_K, after.step)
        nothing = np.empty(0, np.int64)
        self._sent(nothing, leaving)
        self._must_ask = True
        self._recovery.ask(self._messages(nothing, leaving), after)

    def _discard(self, casualties: frozenset[Rank]) -> None:
        """Shards were restored alone: their cached rows, and what was not yet told of them, are no more."""
        is_kept_K = np.ones(len(self._cache.keys_K), bool)
        for rank in casualties:
            first, last = self._base_R[ps_index(rank)], self._base_R[ps_index(rank) + 1]
            is_kept_K &= ~((self._cache.keys_K >= first) & (self._cache.keys_K < last))
            self._sampled = [(step, keys[(keys < first) | (keys >= last)]) for step, keys in self._sampled]
        self._cache.keep(is_kept_K)


@dataclass(frozen=True)
class Leaving:
    """Dirty rows of all ranks, by ascending key, as of ``step``; the updates of each, and the sampled rows by step."""

    step: int
    keys_N: Keys
    values_ND: Tensor
    counts_N: NDArray[np.int32]
    sampled: list[tuple[int, Keys]]

    def of(self, first: int, last: int) -> WriteBack:
        """The part of one rank, whose keys are ``first <= key < last``."""
        cut = slice(*np.searchsorted(self.keys_N, [first, last]))
        rows_N = torch.from_numpy(self.keys_N[cut] - first)
        sampled = ((step, keys[slice(*np.searchsorted(keys, [first, last]))] - first) for step, keys in self.sampled)
        return WriteBack(
            step=self.step,
            rows_N=rows_N,
            values_ND=self.values_ND[cut],
            touched_U=rows_N,
            counts_U=torch.from_numpy(self.counts_N[cut]),
            sampled=tuple((step, torch.from_numpy(keys)) for step, keys in sampled if len(keys)),
        )
