"""What partial recovery loses, counted two ways.

Plain PLS (CPR section 4) counts samples and cannot see that a priority save wrote the rows that matter.
Update-weighted PLS counts updates, one per (sample, row), and can.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.placement import Placement
from harness.core.plans import Rank, ps_rank
from harness.kernels.lookup import sums_before


def rank_weights(placement: Placement) -> dict[Rank, float]:
    """How much of the model each PS rank is: 1/N for row placement, its share of all rows for table placement (R)."""
    return {ps_rank(index): placement.share(index) for index in range(placement.num_ps)}


class PlsLedger:
    """Portion of lost samples: each dead shard adds ``weight * (S_now - S_since) / S_total``.

    ``S_since`` is the later of the shard's last save and its last restore or, with ``since="save"``, its last save
    alone, which charges a rank that dies twice twice for the same samples (R). Full recovery adds nothing.
    """

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
        self.total = 0.0

    def saved(self, samples: int) -> None:
        """Every shard was saved at ``samples``, by a save that closes an interval: others do not count (R).

        Called when the save is committed. Of a shard that was restored since, samples still count from its restore.
        """
        self._since = {rank: max(since, samples) for rank, since in self._since.items()}

    def lost(self, rank: Rank, samples_now: int) -> float:
        """``rank`` died at ``samples_now`` and partial recovery goes on without what it had: the PLS that adds."""
        added = self._weights[rank] * (samples_now - self._since[rank]) / self._total_samples
        self.total += added
        return added

    def restored(self, rank: Rank, samples: int) -> None:
        """The shard of ``rank`` was replaced at ``samples``."""
        if self._counts_restores:
            self._since[rank] = samples

    def rolled_back(self, samples: int) -> None:
        """Full recovery took every rank back to the checkpoint at ``samples``: nothing is lost, nothing unsaved."""
        self._since = dict.fromkeys(self._weights, samples)


@dataclass
class _Tally:
    """Updates of one rank, all tables and tracked tables."""

    sent: int = 0
    persisted: int = 0
    lost: int = 0
    recovered: int = 0
    sent_tracked: int = 0
    persisted_tracked: int = 0
    lost_tracked: int = 0
    recovered_tracked: int = 0

    def copy(self) -> "_Tally":
        return _Tally(**vars(self))


class UpdateCounter:
    """Counts updates to each rank: to all tables, and to tracked ones."""

    def __init__(self, placement: Placement, tracked: tuple[int, ...]) -> None:
        ends = [0, *(table + end for table in tracked for end in (0, 1)), -1]
        # In the order of keys: where each rank begins, its tracked tables begin, end, begin, ..., and where it ends.
        edges_RE = placement.offsets_RT[:, ends] + placement.rank_base_R[:-1, None]
        self._edges_E = edges_RE.ravel()
        self._num_edges = edges_RE.shape[1]

    def __call__(self, keys_N: NDArray[np.int64], counts_N: NDArray[np.int32]) -> tuple[list[int], list[int]]:
        """For each rank the sum of ``counts_N``, the updates of rows ``keys_N`` (ascending): all, and tracked ones."""
        sums = sums_before(keys_N, counts_N, self._edges_E).tolist()
        all_R, tracked_R = [], []
        for first in range(0, len(sums), self._num_edges):
            begin, *ends, end = sums[first : first + self._num_edges]
            all_R.append(end - begin)
            tracked_R.append(sum(ends[1::2]) - sum(ends[::2]))
        return all_R, tracked_R


class UpdateLedger:
    """Updates sent to each PS rank, persisted by saves, lost with deaths; over all tables and over the tracked alone.

    Kept by the trainer, from what it sent and what saves reported, so that it survives the death of a shard.
    One update is one (sample, row).
    """

    def __init__(self, ranks: Mapping[Rank, object] | tuple[Rank, ...]) -> None:
        self._tallies = {rank: _Tally() for rank in ranks}
        self._saving, self._checkpoint = self._copy(), self._copy()

    def sent(self, rank: Rank, updates: int, tracked: int) -> None:
        """``rank`` was sent ``updates``, ``tracked`` of them to tracked tables. Called every step for every rank."""
        tally = self._tallies[rank]
        tally.sent += updates
        tally.sent_tracked += tracked

    def saving(self) -> None:
        """A save holds what was sent up to now. It is committed later, if at all."""
        self._saving = self._copy()

    def persisted(self, rank: Rank, updates: int, tracked: int) -> None:
        """The save of ``rank``, now committed, made so many updates safe."""
        for tally in (self._tallies[rank], self._saving[rank]):
            tally.persisted += updates
            tally.persisted_tracked += tracked

    def committed(self) -> None:
        """The checkpoint exists, its :meth:`persisted` counts are in: :meth:`rolled_back` returns to :meth:`saving`."""
        self._checkpoint = self._saving

    def lost(
        self, rank: Rank, in_flight: tuple[int, int] = (0, 0), recovered: tuple[int, int] = (0, 0)
    ) -> tuple[int, int]:
        """``rank`` died and partial recovery goes on. Returns the updates that are lost, ``(all, tracked)``.

        ``in_flight``: updates that count as sent, not persisted, and reach the replacement all the same, since their
        message is sent again; negative where a message is lost whose updates do not count as sent yet. ``recovered``:
        updates in salvaged rows, of which the trainer has a newer copy than the checkpoint; they count as neither lost
        nor persisted until a save holds them or the rank dies again.
        """
        tally = self._tallies[rank]
        gone = tally.sent - tally.persisted - tally.lost - in_flight[0] - recovered[0]
        gone_tracked = tally.sent_tracked - tally.persisted_tracked - tally.lost_tracked - in_flight[1] - recovered[1]
        tally.lost += gone
        tally.lost_tracked += gone_tracked
        tally.recovered += recovered[0]
        tally.recovered_tracked += recovered[1]
        return gone, gone_tracked

    def rolled_back(self) -> None:
        """Full recovery: every count is again what it was at the last checkpoint; the rerun counts once more."""
        self._tallies = {rank: tally.copy() for rank, tally in self._checkpoint.items()}

    def _copy(self) -> dict[Rank, _Tally]:
        return {rank: tally.copy() for rank, tally in self._tallies.items()}

    @property
    def applied_updates(self) -> int:
        """Updates sent to all ranks, those of a rerun once."""
        return sum(tally.sent for tally in self._tallies.values())

    @property
    def applied_tracked(self) -> int:
        """The same, to tracked tables."""
        return sum(tally.sent_tracked for tally in self._tallies.values())

    @property
    def lost_updates(self) -> int:
        """Updates lost so far."""
        return sum(tally.lost for tally in self._tallies.values())

    @property
    def lost_tracked(self) -> int:
        """The same, of tracked tables."""
        return sum(tally.lost_tracked for tally in self._tallies.values())

    @property
    def recovered_updates(self) -> int:
        """Updates that deaths would have lost, had the trainer not held their rows."""
        return sum(tally.recovered for tally in self._tallies.values())

    @property
    def recovered_tracked(self) -> int:
        """The same, of tracked tables."""
        return sum(tally.recovered_tracked for tally in self._tallies.values())

    @property
    def update_pls(self) -> float | None:
        """Updates lost / updates applied; None before the first."""
        return self.lost_updates / self.applied_updates if self.applied_updates else None

    @property
    def update_pls_tracked(self) -> float | None:
        """The same over tracked tables."""
        return self.lost_tracked / self.applied_tracked if self.applied_tracked else None
