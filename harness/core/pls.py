"""The portion of lost samples (PLS) under partial recovery, by samples and by updates.

Plain PLS (CPR section 4) counts samples, so it does not depend on which rows a priority save wrote. Update-weighted PLS
counts updates, one per (sample, row), so it does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.placement import Placement
from harness.core.plans import Rank, Tier, ps_rank
from harness.core.resumable import Resumable
from harness.kernels.sorted_keys import sums_before


def rank_weights(placement: Placement) -> dict[Rank, float]:
    """The weight of each PS rank in PLS: 1/N for row placement, its share of all rows for table placement.

    The weight for table placement is reconstructed (docs/CPR.md).
    """
    num_ps, num_rows = placement.num_ps, sum(placement.cardinalities)
    by_rows = placement.kind == "table"
    return {ps_rank(k): placement.num_rows(k) / num_rows if by_rows else 1 / num_ps for k in range(num_ps)}


class PlsLedger(Resumable):
    """Portion of lost samples: each dead shard adds ``weight * (S_now - S_since) / S_total``.

    ``S_since`` is the later of the shard's last save and its last restore (reconstructed: docs/CPR.md). With
    ``since="save"`` restores do not count, so that a rank that dies twice after one save loses some samples twice. Only
    saves that close an interval count. Full recovery adds nothing, and takes back what ranks have added since its save:
    their samples are trained again.
    """

    _state = ("_since", "_losses")

    def __init__(
        self,
        weights: Mapping[Rank, float],
        total_samples: int,
        since: Literal["save_or_restore", "save"] = "save_or_restore",
    ) -> None:
        self._weights = dict(weights)
        self._total_samples = total_samples
        self._counts_restores = since == "save_or_restore"
        self._since = dict.fromkeys(weights, 0)
        self._losses: list[tuple[int, float]] = []  # samples, and the PLS added, that no rollback has undone

    @property
    def total(self) -> float:
        """The PLS of all ranks."""
        total = 0.0
        for _, added in self._losses:  # in the order of the losses, so that the bits are the same whatever was undone
            total += added
        return total

    def saved(self, samples: int) -> None:
        """Record the commit of a save of every shard at ``samples``. Called for saves that close an interval only.

        That other saves do not count is reconstructed (docs/CPR.md). For a shard that was restored after ``samples``,
        ``S_since`` stays at the restore.
        """
        self._since = {rank: max(since, samples) for rank, since in self._since.items()}

    def lost(self, rank: Rank, samples_now: int) -> float:
        """Record that ``rank`` died at ``samples_now`` and was restored without a rollback; returns the PLS it adds."""
        added = self._added_by(rank, samples_now)
        self._losses.append((samples_now, added))
        if self._counts_restores:
            self._since[rank] = samples_now
        return added

    def with_loss_of(self, ranks: Iterable[Rank], samples_now: int) -> float:
        """The PLS of all ranks if ``ranks`` died at ``samples_now`` and were restored without a rollback."""
        return self.total + sum(self._added_by(rank, samples_now) for rank in sorted(ranks))

    def _added_by(self, rank: Rank, samples_now: int) -> float:
        return self._weights[rank] * (samples_now - self._since[rank]) / self._total_samples

    def rolled_back(self, samples: int) -> None:
        """Record a full recovery to the checkpoint at ``samples``: all up to it is saved, no loss after it counts."""
        self._losses = [(at, added) for at, added in self._losses if at < samples]
        self._since = dict.fromkeys(self._weights, samples)


class UpdateCounter:
    """Counts the updates of a batch by rank, for all tables and for tracked tables."""

    def __init__(self, placement: Placement, tracked: tuple[int, ...]) -> None:
        ends = [0, *(table + end for table in tracked for end in (0, 1)), -1]
        # In the order of keys: where each rank begins, its tracked tables begin, end, begin, ..., and where it ends.
        self._local_RE = np.ascontiguousarray(placement.offsets_RT[:, ends])
        self._edges_RE = self._local_RE + placement.rank_base_R[:-1, None]

    def __call__(self, keys_N: NDArray[np.int64], counts_N: NDArray[np.int32]) -> tuple[list[int], list[int]]:
        """Sums by rank of ``counts_N``, the updates of rows ``keys_N`` (ascending): of all and of tracked tables."""
        sums_RE = sums_before(keys_N, counts_N, self._edges_RE.ravel()).reshape(self._edges_RE.shape)
        all_R = sums_RE[:, -1] - sums_RE[:, 0]
        tracked_R = sums_RE[:, 2:-1:2].sum(axis=1) - sums_RE[:, 1:-1:2].sum(axis=1)
        return all_R.tolist(), tracked_R.tolist()

    def of_rank(self, k: int, rows_N: NDArray[np.int64], counts_N: NDArray[np.int32]) -> tuple[int, int]:
        """The same sums of one rank's rows, as local flat rows (ascending)."""
        sums = sums_before(rows_N, counts_N, self._local_RE[k]).tolist()
        return sums[-1] - sums[0], sum(sums[2:-1:2]) - sum(sums[1:-1:2])


class UpdateLedger(Resumable):
    """Counts of the updates sent to each PS rank, persisted by saves, and lost: for all and for tracked tables.

    The trainer keeps this ledger from its own messages and the reports of saves, so that the counts survive the death
    of a shard. One update is one (sample, row).
    """

    _state = ("_counts", "_saving", "_checkpoints")

    def __init__(self, ranks: Iterable[Rank]) -> None:
        self._places = {rank: place for place, rank in enumerate(ranks)}
        self._counts = np.zeros((4, 2, len(self._places)), np.int64)  # what, of all and of tracked tables, rank
        self._saving = self._counts.copy()
        self._checkpoints: dict[Tier, NDArray[np.int64]] = {"shared": self._counts.copy()}  # the newest of each tier

    def sent(self, updates_R: Sequence[int], tracked_R: Sequence[int]) -> None:
        """Count the updates of one step by rank: to all tables, and to tracked tables among them."""
        self._counts[_SENT] += (updates_R, tracked_R)

    def freeze(self) -> None:
        """Note the counts of now, when the contents of a save are fixed: a rollback to this save returns to them.

        The save may be committed later, or never.
        """
        self._saving = self._counts.copy()

    def persisted(self, rank: Rank, updates: int, tracked: int) -> None:
        """Count the updates that a committed save persisted on ``rank``."""
        for counts in (self._counts, self._saving):
            counts[_PERSISTED, :, self._places[rank]] += (updates, tracked)

    def persisted_on_notice(self, rank: Rank, updates: int, tracked: int) -> None:
        """Count the updates that ``rank`` has saved alone before its death; a rollback to the last save voids that."""
        self._counts[_PERSISTED, :, self._places[rank]] += (updates, tracked)

    def committed(self, tier: Tier = "shared") -> None:
        """Record the commit, after all :meth:`persisted` calls. A rollback now returns to the counts of this save."""
        self._checkpoints[tier] = self._saving

    def lost(
        self, rank: Rank, in_flight: tuple[int, int] = (0, 0), recovered: tuple[int, int] = (0, 0)
    ) -> tuple[int, int]:
        """Record the death of ``rank`` under partial recovery; returns the lost updates, ``(all, tracked)``.

        ``in_flight``: updates that :meth:`sent` has counted and that are not lost, since their message is sent again to
        the replacement; negative if updates are lost that :meth:`sent` has not counted yet. ``recovered``: updates in
        rows that the replacement gets from the trainer's mirror. They count as neither lost nor persisted until a save
        holds them or the rank dies again.
        """
        counts_2 = self._counts[:, :, self._places[rank]]  # a view
        gone_2 = counts_2[_SENT] - counts_2[_PERSISTED] - counts_2[_LOST] - in_flight - recovered
        counts_2[_LOST] += gone_2
        counts_2[_RECOVERED] += recovered
        gone, gone_tracked = gone_2.tolist()
        return gone, gone_tracked

    def rolled_back(self, tier: Tier = "shared") -> tuple[int, int]:
        """Record a full recovery: all counts return to their values at the last checkpoint in ``tier``.

        Returns the updates that are lost, ``(all, tracked)``: those that the rows of the checkpoint lack. There are
        some only after priority saves, which leave rows of older versions in a checkpoint.
        """
        self._counts = self._checkpoints[tier].copy()
        gone_2R = self._counts[_SENT] - self._counts[_PERSISTED] - self._counts[_LOST]
        self._counts[_LOST] += gone_2R
        gone, gone_tracked = gone_2R.sum(axis=1).tolist()
        return gone, gone_tracked

    def totals(self) -> dict[str, float | None]:
        """The fields of the Finished event about updates: applied, lost, recovered, and PLS, of all and tracked tables.

        The updates of a repeated step count once. Recovered updates survived the death of their rank because the
        trainer's mirror held their rows. Update-weighted PLS is lost / applied updates; None without an update.
        """
        totals: dict[str, float | None] = {}
        sums_2 = self._counts.sum(axis=2).T.tolist()
        for of, pls, (applied, _, lost, recovered) in zip(("updates", "tracked"), _PLS, sums_2, strict=True):
            totals |= {f"applied_{of}": applied, f"lost_{of}": lost, f"recovered_{of}": recovered}
            totals[pls] = lost / applied if applied else None
        return totals


_SENT, _PERSISTED, _LOST, _RECOVERED = range(4)
_PLS = ("update_pls", "update_pls_tracked")
