"""The table of members: the one place that says which ranks of a run are lost."""

from collections.abc import Collection

from harness.core.plans import Rank, rank_order


class Members:
    """The losses of ranks. A rank that is not in the table lives.

    A rank is lost by a planned fault, by its end that the supervisor sees, by a deadline, or with its host. It counts
    as lost until the trainer has had it replaced.
    """

    def __init__(self) -> None:
        self._reasons: dict[Rank, str] = {}  # in words
        self._planned: set[Rank] = set()  # that a planned fault has struck

    def lose(self, rank: Rank, why: str, *, is_planned: bool = False) -> None:
        """Count ``rank`` as lost; one that is lost already keeps its first reason."""
        self._reasons.setdefault(rank, why)
        if is_planned:
            self._planned.add(rank)

    @property
    def lost(self) -> dict[Rank, str]:
        """The lost ranks, in rank order, and why."""
        return {rank: self._reasons[rank] for rank in sorted(self._reasons, key=rank_order)}

    @property
    def planned(self) -> list[Rank]:
        """The lost ranks that a planned fault has struck, in rank order."""
        return sorted(self._planned, key=rank_order)

    def count_as_living(self, ranks: Collection[Rank]) -> None:
        """Forget the losses of ``ranks``, which have been replaced."""
        for rank in ranks:
            self._reasons.pop(rank, None)
            self._planned.discard(rank)
