"""The mirror: the trainer's copies of rows, for the replacement of a PS rank that dies (docs/MIRROR.md).

The mirror holds the rows of the untracked (small) tables and the most accessed rows of the tracked ones. It applies the
gradients of every step to them, with the optimizer of the PS ranks. So a mirrored row, and its count of unsaved
updates, equal those at its PS rank after the same step. A row with unsaved updates is newer than in the checkpoint; any
other row equals it. Right before each save the rows to hold are chosen again, and new ones are fetched.

Keys are rows in the rank-major order of all rows (``Placement.rank_base_R``), G blocks of them. K rows that the mirror
holds, C rows that it is to hold, N rows of a call, X columns of a row. On a rank (:func:`choose`) rows are local flat
rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.cluster.protocol import Ask, CountedRows, OnShard
from harness.core.lookup import BatchPlan
from harness.core.placement import num_mirrored
from harness.core.plans import Progress, Rank, ps_index, ps_rank
from harness.core.shard import Shard
from harness.core.trackers import top_rows
from harness.kernels.row_loops import take_rows
from harness.kernels.sorted_keys import block_firsts, shared
from harness.recovery.kinds import Checkpoint, Recovery, RunFacts, UploadedRows
from harness.store import ROW_ID_BYTES

_ALL = np.iinfo(np.int32).max


def choose(
    shard: Shard, tracked: Sequence[int], share: float, held_K: Tensor, accesses_K: Tensor
) -> tuple[Tensor, CountedRows]:
    """On a PS rank: the rows that the mirror is to hold; and those that it lacks, with values and unsaved updates.

    Rows are local flat rows, int64, ascending. All rows of untracked tables are held, and of a tracked table the
    fraction ``share`` with the most accesses. Ties go to the rows that are held already, then to the lower row.
    ``held_K``: the rows held now. ``accesses_K`` (int32): their accesses since the last save. For every other row its
    unsaved updates count: its accesses since the last save that wrote it.
    """
    assert shard.pending_M is not None, "a mirror needs the counts of unsaved updates"
    chosen: list[Tensor] = []
    for table in range(len(shard.placement.cardinalities)):
        span = shard.span(table)
        num_rows = num_mirrored(span.stop - span.start, share, is_tracked=table in tracked)
        if num_rows == span.stop - span.start:
            chosen.append(torch.arange(span.start, span.stop))
            continue
        first, last = torch.searchsorted(held_K, torch.tensor([span.start, span.stop])).tolist()
        # Twice the accesses plus one, so that rows without any fill the mirror; and one more for a row held already.
        score_M = shard.pending_M[span].numpy().astype(np.uint32)  # 4 bytes a row; twice a count does not wrap
        score_M += 1
        score_M *= 2
        accesses = accesses_K[first:last].numpy().astype(np.uint32)
        score_M[held_K[first:last].numpy() - span.start] = 2 * (accesses + 1) + 1
        chosen.append(top_rows(torch.from_numpy(score_M), num_rows) + span.start)
    chosen_C = torch.cat(chosen)
    lacking_N = chosen_C[~torch.isin(chosen_C, held_K, assume_unique=True)]
    return chosen_C, CountedRows(lacking_N, shard.gather(lacking_N), shard.unsaved(lacking_N))


class Mirror(Checkpoint):
    """``mirror``: restores a lost shard from the checkpoint, then overwrites rows with newer ones from the trainer.

    If the strategy has no ``mirror``, the trainer holds no rows, and a shard is restored as by ``checkpoint``.
    """

    _state = (*Recovery._state, *("_keys_K", "_values_KX", "_unsaved_K", "_accesses_K", "_saving_K", "_num_fetched"))

    def __init__(self, run: RunFacts) -> None:
        super().__init__(run)
        self._spec = run.strategy.mirror
        self._bases_R = run.placement.rank_base_R
        self._ranks = [ps_rank(index) for index in range(run.placement.num_ps)]
        self._width = run.width
        self._num_fetched = 0
        self.forget()

    def forget(self) -> None:
        """Drop all rows. The mirror is filled again at the next save."""
        self._keys_K = np.empty(0, np.int64)
        self._firsts_G = block_firsts(self._keys_K, self._bases_R[-1])
        self._values_KX = torch.empty((0, self._width))
        self._unsaved_K = np.empty(0, np.int32)  # updates that the newest checkpoint lacks
        self._accesses_K = np.empty(0, np.int32)  # since the last save
        self._saving_K: NDArray[np.int32] | None = None  # unsaved updates that the save under way holds
        self._begun: tuple[int, BatchPlan, Tensor] | None = None

    def _loaded(self) -> None:
        self._firsts_G = block_firsts(self._keys_K, self._bases_R[-1])

    def begin_step(self, step: int, plan: BatchPlan, grads_ND: Tensor) -> None:
        """Keep the gradients of step ``step`` until :meth:`finish_step` applies them."""
        if len(self._keys_K):
            self._begun = step, plan, grads_ND

    def finish_step(self, step: int) -> None:
        """Apply the kept gradients, unless they belong to a step after ``step``."""
        if self._begun is None or self._begun[0] > step:
            return
        (_, plan, grads_ND), self._begun = self._begun, None
        rows_N, places_N = shared(self._keys_K, self._firsts_G, plan.keys_N)
        counts_N = plan.counts_N[places_N]
        self._accesses_K[rows_N] += counts_N
        self.run.optimizer.step(
            self._values_KX,
            torch.from_numpy(rows_N),
            torch.from_numpy(take_rows(grads_ND.numpy(), places_N)),
            self.run.learning_rate,
            pending_M=torch.from_numpy(self._unsaved_K),
            counts_N=torch.from_numpy(counts_N),
        )

    def _part(self, rank: Rank) -> slice:
        """The slice of the mirror's rows that holds those of ``rank``."""
        k = ps_index(rank)
        return slice(*np.searchsorted(self._keys_K, self._bases_R[k : k + 2]).tolist())

    def _local(self, rank: Rank) -> Tensor:
        return torch.from_numpy(self._keys_K[self._part(rank)] - self._bases_R[ps_index(rank)])

    def _accesses(self, rank: Rank) -> Tensor:
        return torch.from_numpy(self._accesses_K[self._part(rank)])

    async def prepare_save(self, ask: Ask, progress: Progress) -> Mapping[Rank, Tensor]:
        """Choose the rows to hold anew, and fetch new ones; returns by rank the local flat rows: int64, ascending.

        The ranks must have all updates, and no save may be under way.
        """
        if self._spec is None:
            return {}
        assert self._saving_K is None, "one save at a time"
        requests = {
            rank: OnShard(choose, (self.run.tracked, self._spec.share, self._local(rank), self._accesses(rank)))
            for rank in self._ranks
        }
        self._hold((await ask(requests, progress)).values())
        return {rank: self._local(rank) for rank in self._ranks}

    def _hold(self, chosen_R: Iterable[tuple[Tensor, CountedRows]]) -> None:
        """Drop the rows that were not chosen, and insert the new ones with the values from the ranks."""
        rows_R, coming_R = zip(*chosen_R, strict=True)
        keys = (rows_N.numpy() + base for rows_N, base in zip(rows_R, self._bases_R[:-1], strict=True))
        keys_K = np.concatenate(list(keys))
        old_N, new_N = shared(self._keys_K, self._firsts_G, keys_K)
        values_KX, unsaved_K = torch.empty((len(keys_K), self._width)), np.empty(len(keys_K), np.int32)
        values_KX[torch.from_numpy(new_N)] = self._values_KX[torch.from_numpy(old_N)]
        unsaved_K[new_N] = self._unsaved_K[old_N]
        comes_K = np.ones(len(keys_K), np.bool_)
        comes_K[new_N] = False
        values_KX[torch.from_numpy(comes_K)] = torch.cat([coming.values_ND for coming in coming_R])
        unsaved_K[comes_K] = torch.cat([coming.unsaved_N for coming in coming_R]).numpy()
        self._keys_K, self._values_KX, self._unsaved_K = keys_K, values_KX, unsaved_K
        self._firsts_G = block_firsts(keys_K, self._bases_R[-1])  # less than a hundredth of the mirror's memory
        self._accesses_K = np.zeros(len(keys_K), np.int32)
        self._num_fetched += int(comes_K.sum())
        arrays = (self._keys_K, self._values_KX, self._unsaved_K, self._accesses_K)
        self.trainer_bytes = max(self.trainer_bytes, sum(array.nbytes for array in arrays))

    def freeze(self, *, closes_interval: bool) -> None:
        """Note the unsaved updates that the present save holds: those of all mirrored rows, or none.

        Only a save that closes an interval writes mirrored rows.
        """
        self._saving_K = self._unsaved_K.copy() if closes_interval else None

    def committed(self) -> None:
        """Count the updates noted by :meth:`freeze` as saved."""
        saving_K, self._saving_K = self._saving_K, None
        if saving_K is not None:
            np.maximum(self._unsaved_K - saving_K, 0, out=self._unsaved_K)

    def newer_rows(self, rank: Rank, step: int) -> CountedRows:
        """The mirrored rows of the dead ``rank`` after ``step`` steps that are newer than in the newest checkpoint.

        The replacement must load these rows. A save under way that writes mirrored rows then counts as holding all
        updates of the rank's mirrored rows, since the replacement writes its part as of the commit. With
        ``restore_optimizer: reset`` the rank's other mirrored rows get the initial optimizer state here too. The counts
        of the returned rows are in ``uploaded``.
        """
        self.finish_step(step)
        part = self._part(rank)
        newer_N = np.flatnonzero(self._unsaved_K[part]) + part.start
        if self.run.strategy.resets_states:
            others_N = np.flatnonzero(self._unsaved_K[part] == 0) + part.start
            self._values_KX[torch.from_numpy(others_N), self.run.dim :] = self.run.optimizer.initial_state
        keys_N, unsaved_N = self._keys_K[newer_N], self._unsaved_K[newer_N]
        if self._saving_K is not None:
            self._saving_K[part] = _ALL
        updates_R, tracked_R = self.run.count_updates(keys_N, unsaved_N)
        k, values_NX = ps_index(rank), self._values_KX[torch.from_numpy(newer_N)]
        self.uploaded[rank] = UploadedRows(
            num_rows=len(newer_N),
            num_bytes=values_NX.nbytes + len(newer_N) * ROW_ID_BYTES,
            updates=(updates_R[k], tracked_R[k]),
        )
        rows_N = torch.from_numpy(keys_N - self._bases_R[k])
        return CountedRows(rows_N, values_NX, torch.from_numpy(unsaved_N))

    def summary(self) -> dict[str, Any]:
        if self._spec is None:
            return {}
        rows = {"rows": len(self._keys_K), "bytes": self.trainer_bytes, "fetched_rows": self._num_fetched}
        return {"mirror": rows}
