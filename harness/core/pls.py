"""The portion of lost samples (PLS) under partial recovery, by samples and by updates.

Plain PLS (CPR section 4) counts samples, so it ignores which rows a priority save wrote. Update-weighted PLS counts
updates, one per (sample, row), so it includes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.placement import Placement
from harness.core.plans import Rank, ps_rank
from harness.core.resumable import Resumable
from harness.kernels.sorted_keys import sums_before


def rank_weights(placement: Placement) -> dict[Rank, float]:
    """The weight of each PS rank in PLS: 1/N for row placement, its share of all rows for table placement.

    The latter is reconstructed (docs/CPR.md).
    """
    return {ps_rank(index): placement.share(index) for index in range(placement.num_ps)}


class PlsLedger(Resumable):
    """Portion of lost samples: each dead shard adds ``weight * (S_now - S_since) / S_total``.

    ``S_since`` is the later of the shard's last save and its last restore or, with ``since="save"``, its last save
    alone, which counts the same samples twice for a rank that dies twice. The former is reconstructed (docs/CPR.md).
    Full recovery adds nothing.
    """

    _state = ("_since", "total")

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
        """Record a save of every shard at ``samples``. Only saves that close an interval are reported.

        That rule is reconstructed (docs/CPR.md). Called when the save is committed. For a shard that was restored after
        ``samples``, lost samples still count from its restore.
        """
        self._since = {rank: max(since, samples) for rank, since in self._since.items()}

    def lost(self, rank: Rank, samples_now: int) -> float:
        """Record the death of ``rank`` at ``samples_now`` under partial recovery; returns the increase of the PLS."""
        added = self._weights[rank] * (samples_now - self._since[rank]) / self._total_samples
        self.total += added
        return added

    def restored(self, rank: Rank, samples: int) -> None:
        """Record that the shard of ``rank`` was restored at ``samples``."""
        if self._counts_restores:
            self._since[rank] = samples

    def rolled_back(self, samples: int) -> None:
        """Record a full recovery to the checkpoint at ``samples``: no sample is lost and none is unsaved."""
        self._since = dict.fromkeys(self._weights, samples)


@dataclass
class _Tally:
    """Update counts of one rank."""

    sent: int = 0
    persisted: int = 0
    lost: int = 0
    recovered: int = 0

    def lose(self, in_flight: int, recovered: int) -> int:
        """Count what the death of the rank loses; see :meth:`UpdateLedger.lost`."""
        gone = self.sent - self.persisted - self.lost - in_flight - recovered
        self.lost += gone
        self.recovered += recovered
        return gone


_Tallies = dict[Rank, tuple[_Tally, _Tally]]  # of all tables, and of the tracked ones


class UpdateCounter:
    """Counts the updates of a batch by rank, for all tables and for tracked tables."""

    def __init__(self, placement: Placement, tracked: tuple[int, ...]) -> None:
        ends = [0, *(table + end for table in tracked for end in (0, 1)), -1]
        # In the order of keys: where each rank begins, its tracked tables begin, end, begin, ..., and where it ends.
        edges_RE = placement.offsets_RT[:, ends] + placement.rank_base_R[:-1, None]
        self._edges_E = edges_RE.ravel()
        self._num_edges = edges_RE.shape[1]

    def __call__(self, keys_N: NDArray[np.int64], counts_N: NDArray[np.int32]) -> tuple[list[int], list[int]]:
        """Sums of ``counts_N``, the updates of rows ``keys_N`` (ascending), by rank: of all and of tracked tables."""
        sums = sums_before(keys_N, counts_N, self._edges_E).tolist()
        all_R, tracked_R = [], []
        for first in range(0, len(sums), self._num_edges):
            begin, *ends, end = sums[first : first + self._num_edges]
            all_R.append(end - begin)
            tracked_R.append(sum(ends[1::2]) - sum(ends[::2]))
        return all_R, tracked_R


class UpdateLedger(Resumable):
    """Counts of the updates sent to each PS rank, persisted by saves, and lost: for all and for tracked tables.

    The trainer keeps it, from its own messages and the reports of saves, so that it survives the death of a shard.
    One update is one (sample, row).
    """

    _state = ("_tallies", "_saving", "_checkpoint")
    _state_types = (_Tally,)

    def __init__(self, ranks: Mapping[Rank, object] | tuple[Rank, ...]) -> None:
        self._tallies: _Tallies = {rank: (_Tally(), _Tally()) for rank in ranks}
        self._saving, self._checkpoint = _copy(self._tallies), _copy(self._tallies)

    def sent(self, updates_R: Sequence[int], tracked_R: Sequence[int]) -> None:
        """Count the updates of one step by rank: to all tables, and those of them to tracked tables."""
        for (all_tables, tracked_tables), updates, tracked in zip(
            self._tallies.values(), updates_R, tracked_R, strict=True
        ):
            all_tables.sent += updates
            tracked_tables.sent += tracked

    def saving(self) -> None:
        """Record that a save now holds all updates sent so far. Its commit may follow later, or never."""
        self._saving = _copy(self._tallies)

    def persisted(self, rank: Rank, updates: int, tracked: int) -> None:
        """Count the updates that the save of ``rank``, now committed, persisted."""
        for tallies in (self._tallies, self._saving):
            for tally, number in zip(tallies[rank], (updates, tracked), strict=True):
                tally.persisted += number

    def committed(self) -> None:
        """Record the commit, after all :meth:`persisted` calls: :meth:`rolled_back` returns to its :meth:`saving`."""
        self._checkpoint = self._saving

    def lost(
        self, rank: Rank, in_flight: tuple[int, int] = (0, 0), recovered: tuple[int, int] = (0, 0)
    ) -> tuple[int, int]:
        """Record the death of ``rank`` under partial recovery; returns the lost updates, ``(all, tracked)``.

        ``in_flight``: updates that count as sent but not as persisted, and are not lost, since their message is sent to
        the replacement again; negative if updates are lost that do not count as sent yet. ``recovered``: updates in
        rows that the replacement gets from the trainer's mirror, newer than the checkpoint; they count as neither lost
        nor persisted until a save holds them or the rank dies again.
        """
        gone, gone_tracked = map(_Tally.lose, self._tallies[rank], in_flight, recovered)
        return gone, gone_tracked

    def rolled_back(self) -> None:
        """Record a full recovery: all counts return to their values at the last checkpoint."""
        self._tallies = _copy(self._checkpoint)

    def totals(self) -> dict[str, float | None]:
        """Fields of the last event, of all tables and of the tracked: updates applied, lost and recovered, and PLS.

        Repeated steps are applied once. Recovered updates survived the death of their rank because the trainer's mirror
        held their rows. Update-weighted PLS is lost / applied updates, None before the first update.
        """
        totals: dict[str, float | None] = {}
        for place, (of, pls) in enumerate((("updates", "update_pls"), ("tracked", "update_pls_tracked"))):
            tallies = [both[place] for both in self._tallies.values()]
            applied, lost = sum(tally.sent for tally in tallies), sum(tally.lost for tally in tallies)
            recovered = sum(tally.recovered for tally in tallies)
            totals |= {f"applied_{of}": applied, f"lost_{of}": lost, f"recovered_{of}": recovered}
            totals[pls] = lost / applied if applied else None
        return totals


def _copy(tallies: _Tallies) -> _Tallies:
    return {rank: (replace(all_tables), replace(tracked)) for rank, (all_tables, tracked) in tallies.items()}
