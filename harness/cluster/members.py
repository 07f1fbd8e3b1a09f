"""The table of members: the one place that says which ranks of a run are lost."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from harness.core.plans import Rank, rank_order


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How a rank was lost. It counts as lost until the trainer has had it replaced.

    Attributes:
        why: in words; of the first loss, if it was lost again before it was replaced.
        is_planned: whether a planned fault struck it.
        old_pid: of the process that died, if another one has the name already.
    """

    why: str
    is_planned: bool = False
    old_pid: int | None = None


class Members:
    """The losses of ranks. A rank that is not in the table lives.

    A rank is lost by a planned fault, by its end that the supervisor sees, by a deadline, or with its host.
    """

    def __init__(self) -> None:
        self._losses: dict[Rank, Loss] = {}

    def lose(self, rank: Rank, why: str, *, is_planned: bool = False, old_pid: int | None = None) -> None:
        """Count ``rank`` as lost; one that is lost already keeps its first reason."""
        loss = self._losses.get(rank, Loss(why=why))
        is_planned, old_pid = loss.is_planned or is_planned, old_pid or loss.old_pid
        self._losses[rank] = replace(loss, is_planned=is_planned, old_pid=old_pid)

    def loss(self, rank: Rank) -> Loss | None:
        """How ``rank`` was lost; None if it lives."""
        return self._losses.get(rank)

    @property
    def lost(self) -> dict[Rank, str]:
        """The lost ranks, in rank order, and why."""
        return {rank: self._losses[rank].why for rank in sorted(self._losses, key=rank_order)}

    @property
    def planned(self) -> list[Rank]:
        """The lost ranks that a planned fault has struck, in rank order."""
        return [rank for rank in self.lost if self._losses[rank].is_planned]

    def count_as_living(self, ranks: Collection[Rank]) -> None:
        """Forget the losses of ``ranks``, which have been replaced."""
        for rank in ranks:
            self._losses.pop(rank, None)
